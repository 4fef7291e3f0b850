"""Search by vectors: the cosine of the query with every document, or approximately with the few that a graph leads to.

exact          all products with numpy, without any error
approximate    HNSW (Malkov and Yashunin 2020) by faiss: a walk through a graph of neighbours. It equals the exact
               search where the walk sees every document, and may otherwise miss some
"""

from pathlib import Path
from typing import Any

import numpy as np

from heedful.files import in_place
from heedful.search.fusion import Ranking, top

NEIGHBOURS, BUILD, SEARCH = 32, 80, 128  # of a document in the graph; candidates kept while building, while searching


class Vectors:
    """The documents' vectors, of length 1: rows width. `graph`: faiss' index, if search is approximate."""

    def __init__(self, rows: np.ndarray, graph: Any = None) -> None:
        self.rows, self.graph = rows, graph

    @classmethod
    def build(cls, rows: np.ndarray, *, approximate: bool = False) -> "Vectors":
        rows = unit(rows)
        if not approximate:
            return cls(rows)
        faiss = _faiss()
        graph = faiss.IndexHNSWFlat(rows.shape[1], NEIGHBOURS, faiss.METRIC_INNER_PRODUCT)
        graph.hnsw.efConstruction = BUILD
        graph.add(rows)
        return cls(rows, graph)

    def search(self, query: np.ndarray, k: int) -> Ranking:
        query = unit(query[None])[0]
        if self.graph is None:
            return top(self.rows @ query, k)
        self.graph.hnsw.efSearch = max(SEARCH, k)
        scores, places = self.graph.search(query[None], min(k, len(self.rows)))
        found = zip(places[0].tolist(), scores[0].tolist(), strict=True)
        return [(place, score) for place, score in found if place >= 0]

    def save(self, folder: Path) -> None:
        with in_place(folder / "vectors.npy") as temporary, temporary.open("wb") as file:
            np.save(file, self.rows, allow_pickle=False)
        if self.graph is not None:
            _faiss().write_index(self.graph, str(folder / "vectors.faiss"))

    @classmethod
    def load(cls, folder: Path) -> "Vectors":
        graph = folder / "vectors.faiss"
        rows = np.load(folder / "vectors.npy", mmap_mode="r", allow_pickle=False)
        return cls(rows, _faiss().read_index(str(graph)) if graph.exists() else None)


def unit(rows: np.ndarray) -> np.ndarray:
    """Of length 1, so that products are cosines."""
    lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
    return np.ascontiguousarray(rows / np.maximum(lengths, 1e-12), dtype=np.float32)


def _faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise ValueError("approximate search needs faiss, which is not installed: pip install 'heedful[search]', or "
                         "leave out --approximate: exact search needs only numpy") from None  # fmt: skip
    return faiss
