"""Sentences together with those before them in their document, joined by a break token.

Concatenation, Tiedemann and Scherrer 2017 ("Neural Machine Translation with Extended Context"), 2+2:

    source   s1 <break> s2 </s>        target   t1 <break> t2 </s>

Differs: only the last sentence is learnt (the loss of the others is left out), since only it is written at inference,
where the target's context is what is written already. So each sentence counts once in an epoch, and a loss is
comparable with that of a model without context.
"""

from collections.abc import Callable, Sequence

import numpy as np

from heedful.data.store import Store

Read = Callable[[int, np.ndarray], Sequence[np.ndarray]]


class InContext:
    """Rows of a store with up to `context` rows before them, as far as they belong to the same document and both sides
    have at most `limit` tokens: whole sentences are left out, the oldest first. `Sized`, for batches.

    `places`: how many rows before each one belong to its document; `breaks`: the break token of each column.
    """

    def __init__(self, store: Store, places: np.ndarray, *, context: int, limit: int, breaks: Sequence[int]) -> None:
        self.store, self.places, self.context, self.limit, self.breaks = store, places, context, limit, list(breaks)
        self.counted = store.counted
        self.forget = store.forget

    def __len__(self) -> int:
        return len(self.store)

    def lengths(self, column: int, start: int = 0, end: int | None = None) -> np.ndarray:
        _, totals = self._taken(np.arange(start, len(self) if end is None else end))
        return totals[:, column]

    def rows(self, column: int, indices: np.ndarray, read: Read | None = None) -> tuple[list[np.ndarray], np.ndarray]:
        """The rows with their contexts, and how many tokens of each are context. `read` reads the store's rows."""
        taken, _ = self._taken(indices)
        spans = [np.arange(row - count, row + 1) for row, count in zip(indices, taken, strict=True)]
        needed = np.unique(np.concatenate(spans)) if spans else indices
        known = dict(zip(needed.tolist(), (read or self.store.rows)(column, needed), strict=True))
        between = np.array([self.breaks[column]])
        found, before = [], []
        for span in spans:
            *context, own = (known[row] for row in span.tolist())
            found.append(np.concatenate([part for some in context for part in (some, between)] + [own]))
            before.append(len(found[-1]) - len(own))
        return found, np.array(before)

    def _taken(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """How many rows before each one are its context, and the tokens of both together: rows columns."""
        totals, taken = self._sizes(rows), np.zeros(len(rows), dtype=np.int64)
        going = np.ones(len(rows), dtype=bool)
        for back in range(1, self.context + 1):
            going &= self.places[rows] >= back
            with_it = totals + self._sizes(np.maximum(rows - back, 0)) + 1
            going &= (with_it <= self.limit).all(axis=1)
            totals[going] = with_it[going]
            taken += going
        return taken, totals

    def _sizes(self, rows: np.ndarray) -> np.ndarray:
        return np.stack([(ends[rows + 1] - ends[rows]).astype(np.int64) for ends in self.store.offsets], axis=1)
