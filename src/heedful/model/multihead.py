"""Many heads around one mix: project, split, rotate, mix, merge, project.      Vaswani et al. 2017, section 3.2.2"""

import math
from typing import Any, NamedTuple

import torch
from pydantic import Field, SerializeAsAny, field_validator, model_validator
from torch import Tensor, nn

from heedful.config import Config, Probability, Size
from heedful.model.attention import HeadShape, Mix, MixConfig, refuse_unsupported
from heedful.model.attention.softmax import SoftmaxConfig
from heedful.model.cache import LayerCache
from heedful.model.cpu.door import child_plan
from heedful.model.cpu.plan import AttentionPlan, LinearPlan, PositionalPlan, Reason, SoftmaxPlan, first_reason
from heedful.model.linear import FusedLinear, Linear, linear_parameters
from heedful.model.position.rotary import rotate
from heedful.model.sight import Sight

KeyValue = tuple[Tensor, Tensor]  # batch kv_heads source head


class MultiHeadConfig(Config):
    """`kv_heads` below `heads` shares keys and values: 1 is multi-query (Shazeer 2019), more is grouped-query (Ainslie
    et al. 2023). `window` limits a token to those fewer than that many positions away; a list has one entry per layer,
    null = no limit. `scaled` off, as in T5, omits the factor 1/sqrt(head_width).
    """

    heads: Size = 8
    kv_heads: Size | None = None
    head_width: Size | None = None
    bias: bool = True
    output_bias: bool = True
    dropout: Probability = 0.0
    window: Size | tuple[Size | None, ...] | None = None
    scaled: bool = True
    mix: SerializeAsAny[MixConfig] = Field(default_factory=SoftmaxConfig)

    @field_validator("window", mode="before")
    @classmethod
    def _windows_see_something(cls, window: Any) -> Any:
        for size in window if isinstance(window, list | tuple) else [window]:
            if isinstance(size, int) and size < 1:
                raise ValueError(f"window {size} sees nothing; choose 1 (itself) or more")
        return window

    @model_validator(mode="after")
    def _groups_are_whole(self) -> "MultiHeadConfig":
        if self.heads % self.kv_head_count:
            raise ValueError(
                f"heads {self.heads} do not split into {self.kv_heads} kv_heads; "
                f"choose kv_heads from {divisors(self.heads)}"
            )
        return self

    @property
    def kv_head_count(self) -> int:
        return self.kv_heads or self.heads

    def head_width_in(self, width: int) -> int:
        """The width of one head in a model of this width."""
        if self.head_width is None and width % self.heads:
            raise ValueError(
                f"width {width} does not split into {self.heads} heads; choose heads from {divisors(width)}"
            )
        return self.head_width or width // self.heads

    def shape(
        self,
        width: int,
        *,
        causal: bool = False,
        cross: bool = False,
        layer: int = 0,
        length: int | None = None,
    ) -> HeadShape:
        """What the mix of a layer is built for, in a model of this width."""
        head = self.head_width_in(width)
        return HeadShape(
            heads=self.heads,
            kv_heads=self.kv_head_count,
            head=head,
            causal=causal,
            cross=cross,
            length=length,
            window=self.window_of(layer),
            scale=head**-0.5 if self.scaled else 1.0,
            dropout=self.dropout,
            layer=layer,
        )

    def window_of(self, layer: int) -> int | None:
        return self.window[layer] if isinstance(self.window, tuple) else self.window

    def check(
        self,
        width: int,
        *,
        layers: int,
        causal: bool,
        cross: bool = False,
        length: int | None = None,
        asked: frozenset[str] = frozenset(),
    ) -> None:
        """Raise ValueError if the mix does not fit or lacks a required feature."""
        if isinstance(self.window, tuple) and len(self.window) != layers:
            raise ValueError(f"window lists {len(self.window)} layers, but there are {layers}; give one per layer")
        if self.window is not None and cross:
            raise ValueError("cross-attention cannot have a window: source and target are not aligned; remove it")
        asked |= {"groups"} if self.kv_head_count < self.heads else set()
        asked |= {"window"} if self.window is not None else set()
        asked |= {"causal"} if causal else set()
        asked |= {"cross"} if cross else set()
        refuse_unsupported(self.mix, asked)
        for layer in range(layers):
            self.mix.check(self.shape(width, causal=causal, cross=cross, layer=layer, length=length))

    def for_cross(self) -> "MultiHeadConfig":
        """The same for cross-attention: without the window, and with a mix that supports it."""
        mix = self.mix if "cross" in self.mix.supports else SoftmaxConfig()
        return self.model_copy(update={"window": None, "mix": mix})

    def parts(self, width: int, names: tuple[str, ...] | None = None) -> tuple[int, ...]:
        """The widths of the projections: queries, keys and values, or those that the mix asks for."""
        head = self.head_width_in(width)
        names = self.mix.projections if names is None else names
        return tuple(head * (self.heads if name.startswith("query") else self.kv_head_count) for name in names)

    def parameters(self, width: int, *, cross: bool = False) -> int:
        """The projections of one layer; the mix counts its own."""
        parts = self.parts(width, ("query", "key", "value") if cross else None)
        output = linear_parameters(self.heads * self.head_width_in(width), width, self.output_bias)
        return linear_parameters(width, sum(parts), self.bias) + output


