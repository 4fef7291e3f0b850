"""A look through the header of a GGUF file before the `gguf` package reads it, which believes every count in it.

magic, version, tensors (u64), keys (u64); each key: name, type (u32), value; each tensor: name, rank (u32), sizes
(u64), type (u32), place (u64). A string is its length (u64) and its bytes; an array its type, length (u64) and values.
"""

import mmap
import struct
from math import prod
from pathlib import Path

from heedful.bounded import regular

SCALARS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # type -> bytes
STRING, ARRAY = 8, 9
MOST_VALUES = 1_500_000  # in all arrays, each of which costs an object; a vocabulary of 256,000 tokens has a million
MOST_TENSORS = 100_000
NUMBERS = 8  # values in a byte, at most: one bit each


def check(path: Path) -> None:
    """ValueError if the header is not complete, or claims more than the file can hold."""
    with regular(path).open("rb") as file:
        if path.stat().st_size < 24:
            raise ValueError(f"{path} is not a GGUF file, or is damaged: it ends too early")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                _Walk(data).through()
            except (struct.error, ValueError) as error:
                raise ValueError(f"{path} is not a GGUF file, or is damaged: {error}") from None


class _Walk:
    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.place, self.values = data, 8, 0

    def number(self, layout: str) -> int:
        (found,) = struct.unpack_from(f"<{layout}", self.data, self.place)
        self.skip(struct.calcsize(layout))
        return int(found)

    def skip(self, count: int) -> None:
        self.place += count
        if self.place > len(self.data):
            raise ValueError("it ends too early")

    def through(self) -> None:
        if self.data[4:8] in (b"\2\0\0\0", b"\3\0\0\0"):  # another byte order is left to the package's own checks
            tensors, keys = self.number("Q"), self.number("Q")
            if max(tensors, keys) > MOST_TENSORS:
                raise ValueError(f"it claims to have {tensors:,} tensors and {keys:,} keys")
            for _ in range(keys):
                self.skip(self.number("Q"))
                self.value(self.number("I"), depth=0)
            for _ in range(tensors):
                self.tensor()
        else:
            raise ValueError("only versions 2 and 3, little endian, can be read")

    def value(self, kind: int, *, depth: int) -> None:
        if kind in SCALARS:
            self.skip(SCALARS[kind])
        elif kind == STRING:
            self.skip(self.number("Q"))
        elif kind == ARRAY and depth < 2:
            inner, count = self.number("I"), self.number("Q")
            self.values += count
            if self.values > MOST_VALUES:
                raise ValueError(f"its lists hold more than {MOST_VALUES:,} values")
            if inner in SCALARS:
                self.skip(SCALARS[inner] * count)
            else:
                for _ in range(count):
                    self.value(inner, depth=depth + 1)
        else:
            raise ValueError(f"values of type {kind} are not known")

    def tensor(self) -> None:
        self.skip(self.number("Q"))
        rank = self.number("I")
        if rank > 4:
            raise ValueError(f"a tensor has {rank} axes")
        count = prod(self.number("Q") for _ in range(rank))
        self.skip(4)
        offset = self.number("Q")
        if count > NUMBERS * len(self.data) or offset > len(self.data):
            raise ValueError(f"a tensor of {count:,} numbers does not fit into {len(self.data):,} bytes")
