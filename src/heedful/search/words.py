"""Search by words: BM25, computed by bm25s.      Robertson and Zaragoza 2009; Lù 2024 (bm25s)

Words are runs of letters and digits, without case; in scripts without spaces between words, each character is one.
Nothing is stemmed and no word is left out, so that any language works; frequent words count little anyway.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from heedful.bounded import opening, read_json, regular
from heedful.search.fusion import Ranking, top
from heedful.text.words import words

RUN = re.compile(r"\w+")


def tokens(text: str) -> list[str]:
    return [run for word in words(text.casefold()) for run in RUN.findall(word)]


class Words:
    """A BM25 index (k1 = 1.5, b = 0.75, Lucene's idf, which is never negative)."""

    def __init__(self, index: Any) -> None:
        self._index = index

    @classmethod
    def build(cls, texts: Iterable[str]) -> "Words":
        found = [tokens(text) for text in texts]
        if not any(found):
            raise ValueError("no document has a word to search for; give texts with letters or digits")
        index = _bm25s().BM25()
        index.index(found, show_progress=False)
        return cls(index)

    def search(self, query: str, k: int) -> Ranking:
        """Documents that share a word with the query, best first."""
        known = self._index.vocab_dict
        asked = [token for token in tokens(query) if token in known]
        return top(self.scores(asked), k, above=0.0) if asked else []

    def scores(self, asked: Sequence[str]) -> np.ndarray:
        with opening("the index of words"):
            return np.asarray(self._index.get_scores(list(asked)))

    def save(self, folder: Path) -> None:
        self._index.save(str(folder), show_progress=False)

    @classmethod
    def load(cls, folder: Path, *, documents: int) -> "Words":
        """Arrays and JSON; nothing is unpickled. The arrays are checked, since the library indexes with them."""
        library = _bm25s()
        with opening(folder):
            for file in folder.iterdir():
                if regular(file).suffix == ".json":
                    read_json(file)
            try:
                index = library.BM25.load(str(folder), allow_pickle=False, show_progress=False)
            except ValueError as error:  # numpy's message advises to unpickle it
                raise ValueError(f"{folder} is damaged: its arrays cannot be read; build the index again") from error
            data, places, starts = (np.asarray(index.scores[name]) for name in ("data", "indices", "indptr"))
            known, words = index.vocab_dict, len(starts) - 1
            if not (
                index.scores["num_docs"] == documents
                and data.ndim == places.ndim == starts.ndim == 1
                and len(data) == len(places) == starts[-1]
                and starts[0] == 0
                and (np.diff(starts) >= 0).all()
                and (not len(places) or 0 <= places.min() <= places.max() < documents)
                and np.isfinite(data).all()
                and all(type(place) is int and 0 <= place < words + (not word) for word, place in known.items())
            ):
                raise ValueError(f"{folder} is damaged: it is not the index of {documents:,} documents; build it again")
        return cls(index)


def _bm25s() -> Any:
    try:
        import bm25s  # type: ignore[import-untyped]
    except ImportError:
        raise ValueError("search by words needs bm25s, which is not installed: pip install 'heedful[search]'") from None
    return bm25s