class SelfAttention(nn.Module):
    """Queries, keys and values from one input, so one product computes all three."""

    def __init__(self, config: MultiHeadConfig, width: int, shape: HeadShape) -> None:
        super().__init__()
        self.head = shape.head
        self.names = config.mix.projections
        self.query_key_value = FusedLinear(width, config.parts(width), self.names, bias=config.bias)
        self.mix = config.mix.build(shape)
        self.output = Linear(shape.heads * shape.head, width, bias=config.output_bias)

    def forward(
        self, x: Tensor, *, sight: Sight, cache: LayerCache | None = None, past: Tensor | None = None
    ) -> Tensor:
        """`past`: what this attention read of earlier segments, rows held width; keys and values come of it too."""
        parts = [split_heads(part, self.head) for part in self.query_key_value(x)]
        query, key, value, *others = parts if self.names[:3] == ("query", "key", "value") else self._ordered(parts)
        rotation = key_rotation = sight.rotation()
        if past is not None:
            assert self.names == ("query", "key", "value")
            old = [split_heads(part, self.head) for part in self.query_key_value.last(past, 1)]
            key, value = (torch.cat(both, dim=2) for both in zip(old, (key, value), strict=True))
            key_rotation = sight.key_rotation()
        if rotation is not None and key_rotation is not None:
            query, key = rotate(query, rotation), rotate(key, key_rotation)
        mixed = self.mix(query, key, value, sight=sight, cache=cache, others=tuple(others))
        return self.output(merge_heads(mixed))

    def _ordered(self, parts: list[Tensor]) -> list[Tensor]:
        """Query, key, value and the others, from projections in any order; without queries, the keys are used."""
        named = dict(zip(self.names, parts, strict=True))
        first = [named.get("query", named["key"]), named["key"], named["value"]]
        return first + [part for name, part in named.items() if name not in ("query", "key", "value")]

    def plan(self) -> AttentionPlan | Reason:
        project, output = child_plan(self, "query_key_value", LinearPlan), child_plan(self, "output", LinearPlan)
        mix = child_plan(self, "mix", SoftmaxPlan)
        if not (project and output and mix):
            return first_reason(mix, project, output)
        if self.names != ("query", "key", "value"):
            return Reason(f"projections {', '.join(self.names)}: no kernel yet")
        if project.inputs != output.outputs or self.head % 8:
            return _unfit(output, self.head)
        heads, kv_heads = (part // self.head for part in project.parts[:2])
        return AttentionPlan(project, None, output, heads, kv_heads, self.head, mix.scale)


class Places(NamedTuple):
    """What positional attention looks at: encoded positions, (rows or 1) query width, and who sees whom."""

    waves: Tensor
    sight: Sight


class PositionalAttention(nn.Module):
    """Queries and keys are positions, values are what stands there: which word goes where.      Gu et al. 2018, section
    3.1

        softmax(P W_q (P W_k)' / sqrt(head)) X W_v,      P: the sinusoids of Vaswani et al. 2017

    Every position is seen, also a query's own, but not padding.
    """

    def __init__(self, config: MultiHeadConfig, width: int, shape: HeadShape) -> None:
        super().__init__()
        queries, keys, values = config.parts(width, ("query", "key", "value"))
        self.head = shape.head
        self.query_key = FusedLinear(width, (queries, keys), ("query", "key"), bias=config.bias)
        self.value = Linear(width, values, bias=config.bias)
        self.mix = SoftmaxConfig().build(shape)
        self.output = Linear(shape.heads * shape.head, width, bias=config.output_bias)

    def forward(self, x: Tensor, *, places: Places) -> Tensor:
        """x: rows query width"""
        value = split_heads(self.value(x), self.head)
        query, key = (split_heads(part, self.head).expand(len(x), -1, -1, -1) for part in self.query_key(places.waves))
        return self.output(merge_heads(self.mix(query, key, value, sight=places.sight)))

    def plan(self) -> PositionalPlan | Reason:
        both, value = child_plan(self, "query_key", LinearPlan), child_plan(self, "value", LinearPlan)
        output, mix = child_plan(self, "output", LinearPlan), child_plan(self, "mix", SoftmaxPlan)
        if not (both and value and output and mix):
            return first_reason(mix, both, value, output)
        heads, width = output.inputs // self.head, value.inputs
        if (*both.parts, *value.parts) != (width, width, width):
            return Reason(f"{heads} heads of {self.head}, grouped or of another width than {width}: no kernel yet")
        if width != output.outputs or self.head % 8:
            return _unfit(output, self.head)
        return PositionalPlan(both, value, output, heads, mix.scale)


class MemoryAttention(nn.Module):
    """The contract of what looks at a memory, whatever its projections: pictures and alignments are made of what its
    `mix` is called with. `stepwise`: it is called once for each target token, so that a whole pass is many calls."""

    mix: Mix
    heads: int
    stepwise: bool = False


class CrossAttention(MemoryAttention):
    """Queries from the decoder, keys and values from the encoder's output: those are made once per source."""

    def __init__(self, config: MultiHeadConfig, width: int, shape: HeadShape) -> None:
        super().__init__()
        queries, keys, values = config.parts(width, ("query", "key", "value"))
        self.head, self.heads = shape.head, shape.heads
        self.query = Linear(width, queries, bias=config.bias)
        self.key_value = FusedLinear(width, (keys, values), ("key", "value"), bias=config.bias)
        self.mix = config.mix.build(shape)
        self.output = Linear(shape.heads * shape.head, width, bias=config.output_bias)

    def read(self, states: Tensor) -> KeyValue:
        """The keys and values of the encoder's output (batch source width)."""
        key, value = (split_heads(part, self.head) for part in self.key_value(states))
        return key, value

    def forward(self, x: Tensor, *, memory: KeyValue, sight: Sight) -> Tensor:
        """x: rows query width, where rows = batch x beam. The beams of a sentence share its keys and values without a
        copy: to non-causal attention, they are just more queries."""
        rows, query, width = x.shape
        key, value = memory
        x = x.reshape(len(key), -1, width)  # batch beam*query width
        mixed = self.mix(split_heads(self.query(x), self.head), key, value, sight=sight)
        return self.output(merge_heads(mixed)).reshape(rows, query, width)

    def plan(self) -> AttentionPlan | Reason:
        query, read = child_plan(self, "query", LinearPlan), child_plan(self, "key_value", LinearPlan)
        output, mix = child_plan(self, "output", LinearPlan), child_plan(self, "mix", SoftmaxPlan)
        if not (query and read and output and mix):
            return first_reason(mix, query, read, output)
        heads, kv_heads = self.heads, read.parts[0] // self.head
        if kv_heads != heads:
            return Reason(f"grouped heads ({heads} share {kv_heads}): no kernel yet")
        if query.inputs != output.outputs or self.head % 8:
            return _unfit(output, self.head)
        return AttentionPlan(query, read, output, heads, kv_heads, self.head, mix.scale)


def _unfit(output: LinearPlan, head: int) -> Reason:
    """Why the kernels cannot compute attention of these sizes."""
    if head % 8:
        return Reason(f"head {head} is not a multiple of 8")
    return Reason(f"linear maps from {output.inputs} and to {output.outputs} do not fit")


def split_heads(x: Tensor, head: int) -> Tensor:
    """batch query (heads head) -> batch heads query head"""
    return x.unflatten(-1, (-1, head)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """batch heads query head -> batch query (heads head)"""
    return x.transpose(1, 2).flatten(2)


def divisors(number: int) -> list[int]:
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)})
