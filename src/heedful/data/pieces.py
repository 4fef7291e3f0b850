"""Pieces of documents for pre-training, numbered as rows: windows of packed text, or pairs of segments.

Both work on memory-mapped tokens and offsets, so a corpus may be larger than memory; only the number of pieces before
each document is held. `batches` cuts them into batches like the rows of a store.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from heedful.data.store import Store

PairKind = Literal["none", "next_sentence", "sentence_order"]
TRIES = 8  # other documents that are looked at for a segment that is long enough
Starts = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Texts:
    """Tokens, and where each document starts; the last offset is where the last one ends."""

    tokens: np.ndarray
    offsets: np.ndarray
    forget: Callable[[], None] = lambda: None

    @classmethod
    def of(cls, store: Store) -> "Texts":
        return cls(store.tokens[0], store.offsets[0], store.forget)

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[int]]) -> "Texts":
        ends = np.cumsum([0, *map(len, rows)], dtype=np.uint64)
        return cls(np.array([token for row in rows for token in row], dtype=np.int64), ends)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def span(self, document: int) -> tuple[int, int]:
        return int(self.offsets[document]), int(self.offsets[document + 1])

    def holding(self, place: int) -> int:
        """The document that holds a token."""
        # A number of the same type: otherwise all offsets would be converted, and so copied.
        return int(np.searchsorted(self.offsets, np.uint64(place), side="right")) - 1


@dataclass(frozen=True)
class Piece:
    """One or two texts. `label`, of two: 0 = as in the document, 1 = another document's segment, or swapped."""

    texts: tuple[np.ndarray, ...]
    label: int = 0


class Pieces(Protocol):
    """Rows for `batches` (`Sized`), and their content. What is random in a piece comes from `chance`."""

    @property
    def counted(self) -> tuple[int, ...]: ...

    def __len__(self) -> int: ...

    def lengths(self, column: int, start: int = 0, end: int | None = None) -> np.ndarray: ...

    def forget(self) -> None: ...

    def draw(self, row: int, chance: np.random.Generator) -> Piece: ...


class Packed:
    """Windows of `room` tokens, one after the other, documents packed end to end with a separator between them.

    FULL-SENTENCES of Liu et al. 2019 (RoBERTa), section 4.2. Differs: windows begin at any token, not only where a
    sentence does, so all but the last are full. A text sees the one on the other side of the separator.
    """

    counted = (0,)

    def __init__(self, texts: Texts, *, room: int, separator: Sequence[int]) -> None:
        self.texts, self.room, self.separator = texts, room, list(separator)
        self.forget = texts.forget
        # The packed text, in which each document is followed by its separator, is never made.
        self.size = self._start(len(texts))

    def __len__(self) -> int:
        return -(-self.size // self.room)

    def lengths(self, column: int, start: int = 0, end: int | None = None) -> np.ndarray:
        end = len(self) if end is None else end
        found = np.full(end - start, self.room)
        if end == len(self) and len(found):
            found[-1] = self.size - (end - 1) * self.room
        return found

    def draw(self, row: int, chance: np.random.Generator) -> Piece:
        separator = np.array(self.separator, dtype=np.int64)
        # None before the first or after the last text.
        parts = [part for text in self.parts(row) for part in (separator, text)][1:]
        return Piece((np.concatenate(parts)[: self.room] if parts else np.empty(0, dtype=np.int64),))

    def parts(self, row: int) -> list[np.ndarray]:
        """What is in a window of each of its documents, without separators."""
        place, end = row * self.room, min(self.size, (row + 1) * self.room)
        document = bisect_right(range(len(self.texts)), place, key=self._start) - 1
        found: list[np.ndarray] = []
        while place < end:
            first, last = self.texts.span(document)
            begin = self._start(document)
            inside = self.texts.tokens[first + place - begin : min(last, first + end - begin)]
            if len(inside):
                found.append(inside.astype(np.int64))
            document, place = document + 1, self._start(document + 1)
        return found

    def _start(self, document: int) -> int:
        """Where a document starts in the packed text."""
        return int(self.texts.offsets[document]) + document * len(self.separator)


class Pairs:
    """Pairs of segments of up to `room` tokens together, from one document, divided where a word begins.

    next_sentence    half the time, the second segment comes from another document (Devlin et al. 2019, section 3.1)
    sentence_order   half the time, the two segments are swapped (Lan et al. 2020, section 3.1)

    Differs: segments are parts of a text that begin with a word, not whole sentences. The other document is chosen in
    proportion to its length, so that its segment is about as long as the true one, which would tell them apart.
    """

    counted = (0,)

    def __init__(self, texts: Texts, *, room: int, kind: PairKind, starts: Starts) -> None:
        self.texts, self.room, self.kind, self.starts = texts, room, kind, starts
        self.forget = texts.forget
        lengths: np.ndarray = np.diff(texts.offsets.astype(np.int64))
        # A rest of one token cannot be divided.
        self.ends = np.cumsum(lengths // room + (lengths % room >= 2))

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def lengths(self, column: int, start: int = 0, end: int | None = None) -> np.ndarray:
        rows = np.arange(start, len(self) if end is None else end)
        documents = np.searchsorted(self.ends, rows, side="right")
        chunks = rows - np.where(documents > 0, self.ends[documents - 1], 0)
        sizes = (self.texts.offsets[documents + 1] - self.texts.offsets[documents]).astype(np.int64)
        return np.minimum(self.room, sizes - chunks * self.room)

    def draw(self, row: int, chance: np.random.Generator) -> Piece:
        document = int(np.searchsorted(self.ends, row, side="right"))
        chunk = row - (int(self.ends[document - 1]) if document else 0)
        first, last = self.texts.span(document)
        begin = first + chunk * self.room
        tokens = self.texts.tokens[begin : min(last, begin + self.room)].astype(np.int64)
        words = np.flatnonzero(self.starts(tokens)[1:]) + 1
        cut = int(chance.choice(words)) if len(words) else int(chance.integers(1, len(tokens)))
        before, after = tokens[:cut], tokens[cut:]
        if chance.random() < 0.5:
            return Piece((before, after))
        if self.kind == "sentence_order":
            return Piece((after, before), 1)
        other = self._elsewhere(document, len(after), chance)
        return Piece((before, other), 1) if len(other) else Piece((before, after))

    def _elsewhere(self, document: int, size: int, chance: np.random.Generator) -> np.ndarray:
        """A segment of another document, of up to `size` tokens; empty if there is none."""
        begin, end, count = 0, 0, len(self.texts)
        for _ in range(TRIES if count > 1 else 0):
            place = int(chance.integers(len(self.texts.tokens)))
            other = self.texts.holding(place)
            if other == document:
                other = (document + int(chance.integers(1, count))) % count
                place = self.texts.span(other)[0]
            first, last = self.texts.span(other)
            start = min(place, max(first, last - size))
            if min(last, start + size) - start > end - begin:
                begin, end = self._word_from(start, first, size // 2), min(last, start + size)
            if end - begin >= size // 2:
                break
        return self.texts.tokens[begin:end].astype(np.int64)

    def _word_from(self, start: int, first: int, most: int) -> int:
        """The first word that begins at a place of a document or up to `most` tokens after it; or else the place."""
        before = int(start > first)
        tokens = self.texts.tokens[start - before : start + most + 1].astype(np.int64)
        found = np.flatnonzero(self.starts(tokens)[before:])
        return start + int(found[0]) if len(found) else start
