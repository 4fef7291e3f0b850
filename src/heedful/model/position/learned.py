"""One learned vector per position, added to the embeddings."""

from typing import ClassVar

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from heedful.config import Size
from heedful.model.cpu.plan import PositionPlan
from heedful.model.input.tokens import new_table
from heedful.model.position import Position, PositionConfig


class LearnedConfig(PositionConfig):
    """`offset`: unused rows before position 0, as in the published tables of BART and RoBERTa."""

    absolute: ClassVar[bool] = True
    length: Size = 512
    offset: int = Field(0, ge=0)

    @property
    def limit(self) -> int:
        return self.length

    def build(self, *, width: int, heads: int, head_width: int, causal: bool) -> "Learned":
        return Learned(self, width)

    def parameters(self, *, width: int, heads: int, head_width: int) -> int:
        return (self.length + self.offset) * width


class Learned(Position):
    """x_i + P[i], with P trained like any weight.      Gehring et al. 2017; GPT, BERT"""

    def __init__(self, config: LearnedConfig, width: int) -> None:
        super().__init__()
        self.limit = config.length
        self.offset = config.offset
        self.weight = new_table(config.length + config.offset, width)

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + F.embedding(positions + self.offset, self.weight)

    def plan(self) -> PositionPlan:
        return PositionPlan(self.embed, self.limit, (self.weight,))
