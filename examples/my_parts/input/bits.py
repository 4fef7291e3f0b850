"""Token ids as binary numbers: no embedding table, whatever the size of the vocabulary."""

import torch
from torch import Tensor

from heedful.model.input import Input, InputConfig
from heedful.model.linear import Linear, linear_parameters

BITS = 17


class BitsConfig(InputConfig):
    def build(self, *, width: int, vocab: int) -> "Bits":
        return Bits(width)

    def parameters(self, *, width: int, vocab: int) -> int:
        return linear_parameters(BITS, width, bias=True)


class Bits(Input):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.map = Linear(BITS, width)

    def forward(self, source: Tensor, *, valid: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        digits = (source[..., None] >> torch.arange(BITS, device=source.device)) & 1  # batch source BITS
        return self.map(digits.to(self.map.weight.dtype)), valid
