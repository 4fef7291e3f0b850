"""The report finds what is there, and only that."""

import pytest

from heedful.data import check as module
from heedful.data.check import check, wrong_language
from heedful.data.corpus import Fault, Line
from heedful.data.inputs import Inputs


def lines(pairs):
    return [Line("f", number, pair) for number, pair in enumerate(pairs, start=1)]


def noticed(report):
    return {name: finding.count for name, finding in report.noticed.items() if finding.count}


LONG = [(f"this is sentence number {n}", f"das ist der Satz Nummer {n}") for n in range(50)]


def test_a_clean_corpus_gives_nothing_to_notice():
    report = check(lines(LONG))
    assert (report.lines, report.usable) == (50, 50)
    assert noticed(report) == {} and report.skipped == {}


def test_every_kind_of_finding():
    odd = [
        ("same here", "same here"),
        ("cafÃ© au lait", "StraÃŸe Ã„rger"),
        ("bell\x07", "Glocke"),
        ("short one, nothing more", "viel zu lang " * 20),
        LONG[3],
        LONG[3],
    ]
    report = check([*lines(LONG + odd), Fault("f", 99, "invalid UTF-8")])
    assert noticed(report) == {
        "identical sides": 1,
        "mojibake": 1,
        "control characters": 1,
        "duplicate pairs": 2,
        "unlikely length ratio (swapped or misaligned?)": 1,
    }
    assert report.noticed["mojibake"].where == ["f:52"]
    assert report.noticed["unlikely length ratio (swapped or misaligned?)"].where == ["f:54"]
    assert report.skipped["invalid UTF-8"].count == 1
    assert (report.lines, report.usable) == (57, 56)


def test_umlauts_and_accents_are_no_mojibake():
    assert "mojibake" not in noticed(check(lines([("Ã la carte? À la carte, Âge, Mädchen", "x" * 30)])))


def test_leakage_exact_and_nearly():
    others = [Line("valid", 1, LONG[7]), Line("valid", 2, ("THIS IS sentence number 9!", "anders"))]
    found = noticed(check(lines(LONG), others=others))
    assert found == {"also in validation or test": 1, "source almost the same as in validation or test": 1}


def test_duplicates_are_counted_exactly_when_hashes_go_to_disk(monkeypatch):
    monkeypatch.setattr(module._Distinct, "HELD", 10)
    assert noticed(check(lines(LONG + LONG[:13])))["duplicate pairs"] == 13


def test_quantiles_of_lengths():
    report = check(lines([("w " * length, "x y z") for length in range(1, 101)]))
    assert report.sides[0].quantiles() == [50, 90, 99, 100]
    assert report.sides[0].total_words == 5050 and report.words == 5350


def test_long_lines_of_a_ratio_common_to_all_are_not_suspect():
    pairs = [("a" * 20, "b" * 100) for _ in range(50)]
    assert noticed(check(lines([(f"{s}{n}", f"{t}{n}") for n, (s, t) in enumerate(pairs)]))) == {}


def test_as_data_is_plain():
    import json

    assert json.loads(json.dumps(check(lines(LONG)).as_data()))["usable"] == 50


@pytest.mark.parametrize("nothing", [[], [Fault("f", 1, "empty line")]])
def test_nothing_usable(nothing):
    assert check(nothing).usable == 0


def test_lines_in_another_language_are_found_where_languages_are_given(tmp_path):
    pytest.importorskip("py3langid")
    rows = [
        ("The cat sleeps on the old wooden chair.", "Die Katze schläft auf dem alten Stuhl aus Holz."),
        ("Das Wetter ist heute wirklich sehr schön.", "The weather is really very nice today."),
        ("We are going to the market tomorrow morning.", "Nous allons au marché demain matin avec eux."),
        ("Yes.", "Oui."),  # too short to tell
    ]
    (tmp_path / "p.tsv").write_text("".join(f"{one}\t{other}\n" for one, other in rows), encoding="utf-8")
    found = wrong_language(Inputs((tmp_path / "p.tsv",)).read("train"), ("en", "de"))
    assert {name: finding.where for name, finding in found.items()} == {
        "source is not en, but looks like de": ["p.tsv:2"],
        "target is not de, but looks like en": ["p.tsv:2"],
        "target is not de, but looks like fr": ["p.tsv:3"],
    }
    only = wrong_language(Inputs((tmp_path / "p.tsv",)).read("train"), ("", "de"))
    assert all(name.startswith("target") for name in only)
    with pytest.raises(ValueError, match="py3langid does not know the language 'xx'; it knows: "):
        wrong_language(Inputs((tmp_path / "p.tsv",)).read("train"), ("xx", ""))
