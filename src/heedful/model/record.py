"""What the attentions look at, seen from outside: the model runs as ever, fast kernels and all, and its queries and
keys are noted in passing. Weights are computed from them afterwards, by the mix that used them, only for what is
asked."""

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
    """One attention at work in one pass; `name` is its place in the model (`decoder.layers.2.cross`)."""

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
        """The same, for a picture that cannot do without."""
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
                if threading.get_ident() != mine or options is None:  # None: of another thread, and just removed
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
