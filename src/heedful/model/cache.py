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
    """All keys and values so far, in preallocated memory that grows when it is full."""

    def __init__(self, length: int) -> None:
        self.length = 0
        self._reserve = max(1, length)
        self._key: Tensor | None = None  # rows kv_heads reserved head
        self._value: Tensor | None = None

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append the new tokens' keys and values; returns all of them."""
        end = self.length + key.shape[2]
        self._key = self._room(self._key, key, end)
        self._value = self._room(self._value, value, end)
        self._key[:, :, self.length : end] = key
        self._value[:, :, self.length : end] = value
        self.length = end
        return self._key[:, :, :end], self._value[:, :, :end]

    def select(self, rows: Tensor) -> None:
        if self._key is not None and self._value is not None:
            self._key = self._selected(self._key, rows)
            self._value = self._selected(self._value, rows)

    def _room(self, held: Tensor | None, new: Tensor, end: int) -> Tensor:
        if held is not None and end <= held.shape[2]:
            return held
        while self._reserve < end:
            self._reserve *= 2
        rows, kv_heads, _, head = new.shape
        room = new.new_empty(rows, kv_heads, self._reserve, head)
        if held is not None:
            room[:, :, : self.length] = held[:, :, : self.length]
        return room

    def _selected(self, held: Tensor, rows: Tensor) -> Tensor:
        """Copies only the part in use, not the reserve."""
        room = held.new_empty(len(rows), *held.shape[1:])
        room[:, :, : self.length] = held[:, :, : self.length].index_select(0, rows)
        return room


class LayersCache:
    """What a stack of layers remembers: one cache per layer, and the positions of the tokens so far."""

    def __init__(self, layers: list[LayerCache]) -> None:
        self.layers = layers
        self._positions: Tensor | None = None  # (rows or 1) key

    @property
    def length(self) -> int:
        return self.layers[0].length

    def place(self, positions: Tensor) -> Tensor:
        """Append the new tokens' positions; returns those of all keys."""
        if self._positions is None:
            self._positions = positions
        else:
            rows = max(len(positions), len(self._positions))
            both = [part.expand(rows, -1) for part in (self._positions, positions)]
            self._positions = torch.cat(both, dim=1)
        return self._positions

    def select(self, rows: Tensor) -> None:
        for layer in self.layers:
            layer.select(rows)
        if self._positions is not None and len(self._positions) > 1:
            self._positions = self._positions.index_select(0, rows)
