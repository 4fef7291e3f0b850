"""A stack of layers, from embedded tokens to their final states: an encoder or a decoder."""

from dataclasses import dataclass
from typing import cast

import torch
from pydantic import Field, SerializeAsAny
from torch import Tensor, nn

from heedful.config import Config, Probability, Size
from heedful.model.cache import Cache
from heedful.model.dropout import Dropout
from heedful.model.feedforward import FeedForwardConfig
from heedful.model.layer import Layer
from heedful.model.linear import Linear, linear_parameters
from heedful.model.mask import Mask, positions_in_segments
from heedful.model.multihead import CrossAttention, KeyValue, MultiHeadConfig, SelfAttention
from heedful.model.norm import NormConfig
from heedful.model.position import PositionConfig, Where
from heedful.model.position.sinusoidal import SinusoidalConfig
from heedful.model.residual import Placement, Residual, normed


class StackConfig(Config):
    """`cross` is the attention to the encoder, in a decoder that has one; None = like `attention`, without its window.
    `share_layers` gives all layers the same weights (ALBERT). `dropout` acts on the embeddings and on each sub-layer's
    output, as in the paper; `attention.dropout` and `feedforward.dropout` act inside.
    """

    layers: Size = 6
    attention: MultiHeadConfig = Field(default_factory=MultiHeadConfig)
    cross: MultiHeadConfig | None = None
    feedforward: FeedForwardConfig = Field(default_factory=FeedForwardConfig)
    norm: NormConfig = Field(default_factory=NormConfig)
    placement: Placement = "post"
    position: SerializeAsAny[PositionConfig] = Field(default_factory=SinusoidalConfig)
    dropout: Probability = 0.1
    embedding_norm: bool = False
    share_layers: bool = False

    def check(self, name: str, *, width: int, input_width: int, causal: bool, cross: bool) -> None:
        """Raise ValueError where these parts do not fit each other or these sizes."""
        try:
            self.position.check(width=input_width, head_width=self.attention.head_width_in(width))
            if cross:
                self.cross_attention.head_width_in(width)
            elif self.cross is not None:
                raise ValueError("cross attention needs an encoder to look at; leave cross out of this model")
            if cross and self.cross_attention.window is not None:
                raise ValueError(
                    "cross attention cannot have a window: source and target places are not aligned; drop it"
                )
            if causal and self.feedforward.kernel > 1:
                raise ValueError(
                    f"feedforward kernel {self.feedforward.kernel} would see the next token; "
                    "a decoder needs kernel 1, or use it in an encoder"
                )
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None

    @property
    def cross_attention(self) -> MultiHeadConfig:
        return self.cross or self.attention.model_copy(update={"window": None})

    def build(self, *, width: int, input_width: int, causal: bool, cross: bool = False) -> "Stack":
        return Stack(self, width=width, input_width=input_width, causal=causal, cross=cross)

    def parameters(self, *, width: int, input_width: int, cross: bool = False) -> dict[str, int]:
        """By component, for the whole stack."""
        layers = 1 if self.share_layers else self.layers
        norm = self.norm.parameters(width)
        counts = {
            "position": self.position.parameters(width=input_width, heads=self.attention.heads),
            "attention": layers * self.attention.parameters(width),
            "cross": layers * self.cross_attention.parameters(width) if cross else 0,
            "feedforward": layers * self.feedforward.parameters(width),
            "norms": layers * (3 if cross else 2) * norm,
        }
        if self.placement == "pre":
            counts["norms"] += norm
        if self.embedding_norm:
            counts["norms"] += self.norm.parameters(input_width)
        if input_width != width:
            counts["lift"] = linear_parameters(input_width, width, bias=True)
        return counts


@dataclass(frozen=True)
class Memory:
    """What a decoder reads of a source: the encoder's states, and each decoder layer's keys and values of them."""

    states: Tensor  # batch source width
    layers: list[KeyValue]
    mask: Mask

    def select(self, sentences: Tensor) -> "Memory":
        """Keep these sentences, in this order."""
        valid = self.mask.key_valid
        return Memory(
            states=self.states.index_select(0, sentences),
            layers=[(key.index_select(0, sentences), value.index_select(0, sentences)) for key, value in self.layers],
            mask=Mask(key_valid=None if valid is None else valid.index_select(0, sentences)),
        )


