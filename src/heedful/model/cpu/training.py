"""The operations that dominate training, by our own CPU kernels, forward and backward (native/training.h, linear.h,
residual.h).

Each function either runs the kernel or falls back: to torch, if that is one call, or to the caller (None). The
conditions are in `door.py`.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from heedful.model.cpu import door, kernels
from heedful.model.cpu.door import KINDS
from heedful.model.cpu.kernels import floats
from heedful.model.mask import Mask

WHOLE = 1 << 16  # the number of values of the sixteen bits that decide what is dropped


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Mask, *, scale: float, dropout: float = 0.0, biased: bool = False
) -> Tensor | None:
    """dropout(softmax(scale q k' + mask)) v. For shapes see `Mix`; `biased`: something else is added to the scores."""
    if door.attention_now(query, key, value, mask, dropout=dropout, biased=biased) is not None:
        return None
    queries, keys = query.shape[2], key.shape[2]
    causal = mask.is_plain_causal(queries, keys)
    if causal or mask.dense(queries, keys, query.device) is None:
        return masked_attention(query, key, value, None, causal=causal, scale=scale, dropout=dropout)
    additive = mask.additive(queries, keys, query.device)
    if additive is None:
        return None
    return masked_attention(query, key, value, additive, causal=False, scale=scale, dropout=dropout)


def masked_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    additive: Tensor | None,
    *,
    causal: bool,
    scale: float,
    dropout: float = 0.0,
) -> Tensor:
    """The kernel. additive: (batch or 1) 1 (query or 1) key, added to the scores; not needed for a plain
    causal mask. The backward pass draws what is dropped again, so it is not stored."""
    batch, heads, queries, head = query.shape if query.dim() == 4 else (0, 0, 0, 0)
    kv_heads, keys = key.shape[1:3] if key.dim() == 4 else (0, 0)
    fit = key.shape == value.shape == (batch, kv_heads, keys, head) and 0 <= dropout < 1
    fit = fit and kv_heads > 0 and heads % kv_heads == 0
    fit = fit and door.tensors((query, key, value)) is None
    if additive is not None:
        rows = additive.shape[0] in (1, batch) and additive.shape[1:] in ((1, 1, keys), (1, queries, keys))
        fit = fit and rows and door.tensors([additive]) is None
    if not fit:
        names = {"query": query, "key": key, "value": value, "additive": additive}
        given = ", ".join(f"{name} {kernels.described(one)}" for name, one in names.items() if one is not None)
        raise ValueError(f"{given}, dropout {dropout}: no kernel takes these together")
    how = _AttentionOptions(causal, scale, *_drawn(dropout))
    return _Attend.apply(query, key, value, additive, how)


class _AttentionOptions(NamedTuple):
    causal: bool
    scale: float
    dropout: float
    seed: int


def _drawn(p: float) -> tuple[float, int]:
    """The probability, 0 if it rounds to none, and a seed for what is dropped."""
    p = p if round(p * WHOLE) else 0.0
    return p, int(torch.empty((), dtype=torch.int64).random_()) if p > 0 else 0


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, additive: Tensor | None, how: _AttentionOptions
    ) -> Tensor:
        batch, heads, queries, head = query.shape
        y = floats(batch, queries, heads, head).transpose(1, 2)
        sums = floats(batch, heads, queries)
        ctx.save_for_backward(query, key, value, additive, y, sums)
        ctx.how = how
        assert kernels.NATIVE is not None
        views = [number for x in (query, key, value, y) for number in _view(x)]
        scratch = _scratch(key)
        kernels.NATIVE.attend(*views, *_rest(query, key, additive, sums, how, scratch))
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, additive, y, sums = ctx.saved_tensors
        d_y = grads[0] if grads[0].stride(-1) == 1 else grads[0].contiguous()
        found = _adjacent(query, key, value)
        assert kernels.NATIVE is not None
        views = [number for x in (query, key, value, y, d_y, *found) for number in _view(x)]
        scratch = _scratch(key)
        kernels.NATIVE.attend_back(*views, *_rest(query, key, additive, sums, ctx.how, scratch))
        return *found, None, None


