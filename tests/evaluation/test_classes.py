"""Figures for labels and numbers are those of scikit-learn and scipy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.evaluation.classes import confusion, macro_f1, pearson, spearman

LABELS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40)
NUMBERS = st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), min_size=2, max_size=40)


@given(LABELS)
@settings(max_examples=60, deadline=None)
def test_labels(pairs):
    metrics = pytest.importorskip("sklearn.metrics")
    truth, found = zip(*pairs, strict=True)
    matrix = confusion(truth, found, 5)
    assert (matrix == metrics.confusion_matrix(truth, found, labels=range(5))).all()
    assert macro_f1(matrix) == pytest.approx(metrics.f1_score(truth, found, average="macro", zero_division=0))


@given(NUMBERS)
@settings(max_examples=60, deadline=None)
def test_numbers(pairs):
    stats = pytest.importorskip("scipy.stats")
    first, second = (np.array(values, dtype=float) for values in zip(*pairs, strict=True))
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        assert pearson(first, second) == spearman(first, second) == 0.0
    else:
        assert pearson(first, second) == pytest.approx(stats.pearsonr(first, second)[0], abs=1e-9)
        assert spearman(first, second) == pytest.approx(stats.spearmanr(first, second)[0], abs=1e-9)


def test_by_hand():
    matrix = confusion([0, 0, 1, 1], [0, 1, 1, 1], 3)
    assert matrix.tolist() == [[1, 1, 0], [0, 2, 0], [0, 0, 0]]
    assert macro_f1(matrix) == pytest.approx((2 / 3 + 4 / 5) / 2)  # the third class does not occur
    assert spearman([1, 2, 3, 4], [10, 20, 20, 900]) == pytest.approx(3 / np.sqrt(10))
