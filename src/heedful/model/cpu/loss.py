"""Logits, their loss and its gradients, for `objectives.py`; computed by torch where our kernels cannot."""

from collections.abc import Callable

import torch
from torch import Tensor

from heedful.model.cpu import door, kernels
from heedful.model.cpu.door import WIDE
from heedful.model.cpu.kernels import Panels, described, floats, is_plain

Product = Callable[[Tensor, Tensor], None]


def vocabulary_products(
    states: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Product, Product, Callable[..., None]]:
    """y = W x + b and y = W' x, written to their first argument, and dW = y' x, or dW + y' x. Our kernels pack W once
    for all rows."""
    if door.loss(weight.shape[1]) is None and door.whole_tensors((states, weight)) is None:
        return Panels(weight, bias).into, Panels(weight.T).into, _weight_gradient

    def forwards(y: Tensor, x: Tensor) -> None:
        torch.mm(x, weight.T, out=y)
        if bias is not None:
            y += bias

    def backwards(y: Tensor, x: Tensor) -> None:
        torch.mm(x, weight, out=y)

    def weight_gradient(d_weight: Tensor, y: Tensor, x: Tensor, *, add: bool) -> None:
        torch.addmm(d_weight, y.T, x, beta=int(add), out=d_weight)

    return forwards, backwards, weight_gradient


def _weight_gradient(d_weight: Tensor, d_y: Tensor, x: Tensor, *, add: bool) -> None:
    assert kernels.NATIVE is not None
    threads, (outputs, inputs) = torch.get_num_threads(), d_weight.shape
    if d_y.shape != (len(x), outputs) or x.shape[1:] != (inputs,) or not all(map(is_plain, (d_weight, d_y, x))):
        given = f"{described(d_y)} and {described(x)}"
        raise ValueError(f"{given} do not fit a gradient of {described(d_weight)}")
    scratch = floats(kernels.NATIVE.linear_room(inputs, WIDE, True, threads))
    at = (one.data_ptr() for one in (d_y, x, d_weight))
    kernels.NATIVE.weight_gradient(*at, len(x), outputs, inputs, add, scratch.data_ptr(), threads)


def cross_entropy_(logits: Tensor, targets: Tensor, share: float) -> Tensor:
    """The sum over rows of lse(z) - share z_t. The logits z become its gradient, softmax(z) - share onehot(t)."""
    if logits.dim() != 2 or targets.shape != logits.shape[:1] or targets.is_floating_point():
        given = f"targets of {list(targets.shape)} ({targets.dtype})"
        raise ValueError(f"{given} do not fit logits of {list(logits.shape)}: give one index for each row")
    if door.whole_tensors([logits]) is not None or targets.device.type != "cpu":
        return _cross_entropy_by_torch(logits, targets, share)
    targets = targets.long().contiguous()
    losses = torch.empty(len(logits), dtype=torch.float64)
    at = (logits.data_ptr(), targets.data_ptr(), losses.data_ptr())
    assert kernels.NATIVE is not None
    kernels.NATIVE.cross_entropy(*at, share, *logits.shape, torch.get_num_threads())
    return losses.sum()


def _cross_entropy_by_torch(logits: Tensor, targets: Tensor, share: float) -> Tensor:
    wanted = targets[:, None]
    target_scores, highest = logits.gather(1, wanted).sum(dtype=torch.float64), logits.amax(1)
    p = torch.softmax(logits, dim=1, out=logits)
    loss = highest.sum(dtype=torch.float64) - p.amax(1).log().sum(dtype=torch.float64) - share * target_scores
    p.scatter_add_(1, wanted, p.new_full(wanted.shape, -share))
    return loss
