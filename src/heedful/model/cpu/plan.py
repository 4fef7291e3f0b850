"""What our kernels need to know about a part, or the reason why they cannot run it.

A part returns its plan from its method `plan`, next to its `forward`: what is computed, with references to the tensors
involved. `door.plan_of` calls it and checks that it is complete.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

from torch import Tensor, nn

from heedful.model.cpu.kernels import Panels


@dataclass(frozen=True)
class Reason:
    """Why our kernels cannot run something; `place`: where in the model.

    As a condition it is False: `lower(model) or None`. So where a function returns a reason or None, compare the result
    with None.
    """

    text: str
    place: str = ""

    def __bool__(self) -> Literal[False]:
        return False

    def __str__(self) -> str:
        return f"{self.place}: {self.text}" if self.place else self.text

    def at(self, place: str) -> "Reason":
        """The same reason, seen from the module that contains this one."""
        return replace(self, place=f"{place}.{self.place}" if self.place else place)


def first_reason(*found: object) -> Reason:
    """The first reason among plans and reasons; there must be one."""
    return next(one for one in found if isinstance(one, Reason))


@dataclass(frozen=True, eq=False)
class Plan:
    """The base of all plans."""

    def tensors(self) -> Iterator[Tensor]:
        """All tensors it computes with, including those of nested plans."""
        for field in fields(self):
            yield from _tensors(getattr(self, field.name))


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Plan):
        yield from value.tensors()
    elif isinstance(value, nn.Module):  # run as a module
        yield from value.parameters()
        yield from value.buffers()
    elif isinstance(value, tuple):
        for one in value:
            yield from _tensors(one)


@dataclass(frozen=True, eq=False)
class IdentityPlan(Plan):
    """x -> x. Also dropout outside training."""


@dataclass(frozen=True, eq=False)
class LinearPlan(Plan):
    """W x + b, in float32 or as int8 panels; `parts`: the sizes of its fused outputs."""

    weight: Tensor | None
    bias: Tensor | None
    int8: Panels | None
    parts: tuple[int, ...]
    inputs: int

    @property
    def outputs(self) -> int:
        return sum(self.parts)

    def panels(self) -> Panels:
        if self.int8 is not None:
            return self.int8
        assert self.weight is not None
        return Panels(self.weight, self.bias)


@dataclass(frozen=True, eq=False)
class NormPlan(Plan):
    weight: Tensor
    bias: Tensor | None
    eps: float
    rms: bool


@dataclass(frozen=True, eq=False)
class TablePlan(Plan):
    """factor * W[token], and W h as an output matrix."""

    weight: Tensor | None
    int8: Panels | None
    factor: float
    width: int

    @property
    def rows(self) -> Tensor | Panels:
        table = self.weight.detach() if self.weight is not None else self.int8
        assert table is not None
        return table

    def panels(self, bias: Tensor | None) -> Panels:
        if self.int8 is not None:
            return self.int8 if bias is None else self.int8.with_bias(bias)
        assert self.weight is not None
        return Panels(self.weight, bias)


@dataclass(frozen=True, eq=False)
class PositionPlan(Plan):
    """x + what `embed` adds at these positions, independent of x; `rotation` and `bias` as in `Position`, if there is
    one; a bias depends on the distance alone. `weights`: the tensors that these use."""

    embed: Callable[[Tensor, Tensor], Tensor]
    limit: int | None
    weights: tuple[Tensor, ...] = ()
    rotation: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None
    bias: Callable[[Tensor, Tensor], Tensor] | None = None


@dataclass(frozen=True, eq=False)
class SoftmaxPlan(Plan):
    """softmax(scale q k') v"""

    scale: float


@dataclass(frozen=True, eq=False)
class AttentionPlan(Plan):
    """Self-attention (`project`: queries, keys and values) or cross-attention (queries; `read`: keys and values)."""

    project: LinearPlan
    read: LinearPlan | None
    output: LinearPlan
    heads: int
    kv_heads: int
    head: int
    scale: float
    window: int | None = None

    def only_steps(self, width: int) -> Reason | None:
        """Why the kernels can run it token by token, but not for whole texts; None if they can."""
        if self.window is not None:
            return Reason(f"window {self.window}: a kernel for steps only")
        if self.kv_heads != self.heads:
            return Reason(f"grouped heads ({self.heads} share {self.kv_heads}): a kernel for steps only")
        if self.heads * self.head != width:
            text = f"{self.heads} heads of {self.head} do not add up to the width {width}: a kernel for steps only"
            return Reason(text)
        return None


@dataclass(frozen=True, eq=False)
class PositionalPlan(Plan):
    """Attention whose queries and keys (`query_key`) are positions, and whose values are states."""

    query_key: LinearPlan
    value: LinearPlan
    output: LinearPlan
    heads: int
    scale: float


@dataclass(frozen=True, eq=False)
class FeedForwardPlan(Plan):
    """`kind`: one of `door.KINDS`."""

    input: LinearPlan
    output: LinearPlan
    kind: str
    gated: bool


@dataclass(frozen=True, eq=False)
class ResidualPlan(Plan):
    norm: NormPlan
    pre: bool


@dataclass(frozen=True, eq=False)
class LayerPlan(Plan):
    attention: AttentionPlan
    attention_residual: ResidualPlan
    cross: AttentionPlan | None
    cross_residual: ResidualPlan | None
    feedforward: FeedForwardPlan
    feedforward_residual: ResidualPlan
    positional: PositionalPlan | None = None
    positional_residual: ResidualPlan | None = None

    def attentions(self) -> tuple[tuple[str, AttentionPlan | None], ...]:
        return (("attention", self.attention), ("cross", self.cross))

    def style(self) -> Iterator[tuple[str, str, object]]:
        """What native/ assumes to be the same in all layers: name, place in this layer, value."""
        for name, attention in self.attentions():
            if attention is not None:
                yield f"{name}.heads", name, attention.heads
                yield f"{name}.kv_heads", name, attention.kv_heads
                yield f"{name}.head", name, attention.head
                yield f"{name}.scale", name, attention.scale
                yield "width", name, attention.project.inputs
        yield "activation", "feedforward", ("gated " if self.feedforward.gated else "") + self.feedforward.kind
        yield "hidden", "feedforward", self.feedforward.output.inputs
        yield "width", "feedforward", self.feedforward.input.inputs
        yield "cross", "cross", self.cross is not None
        for name in ("attention_residual", "positional_residual", "cross_residual", "feedforward_residual"):
            residual: ResidualPlan | None = getattr(self, name)
            if residual is not None:
                yield "placement", name, "pre" if residual.pre else "post"
                yield "norm", f"{name}.norm", "rms" if residual.norm.rms else "layer"
                yield "eps", f"{name}.norm", residual.norm.eps
                yield "width", f"{name}.norm", len(residual.norm.weight)


def differing(layers: Sequence[LayerPlan]) -> Reason | None:
    """The first difference between layers; None if all are alike."""
    known: dict[str, object] = {}
    for index, layer in enumerate(layers):
        for name, place, value in layer.style():
            if known.setdefault(name, value) != value:
                text = f"{name} {value}, but {known[name]} before: layers that differ have no kernel yet"
                return Reason(text, f"layers.{index}.{place}")
    return None


@dataclass(frozen=True, eq=False)
class StackPlan(Plan):
    layers: tuple[LayerPlan, ...]
    position: PositionPlan
    embedding_norm: NormPlan | None
    norm: NormPlan | None
    causal: bool
    parallel: bool = False

    @property
    def width(self) -> int:
        return self.layers[0].attention.project.inputs

    def only_steps(self) -> Reason | None:
        """Why the kernels can run it token by token, but not whole texts; None if they can."""
        position = self.position
        if position.rotation is not None:
            return Reason("rotated queries and keys: a kernel for steps only", "position")
        if position.bias is not None:
            return Reason("terms added to the scores: a kernel for steps only", "position")
        found = ((f"layers.{index}", layer) for index, layer in enumerate(self.layers))
        all_ = ((f"{at}.{name}", one) for at, layer in found for name, one in layer.attentions() if one is not None)
        return next((reason.at(at) for at, one in all_ if (reason := one.only_steps(self.width)) is not None), None)


@dataclass(frozen=True, eq=False)
class HeadPlan(Plan):
    """W (factor h) + b; `table`: None = the target's."""

    table: TablePlan | None
    bias: Tensor | None
    factor: float = 1.0


@dataclass(frozen=True, eq=False)
class EncoderDecoderPlan(Plan):
    """Encoder and head may be left to their modules, with a reason; `left` lists these modules, and `read` and `logits`
    call them."""

    encoder: StackPlan | Reason
    source_table: TablePlan | Reason
    decoder: StackPlan
    target_table: TablePlan
    head: HeadPlan | Reason
    read: Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor | None]]
    logits: Callable[[Tensor], Tensor]
    left: tuple[nn.Module, ...] = ()


@dataclass(frozen=True, eq=False)
class DecoderOnlyPlan(Plan):
    """The head may be left to its module, with a reason; `left` lists what decoding leaves to modules, or without."""

    decoder: StackPlan
    target_table: TablePlan
    head: HeadPlan | Reason
    logits: Callable[[Tensor], Tensor]
    left: tuple[nn.Module, ...] = ()


@dataclass(frozen=True, eq=False)
class ParallelPlan(Plan):
    """An encoder with fertilities, and a decoder that writes all words at once. `mask`: the vector of a masked word."""

    encoder: StackPlan
    source_table: TablePlan
    decoder: StackPlan
    target_table: TablePlan
    head: HeadPlan
    fertility: LinearPlan
    mask: Tensor | None


@dataclass(frozen=True, eq=False)
class ReaderPlan(Plan):
    """An encoder without a decoder; `left`: its heads, which run as modules."""

    encoder: StackPlan
    table: TablePlan
    token_types: Tensor | None
    left: tuple[nn.Module, ...] = ()
