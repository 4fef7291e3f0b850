"""Scaled dot-product attention, written as its formula. Slow and plain: the reference for all other variants."""

from typing import ClassVar

import torch
from torch import Tensor

from heedful.model.attention import FACTS, HeadShape, Mix, MixConfig
from heedful.model.cache import KeyValueCache, LayerCache
from heedful.model.dropout import Dropout
from heedful.model.sight import Sight


class ReferenceConfig(MixConfig):
    supports: ClassVar[frozenset[str]] = FACTS

    def build(self, shape: HeadShape) -> "Reference":
        return Reference(shape.scale, shape.dropout)


class Reference(Mix):
    """softmax(scale * (Q K^T + score) + bias) V.      Vaswani et al. 2017, equation 1"""

    def __init__(self, scale: float, dropout: float) -> None:
        super().__init__()
        self.scale = scale
        self.dropout = Dropout(dropout)

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
        return self.dropout(weights) @ share(value, query.shape[1])  # batch heads query head

    def weights(self, query: Tensor, key: Tensor, *, sight: Sight, others: tuple[Tensor, ...] = ()) -> Tensor:
        return weights_of(query, key, sight=sight, scale=self.scale)

    def new_cache(self, length: int) -> KeyValueCache:
        return KeyValueCache(length)


def weights_of(query: Tensor, key: Tensor, *, sight: Sight, scale: float) -> Tensor:
    """The weights of every attention that is a softmax over all keys in sight: batch heads query key, rows that sum to
    1 (or to 0: nothing seen)."""
    scores = query @ share(key, query.shape[1]).transpose(-2, -1)
    term = sight.score(query, key)
    return softmax_in_sight(scale * (scores if term is None else scores + term.to(scores.dtype)), sight)


def softmax_in_sight(scores: Tensor, sight: Sight) -> Tensor:
    """batch heads query key, scaled: with the bias of the position, over what each query may see."""
    bias = sight.bias()
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    visible = sight.mask.dense(scores.shape[2], scores.shape[3], scores.device)
    if visible is None:
        return scores.softmax(-1)
    # A row of -inf would give NaN, forward and backward, so hidden keys are masked twice: with the lowest
    # finite score before the softmax, and with zero after it.
    scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
    return scores.softmax(-1).masked_fill(~visible, 0)


def share(x: Tensor, heads: int) -> Tensor:
    """Give each query head its key/value head: batch kv_heads key head -> batch heads key head"""
    return x.repeat_interleave(heads // x.shape[1], dim=1)
