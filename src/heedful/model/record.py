"""What the attentions look at, seen from outside: the model runs as ever, fast kernels and all, and its queries and
keys are noted in passing. Weights are computed from them afterwards, by the plain formula, only for what is asked."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from heedful.model.attention.reference import Reference
from heedful.model.mask import Mask
from heedful.model.multihead import CrossAttention, SelfAttention


@dataclass(frozen=True)
class Glance:
    """One attention at work in one pass; `name` is its place in the model (`decoder.layers.2.cross`)."""

    name: str
    query: Tensor  # batch heads query head
    key: Tensor  # batch kv_heads key head
    mask: Mask
    bias: Tensor | None
    scale: float

    def weights(self) -> Tensor:
        """How much each query looks at each key: batch heads query key."""
        return Reference(self.scale, 0.0).weights(self.query, self.key, mask=self.mask, bias=self.bias)


@contextmanager
def recorded(model: nn.Module, kind: type[SelfAttention] | type[CrossAttention]) -> Iterator[list[Glance]]:
    """Note what the attentions of one kind do while the block runs. For passes without a cache. Passes that other
    threads make meanwhile are none of our business."""
    seen: list[Glance] = []
    hooks = []
    mine = threading.get_ident()
    for name, module in model.named_modules():
        if isinstance(module, kind):

            def note(
                mix: Any, inputs: tuple[Any, ...], options: dict[str, Any] | None = None, name: str = name
            ) -> None:
                if threading.get_ident() != mine or options is None:  # None: of another thread, and just removed
                    return
                seen.append(Glance(name, inputs[0], inputs[1], options["mask"], options.get("bias"), float(mix.scale)))

            hooks.append(module.mix.register_forward_pre_hook(note, with_kwargs=True))
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
