"""Attention and feed-forward, layer after layer.      Vaswani et al. 2017, figure 1"""

from dataclasses import dataclass, replace
from typing import cast

import torch
from pydantic import Field, SerializeAsAny
from torch import Tensor, nn

from heedful.config import Layers, Probability, Size
from heedful.model.attention import HeadShape
from heedful.model.attention.softmax import SoftmaxConfig
from heedful.model.cache import KeyValueCache, LayersCache, SegmentMemory
from heedful.model.cpu.door import child_plan, plan_of
from heedful.model.cpu.plan import (
    IdentityPlan,
    LayerPlan,
    NormPlan,
    PositionPlan,
    Reason,
    StackPlan,
    differing,
    first_reason,
)
from heedful.model.dropout import Dropout
from heedful.model.feedforward import GATED, FeedForwardConfig
from heedful.model.layer import Layer
from heedful.model.linear import Linear, linear_parameters
from heedful.model.mask import Mask, positions_in_segments
from heedful.model.multihead import (
    CrossAttention,
    KeyValue,
    MultiHeadConfig,
    Places,
    PositionalAttention,
    SelfAttention,
)
from heedful.model.norm import NormConfig
from heedful.model.position import PositionConfig
from heedful.model.position.sinusoidal import Sinusoidal, SinusoidalConfig
from heedful.model.residual import Placement, Residual, normed
from heedful.model.sight import Sight
from heedful.model.stack import Cache, Memory, Stack, StackConfig, StackShape

WAVES = SinusoidalConfig()  # what positional attention looks at, whatever the stack's own positions are


