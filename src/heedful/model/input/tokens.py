"""Token ids -> vectors, and back: one table can serve as input and output."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.config import Size
from heedful.model.cpu.plan import TablePlan
from heedful.model.input import Input, InputConfig


def new_table(rows: int, width: int) -> nn.Parameter:
    """Small placeholder values; `initialise` sets the real ones. Uniform, because on the meta device torch takes two
    seconds to load what it needs for normal ones."""
    return nn.Parameter(torch.empty(rows, width).uniform_(-(width**-0.5), width**-0.5))


class TokensConfig(InputConfig):
    """`width` below the model's width factorises the table (ALBERT, Lan et al. 2020, section 3.1)."""

    width: Size | None = None
    scale: bool = True

    def width_in(self, width: int) -> int:
        return self.width or width

    def build(self, *, width: int, vocab: int) -> "Tokens":
        return Tokens(vocab, self.width_in(width), scale=self.scale)

    def parameters(self, *, width: int, vocab: int) -> int:
        return vocab * self.width_in(width)


class Tokens(Input):
    """weight[token] * sqrt(width).      Vaswani et al. 2017, section 3.4

    Differs: the scale is optional; there is none in BERT, GPT-2, T5 and LLaMA.
    """

    def __init__(self, vocab: int, width: int, *, scale: bool) -> None:
        super().__init__()
        self.weight = new_table(vocab, width)
        self.factor = math.sqrt(width) if scale else 1.0

    def forward(self, source: Tensor, *, valid: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        return self.embed(source), valid

    def embed(self, tokens: Tensor) -> Tensor:
        vectors = F.embedding(tokens, self.weight)
        return vectors if self.factor == 1.0 else vectors * self.factor

    def plan(self) -> TablePlan:
        return TablePlan(self.weight, None, self.factor, self.weight.shape[1])

    def matrix(self) -> Tensor:
        """What `project` multiplies with."""
        return self.weight

    def project(self, states: Tensor) -> Tensor:
        """Logits: a score for each token."""
        return F.linear(states, self.weight)

    def rows(self, tokens: Tensor) -> Tensor:
        """The rows of the table that `project` multiplies with."""
        return self.weight[tokens]
