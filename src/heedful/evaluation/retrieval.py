"""Figures for rankings: nDCG, reciprocal rank, recall.

A ranking is the list of document ids found for a query, best first; judgements are the gains of documents by id. A
document without a judgement has gain 0; one with a gain above 0 is relevant.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

Gains = Mapping[str, float]
CHUNK = 1024  # queries compared with all candidates at once
EQUAL = 1e-6  # scores that differ by less are ties: the same text read in another batch


def ndcg(ranking: Sequence[str], gains: Gains, *, k: int = 10) -> float:
    """DCG / DCG of the best possible ranking, DCG = sum over the first k ranks of gain / log2(rank + 1).
    Järvelin and Kekäläinen 2002, with linear gains as trec_eval computes it; 0 if nothing is relevant."""
    best = sorted((gain for gain in gains.values() if gain > 0), reverse=True)
    ideal = _dcg(best[:k])
    return _dcg([max(0.0, gains.get(name, 0.0)) for name in ranking[:k]]) / ideal if ideal else 0.0


def reciprocal_rank(ranking: Sequence[str], gains: Gains, *, k: int = 10) -> float:
    """1 / rank of the first relevant document; 0 if it is not among the first k."""
    return next((1 / rank for rank, name in enumerate(ranking[:k], start=1) if gains.get(name, 0) > 0), 0.0)


def recall(ranking: Sequence[str], gains: Gains, *, k: int = 100) -> float:
    """The share of relevant documents that are among the first k."""
    relevant = {name for name, gain in gains.items() if gain > 0}
    return len(relevant & set(ranking[:k])) / len(relevant) if relevant else 0.0


def measure(rankings: Mapping[str, Sequence[str]], judgements: Mapping[str, Gains]) -> dict[str, float]:
    """The means over the queries that have a relevant document; others say nothing about a ranking."""
    judged = [query for query, gains in judgements.items() if any(gain > 0 for gain in gains.values())]
    missing = [query for query in judged if query not in rankings]
    if missing:
        raise ValueError(f"query {missing[0]!r} is judged but was not searched for; give its text with the queries")
    if not judged:
        raise ValueError("no query has a relevant document, so there is nothing to measure; check the judgements")
    figures = {"ndcg@10": ndcg, "mrr@10": reciprocal_rank, "recall@100": recall}
    return {
        name: math.fsum(figure(rankings[query], judgements[query]) for query in judged) / len(judged)
        for name, figure in figures.items()
    }


def ranks_of(queries: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """The rank of candidate i for query i, by inner product: 1 + the number of candidates with a higher score."""
    found = np.zeros(len(queries), dtype=np.int64)
    for start in range(0, len(queries), CHUNK):
        scores = queries[start : start + CHUNK] @ candidates.T
        own = scores[np.arange(len(scores)), start + np.arange(len(scores))]
        found[start : start + CHUNK] = 1 + (scores > own[:, None] + EQUAL).sum(1)
    return found


def _dcg(gains: Sequence[float]) -> float:
    return math.fsum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, start=1))
