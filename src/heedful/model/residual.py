"""How a sub-layer is joined to the residual stream."""

from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn

from heedful.model.dropout import Dropout

Placement = Literal["post", "pre"]


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
            return self.dropout.add(x, sublayer(self.norm(x)))
        normed: Tensor = self.norm(self.dropout.add(x, sublayer(x)))
        return normed
