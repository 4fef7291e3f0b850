"""What tasks of models that read share: texts as framed rows of tokens, cut into overlapping windows where they are
longer than the model, so that no word goes unread.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from heedful.data import batches
from heedful.data.padding import Row
from heedful.data.store import Store
from heedful.model.architecture import Reader
from heedful.model.cpu.reading import FastReader
from heedful.tasks import Processes
from heedful.text.tokenizer import Frame, Tokenizer

SPECIALS = ("<mask>", "<cls>", "<sep>")
T = TypeVar("T")
OVERLAP = 4  # a fourth of a window's room is shared with the next one


@dataclass(frozen=True)
class Windows:
    """Framed texts. A text that fits is one window; a longer one is several. `owner`: the text of each window;
    `start`: which token of the windowed text its first one is; `offset`: where in the window that token stands."""

    tokens: Tensor  # windows length
    types: Tensor
    valid: Tensor
    owner: Tensor  # windows
    start: Tensor  # windows
    offset: Tensor  # windows
    texts: int

    @property
    def tokens_read(self) -> int:
        return int(self.valid.sum())

    def to(self, device: torch.device) -> "Windows":
        moved = {name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)}
        return Windows(**moved, texts=self.texts)

    def mean(self, scores: Tensor) -> Tensor:
        """Scores of windows (windows classes) -> scores of texts (texts classes): the mean over a text's windows."""
        if len(scores) == self.texts:
            return scores
        total = torch.zeros(self.texts, scores.shape[1], dtype=scores.dtype, device=scores.device)
        counts = torch.bincount(self.owner, minlength=self.texts).to(scores.dtype)
        return total.index_add(0, self.owner, scores) / counts[:, None]


def spans(size: int, room: int, overlap: int) -> list[tuple[int, int]]:
    """The windows of `size` tokens where `room` fit: every token is in one, and neighbours share `overlap`."""
    if size <= room:
        return [(0, size)]
    starts = range(0, size - overlap, room - overlap)
    return [(min(start, size - room), min(start + room, size)) for start in starts if start + overlap < size]


def windows(
    texts: Sequence[Sequence[Row]], tokenizer: Tokenizer, *, length: int, overlap: int | None = None, whole: int = -1
) -> Windows:
    """Rows of one or two texts, framed, in windows of at most `length` tokens. Of two texts, one is repeated in every
    window and the other is cut: `whole` is the one to repeat; -1 = the shorter. If the repeated one would take more
    than half of the room, its end is left out.

    `overlap`: the number of tokens that neighbouring windows share; None = a quarter of the room.
    """
    frame, rows, types = tokenizer.frame, [], []
    owner, start, offset = [], [], []
    for index, parts in enumerate(texts):
        room = length - frame.size(len(parts))
        if room < 2:
            raise ValueError(f"windows of {length} tokens have no room for text; raise data.max_length")
        kept = [list(map(int, part)) for part in parts]
        cut = 0
        if len(kept) == 2:
            repeated = whole if whole >= 0 else int(len(kept[1]) < len(kept[0]))
            cut = 1 - repeated
            if sum(map(len, kept)) > room:
                kept[repeated] = kept[repeated][: max(room - len(kept[cut]), room // 2)]
            room -= len(kept[repeated])
        shared = room // OVERLAP if overlap is None else overlap
        if shared >= room and len(kept[cut]) > room:
            raise ValueError(
                f"an overlap of {shared} tokens leaves nothing new in a window, which has room for {room}; "
                f"choose at most {room - 1}"
            )
        for begin, end in spans(len(kept[cut]), room, shared):
            shown = [part if place != cut else part[begin:end] for place, part in enumerate(kept)]
            row, kinds = framed(shown, frame)
            rows.append(row)
            types.append(kinds)
            owner.append(index)
            start.append(begin)
            offset.append(len(frame.first) + (len(shown[0]) + len(frame.between) if cut else 0))
    tokens, kinds_read, valid = _padded(rows, types, tokenizer.pad)
    return Windows(
        tokens, kinds_read, valid, torch.tensor(owner), torch.tensor(start), torch.tensor(offset), texts=len(texts)
    )


def framed(texts: Sequence[Sequence[int]], frame: Frame) -> tuple[list[int], list[int]]:
    """One or two texts with the special tokens around them, and the token type of each."""
    row = [*frame.first, *texts[0]]
    types = [0] * len(row)
    if len(texts) == 2:
        row += frame.between
        types += [0] * len(frame.between)
        second = [*texts[1], *frame.last]
        return row + second, types + [frame.second_type] * len(second)
    return [*row, *frame.last], types + [0] * len(frame.last)


def _padded(rows: Sequence[Sequence[int]], types: Sequence[Sequence[int]], fill: int) -> tuple[Tensor, Tensor, Tensor]:
    longest = max(map(len, rows))
    tokens = np.full((len(rows), longest), fill, dtype=np.int64)
    kinds = np.zeros_like(tokens)
    for place, (row, kind) in enumerate(zip(rows, types, strict=True)):
        tokens[place, : len(row)] = row
        kinds[place, : len(row)] = kind
    valid = np.arange(longest) < np.array([len(row) for row in rows])[:, None]
    return torch.from_numpy(tokens), torch.from_numpy(kinds), torch.from_numpy(valid)


class Framed(Protocol):
    """Framed rows of tokens, padded."""

    @property
    def tokens(self) -> Tensor: ...

    @property
    def types(self) -> Tensor: ...

    @property
    def valid(self) -> Tensor: ...


def read(model: Reader | FastReader, texts: Framed) -> Tensor:
    """The states of every token of every row."""
    types = texts.types if getattr(model, "token_types", None) is not None else None
    states: Tensor = model(texts.tokens, token_types=types, valid=texts.valid)
    return states


def shares(store: Store, *, budget: int, world: Processes, cost: batches.Cost) -> Iterator[np.ndarray]:
    """This process's batches of a validation set."""
    yield from list(batches.in_order(store, budget=budget, cost=cost))[world.rank :: world.size]


def by_length(sizes: Sequence[int], budget: int) -> Iterator[list[int]]:
    """The numbers of these texts in batches of similar length, at most `budget` tokens each with padding."""
    order = sorted(range(len(sizes)), key=sizes.__getitem__)
    batch: list[int] = []
    for index in order:
        if batch and sizes[index] * (len(batch) + 1) > budget:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def in_batches(sizes: Sequence[int], run: Callable[[list[int]], Sequence[T]], *, budget: int = 2048) -> list[T]:
    """`run` on batches of similar length; its results in the original order."""
    found: list[Any] = [None] * len(sizes)
    for batch in by_length(sizes, budget):
        for index, result in zip(batch, run(batch), strict=True):
            found[index] = result
    return found
