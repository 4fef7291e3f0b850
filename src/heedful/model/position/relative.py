"""A learned vector for each distance, compared with the query."""

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from heedful.config import Size
from heedful.model.input.tokens import new_table
from heedful.model.position import Position, PositionConfig


class RelativeConfig(PositionConfig):
    """`distance`: keys that are farther away than this share a vector, one for each direction."""

    needs: ClassVar[frozenset[str]] = frozenset({"score"})
    distance: Size = 16

    def build(self, *, width: int, heads: int, head_width: int, causal: bool) -> "Relative":
        return Relative(self.distance, head_width)

    def parameters(self, *, width: int, heads: int, head_width: int) -> int:
        return (2 * self.distance + 1) * head_width


class Relative(Position):
    """score_ij = q_i . (k_j + a_clip(j - i)) / sqrt(head).      Shaw et al. 2018, equations 3 and 4

    The queries are compared with each vector once, and the results dealt out by distance: no vector for each pair is
    ever made. The vectors are shared by the heads, as in the paper.

    Differs: also shared by the layers; and the values have none (the paper's a^V), which by the paper's table 3 changes
    nothing for translation.
    """

    def __init__(self, distance: int, head_width: int) -> None:
        super().__init__()
        self.distance = distance
        self.weight = new_table(2 * distance + 1, head_width)

    def score(self, query: Tensor, key: Tensor, *, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        terms = F.linear(query, self.weight)  # batch heads query distances
        offset = key_positions[:, None, :] - query_positions[:, :, None]  # (batch or 1) query key
        place = offset.clamp(-self.distance, self.distance) + self.distance
        return terms.gather(-1, place[:, None].expand(*query.shape[:2], -1, -1))  # batch heads query key
