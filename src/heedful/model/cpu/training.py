"""What training does most, by our own kernels for the CPU, forwards and backwards (native/training.h, linear.h,
residual.h).

Each has a plain form in torch, which is what runs where the kernels do not suit.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from heedful.model.cpu import kernels
from heedful.model.cpu.kernels import floats

WHOLE = 1 << 16  # what the sixteen bits that tell what is dropped can tell apart
WIDE = 16  # the widths of a head, of a linear map, of a norm are multiples of it
LARGE = 1 << 18  # numbers from which on a norm by itself is as fast by our kernels as by torch's, and keeps less
FEW = 32  # rows from which on it is worth it to lay out weights anew for each product


def fits(*tensors: Tensor) -> bool:
    """Whether the kernels take them: single precision on a CPU, numbers side by side; not while a graph is traced."""
    return (
        kernels.NATIVE is not None
        and all(x.device.type == "cpu" and x.dtype == torch.float32 and x.stride(-1) == 1 for x in tensors)
        and not torch.compiler.is_compiling()
    )


def is_watched(module: nn.Module) -> bool:
    """Whether there are hooks, for which it must be called as it is."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks)


def can_attend(query: Tensor, key: Tensor, value: Tensor) -> bool:
    same = key.shape == value.shape == (query.shape[0], query.shape[1], key.shape[2], query.shape[3])
    return same and query.shape[-1] % WIDE == 0 and query.numel() > 0 and key.numel() > 0 and fits(query, key, value)


def attend(query: Tensor, key: Tensor, value: Tensor, hiding: Tensor | None, *, causal: bool, scale: float) -> Tensor:
    """softmax(scale q k' + hiding) v. For shapes see `Mix`; hiding: (batch or 1) 1 (query or 1) key. A plain causal
    mask does not need it."""
    return _Attend.apply(query, key, value, hiding, causal, scale)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, hiding: Tensor | None, causal: bool, scale: float
    ) -> Tensor:
        batch, heads, queries, head = query.shape
        y = floats(batch, queries, heads, head).transpose(1, 2)
        sums = floats(batch, heads, queries)
        ctx.save_for_backward(query, key, value, hiding, y, sums)
        ctx.causal, ctx.scale = causal, scale
        assert kernels.NATIVE is not None
        views = [number for x in (query, key, value, y) for number in _view(x)]
        scratch = _scratch(key)
        kernels.NATIVE.attend(*views, *_rest(query, key, hiding, sums, causal, scale, scratch))
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, hiding, y, sums = ctx.saved_tensors
        d_y = grads[0] if grads[0].stride(-1) == 1 else grads[0].contiguous()
        found = _beside(query, key, value)
        assert kernels.NATIVE is not None
        views = [number for x in (query, key, value, y, d_y, *found) for number in _view(x)]
        scratch = _scratch(key)
        kernels.NATIVE.attend_back(*views, *_rest(query, key, hiding, sums, ctx.causal, ctx.scale, scratch))
        return *found, None, None, None


def _view(x: Tensor) -> tuple[int, ...]:
    return x.data_ptr(), *x.stride()[:3]


def _scratch(key: Tensor) -> Tensor:
    return floats(kernels.attention_room(*key.shape[2:]))


def _rest(
    query: Tensor, key: Tensor, hiding: Tensor | None, sums: Tensor, causal: bool, scale: float, scratch: Tensor
) -> tuple[float, ...]:
    batch, heads, queries, head = query.shape
    hidden = (0, 0, 0)
    if hiding is not None:
        assert hiding.shape[-1] == key.shape[2] and hiding.stride(-1) == 1
        everywhere = hiding.expand(batch, 1, queries, key.shape[2])
        hidden = (everywhere.data_ptr(), everywhere.stride(0), everywhere.stride(2))
    sizes = (batch, heads, queries, key.shape[2], head)
    return *hidden, sums.data_ptr(), *sizes, scale, causal, scratch.data_ptr(), torch.get_num_threads()


