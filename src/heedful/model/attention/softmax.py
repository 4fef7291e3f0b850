"""Scaled dot-product attention by torch's fastest ways: multi-head, grouped-query, multi-query. The default."""

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.model.attention import Mix, MixConfig
from heedful.model.cache import KeyValueCache, LayerCache
from heedful.model.fused import attend, can_attend
from heedful.model.mask import Mask

# On a CPU, our own kernel is the fastest up to so many keys: from 1.1 times torch's at 1,024 of them to 3 times at 12.
LONG = 1024
# Without it: torch's fused kernel has a cost for each row and head that short texts cannot repay. There, products of
# many small matrices are two to three times as fast (measured from 10 to 100 tokens, 32 to 1,600 rows and heads).
SHORT, MANY = 128, 16


class SoftmaxConfig(MixConfig):
    def build(self, *, scale: float, dropout: float) -> "Softmax":
        return Softmax(scale, dropout)


class Softmax(Mix):
    """The same function as `reference`, without ever holding the whole matrix of weights where a kernel allows it."""

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
        mask: Mask,
        bias: Tensor | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        if cache is not None:
            assert isinstance(cache, KeyValueCache)
            key, value = cache.append(key, value)
        queries, keys = query.shape[2], key.shape[2]
        causal = bias is None and mask.is_plain_causal(queries, keys)
        dropping = self.training and self.dropout > 0
        if bias is None and not dropping and keys <= LONG and can_attend(query, key, value):
            all_seen = causal or mask.dense(queries, keys, query.device) is None
            hiding = None if all_seen else mask.hiding(queries, keys, query.device)
            if all_seen or hiding is not None:
                return attend(query, key, value, hiding, causal=causal, scale=self.scale)
        if bias is None and not dropping and _is_short(query, key):
            hiding = mask.hiding(queries, keys, query.device)
            if hiding is not None:
                return _by_products(query, key, value, hiding, self.scale)
        if bias is not None:
            allowed: Tensor | None = bias.to(query.dtype)
        else:
            allowed = None if causal else mask.dense(queries, keys, query.device)
        return F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=allowed,
            is_causal=causal,
            dropout_p=self.dropout if dropping else 0.0,
            scale=self.scale,
            enable_gqa=key.shape[1] != query.shape[1],
        )

    def new_cache(self, length: int) -> KeyValueCache:
        return KeyValueCache(length)


def _is_short(query: Tensor, key: Tensor) -> bool:
    batch, heads, queries, _ = query.shape
    small = max(queries, key.shape[2]) <= SHORT and batch * heads >= MANY
    return small and query.device.type == "cpu" and query.dtype == torch.float32 and key.shape[1] == heads


def _by_products(query: Tensor, key: Tensor, value: Tensor, hiding: Tensor, scale: float) -> Tensor:
    scores = torch.add(hiding, query @ key.transpose(-2, -1), alpha=scale)
    return scores.softmax(-1) @ value
