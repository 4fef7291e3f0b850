"""Recording attention from outside: the model runs as usual, fast kernels included, while hooks record its queries and
keys. Weights are computed from them afterwards, by the mix that used them, and only where they are requested."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from heedful.model.attention import Mix
from heedful.model.multihead import MemoryAttention, SelfAttention
from heedful.model.sight import Sight


@dataclass(frozen=True)
class Recorded:
    """One attention module in one pass; `name` is its path in the model (`decoder.layers.2.cross`)."""

    name: str
    mix: Mix
    query: Tensor  # batch heads query head
    key: Tensor  # batch kv_heads key head
    sight: Sight
    others: tuple[Tensor, ...] = ()

    @torch.no_grad()
    def weights(self) -> Tensor | None:
        """How much each query looked at each key: batch heads query key. None where this attention has no weights."""
        with torch.no_grad():  # what was recorded in inference cannot be part of a gradient
            return self.mix.weights(self.query, self.key, sight=self.sight, others=self.others)

    def shown_weights(self) -> Tensor:
        """The same, but an error if there are none."""
        weights = self.weights()
        if weights is None:
            raise ValueError(f"{self.name} ({type(self.mix).__name__.lower()}) has no weights to show")
        return weights


@contextmanager
def recorded(model: nn.Module, kind: type[SelfAttention] | type[MemoryAttention]) -> Iterator[list[Recorded]]:
    """Note what the attentions of one kind do while the block runs. For passes without a cache. Passes that other
    threads make meanwhile are none of our business."""
    seen: list[Recorded] = []
    hooks = []
    mine = threading.get_ident()
    for name, module in model.named_modules():
        if isinstance(module, kind):

            def note(
                mix: Any,
                inputs: tuple[Any, ...],
                options: dict[str, Any] | None = None,
                name: str = name,
                stepwise: bool = getattr(module, "stepwise", False),
            ) -> None:
                if threading.get_ident() != mine or options is None:  # None: removed meanwhile
                    return
                query, key = inputs[:2]
                if stepwise and seen and seen[-1].name == name:  # the next token of the same pass
                    seen[-1] = replace(seen[-1], query=torch.cat([seen[-1].query, query], dim=2))
                    return
                seen.append(Recorded(name, mix, query, key, options["sight"], options.get("others", ())))

            hooks.append(module.mix.register_forward_pre_hook(note, with_kwargs=True))
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
