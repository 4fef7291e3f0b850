"""A penalty on the score that grows with distance."""

from typing import ClassVar

import torch
from torch import Tensor

from heedful.model.cpu.plan import PositionPlan
from heedful.model.position import Position, PositionConfig


class AlibiConfig(PositionConfig):
    needs: ClassVar[frozenset[str]] = frozenset({"bias"})

    def build(self, *, width: int, heads: int, head_width: int, causal: bool) -> "Alibi":
        return Alibi(heads)


class Alibi(Position):
    """Penalise distance instead of encoding position.      Press et al. 2022, section 3

        score_ij = q_i . k_j / sqrt(head) - m_h |i - j|,      m_h = 2^(-8 h / heads),  h = 1 .. heads

    Differs: |i - j| also serves encoders; the paper is causal only. The slopes follow the formula for any number of
    heads; the paper's code interpolates if it is not a power of two.
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        head = torch.arange(1, self.heads + 1, device=query_positions.device)
        slopes = 2.0 ** (-8.0 * head / self.heads)
        distance = (query_positions[:, :, None] - key_positions[:, None, :]).abs()  # batch query key
        return -slopes[:, None, None] * distance[:, None]  # batch heads query key

    def plan(self) -> PositionPlan:
        return PositionPlan(self.embed, self.limit, bias=self.bias)
