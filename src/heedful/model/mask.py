"""Who may see whom, stated as facts. A dense matrix is made at the last moment by the mix that needs one.

True = may see. The last query stands beside the last key: with a cache there are fewer queries than keys, and query i
of n is key i + (keys - n). Nothing is causal unless it says so.
"""

from dataclasses import dataclass, field
from functools import reduce

import torch
from torch import Tensor


@dataclass(frozen=True)
class Mask:
    """The facts; each one given removes sight, except `prefix`, which gives back what `causal` took.

    causal      a query sees no key after itself
    key_valid   batch key; False = padding, seen by nobody
    window      a query sees keys fewer than `window` places away, itself included
    segments    batch key; several texts packed into one row: each sees only itself
    prefix      batch; under `causal`, the first `prefix` keys are seen by all (prefix language model)
    """

    causal: bool = False
    key_valid: Tensor | None = None
    window: int | None = None
    segments: Tensor | None = None
    prefix: Tensor | None = None
    # The layers of a stack share one mask: its dense forms are made once for all of them.
    _dense: dict[tuple[int, int], Tensor | None] = field(default_factory=dict, compare=False, repr=False)
    _hiding: dict[tuple[int, int], Tensor | None] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.prefix is not None and not self.causal:
            raise ValueError("prefix has a meaning only in a causal mask; set causal=True or leave prefix out")
        if self.window is not None and self.window < 1:
            raise ValueError(f"window {self.window} sees nothing; choose 1 (itself) or more")

    def is_plain_causal(self, query: int, key: int) -> bool:
        """Whether the kernels' own causal flag says it all."""
        others = (self.key_valid, self.window, self.segments, self.prefix)
        return self.causal and query == key and query > 1 and all(fact is None for fact in others)

    def dense(self, query: int, key: int, device: torch.device) -> Tensor | None:
        """(batch or 1) 1 (query or 1) key; None where everybody sees everything."""
        if (query, key) not in self._dense:
            self._dense[query, key] = self._make(query, key, device)
        return self._dense[query, key]

    def hiding(self, query: int, key: int, device: torch.device) -> Tensor | None:
        """Its dense form, to be added to scores: 0 where a query may look, -inf where not. None where it may look
        nowhere: there a softmax of what is hidden would not be a number."""
        if (query, key) not in self._hiding:
            visible = self.dense(query, key, device)
            self._hiding[query, key] = None
            if visible is None:
                self._hiding[query, key] = torch.zeros(1, 1, 1, 1, device=device)
            elif bool(visible.any(-1).all()):
                self._hiding[query, key] = torch.zeros(visible.shape, device=device).masked_fill_(~visible, -torch.inf)
        return self._hiding[query, key]

    def additive(self, query: int, key: int, bias: Tensor) -> Tensor:
        """The bias with -inf where a query may not look."""
        visible = self.dense(query, key, bias.device)
        return bias if visible is None else bias.masked_fill(~visible, -torch.inf)

    def _make(self, query: int, key: int, device: torch.device) -> Tensor | None:
        key_index = torch.arange(key, device=device)
        distance = torch.arange(key - query, key, device=device)[:, None] - key_index  # query key
        facts = []
        if self.causal and query > 1:  # the last query has no future
            past = (distance >= 0)[None, None]
            facts.append(past if self.prefix is None else past | (key_index < self.prefix[:, None])[:, None, None])
        if self.window is not None:
            facts.append((distance.abs() < self.window)[None, None])
        if self.segments is not None:
            facts.append((self.segments[:, key - query :, None] == self.segments[:, None])[:, None])
        if self.key_valid is not None:
            facts.append(self.key_valid[:, None, None])
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
