"""Token ids -> vectors, and back: the same table may read and write."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.config import Config, Size


def new_table(rows: int, width: int) -> nn.Parameter:
    """Some small numbers; `initialise` sets the real ones. Uniform, since torch takes two seconds to load what it needs
    for normal ones on the meta device."""
    return nn.Parameter(torch.empty(rows, width).uniform_(-(width**-0.5), width**-0.5))


class EmbeddingConfig(Config):
    """`width` below the model's width factorises the table (ALBERT, Lan et al. 2020, section 3.1)."""

    width: Size | None = None
    scale: bool = True

    def build(self, vocab: int, width: int) -> "Embedding":
        return Embedding(vocab, self.width or width, scale=self.scale)

    def parameters(self, vocab: int, width: int) -> int:
        return vocab * (self.width or width)


class Embedding(nn.Module):
    """weight[token] * sqrt(width).      Vaswani et al. 2017, section 3.4

    Differs: the scale may be left out, as in BERT, GPT-2, T5 and LLaMA.
    """

    def __init__(self, vocab: int, width: int, *, scale: bool) -> None:
        super().__init__()
        self.weight = new_table(vocab, width)
        self.factor = math.sqrt(width) if scale else 1.0

    def forward(self, tokens: Tensor) -> Tensor:
        vectors = F.embedding(tokens, self.weight)
        return vectors if self.factor == 1.0 else vectors * self.factor

    def project(self, states: Tensor) -> Tensor:
        """The way back: a score for each token."""
        return F.linear(states, self.weight)

    def rows(self, tokens: Tensor) -> Tensor:
        """The vectors that `project` compares with."""
        return self.weight[tokens]
