"""Linear maps, and several of one input as one."""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from heedful.model.cpu.training import linear


class Linear(nn.Linear):
    """torch's, trained by our own kernels where they suit."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class FusedLinear(nn.Linear):
    """`[W_1 x, W_2 x, ...]` in one product: faster than the parts one by one, most of all on small inputs.

    The parts stay visible, because initialisation, weight names and adapters are defined for each of them.
    """

    def __init__(self, inputs: int, outputs: tuple[int, ...], bias: bool = True) -> None:
        super().__init__(inputs, sum(outputs), bias=bias)
        self.parts = outputs

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        whole = linear(x, self.weight, self.bias)
        if len(self.parts) == 1:
            return (whole,)  # splitting would cost a copy on the way back
        if whole.device.type != "cpu" or not whole.requires_grad or torch.compiler.is_compiling():
            return whole.split(self.parts, dim=-1)
        split: tuple[Tensor, ...] = _Split.apply(whole, self.parts)
        return split

    def part_weights(self) -> list[Tensor]:
        """Views of the parts' weights: writing to them writes to the whole."""
        ends = [0]
        for size in self.parts:
            ends.append(ends[-1] + size)
        return [self.weight[start:end] for start, end in pairwise(ends)]


class _Split(torch.autograd.Function):
    """`split`, whose way back makes no copy of gradients that already lie side by side (fused.py lays them so)."""

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


def linear_parameters(inputs: int, outputs: int, bias: bool) -> int:
    return inputs * outputs + (outputs if bias else 0)