class TransformerConfig(StackConfig):
    """`cross` is the cross-attention, in a decoder with an encoder; None = like `attention`, without its window, and
    with softmax if its mix does not support cross-attention. `share_layers` gives all layers the same weights (ALBERT).
    `dropout` acts on the embeddings and on each sub-layer's output, as in the paper; `attention.dropout` and
    `feedforward.dropout` act inside the sub-layers. `length` is the maximum length of a text, for an attention that
    must know it; longer texts are rejected.
    """

    layers: Layers = 6
    attention: MultiHeadConfig = Field(default_factory=MultiHeadConfig)
    cross: MultiHeadConfig | None = None
    feedforward: FeedForwardConfig = Field(default_factory=FeedForwardConfig)
    norm: NormConfig = Field(default_factory=NormConfig)
    placement: Placement = "post"
    position: SerializeAsAny[PositionConfig] = Field(default_factory=SinusoidalConfig)
    dropout: Probability = 0.1
    embedding_norm: bool = False
    share_layers: bool = False
    length: Size | None = None

    @property
    def supports(self) -> frozenset[str]:
        """Earlier segments are seen only where nothing but distances counts: u . k_j of a turned key would not."""
        mix, position = self.attention.mix, self.position
        absolute = position.absolute or (mix.places and position.kind != "none")
        return mix.supported - ({"recurrence"} if absolute else set())

    @property
    def limit(self) -> int | None:
        limits = (self.length, self.position.limit, self.attention.mix.limit)
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def source_limit(self) -> int | None:
        return self.cross_attention.mix.limit

    @property
    def cross_attention(self) -> MultiHeadConfig:
        return self.cross or self.attention.for_cross()

    def check(self, shape: StackShape) -> None:
        head_width = self.attention.head_width_in(shape.width)
        self.position.check(width=shape.input_width, head_width=head_width)
        asked = self.position.needs | ({"others_only"} if shape.parallel else set())
        self.attention.check(shape.width, layers=self.layers, causal=shape.causal, length=self.limit, asked=asked)
        if shape.parallel:
            WAVES.check(width=shape.width, head_width=head_width)
        if shape.cross:
            self.cross_attention.check(shape.width, layers=self.layers, causal=False, cross=True)
        elif self.cross is not None:
            raise ValueError("cross-attention needs an encoder to attend to; remove cross from this model")
        if self.share_layers and isinstance(self.attention.window, tuple) and len(set(self.attention.window)) > 1:
            raise ValueError("layers that share their weights cannot have different windows; set a single window")
        if shape.causal and self.feedforward.kernel > 1:
            raise ValueError(
                f"feedforward kernel {self.feedforward.kernel} would see the next token; "
                "a decoder needs kernel 1, or use it in an encoder"
            )

    def build(self, shape: StackShape) -> "Transformer":
        return Transformer(self, shape)

    def head_shapes(self, shape: StackShape) -> list[HeadShape]:
        """The shape of the self-attention of each layer."""
        return [
            self.attention.shape(shape.width, causal=shape.causal, layer=layer, length=self.limit)
            for layer in range(self.layers)
        ]

    def parameters(self, shape: StackShape) -> dict[str, int]:
        width, input_width = shape.width, shape.input_width
        layers = 1 if self.share_layers else self.layers
        norm = self.norm.parameters(width)
        mixes = sum(self.attention.mix.parameters(one) for one in self.head_shapes(shape)[:layers])
        counts = {
            "position": self.position.parameters(
                width=input_width, heads=self.attention.heads, head_width=self.attention.head_width_in(width)
            ),
            "attention": layers * self.attention.parameters(width) + mixes,
            "cross": 0,
            "feedforward": layers * self.feedforward.parameters(width),
            "norms": layers * (3 if shape.cross else 2) * norm,
        }
        if shape.parallel:
            counts["positional"] = layers * self.attention.parameters(width, cross=True)
            counts["norms"] += layers * norm
        if shape.cross:
            cross = self.cross_attention
            each = cross.parameters(width, cross=True) + cross.mix.parameters(cross.shape(width, cross=True))
            counts["cross"] = layers * each
        if self.placement == "pre":
            counts["norms"] += norm
        if self.embedding_norm:
            counts["norms"] += self.norm.parameters(input_width)
        if input_width != width:
            counts["lift"] = linear_parameters(input_width, width, bias=True)
        return counts

    def flops(self, shape: StackShape, length: int) -> int:
        """Self-attention, cross-attention and feed-forward of all layers, whether or not they share weights."""
        width, feedforward = shape.width, self.feedforward
        heads = self.head_shapes(shape)
        project = 2 * width * sum(self.attention.parts(width)) + 2 * heads[0].heads * heads[0].head * width
        gates = 2 if feedforward.activation in GATED else 1
        products = 2 * feedforward.kernel * width * feedforward.hidden * (gates + 1)
        lift = 2 * shape.input_width * width if shape.input_width != width else 0
        cross = 0
        if shape.cross:
            look = self.cross_attention.shape(width, cross=True)
            cross = 2 * 2 * width * look.heads * look.head + self.cross_attention.mix.flops(look, length)
        mixed = sum(self.attention.mix.flops(one, length) for one in heads)
        positional = project + SoftmaxConfig().flops(heads[0], length) if shape.parallel else 0
        return self.layers * (project + products + cross + positional) + mixed + lift

    def remembered(self, shape: StackShape) -> int:
        return sum(self.attention.mix.remembered(one) for one in self.head_shapes(shape))

    def reading(self, shape: StackShape) -> tuple[int, int]:
        kept = self.layers * sum(self.cross_attention.parts(shape.width, ("key", "value")))
        return 2 * shape.width * kept, kept


@dataclass(frozen=True)
class LayerMemory:
    """What a decoder needs of a source: the encoder's states, and each decoder layer's keys and values for them."""

    states: Tensor  # batch source width
    layers: list[KeyValue]
    mask: Mask

    def select(self, sentences: Tensor) -> "LayerMemory":
        """Keep these sentences, in this order."""
        valid = self.mask.key_valid
        return LayerMemory(
            states=self.states.index_select(0, sentences),
            layers=[(key.index_select(0, sentences), value.index_select(0, sentences)) for key, value in self.layers],
            mask=Mask(key_valid=None if valid is None else valid.index_select(0, sentences)),
        )


