"""From scores to rankings, and from several rankings to one."""

from collections.abc import Sequence

import numpy as np

Ranking = list[tuple[int, float]]  # documents by number and their scores, best first
CONSTANT = 60  # of reciprocal rank fusion; the authors' choice


def top(scores: np.ndarray, k: int, *, above: float = -np.inf) -> Ranking:
    """The k best documents with scores greater than `above`; among equal scores, the first document comes first."""
    k = min(k, len(scores))
    if not k:
        return []
    threshold = np.partition(scores, len(scores) - k)[len(scores) - k]
    chosen = np.flatnonzero((scores >= threshold) & (scores > above))
    order = chosen[np.lexsort((chosen, -scores[chosen]))][:k]
    return [(int(place), float(scores[place])) for place in order]


def fuse(rankings: Sequence[Ranking], k: int, *, constant: int = CONSTANT) -> Ranking:
    """Reciprocal rank fusion: score(d) = sum over rankings of 1 / (constant + rank of d).
    Cormack, Clarke and Büttcher 2009. Only ranks count, so scores of any scale can be fused."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, (place, _) in enumerate(ranking, start=1):
            scores[place] = scores.get(place, 0.0) + 1 / (constant + rank)
    return sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))[:k]