class Stack(nn.Module):
    """Position, then layer after layer. Pre-norm stacks end with a norm, since nothing else bounds their stream."""

    def __init__(self, config: StackConfig, *, width: int, input_width: int, causal: bool, cross: bool) -> None:
        super().__init__()
        self.causal = causal
        self.window = config.attention.window
        self.position = config.position.build(
            width=input_width,
            heads=config.attention.heads,
            head_width=config.attention.head_width_in(width),
            causal=causal,
        )
        self.embedding_norm = config.norm.build(input_width) if config.embedding_norm else nn.Identity()
        self.dropout = Dropout(config.dropout)
        self.lift = Linear(input_width, width) if input_width != width else nn.Identity()
        unique = 1 if config.share_layers else config.layers
        self.layers = nn.ModuleList(_build_layer(config, width, cross) for _ in range(unique))
        self.depth = config.layers
        self.norm = config.norm.build(width) if config.placement == "pre" else nn.Identity()

    def forward(
        self,
        x: Tensor,
        *,
        valid: Tensor | None = None,
        segments: Tensor | None = None,
        prefix: Tensor | None = None,
        positions: Tensor | None = None,
        memory: Memory | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """x: rows query input_width -> rows query width. For `valid`, `segments` and `prefix` see `Mask`.

        `positions` ((rows or 1) query), unless given, count on from the cache and start again with each segment. Rows
        padded on the left need `positions=positions_of(valid)`.
        """
        mask = Mask(causal=self.causal, key_valid=valid, window=self.window, segments=segments, prefix=prefix)
        if positions is None:
            positions = self._next_positions(x, segments, cache)
        x = self.dropout(normed(self.position.embed(x, positions), self.embedding_norm))
        x = self.lift(x)
        where = self._where(positions, mask, cache)
        for index, layer in enumerate(self.each_layer()):
            x = layer(
                x,
                mask=mask,
                where=where,
                memory=None if memory is None else memory.layers[index],
                memory_mask=None if memory is None else memory.mask,
                cache=None if cache is None else cache.layers[index],
            )
        return normed(x, self.norm)

    def read(self, states: Tensor, valid: Tensor | None = None) -> Memory:
        """The memory of a source, from the encoder's output: computed once, used at every step and by every beam."""
        layers = [layer.cross.read(states) for layer in self.each_layer() if layer.cross is not None]
        return Memory(states=states, layers=layers, mask=Mask(key_valid=valid))

    def new_cache(self, length: int) -> Cache:
        """An empty cache with room for this many tokens; it grows if more come."""
        return Cache([layer.attention.mix.new_cache(length) for layer in self.each_layer()])

    def each_layer(self) -> list[Layer]:
        """The layers in the order in which they act; with shared weights it is the same one again and again."""
        return [cast(Layer, self.layers[index % len(self.layers)]) for index in range(self.depth)]

    def _next_positions(self, x: Tensor, segments: Tensor | None, cache: Cache | None) -> Tensor:
        if segments is not None:
            return positions_in_segments(segments)[:, -x.shape[1] :]
        start = 0 if cache is None else cache.length
        end = start + x.shape[1]
        limit = self.position.limit
        if limit is not None and end > limit:
            raise ValueError(f"{end} tokens, but this model learned {limit} positions; shorten the input")
        return torch.arange(start, end, device=x.device)[None]

    def _where(self, positions: Tensor, mask: Mask, cache: Cache | None) -> Where:
        key_positions = positions if cache is None else cache.place(positions)
        bias = self.position.bias(positions, key_positions)
        if bias is not None:
            bias = mask.additive(positions.shape[1], key_positions.shape[1], bias)
        return Where(rotation=self.position.rotation(positions), bias=bias)


def _build_layer(config: StackConfig, width: int, cross: bool) -> Layer:
    return Layer(
        attention=SelfAttention(config.attention, width),
        cross=CrossAttention(config.cross_attention, width) if cross else None,
        feedforward=config.feedforward.build(width),
        residual=lambda: Residual(config.norm.build(width), placement=config.placement, dropout=config.dropout),
    )
