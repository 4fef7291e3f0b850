"""Exact match and F1 of answers, beside torchmetrics."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.evaluation.squad import best_threshold, f1, normalise, scores

WORDS = ["The", "a", "an", "cat", "Cat,", "sat", "on", "mat.", "the-mat", "\u00fcber", "\u4e2d", "U.S.", "1,000", "--"]
PHRASES = st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join)
ANSWERS = st.lists(PHRASES.filter(normalise), min_size=1, max_size=4)  # with a word: SQuAD 2.0 ignores "the"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(PHRASES, ANSWERS), min_size=1, max_size=8))
def test_they_are_torchmetrics(rows):
    squad = pytest.importorskip("torchmetrics.functional.text").squad
    theirs = squad(
        [{"prediction_text": found, "id": str(row)} for row, (found, _) in enumerate(rows)],
        [
            {"answers": {"answer_start": [0] * len(wanted), "text": wanted}, "id": str(row)}
            for row, (_, wanted) in enumerate(rows)
        ],
    )
    ours = scores([found for found, _ in rows], [wanted for _, wanted in rows])
    assert ours["em"] == pytest.approx(float(theirs["exact_match"]), abs=1e-3)
    assert ours["f1"] == pytest.approx(float(theirs["f1"]), abs=1e-3)


def test_no_answer_is_right_where_there_is_none():
    found = scores(["", "the cat", "cat", ""], [[], [], ["a cat", "dog"], ["dog"]])
    assert found == {
        "em": 50.0, "f1": 50.0, "has_answer_em": 50.0, "has_answer_f1": 50.0, "no_answer_em": 50.0,
    }  # fmt: skip
    assert f1("the", "a") == 1.0  # nothing is left of either, as in SQuAD 2.0's script
    assert f1("the", "cat") == 0.0


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([-2.0, -1.0, 0.5, 3.0]), st.sampled_from(["cat", "dog"]), st.booleans()),
                min_size=1, max_size=8))  # fmt: skip
def test_no_threshold_is_better_than_the_one_chosen(rows):
    """Beside trying every threshold there is."""
    advantage, found, has = (list(column) for column in zip(*rows, strict=True))
    wanted = [["cat"] if one else [] for one in has]

    def score(threshold):
        return scores([text if value <= threshold else "" for text, value in zip(found, advantage, strict=True)],
                      wanted)["f1"]  # fmt: skip

    chosen = best_threshold(advantage, found, wanted)
    assert score(chosen) == pytest.approx(max(score(value) for value in [-9.0, *advantage]))


def test_nothing_to_score_is_an_error():
    with pytest.raises(ValueError, match="no answers to score"):
        scores([], [])
