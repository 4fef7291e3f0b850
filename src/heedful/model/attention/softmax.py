"""Scaled dot-product attention by the fastest available kernel: multi-head, grouped-query, multi-query. The default."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.model.attention import FACTS, HeadShape, Mix, MixConfig
from heedful.model.attention.reference import weights_of
from heedful.model.cache import KeyValueCache, LayerCache
from heedful.model.cpu.plan import SoftmaxPlan
from heedful.model.cpu.training import attend
from heedful.model.mask import Mask
from heedful.model.sight import Sight

# On a CPU without our kernel: torch's fused kernel has an overhead per row and head that short texts do not
# amortise. For these, batched products of small matrices are two to three times as fast (measured for 10 to 100 tokens
# and 32 to 1,600 rows x heads).
SHORT, MANY = 128, 16


class SoftmaxConfig(MixConfig):
    supports: ClassVar[frozenset[str]] = FACTS

    def build(self, shape: HeadShape) -> "Softmax":
        return Softmax(shape.scale, shape.dropout)


class Softmax(Mix):
    """The same function as `reference`, without storing the whole matrix of weights where a kernel allows it."""

    def __init__(self, scale: float, dropout: float) -> None:
        super().__init__()
        self.scale = scale
        self.dropout = dropout

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
        bias = self._bias(query, key, sight)
        dropout = self.dropout if self.training else 0.0
        biased = bias is not None
        mixed = attend(query, key, value, sight.mask, scale=self.scale, dropout=dropout, biased=biased)
        if mixed is None and not dropout and not biased:
            mixed = _by_products(query, key, value, sight.mask, self.scale)
        if mixed is not None:
            return mixed
        queries, keys = query.shape[2], key.shape[2]
        causal = bias is None and sight.mask.is_plain_causal(queries, keys)
        visible = None if causal or bias is not None else sight.mask.dense(queries, keys, query.device)
        return F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=visible if bias is None else bias.to(query.dtype),
            is_causal=causal,
            dropout_p=dropout,
            scale=self.scale,
            enable_gqa=bool(key.shape[1] != query.shape[1]),
        )

    def plan(self) -> SoftmaxPlan:
        return SoftmaxPlan(self.scale)

    def weights(self, query: Tensor, key: Tensor, *, sight: Sight, others: tuple[Tensor, ...] = ()) -> Tensor:
        return weights_of(query, key, sight=sight, scale=self.scale)

    def new_cache(self, length: int) -> KeyValueCache:
        return KeyValueCache(length)

    def _bias(self, query: Tensor, key: Tensor, sight: Sight) -> Tensor | None:
        """Everything added to the scaled scores, including the mask; None if that is only the mask."""
        bias, term = sight.masked_bias(), sight.score(query, key)
        if term is None:
            return bias
        if bias is None:
            visible = sight.mask.dense(query.shape[2], key.shape[2], query.device)
            return self.scale * term if visible is None else (self.scale * term).masked_fill(~visible, -torch.inf)
        return bias + self.scale * term


def _is_short(query: Tensor, key: Tensor) -> bool:
    batch, heads, queries, _ = query.shape
    small = max(queries, key.shape[2]) <= SHORT and batch * heads >= MANY
    return small and query.device.type == "cpu" and query.dtype == torch.float32 and key.shape[1] == heads


def _by_products(query: Tensor, key: Tensor, value: Tensor, mask: Mask, scale: float) -> Tensor | None:
    """By batched matrix products, for short texts in which every query sees some key; None for others."""
    additive = mask.additive(query.shape[2], key.shape[2], query.device) if _is_short(query, key) else None
    if additive is None:
        return None
    scores = torch.add(additive, query @ key.transpose(-2, -1), alpha=scale)
    return scores.softmax(-1) @ value
