"""Recording attention from outside: the model runs as usual, fast kernels included, while hooks record its queries and
keys. Weights are computed from them afterwards, by the mix that used them, and only where they are requested."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from heedful.model.attention import Mix
from heedful.model.multihead import CrossAttention, SelfAttention
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

    def weights(self) -> Tensor | None:
        """How much each query looked at each key: batch heads query key. None if this attention has no weights."""
        return self.mix.weights(self.query, self.key, sight=self.sight, others=self.others)

    def shown_weights(self) -> Tensor:
        """The same, but an error if there are none."""
        weights = self.weights()
        if weights is None:
            raise ValueError(f"{self.name} ({type(self.mix).__name__.lower()}) has no weights to show")
        return weights


@contextmanager
def recorded(model: nn.Module, kind: type[SelfAttention] | type[CrossAttention]) -> Iterator[list[Recorded]]:
    """Record the attention modules of one kind while the block runs. For passes without a cache. Passes of other
    threads are ignored."""
    seen: list[Recorded] = []
    hooks = []
    mine = threading.get_ident()
    for name, module in model.named_modules():
        if isinstance(module, kind):

            def note(
                mix: Any, inputs: tuple[Any, ...], options: dict[str, Any] | None = None, name: str = name
            ) -> None:
                if threading.get_ident() != mine or options is None:  # None: removed meanwhile
                    return
                query, key = inputs[:2]
                seen.append(Recorded(name, mix, query, key, options["sight"], options.get("others", ())))

            hooks.append(module.mix.register_forward_pre_hook(note, with_kwargs=True))
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
