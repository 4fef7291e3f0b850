"""Additive attention: a small network scores each pair of query and key."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from heedful.model.attention import FACTS, HeadShape, Mix, MixConfig
from heedful.model.attention.reference import share, softmax_in_sight
from heedful.model.cache import KeyValueCache, LayerCache
from heedful.model.dropout import Dropout
from heedful.model.sight import Sight

ROOM = 1 << 22  # numbers of tanh at once: 16 MB


class AdditiveConfig(MixConfig):
    supports: ClassVar[frozenset[str]] = FACTS - {"score", "recurrence"}
    exact: ClassVar[bool] = False

    def build(self, shape: HeadShape) -> "Additive":
        return Additive(shape)

    def parameters(self, shape: HeadShape) -> int:
        return shape.heads * shape.head


class Additive(Mix):
    """score_ij = v . tanh(W q_i + U k_j).      Bahdanau et al. 2015, appendix A.1.2

    W and U are the projections of queries and keys, which are made before; `v` is of each head. Not exact: another
    function than softmax of products, and it never equals that. There is no 1/sqrt(head), so `scaled` has no meaning.

    Differs: the values have a projection of their own, where the paper takes the encoder's states.

    The scores of all pairs are held, as in softmax; the tanh behind them only for a few queries at a time, forward and
    backward.
    """

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.empty(shape.heads, shape.head))
        self.dropout = Dropout(shape.dropout)

    def first_weights(self) -> None:
        nn.init.uniform_(self.vector, -(self.vector.shape[1] ** -0.5), self.vector.shape[1] ** -0.5)

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
        if cache is not None:
            assert isinstance(cache, KeyValueCache)
            key, value = cache.append(key, value)
        weights = self.weights(query, key, sight=sight)
        return self.dropout(weights).to(value.dtype) @ share(value, query.shape[1])  # batch heads query head

    def weights(self, query: Tensor, key: Tensor, *, sight: Sight, others: tuple[Tensor, ...] = ()) -> Tensor:
        scores: Tensor = _Scores.apply(query, share(key.to(query.dtype), query.shape[1]), self.vector.to(query.dtype))
        return softmax_in_sight(scores, sight)

    def new_cache(self, length: int) -> KeyValueCache:
        return KeyValueCache(length)


class _Scores(torch.autograd.Function):
    """query: batch heads query head; key: batch heads key head; vector: heads head -> batch heads query key"""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, vector: Tensor) -> Tensor:
        ctx.save_for_backward(query, key, vector)
        scores = query.new_empty(*query.shape[:3], key.shape[2])
        for part in _parts(query, key):
            scores[:, :, part] = (_hidden(query, key, part) @ vector[:, None, :, None]).squeeze(-1)
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, vector = ctx.saved_tensors
        grad_query, grad_key, grad_vector = torch.empty_like(query), torch.zeros_like(key), torch.zeros_like(vector)
        for part in _parts(query, key):
            hidden, g = _hidden(query, key, part), gradient[:, :, part, :, None]
            grad_vector += (g * hidden).sum((0, 2, 3))
            slope = hidden.square_().neg_().add_(1).mul_(vector[:, None, None]).mul_(g)  # of tanh
            grad_query[:, :, part] = slope.sum(3)
            grad_key += slope.sum(2)
        return grad_query, grad_key, grad_vector


def _hidden(query: Tensor, key: Tensor, part: slice) -> Tensor:
    """batch heads chunk key head"""
    return (query[:, :, part, None] + key[:, :, None]).tanh_()


def _parts(query: Tensor, key: Tensor) -> list[slice]:
    length, size = query.shape[2], max(1, ROOM // max(1, key.numel()))
    return [slice(start, start + size) for start in range(0, length, size)]
