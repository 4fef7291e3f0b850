"""Search by vectors: the cosine of the query with every document, or approximately with the few that a graph leads to.

exact          all products with numpy, without any error
approximate    HNSW (Malkov and Yashunin 2020) by faiss: a walk through a graph of neighbours. It equals the exact
               search where the walk sees every document, and may otherwise miss some
"""

from pathlib import Path
from typing import Any

import numpy as np

from heedful.bounded import opening, regular
from heedful.files import in_place
from heedful.search.fusion import Ranking, top

GRAPH = 4096  # bytes of a document in the graph, at most, besides its vector
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
            if self.rows.shape[1] != len(query):
                raise ValueError(f"the model gives {len(query)} numbers and the index has {self.rows.shape[1]}")
            scores = self.rows @ query
            if not np.isfinite(scores).all():
                raise ValueError("the index holds vectors that are NaN or infinite; build it again")
            return top(scores, k)
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
    def load(cls, folder: Path, *, documents: int) -> "Vectors":
        """faiss reads its file without checks, so it is read only if it has the size that such a graph has."""
        path, file = folder / "vectors.npy", folder / "vectors.faiss"
        with opening(path):
            try:
                rows = np.load(regular(path), mmap_mode="r", allow_pickle=False)
            except ValueError as error:  # numpy's message advises to unpickle it
                raise ValueError(f"{path} is damaged: it cannot be read; build the index again") from error
            if rows.ndim != 2 or len(rows) != documents or rows.dtype != np.float32:
                raise ValueError(f"{path} does not hold {documents:,} vectors; build the index again")
        if not file.exists():
            return cls(rows)
        with opening(file):
            graph = _faiss().read_index(str(regular(file, 4 * rows.nbytes + GRAPH * documents)))
            if (graph.ntotal, graph.d) != rows.shape:
                raise ValueError(f"{file} is not the graph of these {documents:,} vectors; build the index again")
        return cls(rows, graph)


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
