"""Multiplicative attention: a learned matrix between query and key."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from heedful.model.attention import FACTS, HeadShape, Mix, MixConfig
from heedful.model.attention.softmax import Softmax
from heedful.model.cache import KeyValueCache, LayerCache
from heedful.model.sight import Sight


class MultiplicativeConfig(MixConfig):
    supports: ClassVar[frozenset[str]] = FACTS - {"score", "recurrence"}
    exact: ClassVar[bool] = False

    def build(self, shape: HeadShape) -> "Multiplicative":
        return Multiplicative(shape)

    def parameters(self, shape: HeadShape) -> int:
        return shape.heads * shape.head * shape.head

    def flops(self, shape: HeadShape, length: int) -> int:
        return super().flops(shape, length) + 2 * shape.heads * shape.head * shape.head


class Multiplicative(Mix):
    """score_ij = q_i^T W k_j, with a W of each head.      Luong et al. 2015, equation 8, "general"

    Not exact: it equals softmax where W is 1/sqrt(head) times the identity, which is what it starts with. It does not
    scale, so `scaled` has no meaning.

    Differs: queries, keys and values are projected before, where the paper takes the states themselves.
    """

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape.heads, shape.head, shape.head))
        self.softmax = Softmax(1.0, shape.dropout)

    def first_weights(self) -> None:
        size = self.weight.shape[-1]
        self.weight.copy_(torch.eye(size).mul(size**-0.5).expand_as(self.weight))

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        sight: Sight,
        cache: LayerCache | None = None,
        others: tuple[Tensor, ...] = (),
    ) -> Tensor:
        mixed: Tensor = self.softmax(query @ self.weight, key, value, sight=sight, cache=cache)
        return mixed

    def weights(self, query: Tensor, key: Tensor, *, sight: Sight, others: tuple[Tensor, ...] = ()) -> Tensor:
        return self.softmax.weights(query @ self.weight, key, sight=sight)

    def new_cache(self, length: int) -> KeyValueCache:
        return self.softmax.new_cache(length)
