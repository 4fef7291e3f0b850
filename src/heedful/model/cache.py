"""What a decoder remembers between steps. Passed in as an argument, changed in place, never stored in the model."""

from typing import Protocol

import torch
from torch import Tensor


class LayerCache(Protocol):
    """What one attention layer remembers; the mix decides what that is."""

    @property
    def length(self) -> int:
        """The number of tokens processed so far."""
        ...

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order; a row may occur several times (beam reordering) or not at all."""
        ...


class KeyValueCache:
    """All keys and values so far, in memory reserved ahead and grown when it is full. `memory`: how many of the tokens
    before the newest are kept; None = all. `table`: what else a mix wants back at the next step, alike for all rows."""

    def __init__(self, length: int, *, memory: int | None = None) -> None:
        self.length = 0
        self.memory = memory
        self.table: Tensor | None = None
        self._reserve = max(1, length)
        self._key: Tensor | None = None  # rows kv_heads reserved head
        self._value: Tensor | None = None
        self._start = self._end = 0  # of what is held

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Add the new tokens' keys and values; gives back all that are kept."""
        new = key.shape[2]
        if self.memory is not None:
            self._start = max(self._start, self._end - self.memory)
        if self._key is None or self._value is None or self._end + new > self._key.shape[2]:
            held = self._end - self._start
            while self._reserve < held + new:
                self._reserve *= 2
            if self._start and self._reserve < 2 * (held + new):
                self._reserve *= 2  # so that what is held does not move at every step
            self._key, self._value = self._moved(self._key, key), self._moved(self._value, value)
            self._start, self._end = 0, held
        end = self._end + new
        self._key[:, :, self._end : end] = key
        self._value[:, :, self._end : end] = value
        self._end = end
        self.length += new
        return self._key[:, :, self._start : end], self._value[:, :, self._start : end]

    @property
    def held(self) -> tuple[Tensor, Tensor]:
        """The keys and values of the tokens that are kept: rows kv_heads length head."""
        assert self._key is not None and self._value is not None
        some = slice(self._start, self._end)
        return self._key[:, :, some], self._value[:, :, some]

    def select(self, rows: Tensor) -> None:
        if self._key is not None and self._value is not None:
            self._key = self._selected(self._key, rows)
            self._value = self._selected(self._value, rows)

    def _moved(self, held: Tensor | None, new: Tensor) -> Tensor:
        """What is held, at the beginning of new room."""
        rows, kv_heads, _, head = new.shape
        room = new.new_empty(rows, kv_heads, self._reserve, head)
        if held is not None:
            room[:, :, : self._end - self._start] = held[:, :, self._start : self._end]
        return room

    def _selected(self, held: Tensor, rows: Tensor) -> Tensor:
        """Copies only the part in use, not the reserve."""
        room = held.new_empty(len(rows), *held.shape[1:])
        room[:, :, self._start : self._end] = held[:, :, self._start : self._end].index_select(0, rows)
        return room


class LayersCache:
    """What a stack of layers remembers: one cache a layer, and the positions of the tokens so far. `memory`: how many
    of the tokens before the newest are kept; None = all."""

    def __init__(self, layers: list[LayerCache], *, memory: int | None = None) -> None:
        self.layers = layers
        self.memory = memory
        self._positions: Tensor | None = None  # (rows or 1) key

    @property
    def length(self) -> int:
        return self.layers[0].length

    def place(self, positions: Tensor) -> Tensor:
        """Append the new tokens' positions; returns those of all keys."""
        if self._positions is None:
            self._positions = positions
        else:
            held = self._positions
            if self.memory is not None:
                held = held[:, max(0, held.shape[1] - self.memory) :]
            rows = max(len(positions), len(held))
            self._positions = torch.cat([part.expand(rows, -1) for part in (held, positions)], dim=1)
        return self._positions

    def select(self, rows: Tensor) -> None:
        for layer in self.layers:
            layer.select(rows)
        if self._positions is not None and len(self._positions) > 1:
            self._positions = self._positions.index_select(0, rows)


class SegmentMemory:
    """What each layer of a stack read of the last `memory` tokens before: its inputs, cut off from their gradient.

    Keys and values are made of them again in each pass, so that their weights learn from what is remembered, too.
    Positions count from the oldest token held: only schemes that look at distances can use it.      Dai et al. 2019,
    section 3.2
    """

    def __init__(self, layers: int, memory: int) -> None:
        self.memory = memory
        self._states: list[Tensor | None] = [None] * layers  # of each layer: rows held width

    @property
    def length(self) -> int:
        """How many tokens it holds."""
        return 0 if self._states[0] is None else self._states[0].shape[1]

    def exchange(self, layer: int, x: Tensor) -> Tensor | None:
        """What is held of a layer; its new inputs take the place of the oldest."""
        past = self._states[layer]
        both = x.detach() if past is None else torch.cat([past, x.detach()], dim=1)
        kept = both[:, max(0, both.shape[1] - self.memory) :]
        self._states[layer] = kept if kept.shape[1] else None
        return past

    def select(self, rows: Tensor) -> None:
        self._states = [None if held is None else held.index_select(0, rows) for held in self._states]

    def state(self) -> Tensor | None:
        """All it holds, as one tensor: layers rows held width. None = nothing."""
        held = [states for states in self._states if states is not None]
        return torch.stack(held) if held else None

    def restore(self, state: Tensor) -> None:
        """Hold what `state` gave, or the last of it where less is kept here."""
        self._states = list(state[:, :, max(0, state.shape[2] - self.memory) :].unbind(0))
