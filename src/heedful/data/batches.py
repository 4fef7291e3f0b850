"""Batching: batches of rows of similar length, within a token budget, in an order fixed by a seed. Where a token costs
more in a long text than in a short one (quadratic attention), it counts for more: see `Cost`.

The corpus is processed in windows: randomly chosen blocks of adjacent rows, shuffled, sorted by length, cut into
batches, and the batches shuffled. A window bounds the memory, however large the corpus is.
"""

from collections.abc import Callable, Iterator
from typing import Protocol, runtime_checkable

import numpy as np

from heedful.data import packing
from heedful.data.store import Store

BLOCK = 4096
WINDOW = 48  # blocks
Cost = Callable[[int], float]  # of a token in a text of so many tokens, where one in a short text costs 1


class Sized(Protocol):
    """Rows whose lengths are known: a store, or pieces of its texts."""

    @property
    def counted(self) -> tuple[int, ...]: ...

    def __len__(self) -> int: ...

    def lengths(self, column: int, start: int = 0, end: int | None = None) -> np.ndarray: ...

    def forget(self) -> None: ...


@runtime_checkable
class Drawn(Sized, Protocol):
    """Rows of which an epoch draws some more often than others."""

    def windows(self, *, seed: int, number: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The rows of an epoch with their lengths (rows columns); a function of its arguments alone."""
        ...


def same_for_all(length: int) -> float:
    return 1.0


def epoch(
    store: Sized, *, budget: int, seed: int, number: int, cost: Cost = same_for_all, window: int = 0
) -> Iterator[np.ndarray]:
    """The batches of one epoch as arrays of row numbers. The same seed and number give the same batches. `window`:
    their rows are packed into windows of so many tokens."""
    order = np.random.default_rng((seed, number))
    windows = store.windows(seed=seed, number=number) if isinstance(store, Drawn) else _windows(store, order)
    for rows, lengths in windows:
        shuffled = order.permutation(len(rows))
        rows, lengths = rows[shuffled], lengths[shuffled]
        batches = packing.cut(rows, lengths[:, 0] - 1, window, budget) if window else cut(rows, lengths, budget, cost)
        for batch in order.permutation(len(batches)):
            yield batches[batch]
        store.forget()


def _windows(store: Sized, order: np.random.Generator) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    blocks = order.permutation(-(-len(store) // BLOCK))
    for start in range(0, len(blocks), WINDOW):
        yield _window(store, np.sort(blocks[start : start + WINDOW]))


def in_order(store: Sized, *, budget: int, cost: Cost = same_for_all) -> Iterator[np.ndarray]:
    """All rows once, grouped by length; for validation."""
    rows, lengths = _window(store, np.arange(-(-len(store) // BLOCK)))
    yield from cut(rows, lengths, budget, cost)


def cut(rows: np.ndarray, lengths: np.ndarray, budget: int, cost: Cost = same_for_all) -> list[np.ndarray]:
    """Sort by length and cut so that rows x longest x its cost <= budget; a longer row forms its own batch.

    `lengths`: rows columns.
    """
    order = _by_length(lengths, budget)
    rows, sizes = rows[order], _sizes(lengths[order], cost).tolist()
    batches, start, largest = [], 0, 0.0
    for end, size in enumerate(sizes):
        largest = max(largest, size)
        if end > start and largest * (end - start + 1) > budget:
            batches.append(rows[start:end])
            start, largest = end, size
    if start < len(rows):
        batches.append(rows[start:])
    return batches


def _sizes(lengths: np.ndarray, cost: Cost) -> np.ndarray:
    """How much of a budget each row takes: the tokens of its longest side, times what each costs."""
    longest = lengths.max(axis=1)
    if cost is same_for_all or not len(longest):
        return longest
    each, places = np.unique(longest, return_inverse=True)
    return np.array([length * cost(int(length)) for length in each])[places]


def _by_length(lengths: np.ndarray, budget: int) -> np.ndarray:
    """An order in which adjacent rows have similar lengths on both sides.

    Rows are sorted by the last column and divided into groups, each sorted by the first column, alternately ascending
    and descending. With 2 sqrt(batches) groups, padding is close to minimal (measured: 6 %, against 9 % when sorting by
    one column and then the other).
    """
    order = np.lexsort((lengths[:, 0], lengths[:, -1]))
    places = np.cumsum(lengths[order].max(axis=1))
    groups = max(1, round(2 * (places[-1] / budget) ** 0.5)) if len(order) else 1
    group = np.minimum(places * groups // max(1, places[-1] if len(order) else 1), groups - 1)
    first = lengths[order, 0]
    return order[np.lexsort((np.where(group % 2, -first, first), group))]


def padding(store: Store, *, budget: int) -> float:
    """The fraction of padding in the batches of one epoch, over all columns."""
    real = places = 0
    for batch in epoch(store, budget=budget, seed=0, number=0):
        for column in store.counted:
            lengths = np.array([len(row) for row in store.rows(column, batch)])
            real += int(lengths.sum())
            places += len(lengths) * int(lengths.max())
    return 1 - real / max(1, places)


def longest(store: Sized, *, budget: int, cost: Cost = same_for_all) -> np.ndarray:
    """The batch that needs the most memory: the longest rows, as many as the budget allows."""
    best, sizes = np.empty(0, dtype=np.int64), np.empty(0)
    blocks = np.arange(-(-len(store) // BLOCK))
    for start in range(0, len(blocks), WINDOW):
        rows, lengths = _window(store, blocks[start : start + WINDOW])
        best, sizes = np.concatenate([best, rows]), np.concatenate([sizes, _sizes(lengths, cost)])
        room = max(1, int(budget // sizes.max()))
        if len(sizes) > room:
            kept = np.argpartition(sizes, -room)[-room:]
            best, sizes = best[kept], sizes[kept]
    store.forget()
    return best


def _window(store: Sized, blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rows of these blocks and their lengths: rows columns."""
    spans = [(int(block) * BLOCK, min(len(store), (int(block) + 1) * BLOCK)) for block in blocks]
    rows = np.concatenate([np.arange(start, end) for start, end in spans]) if spans else np.empty(0, dtype=np.int64)
    columns = [np.concatenate([store.lengths(column, start, end) for start, end in spans]) for column in store.counted]
    columns = columns or [np.zeros(len(rows), dtype=np.int64)]
    return rows, np.stack(columns, axis=1) + 1  # for the BOS or EOS token