def _view(x: Tensor) -> tuple[int, ...]:
    return x.data_ptr(), *x.stride()[:3]


def _scratch(key: Tensor) -> Tensor:
    return floats(kernels.attention_room(*key.shape[2:]))


def _rest(
    query: Tensor, key: Tensor, additive: Tensor | None, sums: Tensor, how: _AttentionOptions, scratch: Tensor
) -> tuple[float, ...]:
    batch, heads, queries, head = query.shape
    strides = (0, 0, 0)
    if additive is not None:
        everywhere = additive.expand(batch, 1, queries, key.shape[2])
        strides = (everywhere.data_ptr(), everywhere.stride(0), everywhere.stride(2))
    sizes = (batch, heads, heads // key.shape[1], queries, key.shape[2], head)
    room = (scratch.data_ptr(), torch.get_num_threads())
    drops = (round(how.dropout * WHOLE), 1 / (1 - how.dropout), how.seed)
    return *strides, sums.data_ptr(), *sizes, how.scale, how.causal, *room, *drops


def _adjacent(*parts: Tensor) -> list[Tensor]:
    """Uninitialised tensors of the same shapes (batch heads time head). Successive parts that came from one product
    share one tensor, so that its gradient is assembled without a copy."""
    found: list[Tensor] = []
    while len(found) < len(parts):
        first = parts[len(found)]
        batch, _, time, head = first.shape
        together = [first]
        for other in parts[len(found) + 1 :]:
            same = other.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
            if not same or (other.shape[0], *other.shape[2:]) != (batch, time, head):
                break
            together.append(other)
        heads = [part.shape[1] for part in together]
        found += floats(batch, time, sum(heads), head).transpose(1, 2).split(heads, dim=1)
    return found


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor | None:
    """x times cos + the halves of x, turned, times sin: see `position/rotary.py`.

    x: batch heads time head; cos and sin: (batch or 1) 1 time head
    """
    if door.rotation(x, cos, sin) is not None:
        return None
    return _Rotated.apply(x, cos.contiguous(), sin.contiguous())


class _Rotated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotate(x, cos, sin, back=False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        d_y = grads[0] if grads[0].stride(-1) == 1 else grads[0].contiguous()
        return _rotate(d_y, *ctx.saved_tensors, back=True), None, None


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, *, back: bool) -> Tensor:
    batch, heads, time, head = x.shape
    y = floats(batch, time, heads, head).transpose(1, 2)
    table = (cos.data_ptr(), sin.data_ptr(), time * head if len(cos) > 1 else 0)
    assert kernels.NATIVE is not None
    kernels.NATIVE.rotate(*_view(x), *_view(y), *table, *x.shape, back, torch.get_num_threads())
    return y


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """W x + b. x: anything inputs; weight: outputs inputs"""
    fit = x.shape[-1:] == weight.shape[1:] and (bias is None or bias.shape == weight.shape[:1])
    if fit and door.trained(x, [weight], [bias]) is None:
        return _Linear.apply(x, weight, bias)
    return F.linear(x, weight, bias)


class _Linear(torch.autograd.Function):
    """x is kept only for the gradient of the weights: not where they are frozen."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)
        y = floats(*x.shape[:-1], len(weight))
        _linear(x, weight, bias, y, None, None, None, rows=_rows(x))
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), d_y = ctx.saved_tensors, grads[0].contiguous()
        for_x, for_weight, for_bias = ctx.needs_input_grad
        d_x = floats(*d_y.shape[:-1], weight.shape[1]) if for_x else None
        d_weight = torch.empty_like(weight) if for_weight else None
        _linear(x, weight, None, None, d_y, d_x, d_weight, rows=_rows(d_y), back=True)
        return d_x, d_weight, _summed(d_y) if for_bias else None


def _rows(x: Tensor) -> int:
    return x.numel() // x.shape[-1]


def _summed(x: Tensor) -> Tensor:
    return x.flatten(0, -2).sum(0)


def _linear(x: Tensor | None, weight: Tensor, *others: Tensor | None, rows: int, back: bool = False) -> None:
    assert kernels.NATIVE is not None
    threads, (outputs, inputs) = torch.get_num_threads(), weight.shape
    scratch = floats(kernels.NATIVE.linear_room(inputs, outputs, back, threads))
    at = map(kernels.address, (x, weight, *others))
    kernels.NATIVE.linear(*at, rows, inputs, outputs, scratch.data_ptr(), threads)


def split(whole: Tensor, sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Along the last axis."""
    if len(sizes) == 1:
        return (whole,)  # splitting would cost a copy in the backward pass
    if whole.device.type != "cpu" or not whole.requires_grad or torch.compiler.is_compiling():
        return whole.split(sizes, dim=-1)
    parts: tuple[Tensor, ...] = _Split.apply(whole, sizes)
    return parts


class _Split(torch.autograd.Function):
    """`split`, whose backward pass does not copy gradients that are already adjacent, as `_adjacent` allocates them."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
        return whole.split(sizes, dim=-1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        first, width, at = grads[0], sum(grad.shape[-1] for grad in grads), grads[0].storage_offset()
        stride, step = [1], width
        for size in reversed(first.shape[1:-1]):
            stride.insert(0, step)
            step *= size
        stride.insert(0, step)
        for grad in grads:
            same = grad.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
            if torch.is_grad_enabled() or not same or grad.storage_offset() != at or grad.stride() != tuple(stride):
                return torch.cat(grads, dim=-1), None
            at += grad.shape[-1]
        return first.as_strided((*first.shape[:-1], width), stride), None


def feed_forward(
    x: Tensor, first: nn.Module, second: nn.Module, *, kind: str | None, gated: bool, kernel: int, dropout: float
) -> Tensor | None:
    """W2 dropout(f(W1 x + b1)) + b2, or gated W2 dropout(f(g) * u) + b2 with [g, u] = W1 x + b1, some rows at a time;
    `kind` names f, see `door.network`."""
    if door.not_training() is not None:
        return None
    found = door.network(first, second, kind=kind, gated=gated, kernel=kernel, dropout=dropout)
    if not found or kind is None:
        return None
    one, other = found
    assert one.weight is not None and other.weight is not None
    fit = all(plan.bias is None or plan.bias.shape == (plan.outputs,) for plan in found)
    if not fit or x.shape[-1:] != (one.inputs,):
        return None
    if door.trained(x, [one.weight, other.weight], [one.bias, other.bias]) is not None:
        return None
    how = _NetworkOptions(KINDS.index(kind), gated, *_drawn(dropout))
    return _FeedForward.apply(x, one.weight, one.bias, other.weight, other.bias, how)


class _NetworkOptions(NamedTuple):
    kind: int
    gated: bool
    dropout: float
    seed: int

    @property
    def in_place(self) -> bool:
        """What the function gives takes the place of what it is given: of a ReLU, that is enough."""
        return self.kind == 0 and not self.gated


class _FeedForward(torch.autograd.Function):
    """Keeps what the function is given; the backward pass computes and drops again what it gives."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        first: Tensor,
        first_bias: Tensor | None,
        second: Tensor,
        second_bias: Tensor | None,
        how: _NetworkOptions,
    ) -> Tensor:
        inner, y = floats(*x.shape[:-1], len(first)), torch.empty_like(x)
        _feed(x, first, first_bias, second, second_bias, inner, y, *[None] * 6, how=how)
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, first, second, inner)
        ctx.how = how
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x, first, second, inner), d_y, how = ctx.saved_tensors, grads[0].contiguous(), ctx.how
        for_x, for_first, for_first_bias, for_second, for_second_bias, _ = ctx.needs_input_grad
        d_x = torch.empty_like(d_y) if for_x else None
        d_first, d_second = (
            torch.empty_like(one) if wanted else None for one, wanted in ((first, for_first), (second, for_second))
        )
        d_inner = torch.empty_like(inner)
        active = floats(*d_y.shape[:-1], second.shape[1]) if for_second and not how.in_place else None
        _feed(x, first, None, second, None, inner, None, d_y, d_inner, active, d_x, d_first, d_second, how=how)
        d_first_bias = _summed(d_inner) if for_first_bias else None
        d_second_bias = _summed(d_y) if for_second_bias else None
        return d_x, d_first, d_first_bias, d_second, d_second_bias, None


