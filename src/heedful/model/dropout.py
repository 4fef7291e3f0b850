"""Dropout.

On a CPU, drawing a random number for every value costs more than the layer around it. Sixteen random bits per value are
enough to decide what is dropped, so four values share one 64-bit draw.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.model.cpu import training as cpu
from heedful.model.cpu.plan import IdentityPlan
from heedful.model.cpu.training import WHOLE


class Dropout(nn.Module):
    """Each value becomes zero with probability p, and the others are scaled by 1 / (1 - p) (Srivastava et al. 2014).

    p is rounded to a multiple of 1/65,536. On a GPU, and while a model is being compiled, torch's own is used.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        dropped = cpu.dropout(None, x, self.p)
        if dropped is not None:
            return dropped
        return x * keep(x, self.p) if self._draws_words(x) else F.dropout(x, self.p, True)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """x + dropout(y), in one pass."""
        if not self.training or self.p == 0:
            return x + y
        added = cpu.dropout(x, y, self.p)
        if added is not None:
            return added
        if not self._draws_words(x) or x.dtype != y.dtype:
            return x + self(y)
        return _AddDropped.apply(x, y, keep(y, self.p))

    def plan(self) -> IdentityPlan:
        """Outside training it does nothing."""
        return IdentityPlan()

    def _draws_words(self, x: Tensor) -> bool:
        """Whether several values share a draw; elsewhere torch's own dropout is as fast."""
        return x.device.type == "cpu" and self.p < 1 and not torch.compiler.is_compiling()

    def extra_repr(self) -> str:
        return f"p={self.p}"


def keep(x: Tensor, p: float) -> Tensor:
    """What each value is multiplied by: 0, or 1 / (1 - p)."""
    count = x.numel()
    words = torch.empty(-(-count // 4), dtype=torch.int64).random_(torch.iinfo(torch.int64).min, None)
    dropped = round(p * WHOLE) - WHOLE // 2
    kept = torch.ge(words.view(torch.int16)[:count], dropped, out=torch.empty(count, dtype=x.dtype))
    return kept.mul_(1 / (1 - p)).view(x.shape)


class _AddDropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, kept: Tensor) -> Tensor:
        ctx.save_for_backward(kept)
        return torch.addcmul(x, y, kept)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        (kept,) = ctx.saved_tensors
        return grads[0], grads[0] * kept, None
