"""The one door to our kernels: whether they can do something, or the reason why not.

For decoding, `plan_of` turns a part into its plan. For training, the functions below it give the reason why a kernel
does not take what it is given; None = it does. What depends on the model alone stands in functions of their own, so
that `heedful doctor` can ask them too.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from heedful.model.cpu import kernels
from heedful.model.cpu.plan import IdentityPlan, LinearPlan, NormPlan, Plan, Reason
from heedful.model.mask import Mask

KINDS = ["relu", "gelu", "gelu_tanh", "silu"]  # the functions of a feed-forward, as native/rows.h numbers them
WIDE = 16  # the widths of a head, of a linear map, of a norm are multiples of it
FEW = 32  # rows from which on it is worth it to lay out weights for a single product
LARGE = 1 << 18  # numbers from which on a norm by itself is as fast by our kernels as by torch's, and keeps less
MOST_KEYS = 1024  # our attention is the fastest up to so many: 1.1 times torch's there, 3 times at 12 of them
LEAST_SCORES = 100_000  # scores of words from which on a loss in chunks is worth it

P = TypeVar("P", bound=Plan)


def plan_of(module: nn.Module, place: str = "") -> Plan | Reason:
    """A part's plan, if it says all there is to compute. `place`: put in front of a reason."""
    plan = _plan(module)
    if not isinstance(plan, Reason):
        reason = _unaccounted(module, plan)
        if reason is None:
            return plan
        plan = reason
    return plan.at(place) if place else plan


def child_plan(module: nn.Module, name: str, kind: type[P]) -> P | Reason:
    """The plan of a part's part, which must be of this kind."""
    child = getattr(module, name)
    plan = plan_of(child, name)
    if isinstance(plan, Reason | kind):
        return plan
    return Reason(f"{_kind_of(child)} in its place: no kernel yet", name)


def _plan(module: nn.Module) -> Plan | Reason:
    if has_hooks(module):
        return Reason("it has hooks, which only the modules call")
    if type(module) in TORCH:
        return TORCH[type(module)](module)
    # A class that changes `forward` must not inherit a plan that was made for another.
    if "plan" not in vars(type(module)) or "forward" in vars(module):
        return Reason(f"{_kind_of(module)}: no kernel yet")
    found: Plan | Reason = module.plan()  # type: ignore[operator]
    return found


def _kind_of(module: nn.Module) -> str:
    """The name in a recipe, where there is one: that of the file."""
    kind = type(module)
    own = kind.__module__.startswith("heedful.model.") and kind.__module__.count(".") > 2
    return kind.__module__.rpartition(".")[2] if own else kind.__name__


def _unaccounted(module: nn.Module, plan: Plan) -> Reason | None:
    """A parameter or buffer that the plan does not compute with, or that the kernels cannot read."""
    known = {id(tensor) for tensor in plan.tensors()}
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if id(tensor) not in known:
            return Reason("the kernels know nothing of it", name)
    for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
        if tensor.device.type != "cpu" or tensor.dtype != torch.float32 or not tensor.is_contiguous():
            kind = f"{str(tensor.dtype).removeprefix('torch.')} on {tensor.device.type}"
            return Reason(f"{kind}; the kernels take contiguous float32 on a CPU", name)
    return None


def has_hooks(module: nn.Module) -> bool:
    """For which it must be called as it is."""
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )


def _linear_plan(linear: nn.Linear) -> LinearPlan:
    return LinearPlan(linear.weight, linear.bias, None, (linear.out_features,), linear.in_features)


def _norm_plan(norm: nn.LayerNorm | nn.RMSNorm) -> NormPlan | Reason:
    weight, bias = norm.weight, getattr(norm, "bias", None)
    if weight is None or weight.dim() != 1:
        return Reason("a norm without weights, or over several axes: no kernel yet")
    eps = torch.finfo(torch.float32).eps if norm.eps is None else norm.eps
    return NormPlan(weight, bias, eps, isinstance(norm, nn.RMSNorm))


# The plans of what is torch's.
TORCH: dict[type[nn.Module], Callable[[Any], Plan | Reason]] = {
    nn.Linear: _linear_plan,
    nn.LayerNorm: _norm_plan,
    nn.RMSNorm: _norm_plan,
    nn.Identity: lambda module: IdentityPlan(),
}


COMPILING = Reason("a graph is being traced")
NOT_TRAINED = Reason("nothing is trained")
AUTOCAST = Reason("autocast: no kernel yet")
EMPTY = Reason("there is nothing to compute")
STRIDED = Reason("the numbers do not lie side by side")
MISFIT = Reason("the shapes do not fit the kernel")
MANY_KEYS = Reason(f"more than {MOST_KEYS} keys: torch is faster")
BLOCKS = Reason("blocks of keys: no kernel yet")
FEW_ROWS = Reason(f"fewer than {FEW} rows: torch is faster")


def no_kernels() -> Reason | None:
    return None if kernels.NATIVE is not None else Reason(f"no kernels: {kernels.MISSING or 'not compiled'}")