def _beside(*parts: Tensor) -> list[Tensor]:
    """Room for the gradients of queries, keys and values (batch heads time head). Parts that one product made get one
    room: what goes back is then whole again, without a copy."""
    found: list[Tensor] = []
    while len(found) < len(parts):
        first = parts[len(found)]
        batch, heads, time, head = first.shape
        count = 1
        for other in parts[len(found) + 1 :]:
            same = other.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
            if not same or other.shape != first.shape:
                break
            count += 1
        found += floats(batch, time, count, heads, head).transpose(1, 3).unbind(2)
    return found


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """W x + b. x: anything inputs; weight: outputs inputs"""
    fit = x.shape[-1:] == weight.shape[1:] and (bias is None or bias.shape == weight.shape[:1])
    return _Linear.apply(x, weight, bias) if fit and _trains(x, [weight], [bias]) else F.linear(x, weight, bias)


def _trains(x: Tensor, weights: Sequence[Tensor], others: Sequence[Tensor | None]) -> bool:
    """Whether these are to be trained, and by our kernels."""
    return (
        x.device.type == "cpu"
        and not torch.compiler.is_compiling()  # which would take the sizes below for facts
        and torch.is_grad_enabled()
        and any(one.requires_grad for one in (x, *weights))
        and all(size % WIDE == 0 for weight in weights for size in weight.shape)
        and x.numel() >= FEW * x.shape[-1]
        and not torch.is_autocast_enabled("cpu")
        and _fits_whole(x, *weights, *(one for one in others if one is not None))
    )


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        y = floats(*x.shape[:-1], len(weight))
        _linear(x, weight, bias, y, None, None, None)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), d_y = ctx.saved_tensors, grads[0].contiguous()
        d_x, d_weight = _room_like((x, weight), ctx.needs_input_grad)
        _linear(x, weight, None, None, d_y, d_x, d_weight, back=True)
        return d_x, d_weight, _summed(d_y) if ctx.needs_input_grad[2] else None


def _room_like(tensors: tuple[Tensor, ...], wanted: tuple[bool, ...]) -> list[Tensor | None]:
    return [torch.empty_like(one) if want else None for one, want in zip(tensors, wanted, strict=False)]


def _summed(x: Tensor) -> Tensor:
    return x.flatten(0, -2).sum(0)


def _linear(x: Tensor, weight: Tensor, *others: Tensor | None, back: bool = False) -> None:
    assert kernels.NATIVE is not None
    threads, (outputs, inputs) = torch.get_num_threads(), weight.shape
    scratch = floats(kernels.NATIVE.linear_room(inputs, outputs, back, threads))
    at = (0 if one is None else one.data_ptr() for one in (x, weight, *others))
    kernels.NATIVE.linear(*at, x.numel() // inputs, inputs, outputs, scratch.data_ptr(), threads)


def can_weigh(x: Tensor, weight: Tensor) -> bool:
    return weight.shape[1] % WIDE == 0 and _fits_whole(x, weight)


def weigh_(d_weight: Tensor, d_y: Tensor, x: Tensor, *, add: bool) -> None:
    """dW = dY' X, or dW + dY' X."""
    assert kernels.NATIVE is not None
    threads, (outputs, inputs) = torch.get_num_threads(), d_weight.shape
    scratch = floats(kernels.NATIVE.linear_room(inputs, WIDE, True, threads))
    at = (one.data_ptr() for one in (d_y, x, d_weight))
    kernels.NATIVE.weigh(*at, len(x), outputs, inputs, add, scratch.data_ptr(), threads)


def can_feed(x: Tensor, first: nn.Linear, second: nn.Linear) -> bool:
    weights, biases = [first.weight, second.weight], [first.bias, second.bias]
    fit = x.shape[-1:] == first.weight.shape[1:] and second.weight.shape == first.weight.shape[::-1]
    fit &= all(bias is None or len(bias) == len(weight) for weight, bias in zip(weights, biases, strict=True))
    return fit and _trains(x, weights, biases)


def feed(x: Tensor, first: nn.Linear, second: nn.Linear, kind: str) -> Tensor:
    """W2 f(W1 x + b1) + b2, some rows at a time. For the kinds of f see below."""
    return _Feed.apply(x, first.weight, first.bias, second.weight, second.bias, KINDS.index(kind))


class _Feed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        first: Tensor,
        first_bias: Tensor | None,
        second: Tensor,
        second_bias: Tensor | None,
        f: int,
    ) -> Tensor:
        inner = floats(*x.shape[:-1], len(first))
        active = torch.empty_like(inner) if f else inner  # of a ReLU, what it makes tells all
        y = torch.empty_like(x)
        _feed(x, first, first_bias, second, second_bias, inner, active, y, *[None] * 5, f=f)
        ctx.save_for_backward(x, first, second, inner, active)
        ctx.f = f
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x, first, second, inner, active), d_y = ctx.saved_tensors, grads[0].contiguous()
        for_x, for_first, for_first_bias, for_second, for_second_bias, _ = ctx.needs_input_grad
        d_x, d_first, d_second = _room_like((x, first, second), (for_x, for_first, for_second))
        d_inner = torch.empty_like(inner)
        _feed(
            x, first, None, second, None, inner, active, None, d_y, d_inner, d_x, d_first, d_second, f=ctx.f, back=True
        )
        d_first_bias = _summed(d_inner) if for_first_bias else None
        d_second_bias = _summed(d_y) if for_second_bias else None
        return d_x, d_first, d_first_bias, d_second, d_second_bias, None


