"""One layer: self-attention, positional attention (in a non-autoregressive decoder), cross-attention (in a decoder with
an encoder), feed-forward.
"""

from collections.abc import Callable

from torch import Tensor, nn

from heedful.model.cache import LayerCache
from heedful.model.cpu.door import child_plan
from heedful.model.cpu.plan import (
    AttentionPlan,
    FeedForwardPlan,
    LayerPlan,
    PositionalPlan,
    Reason,
    ResidualPlan,
    first_reason,
)
from heedful.model.feedforward import FeedForward
from heedful.model.multihead import CrossAttention, KeyValue, Places, PositionalAttention, SelfAttention
from heedful.model.residual import Residual
from heedful.model.sight import Sight


class Layer(nn.Module):
    """Vaswani et al. 2017, figure 1: the left block without `cross`, the right block with it. With `positional`: the
    decoder of Gu et al. 2018, figure 2."""

    def __init__(
        self,
        attention: SelfAttention,
        cross: CrossAttention | None,
        feedforward: FeedForward,
        residual: Callable[[], Residual],
        positional: PositionalAttention | None = None,
    ) -> None:
        super().__init__()
        self.attention = attention
        self.attention_residual = residual()
        self.positional = positional
        self.positional_residual = None if positional is None else residual()
        self.cross = cross
        self.cross_residual = None if cross is None else residual()
        self.feedforward = feedforward
        self.feedforward_residual = residual()

    def forward(
        self,
        x: Tensor,
        *,
        sight: Sight,
        memory: KeyValue | None = None,
        memory_sight: Sight | None = None,
        cache: LayerCache | None = None,
        past: Tensor | None = None,
        places: Places | None = None,
    ) -> Tensor:
        """`past`: what this layer read of earlier segments, rows held width; `places`: what `positional` looks
        at."""
        before = None if past is None else self.attention_residual.entered(past)
        x = self.attention_residual(x, lambda x: self.attention(x, sight=sight, cache=cache, past=before))
        positional, cross = self.positional, self.cross
        if positional is not None and self.positional_residual is not None:
            x = self.positional_residual(x, lambda x: positional(x, places=places))
        if cross is not None and self.cross_residual is not None:
            x = self.cross_residual(x, lambda x: cross(x, memory=memory, sight=memory_sight))
        return self.feedforward_residual(x, lambda x: self.feedforward(x, mask=sight.mask))

    def plan(self) -> LayerPlan | Reason:
        attention = child_plan(self, "attention", AttentionPlan)
        feedforward = child_plan(self, "feedforward", FeedForwardPlan)
        first, last = (child_plan(self, f"{name}_residual", ResidualPlan) for name in ("attention", "feedforward"))
        cross: AttentionPlan | Reason | None = None
        middle: ResidualPlan | Reason | None = None
        if self.cross is not None:
            cross, middle = child_plan(self, "cross", AttentionPlan), child_plan(self, "cross_residual", ResidualPlan)
        if isinstance(cross, Reason) or isinstance(middle, Reason):
            return first_reason(attention, first, cross, middle)
        if not (attention and first and feedforward and last):
            return first_reason(attention, first, feedforward, last)
        if self.positional is None:
            return LayerPlan(attention, first, cross, middle, feedforward, last)
        positional = child_plan(self, "positional", PositionalPlan)
        second = child_plan(self, "positional_residual", ResidualPlan)
        if not (positional and second):
            return first_reason(positional, second)
        return LayerPlan(attention, first, cross, middle, feedforward, last, positional, second)
