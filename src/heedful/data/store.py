"""Token ids on disk: written once, then memory-mapped.

A store is a table whose cells are token sequences: two columns for pairs, one for plain text. A folder holds one store
per split, and is moved into place atomically.

    train.0.tokens    all tokens of column 0, row after row
    train.0.offsets   where each row starts, and where the last one ends
"""

import mmap
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np


class StoreWriter:
    """Writes rows in chunks; only the current chunk is in memory."""

    def __init__(self, folder: Path, split: str, *, columns: int, vocab: int) -> None:
        self._type = np.uint16 if vocab <= 1 << 16 else np.uint32
        self._tokens = [(folder / f"{split}.{column}.tokens").open("wb") for column in range(columns)]
        self._offsets = [(folder / f"{split}.{column}.offsets").open("wb") for column in range(columns)]
        self._ends = [0] * columns
        for file in self._offsets:
            np.zeros(1, dtype=np.uint64).tofile(file)

    def add(self, columns: Sequence[Sequence[Sequence[int]]]) -> None:
        """Append columns with the same number of rows."""
        for column, rows in enumerate(columns):
            lengths = np.fromiter((len(row) for row in rows), dtype=np.uint64, count=len(rows))
            ends = np.cumsum(lengths, dtype=np.uint64) + np.uint64(self._ends[column])
            if len(ends):
                self._ends[column] = int(ends[-1])
            ends.tofile(self._offsets[column])
            flat = np.fromiter(chain.from_iterable(rows), dtype=self._type, count=int(lengths.sum()))
            flat.tofile(self._tokens[column])

    def close(self) -> None:
        for file in (*self._tokens, *self._offsets):
            file.close()


class Store:
    """A finished store, memory-mapped."""

    def __init__(
        self, folder: Path, split: str, *, columns: int, vocab: int, counted: tuple[int, ...] | None = None
    ) -> None:
        kind = np.uint16 if vocab <= 1 << 16 else np.uint32
        self._maps: list[mmap.mmap] = []
        self.tokens = [self._open(folder / f"{split}.{column}.tokens", kind) for column in range(columns)]
        self.offsets = [self._open(folder / f"{split}.{column}.offsets", np.uint64) for column in range(columns)]
        self.columns = columns
        self.counted = (
            tuple(range(columns)) if counted is None else counted
        )  # columns whose lengths count towards the size of a row

    def __len__(self) -> int:
        return len(self.offsets[0]) - 1

    def rows(self, column: int, indices: np.ndarray) -> list[np.ndarray]:
        tokens, offsets = self.tokens[column], self.offsets[column]
        return [tokens[int(offsets[index]) : int(offsets[index + 1])] for index in indices]

    def lengths(self, column: int, start: int = 0, end: int | None = None) -> np.ndarray:
        end = len(self) if end is None else end
        return np.diff(self.offsets[column][start : end + 1].astype(np.int64))

    def forget(self) -> None:
        """Release the memory of pages read so far; the system reads them again when needed."""
        for mapped in self._maps:
            mapped.madvise(mmap.MADV_DONTNEED)

    def _open(self, path: Path, kind: type) -> np.ndarray:
        if path.stat().st_size == 0:
            return np.empty(0, dtype=kind)
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._maps.append(mapped)
        return np.frombuffer(mapped, dtype=kind)
