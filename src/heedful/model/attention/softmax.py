"""Scaled dot-product attention by torch's fused kernels: multi-head, grouped-query, multi-query. The default."""

import torch.nn.functional as F
from torch import Tensor

from heedful.model.attention import Mix, MixConfig
from heedful.model.cache import KeyValueCache, LayerCache
from heedful.model.mask import Mask


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
            dropout_p=self.dropout if self.training else 0.0,
            scale=self.scale,
            enable_gqa=key.shape[1] != query.shape[1],
        )

    def new_cache(self, length: int) -> KeyValueCache:
        return KeyValueCache(length)
