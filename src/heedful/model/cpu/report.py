"""Which parts of a model run on our CPU kernels, in training and in decoding, and why not: for `heedful doctor`."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from heedful.model.architecture import Model, ParallelSequenceToSequence
from heedful.model.attention.softmax import Softmax
from heedful.model.cpu import door
from heedful.model.cpu.door import plan_of
from heedful.model.cpu.parallel import parallel_plan
from heedful.model.cpu.plan import DecoderOnlyPlan, EncoderDecoderPlan, LinearPlan, ParallelPlan, ReaderPlan, Reason
from heedful.model.feedforward import FeedForward
from heedful.model.heads import Vocabulary
from heedful.model.layer import Layer
from heedful.model.multihead import CrossAttention, PositionalAttention, SelfAttention
from heedful.model.position import Position
from heedful.model.stack import Stack
from heedful.model.stack.transformer import Transformer

KERNELS = "kernels"
NOTHING = "-"  # not used


@dataclass(frozen=True)
class Row:
    """`kernels`, or what runs instead and why: `torch (...)`, `modules (...)`."""

    part: str
    training: str
    decoding: str


def report(model: Model) -> list[Row]:
    """For float32 on a CPU, with batches of typical size."""
    missing = door.no_kernels()
    whole = parallel_plan(model) if isinstance(model, ParallelSequenceToSequence) else plan_of(model)
    rows: list[Row] = []
    for name, part in model.named_children():
        if isinstance(part, nn.ModuleDict) and not len(part):  # no heads
            continue
        reason = _decoding_reason(name, whole) if missing is None else missing
        if isinstance(part, Transformer):
            rows += _stack(name, part, reason)
        elif isinstance(part, Stack):
            rows.append(Row(name, _torch(Reason("this stack: no kernel yet")), _modules(reason)))
        elif isinstance(part, Vocabulary):
            linear = None if isinstance(part.lower, nn.Identity) else _linears(part.lower)
            rows.append(Row(name, _torch(linear), _modules(reason)))
        else:
            rows.append(Row(name, _torch(Reason("no kernel yet")), _modules(reason)))
    if model.vocab is not None:
        rows.append(Row("loss", _torch(door.loss(_table_width(model))), NOTHING))
    if missing is not None:
        rows = [Row(row.part, _torch(missing), row.decoding) for row in rows]
    return rows


def _decoding_reason(name: str, whole: object) -> Reason | None:
    """Why this child of a model runs as modules."""
    if isinstance(whole, Reason):
        return whole
    if isinstance(whole, ParallelPlan):
        return None
    if isinstance(whole, ReaderPlan):
        return Reason("heads: no kernel yet") if name == "heads" else None
    if not isinstance(whole, EncoderDecoderPlan | DecoderOnlyPlan):
        return Reason("no kernel yet")
    own = {"encoder": getattr(whole, "encoder", None), "head": whole.head}.get(name)
    return own if isinstance(own, Reason) else None


def _stack(name: str, stack: Transformer, reason: Reason | None) -> list[Row]:
    """`reason`: why the stack as a whole is not decoded by kernels."""

    def path(*parts: nn.Module) -> str:
        """A part's own reason, if there is one, is more specific."""
        own = next((found for part in parts if isinstance(found := plan_of(part), Reason)), reason)
        return _modules(None if reason is None else own)

    rows = [Row(f"{name}.position", _torch(Reason("no kernel yet")), path(stack.position))]
    biased = _biases(stack.position)
    layers = [list(_layer(layer, biased)) for layer in stack.each_layer()]
    for same in zip(*layers, strict=True):
        part = same[0][0]
        found = [(training, path(*modules)) for _, training, modules in same]
        if len(set(found)) == 1:
            rows.append(Row(f"{name}.{part}", *found[0]))
        else:
            rows += [Row(f"{name}.layers.{index}.{part}", *paths) for index, paths in enumerate(found)]
    return rows


def _layer(layer: Layer, biased: bool) -> Iterator[tuple[str, str, list[nn.Module]]]:
    """The parts of a layer: a name, the path in training, the modules."""
    yield "attention", _attention(layer.attention, biased), [layer.attention]
    if layer.positional is not None:
        yield "positional", _attention(layer.positional, False), [layer.positional]
    if layer.cross is not None:
        yield "cross", _attention(layer.cross, False), [layer.cross]
    yield "feedforward", _feedforward(layer.feedforward), [layer.feedforward]
    residuals = [layer.attention_residual, layer.positional_residual, layer.cross_residual, layer.feedforward_residual]
    known = [residual for residual in residuals if residual is not None]
    reasons = [found for residual in known if isinstance(found := door.norm(residual.norm), Reason)]
    yield "norms", _torch(reasons[0] if reasons else None), [*known]


def _attention(attention: nn.Module, biased: bool) -> str:
    if not isinstance(attention, SelfAttention | CrossAttention | PositionalAttention):
        return _torch(Reason("no kernel yet"))
    mix = attention.mix
    if isinstance(attention, SelfAttention):
        linears = [attention.query_key_value, attention.output]
    elif isinstance(attention, PositionalAttention):
        linears = [attention.query_key, attention.value, attention.output]
    else:
        linears = [attention.query, attention.key_value, attention.output]
    softmax: Reason | None = Reason(f"{type(mix).__name__.lower()}: no kernel yet")
    if isinstance(mix, Softmax):
        softmax = door.attention(head=attention.head, dropout=mix.dropout, biased=biased)
    maps = _linears(*linears)
    if maps is not None and softmax is not None:
        return _torch(softmax)
    if maps is None and softmax is None:
        return KERNELS
    if softmax is None:
        return f"{KERNELS}, linear maps by {_torch(maps)}"
    return f"{KERNELS}, mixing by {_torch(softmax)}"


def _feedforward(part: nn.Module) -> str:
    if not isinstance(part, FeedForward):
        return _torch(Reason("no kernel yet"))
    first, second, dropout = part.input, part.output, part.dropout.p
    whole = door.network(first, second, kind=part.kind(), gated=part.gated, kernel=part.kernel, dropout=dropout)
    maps = _linears(first, second)
    if not isinstance(whole, Reason):
        return KERNELS
    return f"{KERNELS} ({whole})" if maps is None else _torch(maps)


def _linears(*linears: nn.Module) -> Reason | None:
    for linear in linears:
        plan = plan_of(linear)
        if not isinstance(plan, LinearPlan):
            return plan if isinstance(plan, Reason) else Reason("not a linear map")
        if plan.weight is None:
            return Reason("int8 weights are not trained")
        reason = door.sizes(plan.inputs, plan.outputs)
        if reason is not None:
            return reason
    return None


def _biases(position: nn.Module) -> bool:
    return any(getattr(type(position), name) is not getattr(Position, name) for name in ("bias", "score"))


def _table_width(model: Model) -> int:
    head = getattr(model, "head", None)
    lower_map = getattr(head, "lower", None)
    return lower_map.out_features if isinstance(lower_map, nn.Linear) else model.config.width


def _torch(reason: object) -> str:
    return KERNELS if reason is None else f"torch ({reason})"


def _modules(reason: Reason | None) -> str:
    return KERNELS if reason is None else f"modules ({reason})"
