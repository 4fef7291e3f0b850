"""ROUGE: rouge-score's figures for English, and sensible ones for every script."""

import random

import pytest

from heedful.evaluation.rouge import NAMES, Words, by_line, lead, rouge

pytest.importorskip("rouge_score")
SCRIPTS = {
    "Chinese": "机器翻译很难。模型会学习。",
    "Japanese": "機械は学ぶ。とても速い。",
    "Thai": "เรียนรู้เร็ว",
    "Hindi": "मशीन सीखती है।",
    "Arabic": "الآلة تتعلم.",
    "Russian": "Машина учится. Это трудно.",
    "Greek": "Η μηχανή μαθαίνει.",
    "Hebrew": "המכונה לומדת.",
    "Korean": "기계가 배운다.",
    "Spanish": "El niño añadió más.",
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_identical_texts_score_100_in_every_script(script):
    text = SCRIPTS[script]
    assert {name: one.value for name, one in rouge([text], [[text]]).items()} == dict.fromkeys(NAMES, 100.0)
    other = rouge([text], [["xyz"]])
    assert other["rouge1"].value == 0


def test_part_of_a_chinese_text_scores_in_proportion():
    found = rouge(["机器翻"], [["机器很难"]])  # two of three characters, two of four
    assert found["rouge1"].value == pytest.approx(100 * 2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4))


@pytest.mark.parametrize("stem", [False, True])
def test_english_has_the_figures_of_rouge_score(stem):
    from rouge_score.rouge_scorer import RougeScorer

    chance, theirs = random.Random(3), RougeScorer(list(NAMES), use_stemmer=stem)
    words = "Models model modelling the learned LEARNING 3.5 learners' state-of-the-art a running runs. Texts!".split()  # noqa: SIM905
    hypotheses, references, wanted = [], [], dict.fromkeys(NAMES, 0.0)
    for _ in range(23):
        texts = [" ".join(chance.choices(words, k=chance.randint(3, 29))) for _ in range(4)]
        hypotheses.append(texts[0])
        references.append(texts[1 : chance.randint(2, 4)])
        scores = theirs.score_multi([by_line(text) for text in references[-1]], by_line(texts[0]))
        wanted = {name: wanted[name] + 100 * scores[name].fmeasure / 23 for name in NAMES}
    found = rouge(hypotheses, references, stem=stem)
    assert {name: one.value for name, one in found.items()} == pytest.approx(wanted)
    assert f"stem:{'porter' if stem else 'no'}" in found["rouge1"].signature
    assert "refs:1-3,best" in found["rouge1"].signature


def test_swapped_sentences_differ_in_l_but_not_in_lsum():
    found = rouge(["The cat sat. A dog ran."], [["A dog ran. The cat sat."]])
    assert found["rougeL"].value == pytest.approx(50) and found["rougeLsum"].value == pytest.approx(100)


def test_accents_and_case():
    assert Words().tokenize("El niño, AÑADIÓ; 3,5") == ["el", "niño", "añadió", "3", "5"]
    assert lead("One is. Two are. Three too.", 2) == "One is. Two are."


def test_errors():
    with pytest.raises(ValueError, match="2 texts, but references for 1"):
        rouge(["a", "b"], [["a"]])
    with pytest.raises(ValueError, match="a text has no reference"):
        rouge(["a"], [[]])
