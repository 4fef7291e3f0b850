"""One layer: attention to oneself, attention to the memory (in a decoder that has one), feed-forward."""

from collections.abc import Callable

from torch import Tensor, nn

from heedful.model.cache import LayerCache
from heedful.model.feedforward import FeedForward
from heedful.model.mask import Mask
from heedful.model.multihead import CrossAttention, KeyValue, SelfAttention
from heedful.model.position import Where
from heedful.model.residual import Residual


class Layer(nn.Module):
    """Vaswani et al. 2017, figure 1: the left block without `cross`, the right block with it."""

    def __init__(
        self,
        attention: SelfAttention,
        cross: CrossAttention | None,
        feedforward: FeedForward,
        residual: Callable[[], Residual],
    ) -> None:
        super().__init__()
        self.attention = attention
        self.attention_residual = residual()
        self.cross = cross
        self.cross_residual = None if cross is None else residual()
        self.feedforward = feedforward
        self.feedforward_residual = residual()

    def forward(
        self,
        x: Tensor,
        *,
        mask: Mask,
        where: Where,
        memory: KeyValue | None = None,
        memory_mask: Mask | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        x = self.attention_residual(x, lambda x: self.attention(x, mask=mask, where=where, cache=cache))
        cross = self.cross
        if cross is not None and self.cross_residual is not None:
            x = self.cross_residual(x, lambda x: cross(x, memory=memory, mask=memory_mask))
        return self.feedforward_residual(x, lambda x: self.feedforward(x, mask=mask))