class Transformer(Stack):
    """Positions, then the layers. Pre-norm stacks end with a norm, since nothing else bounds their residual stream."""

    def __init__(self, config: TransformerConfig, shape: StackShape) -> None:
        super().__init__()
        width, input_width = shape.width, shape.input_width
        self.causal, self.parallel = shape.causal, shape.parallel
        self.windows = [config.attention.window_of(layer) for layer in range(config.layers)]
        self.supports, self.mix_kind = config.supports, config.attention.mix.kind
        self.long = config.attention.mix.long
        self.position = config.position.build(
            width=input_width,
            heads=config.attention.heads,
            head_width=config.attention.head_width_in(width),
            causal=shape.causal,
        )
        self.limit = config.limit
        self.embedding_norm = config.norm.build(input_width) if config.embedding_norm else nn.Identity()
        self.dropout = Dropout(config.dropout)
        self.lift = Linear(input_width, width) if input_width != width else nn.Identity()
        unique = 1 if config.share_layers else config.layers
        self.layers = nn.ModuleList(_build_layer(config, shape, layer) for layer in range(unique))
        self.depth = config.layers
        self.norm = config.norm.build(width) if config.placement == "pre" else nn.Identity()

    def forward(
        self,
        x: Tensor,
        *,
        valid: Tensor | None = None,
        segments: Tensor | None = None,
        prefix: Tensor | None = None,
        global_tokens: Tensor | None = None,
        positions: Tensor | None = None,
        memory: Memory | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """`positions` ((rows or 1) query), by default continue from the cache and restart with each segment. Rows
        padded on the left need `positions=positions_of(valid)`.
        """
        assert cache is None or isinstance(cache, LayersCache | SegmentMemory)
        assert memory is None or isinstance(memory, LayerMemory)
        if isinstance(cache, SegmentMemory) and positions is not None:
            raise ValueError("positions count on from what the memory holds; leave positions out")
        if positions is None:
            positions = self._next_positions(x, segments, cache)
        elif cache is None or cache.memory is None:
            self._within(positions)
        key_positions = _key_positions(positions, cache)
        if cache is not None and cache.memory is not None:  # facts of what is no longer kept are left out
            keys = key_positions.shape[1]
            facts = (None if fact is None else fact[:, -keys:] for fact in (valid, segments, global_tokens))
            valid, segments, global_tokens = facts
        mask = Mask(
            causal=self.causal,
            key_valid=valid,
            segments=segments,
            prefix=prefix,
            global_tokens=global_tokens,
            others_only=self.parallel,
        )
        sights = self._sights(mask, positions, key_positions)
        if self.recomputed and not self.long:
            for sight in sights.values():
                sight.masked_bias()
        x = self.dropout(normed(self.position.embed(x, positions), self.embedding_norm))
        x = self._through_layers(self.lift(x), sights, memory, cache)
        return normed(x, self.norm)

    def _through_layers(
        self,
        x: Tensor,
        sights: dict[int | None, Sight],
        memory: LayerMemory | None,
        cache: LayersCache | SegmentMemory | None,
    ) -> Tensor:
        recalled = cache if isinstance(cache, SegmentMemory) else None
        memory_sight = None if memory is None else Sight(memory.mask)
        places = self._places(x, next(iter(sights.values()))) if self.parallel else None
        for index, layer in enumerate(self.each_layer()):
            x = layer(
                x,
                sight=sights[self.windows[index]],
                memory=None if memory is None else memory.layers[index],
                memory_sight=memory_sight,
                cache=cache.layers[index] if isinstance(cache, LayersCache) else None,
                past=None if recalled is None else recalled.exchange(index, x),
                places=places,
            )
        return x

    def _places(self, x: Tensor, sight: Sight) -> Places:
        """The positions that positional attention compares, and that it sees all but padding."""
        assert sight.query_positions is not None
        waves = waves_of(sight.query_positions, x.shape[-1]).to(x.dtype)
        return Places(waves, Sight(Mask(key_valid=sight.mask.key_valid)))

    def read(self, states: Tensor, valid: Tensor | None = None, *, inputs: Tensor | None = None) -> LayerMemory:
        layers = [layer.cross.read(states) for layer in self.each_layer() if layer.cross is not None]
        return LayerMemory(states=states, layers=layers, mask=Mask(key_valid=valid))

    def new_cache(self, length: int) -> LayersCache:
        return LayersCache([layer.attention.mix.new_cache(length) for layer in self.each_layer()])

    def new_memory(self, length: int, *, states: bool = True) -> SegmentMemory | LayersCache:
        if "recurrence" not in self.supports:
            raise ValueError(
                f"attention {self.mix_kind} with these positions cannot look at earlier segments; "
                "choose mix transformer_xl and position none, or mix softmax and position rotary"
            )
        if states:
            return SegmentMemory(self.depth, length)
        layers = [layer.attention.mix.new_cache(length) for layer in self.each_layer()]
        for layer in layers:
            assert isinstance(layer, KeyValueCache)  # `recurrence` is for attentions to keys and values
            layer.memory = length
        return LayersCache(layers, memory=length)

    def recomputable(self) -> list[nn.Module]:
        return list(self.layers)

    def each_layer(self) -> list[Layer]:
        """The layers in the order in which they run; with shared weights, the same one repeatedly."""
        return [cast(Layer, self.layers[index % len(self.layers)]) for index in range(self.depth)]

    def plan(self) -> StackPlan | Reason:
        position, lift = child_plan(self, "position", PositionPlan), child_plan(self, "lift", IdentityPlan)
        dropout, norm = child_plan(self, "dropout", IdentityPlan), self._norm_plan("norm")
        embedding_norm = self._norm_plan("embedding_norm")
        unique = [plan_of(layer, f"layers.{index}") for index, layer in enumerate(self.layers)]
        layers = [plan for plan in unique if isinstance(plan, LayerPlan)] * (self.depth // len(unique))
        if not (position and lift and dropout) or len(layers) < self.depth:
            return first_reason(position, lift, dropout, *unique, Reason("layers of another kind: no kernel yet"))
        if isinstance(norm, Reason) or isinstance(embedding_norm, Reason):
            return first_reason(embedding_norm, norm)
        reason = differing(layers)
        if reason is not None:
            return reason
        windowed = tuple(_with_window(layer, window) for layer, window in zip(layers, self.windows, strict=True))
        position = replace(position, limit=self.limit)
        return StackPlan(windowed, position, embedding_norm, norm, self.causal, self.parallel)

    def _norm_plan(self, name: str) -> NormPlan | Reason | None:
        plan = plan_of(getattr(self, name), name)
        return None if isinstance(plan, IdentityPlan) else child_plan(self, name, NormPlan)

    def _next_positions(self, x: Tensor, segments: Tensor | None, cache: LayersCache | SegmentMemory | None) -> Tensor:
        if segments is not None and (cache is None or cache.memory is None):
            return self._within(positions_in_segments(segments)[:, -x.shape[1] :])
        start = held = 0 if cache is None else cache.length
        if cache is not None and cache.memory is not None:  # positions run on, but only so many tokens are seen
            held = min(start, cache.memory)
        self._check_length(held + x.shape[1])
        return torch.arange(start, start + x.shape[1], device=x.device)[None]

    def _within(self, positions: Tensor) -> Tensor:
        """The given positions, after checking that the model has them all."""
        if self.limit is not None:
            self._check_length(int(positions.max()) + 1)
        return positions

    def _check_length(self, length: int) -> None:
        if self.limit is not None and length > self.limit:
            learned = "learned" if self.limit == self.position.limit else "is limited to"
            raise ValueError(f"{length} tokens, but this model {learned} {self.limit} positions; shorten the input")

    def _sights(self, mask: Mask, positions: Tensor, key_positions: Tensor) -> dict[int | None, Sight]:
        """What the layers may know, by their window."""
        unsupported = mask.facts() - self.supports
        if unsupported:
            listed = ", ".join(sorted(unsupported))
            raise ValueError(
                f"attention {self.mix_kind} does not support {listed}; leave it out, or choose mix softmax"
            )
        sight = Sight(mask, positions, key_positions, self.position)
        return {window: sight if window is None else sight.with_window(window) for window in set(self.windows)}


def _key_positions(positions: Tensor, cache: LayersCache | SegmentMemory | None) -> Tensor:
    """Those of all keys, given those of the new tokens."""
    if cache is None:
        return positions
    if isinstance(cache, LayersCache):
        return cache.place(positions)
    return torch.arange(cache.length + positions.shape[1], device=positions.device)[None]


def _with_window(layer: LayerPlan, window: int | None) -> LayerPlan:
    return layer if window is None else replace(layer, attention=replace(layer.attention, window=window))


def waves_of(positions: Tensor, width: int) -> Tensor:
    """The positions as positional attention sees them: positions' shape, width."""
    return Sinusoidal(WAVES).waves(positions, width)


def _build_layer(config: TransformerConfig, shape: StackShape, layer: int) -> Layer:
    width, cross, own = shape.width, config.cross_attention, config.head_shapes(shape)[layer]
    return Layer(
        attention=SelfAttention(config.attention, width, own),
        cross=CrossAttention(cross, width, cross.shape(width, cross=True)) if shape.cross else None,
        feedforward=config.feedforward.build(width),
        residual=lambda: Residual(config.norm.build(width), placement=config.placement, dropout=config.dropout),
        positional=PositionalAttention(config.attention, width, own) if shape.parallel else None,
    )
