"""A learned vector for each small distance, compared with the query.      After Shaw et al. 2018, equation 3"""

import torch.nn.functional as F
from torch import Tensor

from heedful.config import Size
from heedful.model.input.tokens import new_table
from heedful.model.position import Position, PositionConfig


class NearbyConfig(PositionConfig):
    """`reach`: distances beyond it share a vector."""

    needs = frozenset({"score"})
    reach: Size = 4

    def build(self, *, width: int, heads: int, head_width: int, causal: bool) -> "Nearby":
        return Nearby(self.reach, head_width)

    def parameters(self, *, width: int, heads: int, head_width: int) -> int:
        return (2 * self.reach + 1) * head_width


class Nearby(Position):
    """score_ij = q_i . (k_j + a_clip(j - i))

    Differs: the vectors are shared by heads and layers, and values have none.
    """

    def __init__(self, reach: int, head_width: int) -> None:
        super().__init__()
        self.reach = reach
        self.weight = new_table(2 * reach + 1, head_width)

    def score(self, query: Tensor, key: Tensor, *, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        offset = key_positions[:, None, :] - query_positions[:, :, None]  # batch query key
        vectors = F.embedding(offset.clamp(-self.reach, self.reach) + self.reach, self.weight)  # batch query key head
        return (query[:, :, :, None] * vectors[:, None]).sum(-1)  # batch heads query key
