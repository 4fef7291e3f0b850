"""Figures for rankings beside torchmetrics."""

import numpy as np
import pytest
import torch

from heedful.evaluation.retrieval import measure, ndcg, ranks_of, recall, reciprocal_rank


def test_figures_are_those_of_torchmetrics():
    retrieval = pytest.importorskip("torchmetrics.retrieval")
    chance = torch.Generator().manual_seed(7)
    queries, documents = 23, 151
    scores = torch.rand(queries, documents, generator=chance)
    gains = (torch.rand(queries, documents, generator=chance) * 5).long() * (
        torch.rand(queries, documents, generator=chance) < 0.1
    )
    gains[:, 3] = 2  # every query has a relevant document
    indexes = torch.arange(queries)[:, None].expand(-1, documents)
    names = [str(number) for number in range(documents)]
    rankings = {str(q): [names[place] for place in scores[q].argsort(descending=True)] for q in range(queries)}
    judged = {str(q): {names[d]: float(gains[q, d]) for d in range(documents)} for q in range(queries)}
    found = measure(rankings, judged)
    flat = scores.flatten(), gains.flatten(), indexes.flatten()
    relevant = flat[0], flat[1] > 0, flat[2]
    assert found["ndcg@10"] == pytest.approx(float(retrieval.RetrievalNormalizedDCG(top_k=10)(*flat[:2], flat[2])))
    assert found["mrr@10"] == pytest.approx(float(retrieval.RetrievalMRR(top_k=10)(*relevant)))
    assert found["recall@100"] == pytest.approx(float(retrieval.RetrievalRecall(top_k=100)(*relevant)))


def test_edges():
    assert ndcg(["a", "b"], {"a": 2, "b": 1}) == 1.0
    assert ndcg(["x"], {"a": 0}) == 0.0 and recall(["x"], {}) == 0.0
    assert ndcg(["b"], {"a": -1, "b": 1}) == 1.0  # a negative judgement is no gain
    assert reciprocal_rank([*"0123456789a"], {"a": 1}) == 0.0  # rank 11
    with pytest.raises(ValueError, match="query '7' is judged but was not searched for; give its text"):
        measure({}, {"7": {"a": 1}})
    with pytest.raises(ValueError, match="no query has a relevant document, so there is nothing to measure"):
        measure({}, {"7": {"a": 0}})


def test_ranks_count_who_is_nearer():
    queries = np.array([[1.0, 0.0], [0.0, 1.0]])
    candidates = np.array([[0.6, 0.8], [0.1, 0.9], [1.0, 0.0], [1.0, 0.0]])
    assert ranks_of(queries, candidates).tolist() == [3, 1]
