"""The figures are sacrebleu's own, to the last digit."""

import csv
import random

import pytest
from sacrebleu.metrics import BLEU

from heedful.evaluation.compare import by_length, compare, worst
from heedful.evaluation.metrics import one_score, quick_score, rouge_l, score, tokenization
from tests.shared_data import shared

NAMES = {"bleu": "bleu_default", "chrf": "chrf2", "ter": "ter"}


@pytest.fixture(scope="module")
def systems():
    """Four real systems' outputs, and what sacrebleu 2.6.0 says of them."""
    folder = shared("mt-eval-flores-en-de")
    header, *rows = [line.split("\t") for line in (folder / "outputs.tsv").read_text(encoding="utf-8").splitlines()]
    columns = dict(zip(header, zip(*rows, strict=True), strict=True))
    with (folder / "sacrebleu-2.6.0.tsv").open(encoding="utf-8") as file:
        truth = {(row["system"], row["metric"]): row for row in csv.DictReader(file, delimiter="\t")}
    return columns, truth


@pytest.mark.parametrize("system", ["bergamot-base-memory", "bergamot-tiny", "google", "microsoft"])
def test_scores_and_signatures_are_the_published_ones(systems, system):
    columns, truth = systems
    found = score(columns[system], [columns["ref"]], language="de")
    for ours, theirs in NAMES.items():
        assert f"{found[ours].value:.6f}" == truth[system, theirs]["score"]
        assert found[ours].signature == truth[system, theirs]["signature"]
    quick = quick_score(columns[system], columns["ref"])
    assert f"{quick['bleu']:.6f}" == truth[system, "bleu_default"]["score"]


def test_chinese_is_compared_by_characters():
    found = score(["我爱狗"], [["我爱猫"]], language="zh")
    assert found["ter"].value == pytest.approx(100 / 3) and "asian:yes" in found["ter"].signature
    assert "tok:zh" in found["bleu"].signature


def test_systems_are_compared_with_the_first(systems):
    columns, _ = systems
    names = ["bergamot-tiny", "google", "bergamot-base-memory"]
    found = compare({name: columns[name] for name in names}, [columns["ref"]], samples=200)
    bleu = {one.system: one for one in found if one.metric == "BLEU"}
    assert bleu["bergamot-tiny"].p_value is None
    assert bleu["google"].p_value < 0.01
    assert bleu["google"].score > bleu["bergamot-tiny"].score


def test_chinese_is_cut_into_characters():
    found = score(["我 喜欢 你。"], [["我 喜欢 你。"]], language="zh")
    assert found["bleu"].value == pytest.approx(100) and "tok:zh" in found["bleu"].signature


def test_exact_match_counts_any_reference():
    assert score(["a", "b", "c"], [["a", "x", "x"], ["x", "b ", "x"]])["exact"].value == pytest.approx(200 / 3)


def test_unequal_references_are_refused():
    with pytest.raises(ValueError, match="2 translations, but 3 references; the numbers must match"):
        score(["a", "b"], [["a", "b", "c"]])


def test_results_by_length_and_the_worst():
    sources = ["one two", "one two three four five six seven", "x " * 50]
    hypotheses, references = ["gut", "ganz falsch hier", "lang"], ["gut", "xyz", "lang"]
    assert [(name, count) for name, count, _ in by_length(sources, hypotheses, references)] == [
        ("1-5", 1), ("6-10", 1), ("41+", 1),
    ]  # fmt: skip
    assert worst(sources, hypotheses, references, count=1)[0]["reference"] == "xyz"


@pytest.mark.parametrize(("texts", "language", "tokenize", "name"), [
    (["我爱猫。", "他喜欢狗。"], "", "", "zh"),
    (["I love Beijing 北京."] * 3, "", "", "13a"),
    (["わたしは猫が好きです。"], "", "", "char"),
    (["ฉันรักแมว"], "", "", "char"),
    (["나는 고양이를 좋아한다."], "", "", "13a"),
    (["我爱猫。"], "de", "", "13a"),
    (["a b"], "zh-CN", "", "zh"),
    (["a b"], "zh", "char", "char"),
    ([], "", "", "13a"),
])  # fmt: skip
def test_bleus_tokenizer_is_what_was_asked_for_or_suits_language_or_script(texts, language, tokenize, name):
    assert tokenization(texts, language=language, tokenize=tokenize).name == name


def test_chinese_without_a_language_key_does_not_score_zero():
    references, texts = ["我爱我的小猫。", "他喜欢大狗。"], ["我爱我的大猫。", "他喜欢小狗。"]
    found = score(texts, [references])["bleu"]
    assert found.value > 5 and "tok:zh" in found.signature
    assert found.value == pytest.approx(BLEU(tokenize="zh").corpus_score(texts, [references]).score)
    with pytest.raises(ValueError, match="BLEU has no tokenizer 'klingon'; known: 13a, zh"):
        score(texts, [references], tokenize="klingon")


def test_equal_scores_never_look_significant():
    references = ["3", "7", "1", "9"] * 10
    found = compare({"one": ["7"] * 40, "other": ["9"] * 40}, [references], samples=100)
    bleu = [result for result in found if result.metric == "BLEU"]
    assert [result.score for result in bleu] == [0.0, 0.0]
    assert [result.p_value for result in bleu] == [None, 1.0]


def test_rouge_l_is_that_of_rouge_score_where_its_words_are_ours():
    scorer = pytest.importorskip("rouge_score.rouge_scorer").RougeScorer(["rougeL"])
    chance = random.Random(3)
    pairs = [tuple(" ".join(chance.choices("abcdefg", k=chance.randint(0, 13))) for _ in range(2)) for _ in range(97)]
    theirs = [scorer.score(second, first)["rougeL"].fmeasure for first, second in pairs]
    ours = [rouge_l([first], [second]) for first, second in pairs]
    assert ours == pytest.approx([100 * one for one in theirs])
    assert rouge_l(*zip(*pairs, strict=True)) == pytest.approx(100 * sum(theirs) / len(pairs))
    assert rouge_l(["今天 天气 很好"], ["今天 天气 很好"]) == 100 == one_score("rouge", ["ç à"], ["ç à"]).value


def test_a_corpus_is_scored_by_the_metric_it_names():
    written, wanted = ["a b", "c d"], ["a b", "c e"]
    assert one_score("accuracy", written, wanted).value == one_score("exact", written, wanted).value == 50
    for name in ("bleu", "chrf"):
        assert one_score(name, written, wanted) == score(written, [wanted])[name]
