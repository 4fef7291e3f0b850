"""Additive attention: a small network compares a query with a key.      Bahdanau et al. 2015, appendix A.1.2"""

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from heedful.model.attention import FACTS, HeadShape, Mix, MixConfig
from heedful.model.cache import KeyValueCache, LayerCache
from heedful.model.dropout import Dropout
from heedful.model.input.tokens import new_table
from heedful.model.sight import Sight

ROOM = 1 << 22  # numbers that are computed at once: what is compared has a vector for each pair of query and key


class AdditiveConfig(MixConfig):
    supports: ClassVar[frozenset[str]] = FACTS - {"score"}
    exact: ClassVar[bool] = False

    def build(self, shape: HeadShape) -> "Additive":
        return Additive(shape)

    def parameters(self, shape: HeadShape) -> int:
        return shape.heads * shape.head


class Additive(Mix):
    """softmax_j(v . tanh(q_i + k_j)) V, where q = W s and k = U h are already projected.

    Differs: there may be several heads, each with a v of its own. The vectors tanh(q_i + k_j) are never held for all
    pairs: they are computed a few queries at a time, and again in the backward pass.
    """

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.weight = new_table(shape.heads, shape.head)
        self.dropout = Dropout(shape.dropout)

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
        weights = self.dropout(self.weights(query, key, sight=sight))
        return weights.to(value.dtype) @ _share(value, query.shape[1])  # batch heads query head

    def weights(self, query: Tensor, key: Tensor, *, sight: Sight, others: tuple[Tensor, ...] = ()) -> Tensor:
        key = _share(key, query.shape[1])
        scores = _Scores.apply(query, key.to(query.dtype), self.weight.to(query.dtype))
        bias = sight.bias()
        scores = scores if bias is None else scores + bias.to(scores.dtype)
        visible = sight.mask.dense(query.shape[2], key.shape[2], query.device)
        if visible is None:
            return scores.softmax(-1)
        # Cut twice, since a row of -inf would give NaN: see `reference`.
        scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
        return scores.softmax(-1).masked_fill(~visible, 0)

    def new_cache(self, length: int) -> KeyValueCache:
        return KeyValueCache(length)


class _Scores(torch.autograd.Function):
    """v . tanh(q_i + k_j) of all pairs: batch heads query key.  query, key: batch heads (query, key) head; v: heads
    head"""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, v: Tensor) -> Tensor:
        ctx.save_for_backward(query, key, v)
        return torch.cat([_compared(part, key) @ v[:, None, :, None] for part in _parts(query, key)], dim=2)[..., 0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, v = ctx.saved_tensors
        d_queries, d_key, d_v = [], torch.zeros_like(key), torch.zeros_like(v)
        parts = _parts(query, key)
        for part, grad in zip(parts, grads[0].split(parts[0].shape[2], dim=2), strict=True):
            compared = _compared(part, key)  # batch heads query key head
            d_v += torch.einsum("bhqk,bhqkd->hd", grad, compared)
            inner = compared.square_().neg_().add_(1).mul_(grad[..., None])  # d tanh = 1 - tanh^2
            d_queries.append(inner.sum(3))
            d_key += inner.sum(2)
        return torch.cat(d_queries, dim=2) * v[:, None], d_key * v[:, None], d_v


def _parts(query: Tensor, key: Tensor) -> tuple[Tensor, ...]:
    """The queries, a few at a time."""
    each = query.shape[0] * key[0].numel()
    return query.split(max(1, ROOM // max(1, each)), dim=2)


def _compared(query: Tensor, key: Tensor) -> Tensor:
    return (query[:, :, :, None] + key[:, :, None]).tanh_()


def _share(x: Tensor, heads: int) -> Tensor:
    """Give each query head its key/value head: batch kv_heads key head -> batch heads key head"""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)
