"""Which keys each query may see, stated as facts. A dense matrix is built only by a mix that needs one.

True = may see. The last query is aligned with the last key: with a cache there are fewer queries than keys, and query i
of n is key i + (keys - n). Nothing is causal unless it says so.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Blocks:
    """Which blocks of `size` neighbouring keys each block of queries sees.  seen: (heads or 1) query_blocks
    key_blocks"""

    size: int
    seen: Tensor


@dataclass(frozen=True)
class Mask:
    """The facts. Each one restricts what is visible, except `prefix` and `global_tokens`, which extend it.

    causal          a query sees no key after itself
    key_valid       batch key; False = padding, never seen
    window          a query sees keys fewer than `window` positions away, itself included
    blocks          a query sees the keys of certain blocks only
    global_tokens   batch key; True = sees all and is seen by all, whatever `window` and `blocks` say
    segments        batch key; several texts packed into one row: each sees only itself
    prefix          batch; under `causal`, the first `prefix` keys are seen by all (prefix language model)
    others_only     a query does not see the key of its own position (non-autoregressive decoders)
    """

    causal: bool = False
    key_valid: Tensor | None = None
    window: int | None = None
    segments: Tensor | None = None
    prefix: Tensor | None = None
    global_tokens: Tensor | None = None
    blocks: Blocks | None = None
    others_only: bool = False
    # The layers of a stack share one mask: its dense forms are made once for all of them.
    _made: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.prefix is not None and not self.causal:
            raise ValueError("prefix only applies to a causal mask; set causal=True or omit prefix")
        if self.window is not None and self.window < 1:
            raise ValueError(f"window {self.window} sees nothing; choose 1 (itself) or more")

    def facts(self) -> frozenset[str]:
        """The names of the facts it states, except padding: what a mix must support."""
        named = ("window", "segments", "prefix", "global_tokens", "blocks")
        given = {name for name in named if getattr(self, name) is not None}
        flags = {name for name in ("causal", "others_only") if getattr(self, name)}
        return frozenset(given | flags)

    def is_plain_causal(self, query: int, key: int) -> bool:
        """Whether the causal flag of the attention kernels is enough."""
        same = bool(query == key and query > 1)  # a plain bool, even while a graph is traced
        return same and self.key_valid is None and self.facts() == {"causal"}

    def dense(self, query: int, key: int, device: torch.device) -> Tensor | None:
        """(batch or 1) (heads or 1) (query or 1) key; None if every query sees every key."""
        place = ("dense", query, key, device)
        if place not in self._made:
            self._made[place] = self.part(range(key - query, key), range(key), device)
        return self._made[place]

    def additive(self, query: int, key: int, device: torch.device) -> Tensor | None:
        """To be added to scores: 0 where a query may look, -inf elsewhere. None if some query sees no key: its
        softmax would be NaN."""
        place = ("additive", query, key, device)
        if place not in self._made:
            visible = self.dense(query, key, device)
            self._made[place] = None
            if visible is None:
                self._made[place] = torch.zeros(1, 1, 1, 1, device=device)
            elif bool(visible.any(-1).all()):
                self._made[place] = torch.zeros(visible.shape, device=device).masked_fill_(~visible, -torch.inf)
        return self._made[place]

    def neighbours(self, length: int, kernel: int, device: torch.device) -> Tensor:
        """(batch or 1) length kernel: whether each of the `kernel` positions around a position exists, is not
        padding, and belongs to the same text. Computed without a length x length matrix."""
        places = torch.arange(length, device=device)[:, None] + torch.arange(kernel, device=device) - kernel // 2
        seen = ((places >= 0) & (places < length))[None]
        places = places.clamp(0, length - 1)
        if self.key_valid is not None:
            seen = seen & self.key_valid[:, places]
        if self.segments is not None:
            seen = seen & (self.segments[:, places] == self.segments[:, :, None])
        return seen

    def once(self, name: Any, make: Callable[[], Any]) -> Any:
        """What a mix derives from the facts, made by the first layer that asks for it. `name` must tell apart whatever
        it depends on beyond the facts; nothing that has a gradient may be kept here."""
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    def part(self, queries: range, keys: range, device: torch.device) -> Tensor | None:
        """The dense form of some queries and keys only, both counted in places of keys."""
        key_index = torch.arange(keys.start, keys.stop, device=device)
        distance = torch.arange(queries.start, queries.stop, device=device)[:, None] - key_index  # query key
        these, those = slice(queries.start, queries.stop), slice(keys.start, keys.stop)
        facts = []
        if self.causal and keys.stop - 1 > queries.start:  # else there is no future
            past = (distance >= 0)[None, None]
            facts.append(past if self.prefix is None else past | (key_index < self.prefix[:, None])[:, None, None])
        if self.others_only:
            facts.append((distance != 0)[None, None])
        near = []
        if self.window is not None:
            near.append((distance.abs() < self.window)[None, None])
        if self.blocks is not None:
            block = torch.arange(max(queries.stop, keys.stop), device=device) // self.blocks.size
            near.append(self.blocks.seen[:, block[these]][:, :, block[those]][None])
        if near and self.global_tokens is not None:
            everywhere = self.global_tokens[:, None, None, those] | self.global_tokens[:, None, these, None]
            near = [reduce(torch.logical_and, near) | everywhere]
        facts += near
        if self.segments is not None:
            facts.append((self.segments[:, these, None] == self.segments[:, None, those])[:, None])
        if self.key_valid is not None:
            facts.append(self.key_valid[:, None, None, those])
        return reduce(torch.logical_and, facts) if facts else None


def positions_of(valid: Tensor) -> Tensor:
    """Positions that count real tokens only, for rows padded on the left or in the middle."""
    return (valid.long().cumsum(-1) - 1).clamp(min=0)


def positions_in_segments(segments: Tensor) -> Tensor:
    """Positions that start again at 0 with each packed segment.  `segments`: batch key, each segment one run."""
    index = torch.arange(segments.shape[-1], device=segments.device).expand_as(segments)
    starts = torch.ones_like(segments, dtype=torch.bool)
    starts[:, 1:] = segments[:, 1:] != segments[:, :-1]
    return index - (index * starts).cummax(-1).values
