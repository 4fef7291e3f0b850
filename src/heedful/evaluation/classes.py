"""Figures for labels and numbers: accuracy, F1, confusion matrix, correlations."""

from collections.abc import Sequence

import numpy as np

Floats = Sequence[float] | np.ndarray


def confusion(truth: Sequence[int], found: Sequence[int], classes: int) -> np.ndarray:
    """How often each class (row) was taken for each class (column)."""
    pairs = np.asarray(truth, dtype=np.int64) * classes + np.asarray(found, dtype=np.int64)
    return np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)


def f1_by_class(right: np.ndarray, wanted: np.ndarray, found: np.ndarray) -> np.ndarray:
    """2 right / (wanted + found) of each class; 0 for a class that is neither wanted nor found."""
    both = wanted + found
    return np.divide(2 * right, both, out=np.zeros(len(both)), where=both > 0)


def macro_f1(matrix: np.ndarray) -> float:
    """The mean F1 of the classes that occur, among the examples or the answers, as scikit-learn defines it."""
    wanted, found = matrix.sum(1), matrix.sum(0)
    occurs = wanted + found > 0
    return float(f1_by_class(np.diag(matrix), wanted, found)[occurs].mean()) if occurs.any() else 0.0


def pearson(first: Floats, second: Floats) -> float:
    """The linear correlation; 0 where one side never varies, for which it is not defined."""
    x, y = (np.asarray(values, dtype=np.float64) - np.mean(values) for values in (first, second))
    norm = float(np.sqrt((x * x).sum() * (y * y).sum()))
    return float((x * y).sum()) / norm if norm else 0.0


def spearman(first: Floats, second: Floats) -> float:
    """The correlation of the ranks; equal values share the mean of their ranks."""
    return pearson(_ranks(first), _ranks(second))


def _ranks(values: Floats) -> np.ndarray:
    _, places, counts = np.unique(np.asarray(values, dtype=np.float64), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[places]