def _feed(
    x: Tensor | None, first: Tensor, first_bias: Tensor | None, second: Tensor, second_bias: Tensor | None,
    inner: Tensor, y: Tensor | None, d_y: Tensor | None, *others: Tensor | None, how: _NetworkOptions,
) -> None:  # fmt: skip
    assert kernels.NATIVE is not None
    threads, network = torch.get_num_threads(), (*second.shape, how.kind, how.gated)
    scratch = floats(kernels.NATIVE.feed_room(*network, d_y is not None, threads))
    at = map(kernels.address, (x, first, first_bias, second, second_bias, inner, y, d_y, *others))
    drops = (round(how.dropout * WHOLE), 1 / (1 - how.dropout), how.seed)
    kernels.NATIVE.feed(*at, _rows(inner), *network, *drops, scratch.data_ptr(), threads)


def gelu(x: Tensor) -> Tensor:
    return _Activate.apply(x, "gelu") if door.whole_tensors([x]) is None else F.gelu(x)


def gelu_tanh(x: Tensor) -> Tensor:
    return _Activate.apply(x, "gelu_tanh") if door.whole_tensors([x]) is None else F.gelu(x, approximate="tanh")


def silu(x: Tensor) -> Tensor:
    return _Activate.apply(x, "silu") if door.whole_tensors([x]) is None else F.silu(x)


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


