"""The only entry to our kernels: decides whether they can run something, or gives the reason why not.

For decoding, `plan_of` turns a part into its plan. For training, the functions below it return the reason why a kernel
cannot take its input; None = it can. Checks that depend only on the model are separate functions, so that
`heedful doctor` can use them too.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from heedful.model.cpu import kernels
from heedful.model.cpu.plan import IdentityPlan, LinearPlan, NormPlan, Plan, Reason
from heedful.model.mask import Mask

KINDS = ["relu", "gelu", "gelu_tanh", "silu"]  # activations, as numbered in native/rows.h
WIDE = 16  # the widths of heads, linear maps and norms must be multiples of it
FEW = 32  # minimum number of rows for which packing weights pays off for a single product
LARGE = 1 << 18  # minimum size for which our norm is as fast as torch's, while keeping less for the backward pass
MOST_KEYS = 1024  # our attention is faster than torch's up to this many: 1.1 times here, 3 times at 12 keys
LEAST_SCORES = 100_000  # minimum number of logits for which a loss in chunks pays off

P = TypeVar("P", bound=Plan)


def plan_of(module: nn.Module, place: str = "") -> Plan | Reason:
    """A part's plan, if it covers everything that is computed. `place`: a prefix for the reason."""
    plan = _plan(module)
    if not isinstance(plan, Reason):
        reason = _unaccounted(module, plan)
        if reason is None:
            return plan
        plan = reason
    return plan.at(place) if place else plan


def child_plan(module: nn.Module, name: str, kind: type[P]) -> P | Reason:
    """The plan of a child module, which must be of this kind."""
    child = getattr(module, name)
    plan = plan_of(child, name)
    if isinstance(plan, Reason | kind):
        return plan
    return Reason(f"{_kind_of(child)} in its place: no kernel yet", name)


def _plan(module: nn.Module) -> Plan | Reason:
    if has_hooks(module):
        return Reason("it has hooks, which only modules call")
    if type(module) in TORCH:
        return TORCH[type(module)](module)
    # A class that overrides `forward` must not inherit the plan of its base class.
    if "plan" not in vars(type(module)) or "forward" in vars(module):
        return Reason(f"{_kind_of(module)}: no kernel yet")
    found: Plan | Reason = module.plan()  # type: ignore[operator]
    return found


def _kind_of(module: nn.Module) -> str:
    """The name in a recipe (that of the file), or the class name of a part without one."""
    kind = type(module)
    own = kind.__module__.startswith("heedful.model.") and kind.__module__.count(".") > 2
    return kind.__module__.rpartition(".")[2] if own else kind.__name__


def _unaccounted(module: nn.Module, plan: Plan) -> Reason | None:
    """A parameter or buffer that the plan does not compute with, or that the kernels cannot read."""
    known = {id(tensor) for tensor in plan.tensors()}
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if id(tensor) not in known:
            return Reason("unknown to the kernels", name)
    for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
        if tensor.device.type != "cpu" or tensor.dtype != torch.float32 or not tensor.is_contiguous():
            kind = f"{str(tensor.dtype).removeprefix('torch.')} on {tensor.device.type}"
            return Reason(f"{kind}; the kernels take contiguous float32 on a CPU", name)
    return None


def has_hooks(module: nn.Module) -> bool:
    """Whether it has hooks, so that it must be called as a module."""
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


# Plans for torch's own modules.
TORCH: dict[type[nn.Module], Callable[[Any], Plan | Reason]] = {
    nn.Linear: _linear_plan,
    nn.LayerNorm: _norm_plan,
    nn.RMSNorm: _norm_plan,
    nn.Identity: lambda module: IdentityPlan(),
}


COMPILING = Reason("a graph is being traced")
NOT_TRAINED = Reason("no gradients needed")
AUTOCAST = Reason("autocast: no kernel yet")
EMPTY = Reason("nothing to compute")
STRIDED = Reason("not contiguous")
MISFIT = Reason("the shapes do not fit the kernel")
MANY_KEYS = Reason(f"more than {MOST_KEYS} keys: torch is faster")
BLOCKS = Reason("blocks of keys: no kernel yet")
FEW_ROWS = Reason(f"fewer than {FEW} rows: torch is faster")


def no_kernels() -> Reason | None:
    return None if kernels.NATIVE is not None else Reason(f"no kernels: {kernels.MISSING or 'not compiled'}")


