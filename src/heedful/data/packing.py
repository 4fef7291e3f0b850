"""Packing: several short texts in each row of a batch, which leaves little of it to padding. A model keeps them apart
by the `segments` of its mask, so they are learned as if each had a row of its own.
"""

from collections.abc import Sequence

import numpy as np


class Windows:
    """Windows of so many tokens, filled by first fit: a text goes into the first window that has room for it."""

    def __init__(self, size: int, most: int | None = None) -> None:
        self.size, self.most = size, most
        self.room: list[int] = []

    def place(self, length: int) -> int | None:
        """The number of the window for a text; None if there are `most` windows, and none has room. A text longer than
        a window has one to itself."""
        for number, room in enumerate(self.room):
            if length <= room:
                self.room[number] -= length
                return number
        if self.most is not None and len(self.room) >= self.most:
            return None
        self.room.append(self.size - length)
        return len(self.room) - 1


def packed(lengths: Sequence[int], size: int) -> list[list[int]]:
    """The texts of each window, by their places in `lengths`."""
    windows, found = Windows(size), list[list[int]]()
    for index, length in enumerate(lengths):
        number = windows.place(length)
        assert number is not None
        if number == len(found):
            found.append([])
        found[number].append(index)
    return found


def cut(rows: np.ndarray, lengths: np.ndarray, size: int, budget: int) -> list[np.ndarray]:
    """Batches of rows that fit into as many windows as there are in the budget, in the order of the rows."""
    most = max(1, budget // size)
    windows, starts = Windows(size, most), [0]
    for index, length in enumerate(lengths.tolist()):
        if windows.place(length) is None:
            windows = Windows(size, most)
            windows.place(length)
            starts.append(index)
    return [rows[start:end] for start, end in zip(starts, [*starts[1:], len(rows)], strict=True) if start < end]