def tensors(given: Iterable[Tensor]) -> Reason | None:
    """Of what any kernel takes: float32 on a CPU, side by side along the last axis."""
    if kernels.NATIVE is None:
        return no_kernels()
    if torch.compiler.is_compiling():
        return COMPILING
    for x in given:
        if x.dtype is not torch.float32:
            return Reason(f"{x.dtype}; the kernels take float32")
        if x.device.type != "cpu":
            return Reason(f"on {x.device.type}; the kernels are for a CPU")
        if x.stride(-1) != 1:
            return STRIDED
    return None


def whole_tensors(given: Iterable[Tensor]) -> Reason | None:
    """The same for kernels that take a tensor as one row of numbers."""
    if torch.compiler.is_compiling():
        return COMPILING
    given = list(given)
    for x in given:
        if not x.is_contiguous():
            return STRIDED
        if not x.numel():
            return EMPTY
    return tensors(given)


def not_training() -> Reason | None:
    """What is asked first, since it costs least, and since a graph that is traced would take sizes for facts."""
    if torch.compiler.is_compiling():
        return COMPILING
    return None if torch.is_grad_enabled() else NOT_TRAINED


def trained(x: Tensor, weights: Sequence[Tensor], others: Iterable[Tensor | None] = ()) -> Reason | None:
    """Of x and weights that are trained now. Weights are multiples of 16 along each axis."""
    reason = not_training()
    if reason is not None:
        return reason
    if not x.requires_grad and not any(one.requires_grad for one in weights):
        return NOT_TRAINED
    if x.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
        return AUTOCAST
    for weight in weights:
        if any(size % WIDE for size in weight.shape):
            return sizes(*weight.shape)
    if x.numel() < FEW * x.shape[-1]:
        return FEW_ROWS
    return whole_tensors([x, *weights, *(one for one in others if one is not None)])


def sizes(*given: int) -> Reason | None:
    """Of a linear map or a norm."""
    wrong = next((size for size in given if size % WIDE), None)
    return None if wrong is None else Reason(f"width {wrong} is no multiple of {WIDE}")


def attention(*, heads: int, kv_heads: int, head: int, dropout: float, biased: bool) -> Reason | None:
    """Of softmax attention. `biased`: something is added to its scores, the mask aside."""
    if dropout:
        return Reason("dropout inside attention: no kernel yet")
    if biased:
        return Reason("terms added to the scores: no kernel yet")
    if kv_heads != heads:
        return Reason("grouped heads: no kernel yet")
    return Reason(f"head {head} is no multiple of {WIDE}") if head % WIDE else None


def attention_now(
    query: Tensor, key: Tensor, value: Tensor, mask: Mask, *, dropout: float, biased: bool
) -> Reason | None:
    """The same of tensors; for shapes see `Mix`."""
    if torch.compiler.is_compiling():
        return COMPILING
    (batch, heads, _, head), (kv_heads, keys) = query.shape, key.shape[1:3]
    reason = attention(heads=heads, kv_heads=kv_heads, head=head, dropout=dropout, biased=biased)
    if reason is not None:
        return reason
    if key.shape != value.shape or key.shape[::3] != (batch, head):
        return MISFIT
    if not query.numel() or not key.numel():
        return EMPTY
    if keys > MOST_KEYS:
        return MANY_KEYS
    return BLOCKS if mask.blocks is not None else tensors((query, key, value))


def network(
    first: nn.Module, second: nn.Module, *, kind: str | None, gated: bool, kernel: int, dropout: float
) -> tuple[LinearPlan, LinearPlan] | Reason:
    """Of a feed-forward as one kernel: its linear maps."""
    if gated:
        return Reason("gated: its linear maps one by one")
    if kernel != 1:
        return Reason("a convolution: its linear maps one by one")
    if dropout:
        return Reason("dropout inside: its linear maps one by one")
    if kind is None:
        return Reason("an unknown function: its linear maps one by one")
    plans = plan_of(first, "input"), plan_of(second, "output")
    for plan in plans:
        if isinstance(plan, Reason):
            return plan
        if not isinstance(plan, LinearPlan) or plan.weight is None:
            return Reason("no linear map in float32")
    one, other = plans
    assert isinstance(one, LinearPlan) and isinstance(other, LinearPlan)
    if (one.inputs, one.outputs) != (other.outputs, other.inputs):
        return MISFIT
    reason = sizes(one.inputs, one.outputs)
    return (one, other) if reason is None else reason


def norm(module: nn.Module) -> NormPlan | Reason:
    """Of a norm, with what is added before it: what it is computed with."""
    plan = plan_of(module)
    if not isinstance(plan, NormPlan):
        return plan if isinstance(plan, Reason) else Reason("no norm")
    return plan if (reason := sizes(len(plan.weight))) is None else reason


def loss(width: int) -> Reason | None:
    """Of the scores of words and their gradients."""
    return sizes(width)


def chunked_loss(states: Tensor, weight: Tensor) -> Reason | None:
    """Of computing a loss a few rows at a time, forwards and backwards at once; by torch's products too."""
    if states.device.type != "cpu":
        return Reason(f"on {states.device.type}")
    reason = not_training()
    if reason is not None:
        return reason
    if torch.is_autocast_enabled("cpu"):
        return AUTOCAST
    return EMPTY if len(states) * len(weight) < LEAST_SCORES else None