def dropout(x: Tensor | None, y: Tensor, p: float) -> Tensor | None:
    """x + dropout(y), or dropout(y). The backward pass draws the same mask again, so none is stored."""
    if p == 1 or door.whole_tensors([y] if x is None else [x, y]) is not None or (x is not None and x.shape != y.shape):
        return None
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


def add_norm(x: Tensor, v: Tensor | None, norm: nn.Module, p: float) -> Tensor | None:
    """norm(x + dropout(v)), or norm(x). The sum is not stored: it is recovered from the norm's output, if its weights
    allow that."""
    if door.not_training() is not None or p == 1 or (v is None and x.numel() < door.LARGE):
        return None
    plan = door.norm(norm)
    if not plan or plan.weight.shape != x.shape[-1:] or (v is not None and v.shape != x.shape):
        return None
    if plan.bias is not None and plan.bias.shape != plan.weight.shape:
        return None
    if door.trained(x, [plan.weight], [plan.bias, v]) is not None:
        return None
    assert kernels.NATIVE is not None
    bias = 0 if plan.bias is None else plan.bias.data_ptr()
    if not kernels.NATIVE.is_invertible(plan.weight.data_ptr(), bias, len(plan.weight)):
        return None
    return _AddNorm.apply(x, v, plan.weight, plan.bias, (plan.rms, plan.eps, *_drawn(p)))


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, v: Tensor | None, weight: Tensor, bias: Tensor | None, how: tuple[bool, float, float, int]
    ) -> Tensor:
        y, factors = torch.empty_like(x), floats(x.numel() // len(weight))
        _add_norm(x, v, weight, bias, y, factors, None, None, None, None, how=how)
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
        _add_norm(y, d_v, weight, bias, y, factors, d_y, d_x, d_v, d_both, how=ctx.how)
        return d_x, d_v, d_both[0], None if bias is None else d_both[1], None


def _add_norm(
    x: Tensor, v: Tensor | None, weight: Tensor, *others: Tensor | None, how: tuple[bool, float, float, int]
) -> None:
    assert kernels.NATIVE is not None
    rms, eps, p, seed = how
    at = (0 if one is None else one.data_ptr() for one in (x, v, weight, *others))
    sizes = (x.numel() // len(weight), len(weight))
    kernels.NATIVE.add_norm(*at, *sizes, rms, eps, round(p * WHOLE), 1 / (1 - p), seed, torch.get_num_threads())