def tensors(given: Iterable[Tensor]) -> Reason | None:
    """For any kernel: float32 on a CPU, contiguous along the last axis."""
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
    """The same for kernels that need wholly contiguous tensors."""
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
    """Checked first: it is the cheapest, and a traced graph would treat sizes as constants."""
    if torch.compiler.is_compiling():
        return COMPILING
    return None if torch.is_grad_enabled() else NOT_TRAINED


def trained(x: Tensor, weights: Sequence[Tensor], others: Iterable[Tensor | None] = ()) -> Reason | None:
    """For x and weights that need gradients. The sizes of the weights must be multiples of 16."""
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
    """For a linear map or a norm."""
    wrong = next((size for size in given if size % WIDE), None)
    return None if wrong is None else Reason(f"width {wrong} is not a multiple of {WIDE}")


def attention(*, head: int, dropout: float, biased: bool) -> Reason | None:
    """For softmax attention. `biased`: something besides the mask is added to its scores."""
    if dropout == 1:
        return Reason("dropout 1: nothing to compute")
    if biased:
        return Reason("terms added to the scores: no kernel yet")
    return Reason(f"head {head} is not a multiple of {WIDE}") if head % WIDE else None


def attention_now(
    query: Tensor, key: Tensor, value: Tensor, mask: Mask, *, dropout: float, biased: bool
) -> Reason | None:
    """The same for given tensors; for shapes see `Mix`."""
    if torch.compiler.is_compiling():
        return COMPILING
    (batch, heads, _, head), (kv_heads, keys) = query.shape, key.shape[1:3]
    reason = attention(head=head, dropout=dropout, biased=biased)
    if reason is not None:
        return reason
    if key.shape != value.shape or key.shape[::3] != (batch, head) or not kv_heads or heads % kv_heads:
        return MISFIT
    if not query.numel() or not key.numel():
        return EMPTY
    if keys > MOST_KEYS:
        return MANY_KEYS
    return BLOCKS if mask.blocks is not None else tensors((query, key, value))


def rotation(x: Tensor, cos: Tensor, sin: Tensor) -> Reason | None:
    """For rotating heads."""
    if torch.compiler.is_compiling():
        return COMPILING
    if x.dim() != 4 or cos.shape != sin.shape or cos.shape[1:] != (1, *x.shape[2:]) or len(cos) not in (1, len(x)):
        return MISFIT
    if cos.requires_grad or sin.requires_grad:
        return Reason("a rotation that is trained")
    if x.shape[-1] % WIDE:
        return Reason(f"head {x.shape[-1]} is not a multiple of {WIDE}")
    return tensors((x, cos, sin)) if x.numel() else EMPTY


def network(
    first: nn.Module, second: nn.Module, *, kind: str | None, gated: bool, kernel: int, dropout: float
) -> tuple[LinearPlan, LinearPlan] | Reason:
    """For a feed-forward network as one kernel: its linear maps."""
    if kernel != 1:
        return Reason("a convolution: linear maps separately")
    if dropout == 1:
        return Reason("dropout 1: linear maps separately")
    if kind is None:
        return Reason("unknown activation: linear maps separately")
    plans = plan_of(first, "input"), plan_of(second, "output")
    for plan in plans:
        if isinstance(plan, Reason):
            return plan
        if not isinstance(plan, LinearPlan) or plan.weight is None:
            return Reason("not a float32 linear map")
    one, other = plans
    assert isinstance(one, LinearPlan) and isinstance(other, LinearPlan)
    parts = (other.inputs, other.inputs) if gated else (other.inputs,)
    if (one.inputs, one.parts) != (other.outputs, parts):
        return MISFIT
    reason = sizes(one.inputs, other.inputs)
    return (one, other) if reason is None else reason


def norm(module: nn.Module) -> NormPlan | Reason:
    """For a norm, with or without the residual addition before it: its plan."""
    plan = plan_of(module)
    if not isinstance(plan, NormPlan):
        return plan if isinstance(plan, Reason) else Reason("not a norm")
    return plan if (reason := sizes(len(plan.weight))) is None else reason


def loss(width: int) -> Reason | None:
    """For the logits and their gradients."""
    return sizes(width)


def chunked_loss(states: Tensor, weight: Tensor) -> Reason | None:
    """For computing a loss a few rows at a time, forward and backward together; also with torch's products."""
    if states.device.type != "cpu":
        return Reason(f"on {states.device.type}")
    reason = not_training()
    if reason is not None:
        return reason
    if torch.is_autocast_enabled("cpu"):
        return AUTOCAST
    return EMPTY if len(states) * len(weight) < LEAST_SCORES else None