def _feed(x: Tensor, first: Tensor, *others: Tensor | None, f: int, back: bool = False) -> None:
    assert kernels.NATIVE is not None
    threads, (hidden, width) = torch.get_num_threads(), first.shape
    scratch = floats(kernels.NATIVE.linear_room(width, hidden, back, threads))
    at = (0 if one is None else one.data_ptr() for one in (x, first, *others))
    kernels.NATIVE.feed(*at, x.numel() // width, width, hidden, f, scratch.data_ptr(), threads)


def gelu(x: Tensor) -> Tensor:
    return _Activate.apply(x, "gelu") if _fits_whole(x) else F.gelu(x)


def gelu_tanh(x: Tensor) -> Tensor:
    return _Activate.apply(x, "gelu_tanh") if _fits_whole(x) else F.gelu(x, approximate="tanh")


def silu(x: Tensor) -> Tensor:
    return _Activate.apply(x, "silu") if _fits_whole(x) else F.silu(x)


KINDS = ["relu", "gelu", "gelu_tanh", "silu"]  # as native/rows.h numbers them


def _fits_whole(*tensors: Tensor) -> bool:
    return all(x.is_contiguous() and x.numel() > 0 for x in tensors) and fits(*tensors)


class _Activate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kind: str) -> Tensor:
        ctx.save_for_backward(x)
        ctx.kind = KINDS.index(kind)
        y = torch.empty_like(x)
        assert kernels.NATIVE is not None
        kernels.NATIVE.activate(ctx.kind, x.data_ptr(), 0, y.data_ptr(), x.numel(), torch.get_num_threads())
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (x,), d_y = ctx.saved_tensors, grads[0].contiguous()
        d_x = torch.empty_like(x)
        at = (x.data_ptr(), d_y.data_ptr(), d_x.data_ptr())
        assert kernels.NATIVE is not None
        kernels.NATIVE.activate(ctx.kind, *at, x.numel(), torch.get_num_threads())
        return d_x, None


def can_drop(*tensors: Tensor) -> bool:
    return len({x.shape for x in tensors}) == 1 and _fits_whole(*tensors)


def dropped(x: Tensor | None, y: Tensor, p: float) -> Tensor:
    """x + dropout(y). What is dropped is drawn again on the way back, so that nothing need be kept."""
    seed = int(torch.empty((), dtype=torch.int64).random_())
    return _Dropped.apply(x, y, p, seed)


class _Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor | None, y: Tensor, p: float, seed: int) -> Tensor:
        ctx.p, ctx.seed = p, seed
        return _drop(x, y, p, seed)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        return (
            grads[0] if ctx.needs_input_grad[0] else None,
            _drop(None, grads[0].contiguous(), ctx.p, ctx.seed),
            None,
            None,
        )


