"""How a sub-layer is connected to the residual stream."""

from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn

from heedful.model.cpu.door import child_plan
from heedful.model.cpu.plan import IdentityPlan, NormPlan, Reason, ResidualPlan, first_reason
from heedful.model.cpu.training import add_norm
from heedful.model.dropout import Dropout

Placement = Literal["post", "pre"]


def normed(x: Tensor, norm: nn.Module, v: Tensor | None = None, dropout: Dropout | None = None) -> Tensor:
    """norm(x), or norm(x + dropout(v))"""
    p = dropout.p if dropout is not None and dropout.training else 0.0
    both = add_norm(x, v, norm, p)
    if both is not None:
        return both
    result: Tensor = norm(x if v is None or dropout is None else dropout.add(x, v))
    return result


class Residual(nn.Module):
    """The residual connection, its norm and its dropout.

    post    norm(x + dropout(f(x)))         Vaswani et al. 2017, section 5.4
    pre     x + dropout(f(norm(x)))         Xiong et al. 2020; the stack then ends with one more norm
    """

    def __init__(self, norm: nn.Module, *, placement: Placement, dropout: float) -> None:
        super().__init__()
        self.norm = norm
        self.dropout = Dropout(dropout)
        self.placement = placement

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        if self.placement == "pre":
            return self.dropout.add(x, sublayer(normed(x, self.norm)))
        return normed(x, self.norm, sublayer(x), self.dropout)

    def entered(self, x: Tensor) -> Tensor:
        """What the sub-layer gets to see of x."""
        return normed(x, self.norm) if self.placement == "pre" else x

    def plan(self) -> ResidualPlan | Reason:
        norm, dropout = child_plan(self, "norm", NormPlan), child_plan(self, "dropout", IdentityPlan)
        if not (norm and dropout):
            return first_reason(norm, dropout)
        return ResidualPlan(norm, self.placement == "pre")
