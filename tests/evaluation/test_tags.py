"""Entities are counted as seqeval counts them."""

import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.evaluation.tags import count_entities, count_words, entities

TAG = st.sampled_from(["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-a-b", "I-a-b"])
SENTENCES = st.lists(st.lists(st.tuples(TAG, TAG), min_size=1, max_size=9), min_size=1, max_size=5)


@settings(deadline=None)  # the first call imports scikit-learn
@given(SENTENCES)
def test_scores_are_seqevals_in_strict_mode(sentences):
    metrics = pytest.importorskip("seqeval.metrics")
    from seqeval.scheme import IOB2

    truth = [[wanted for wanted, _ in sentence] for sentence in sentences]
    answers = [[found for _, found in sentence] for sentence in sentences]
    counts = count_entities(truth, answers)
    keys = {"mode": "strict", "scheme": IOB2}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = metrics.classification_report(truth, answers, output_dict=True, **keys) if counts.types else {}
        theirs = [score(truth, answers, **keys) if counts.types else 0.0
                  for score in (metrics.precision_score, metrics.recall_score, metrics.f1_score)]  # fmt: skip
    assert counts.scores() == pytest.approx(theirs)
    assert counts.types == [kind for kind in report if not kind.endswith(" avg")]
    for kind in counts.types:
        assert counts.scores(kind) == pytest.approx([report[kind][key] for key in ("precision", "recall", "f1-score")])
        assert counts.wanted[kind] == report[kind]["support"]
    assert count_words(truth, answers).scores()[1] == pytest.approx(metrics.accuracy_score(truth, answers))


def test_an_entity_starts_with_b_and_ends_where_its_type_does():
    assert entities(["I-A", "B-A", "I-A", "I-B", "B-B", "B-B", "I-B", "O", "I-B"]) == [
        ("A", 1, 3),
        ("B", 4, 5),
        ("B", 5, 7),
    ]
    assert entities(["B", "I", "O"]) == [("_", 0, 2)]


def test_of_words_with_one_tag_each_f1_is_the_accuracy():
    precision, recall, f1 = count_words([["N", "V", "N"]], [["N", "N", "N"]]).scores()
    assert precision == recall == f1 == pytest.approx(2 / 3)