def _drop(x: Tensor | None, y: Tensor, p: float, seed: int) -> Tensor:
    z = torch.empty_like(y)
    at = (0 if x is None else x.data_ptr(), y.data_ptr(), z.data_ptr())
    assert kernels.NATIVE is not None
    kernels.NATIVE.drop(*at, y.numel(), round(p * WHOLE), 1 / (1 - p), seed, torch.get_num_threads())
    return z


def can_join(x: Tensor, v: Tensor | None, norm: nn.Module) -> bool:
    """Whether `joined` takes them: a plain norm whose input can be told from its output."""
    if type(norm) not in (nn.LayerNorm, nn.RMSNorm) or is_watched(norm):
        return False
    weight, bias = norm.weight, getattr(norm, "bias", None)
    if not isinstance(weight, Tensor) or weight.shape != x.shape[-1:] or (v is not None and v.shape != x.shape):
        return False
    if not _trains(x, [weight], [bias, v]) or (v is None and x.numel() < LARGE):
        return False
    assert kernels.NATIVE is not None
    at = (weight.data_ptr(), 0 if bias is None else bias.data_ptr())
    return bool(kernels.NATIVE.can_be_told(*at, len(weight)))


def joined(x: Tensor, v: Tensor | None, norm: nn.Module, p: float) -> Tensor:
    """norm(x + dropout(v)), or norm(x). The sum is not kept."""
    rms = isinstance(norm, nn.RMSNorm)
    p = p if round(p * WHOLE) else 0.0
    seed = int(torch.empty((), dtype=torch.int64).random_()) if p > 0 else 0
    eps = norm.eps if norm.eps is not None else torch.finfo(torch.float32).eps
    return _Joined.apply(x, v, norm.weight, None if rms else norm.bias, (rms, eps, p, seed))


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, v: Tensor | None, weight: Tensor, bias: Tensor | None, how: tuple[bool, float, float, int]
    ) -> Tensor:
        y, factors = torch.empty_like(x), floats(x.numel() // len(weight))
        _join(x, v, weight, bias, y, factors, None, None, None, None, how=how)
        ctx.save_for_backward(weight, bias, y, factors)
        ctx.how, ctx.adds = how, v is not None
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (weight, bias, y, factors), d_y = ctx.saved_tensors, grads[0].contiguous()
        d_x = torch.empty_like(y)
        d_v = (torch.empty_like(y) if ctx.how[2] > 0 else d_x) if ctx.adds else None
        d_both = floats(2 * torch.get_num_threads(), len(weight))
        _join(y, d_v, weight, bias, y, factors, d_y, d_x, d_v, d_both, how=ctx.how)
        return d_x, d_v, d_both[0], None if bias is None else d_both[1], None


def _join(
    x: Tensor, v: Tensor | None, weight: Tensor, *others: Tensor | None, how: tuple[bool, float, float, int]
) -> None:
    assert kernels.NATIVE is not None
    rms, eps, p, seed = how
    at = (0 if one is None else one.data_ptr() for one in (x, v, weight, *others))
    sizes = (x.numel() // len(weight), len(weight))
    kernels.NATIVE.join(*at, *sizes, rms, eps, round(p * WHOLE), 1 / (1 - p), seed, torch.get_num_threads())


def cross_entropy_(logits: Tensor, targets: Tensor, share: float) -> Tensor:
    """lse(z) - share z_t of each row; the logits become their gradients, softmax(z) - share onehot(t)."""
    targets = targets.long().contiguous()
    if len(targets) and not 0 <= int(targets.min()) <= int(targets.max()) < logits.shape[1]:
        raise IndexError(f"a target is not one of the {logits.shape[1]} words")
    losses = torch.empty(len(logits), dtype=torch.float64)
    at = (logits.data_ptr(), targets.data_ptr(), losses.data_ptr())
    assert kernels.NATIVE is not None
    kernels.NATIVE.cross_entropy(*at, share, *logits.shape, torch.get_num_threads())
    return losses
