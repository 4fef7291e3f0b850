"""How good is the search? Queries with judged documents, searched in every way that an index allows."""

from collections.abc import Mapping

from heedful.evaluation.retrieval import Gains, measure
from heedful.search.index import By, Index

DEPTH = 100  # documents of a ranking that are measured


def measured(index: Index, queries: Mapping[str, str], judgements: Mapping[str, Gains]) -> dict[By, dict[str, float]]:
    """nDCG@10, MRR@10 and recall@100 of each way. Judged documents that the index does not hold count as not found."""
    found: dict[By, dict[str, float]] = {}
    for way in index.ways:
        rankings = index.rank(list(queries.values()), DEPTH, by=way)
        named = {
            query: [index.document(place).id for place, _ in ranking]
            for query, ranking in zip(queries, rankings, strict=True)
        }
        found[way] = measure(named, judgements)
    return found
