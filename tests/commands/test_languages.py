"""--from and --to, wherever a model of several languages is asked."""

import json

import pytest

from heedful.decoding.runner import Request
from heedful.translator import load
from tests.commands.in_process import refused, run
from tests.serving.test_languages import many

UNKNOWN = "this model does not know the language 'xx'; trained directions: en-de, de-en, en-fr, fr-en"
SEVERAL = "this model knows several directions; name the"
TEXTS = ["a b", "c d e"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """An untrained model of three languages, and pairs."""
    folder = tmp_path_factory.mktemp("languages")
    many(folder, steps=2)
    (folder / "p.tsv").write_text("a b\tc d\nb c d\te f g\n")
    return folder


@pytest.fixture
def said(monkeypatch, capsys, place):
    monkeypatch.chdir(place)
    return lambda *arguments: run(monkeypatch, capsys, *arguments)


@pytest.mark.parametrize(
    "command",
    [
        ["translate", "many", "-i", "t.txt"], ["predict", "many", "a b"], ["score", "many", "p.tsv"],
        ["plot", "attention", "many", "a b"], ["inspect", "many", "a b"], ["evaluate", "many", "p.tsv"],
        ["distill", "many", "t.txt", "-o", "x.tsv"],
    ],
    ids=lambda command: command[0],
)  # fmt: skip
def test_every_command_refuses_with_the_same_words(place, said, monkeypatch, capsys, command):
    (place / "t.txt").write_text("a b\n")
    assert UNKNOWN in refused(monkeypatch, capsys, *command, "--from", "en", "--to", "xx")
    assert f"{SEVERAL} source and target language" in refused(monkeypatch, capsys, *command)


def test_predict_writes_what_translate_writes(place, said):
    assert said("predict", "many", *TEXTS, "--from", "en", "--to", "fr").splitlines() == [
        one.text for one in load(place / "many").translate(TEXTS, source="en", target="fr")
    ]


def test_other_tasks_have_no_languages(tmp_path, monkeypatch, capsys):
    from tests.security import fuzz

    fuzz.classifier(tmp_path / "it")
    message = "languages are for translators; leave them out"
    assert message in refused(monkeypatch, capsys, "predict", tmp_path / "it", "fox", "--to", "de")


def test_scores_are_those_of_the_direction(place, said):
    model = load(place / "many")
    pairs = [("a b", "c d"), ("b c d", "e f g")]
    rows = [json.loads(line) for line in said("score", "many", "many", "p.tsv", "--json", "--from", "en", "--to",
            "de").splitlines()]  # fmt: skip
    assert [row["tokens"] for row in rows] == model.score(pairs, source="en", target="de")
    back = model.score([(target, source) for source, target in pairs], source="de", target="en")
    assert [row["back_tokens"] for row in rows] == back


def test_the_picture_has_the_language_token(place, said, monkeypatch):
    from heedful.inspection import plots

    drawn = []
    monkeypatch.setattr(plots, "draw_attention", lambda seen, out, **more: drawn.append(seen) or out)
    said("plot", "attention", "many", "a b", "--from", "en", "--to", "fr")
    assert "<2fr>" in [*drawn[0].source, *drawn[0].read]


def test_distilled_texts_are_in_the_language_asked_for(place, said):
    (place / "t.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    said("distill", "many", "t.txt", "-o", "french.tsv", "--keep-all", "--from", "en", "--to", "fr")
    assert rows_of(place / "french.tsv") == written(place, [(text, "en", "fr") for text in TEXTS])


FORMS = {
    "text.jsonl": lambda rows: "".join(json.dumps({"text": t, "from": a, "to": b}) + "\n" for t, a, b in rows),
    "pairs.jsonl": lambda rows: "".join(
        json.dumps({"source": t, "target": "x", "from": a, "to": b}) + "\n" for t, a, b in rows
    ),
    "table.tsv": lambda rows: "from\tto\tsource\n" + "".join(f"{a}\t{b}\t{t}\n" for t, a, b in rows),
    "table.csv": lambda rows: "text,from,to,more\n" + "".join(f"{t},{a},{b},x\n" for t, a, b in rows),
}


@pytest.mark.parametrize("name", FORMS)
def test_each_row_may_name_its_languages(place, said, name):
    rows = [("a b", "en", "de"), ("c d", "fr", "en"), ("e f", "", "fr"), ("g h", "en", "")]
    (place / name).write_text(FORMS[name](rows))
    said("distill", "many", name, "-o", f"{name}.out", "--keep-all", "--from", "en", "--to", "de")
    whole = [(text, source or "en", target or "de") for text, source, target in rows]
    assert rows_of(place / f"{name}.out") == written(place, whole)


def test_a_row_of_an_unknown_language_is_filtered_with_the_reason(place, said):
    rows = [{"text": "a b", "from": "en", "to": "de"}, {"text": "c d", "from": "en", "to": "xx"}, {"text": "e"}]
    (place / "odd.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said("distill", "many", "odd.jsonl", "-o", "odd.tsv")
    listed = (place / "odd.tsv.filtered.tsv").read_text()
    assert "2\tthe model does not translate from en to xx\t" in listed
    assert "3\tthe model does not translate from ? to ?\t" in listed


def rows_of(file):
    return [tuple(line.split("\t")) for line in file.read_text().splitlines()]


def written(place, rows):
    asked = [Request(text, source=source, target=target) for text, source, target in rows]
    return [(text, one.text) for (text, _, _), one in zip(rows, load(place / "many").translate(asked), strict=True)]
