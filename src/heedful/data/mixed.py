"""Several stores as one, and the order in which a mixture of them is read.

Each part is an endless sequence of passes, and each pass holds every row once, in an order of its own. An epoch has as
many rows as all parts together, and takes from each part the next ones, as many as its share. So nothing of a part is
left out, and no row comes again before all others of its part have come.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from heedful.data.batches import BLOCK, WINDOW
from heedful.data.store import Store


class Mixed:
    """The rows of several stores, numbered one store after the other. `columns`: for each store the order in which its
    columns are read; `shares`: how much of an epoch is drawn from each; `extra`: how many tokens are added to a row of
    each column."""

    counted = (0, 1)

    def __init__(
        self,
        stores: Sequence[Store],
        columns: Sequence[tuple[int, ...]],
        shares: Sequence[float],
        *,
        extra: Sequence[int] = (0, 0),
    ) -> None:
        self.stores, self.columns, self.shares, self.extra = stores, columns, shares, extra
        self.sizes = [len(store) for store in stores]
        self.starts = np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def owners(self, indices: np.ndarray) -> np.ndarray:
        """The number of the store that each row is in."""
        return np.searchsorted(self.starts, indices, side="right") - 1

    def rows(self, column: int, indices: np.ndarray) -> list[np.ndarray]:
        return [
            self.stores[owner].rows(self.columns[owner][column], np.array([index - self.starts[owner]]))[0]
            for owner, index in zip(self.owners(indices).tolist(), np.asarray(indices), strict=True)
        ]

    def lengths(self, column: int, start: int = 0, end: int | None = None) -> np.ndarray:
        end = len(self) if end is None else end
        found = [np.empty(0, dtype=np.int64)]
        for number, (store, order) in enumerate(zip(self.stores, self.columns, strict=True)):
            first, last = (int(place - self.starts[number]) for place in (start, end))
            first, last = max(0, first), min(self.sizes[number], last)
            if first < last:
                found.append(store.lengths(order[column], first, last))
        return np.concatenate(found) + self.extra[column]

    def forget(self) -> None:
        for store in self.stores:
            store.forget()

    def in_epoch(self, part: int, number: int) -> tuple[int, int]:
        """The places in the part's sequence where an epoch starts and ends."""
        each = len(self) * self.shares[part]
        return round(number * each), round((number + 1) * each)

    def windows(self, *, seed: int, number: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The rows of an epoch with their lengths (rows columns), in windows that hold each part's share."""
        spans = [self.in_epoch(part, number) for part in range(len(self.stores))]
        count = max(1, -(-len(self) // (WINDOW * BLOCK)))
        for window in range(count):
            found = []
            for part, (start, end) in enumerate(spans):
                first, last = (start + (end - start) * place // count for place in (window, window + 1))
                found += [rows + self.starts[part] for rows in passes(self.sizes[part], first, last, seed=(seed, part))]
            rows = np.concatenate([np.empty(0, dtype=np.int64), *found])
            yield rows, np.stack([self._lengths_of(rows, column) for column in self.counted], axis=1)

    def _lengths_of(self, rows: np.ndarray, column: int) -> np.ndarray:
        found = np.empty(len(rows), dtype=np.int64)
        owners = self.owners(rows)
        for number, (store, order) in enumerate(zip(self.stores, self.columns, strict=True)):
            mine = owners == number
            offsets, places = store.offsets[order[column]], rows[mine] - self.starts[number]
            found[mine] = offsets[places + 1].astype(np.int64) - offsets[places].astype(np.int64)
        return found + self.extra[column] + 1  # for the BOS or EOS token


def passes(size: int, start: int, end: int, *, seed: tuple[int, ...]) -> Iterator[np.ndarray]:
    """The rows from `start` to `end` of an endless sequence of passes over `size` rows. A pass shuffles blocks of
    adjacent rows, and the rows within each: however large the store is, only a block is in memory."""
    while size and start < end:
        turn, place = divmod(start, size)
        for block in np.random.default_rng((*seed, turn)).permutation(-(-size // BLOCK)).tolist():
            first, last = block * BLOCK, min(size, (block + 1) * BLOCK)
            if place >= last - first:
                place -= last - first
                continue
            shuffled = first + np.random.default_rng((*seed, turn, block)).permutation(last - first)
            rows = shuffled[place : place + end - start]
            yield rows
            place, start = 0, start + len(rows)
            if start >= end:
                return
