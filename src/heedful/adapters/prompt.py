"""Trained vectors before the text, in the place of words.      Lester et al. 2021

    stack([p_1 ... p_n, x_1 ... x_m]), of which the last m states are given back

In an encoder-decoder they stand before the source. Differs: there, the decoder does not look at their states.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.adapters import Adapted, AdapterConfig
from heedful.config import Size
from heedful.model.architecture import Model
from heedful.model.input.tokens import Tokens
from heedful.model.stack import Cache, Memory
from heedful.model.stack.transformer import Transformer
from heedful.model.surgery import adopted


class PromptConfig(AdapterConfig):
    """`length`: how many vectors. They begin as those of random words."""

    neutral: ClassVar[bool] = False
    length: Size = 20

    def install(self, model: Model) -> set[str]:
        name = next(name for name, _ in model.named_children() if name in ("encoder", "decoder"))
        stack, table = model.get_submodule(name), getattr(model, "embedding", None)
        if type(stack) is not Transformer or not isinstance(table, Tokens):
            raise ValueError("adapter prompt needs stack transformer, and an embedding table; choose lora")
        words = torch.randint(len(table.weight), (self.length,))
        found = adopted(stack, PromptedTransformer)
        found.prompt = nn.Parameter(table.embed(words.to(table.weight.device)).detach().clone())
        for limit in ("source_limit",) if hasattr(model, "source_limit") else ("limit",):
            if (most := getattr(model, limit)) is not None:
                if most <= self.length:
                    raise ValueError(f"adapter.length {self.length} leaves none of the model's {most} positions")
                setattr(model, limit, most - self.length)
        setattr(model, name, found)
        return {f"{name}.prompt"}


class PromptedTransformer(Adapted, Transformer):
    prompt: nn.Parameter  # length width

    def forward(
        self,
        x: Tensor,
        *,
        valid: Tensor | None = None,
        segments: Tensor | None = None,
        prefix: Tensor | None = None,
        global_tokens: Tensor | None = None,
        positions: Tensor | None = None,
        memory: Memory | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        facts = {"valid": valid, "segments": segments, "prefix": prefix, "global_tokens": global_tokens}
        if not self.active:
            return super().forward(x, positions=positions, memory=memory, cache=cache, **facts)
        if segments is not None:
            raise ValueError("adapter prompt stands before one text, not before several packed ones; do not pack")
        length, begins = len(self.prompt), cache is None or cache.length == 0
        facts["valid"] = None if valid is None else F.pad(valid, (length, 0), value=True)
        facts["global_tokens"] = None if global_tokens is None else F.pad(global_tokens, (length, 0), value=False)
        facts["prefix"] = None if prefix is None else prefix + length
        if positions is not None:
            first = torch.arange(length, device=x.device).expand(len(positions), -1)
            positions = torch.cat([first, positions + length], dim=1) if begins else positions + length
        if begins:
            x = torch.cat([self.prompt.to(x.dtype).expand(len(x), -1, -1), x], dim=1)
        states = super().forward(x, positions=positions, memory=memory, cache=cache, **facts)
        return states[:, length:] if begins else states
