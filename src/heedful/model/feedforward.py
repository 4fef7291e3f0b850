"""The position-wise feed-forward network."""

from collections.abc import Callable
from typing import Literal

import torch.nn.functional as F
from pydantic import field_validator
from torch import Tensor, nn

from heedful.config import Config, Probability, Size
from heedful.model.cpu.door import child_plan
from heedful.model.cpu.plan import FeedForwardPlan, IdentityPlan, LinearPlan, Reason, first_reason
from heedful.model.cpu.training import feed_forward, gelu, gelu_tanh, silu
from heedful.model.dropout import Dropout
from heedful.model.linear import FusedLinear, Linear, linear_parameters
from heedful.model.mask import Mask

Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "reglu", "geglu", "geglu_tanh", "swiglu"]


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "silu": silu,
}
GATED = {"reglu": "relu", "geglu": "gelu", "geglu_tanh": "gelu_tanh", "swiglu": "silu"}


class FeedForwardConfig(Config):
    """`kernel` 3 lets each position see its neighbours too, which helps sequence tagging; encoders only."""

    hidden: Size = 2048
    activation: Activation = "relu"
    bias: bool = True
    dropout: Probability = 0.0
    kernel: Size = 1

    @field_validator("kernel")
    @classmethod
    def _has_a_middle(cls, kernel: int) -> int:
        if kernel % 2 == 0:
            raise ValueError(f"kernel {kernel} is even; choose an odd size, such as 1 or 3")
        return kernel

    def build(self, width: int) -> "FeedForward":
        return FeedForward(self, width)

    def parameters(self, width: int) -> int:
        gates = 2 if self.activation in GATED else 1
        return linear_parameters(width * self.kernel, gates * self.hidden, self.bias) + linear_parameters(
            self.hidden * self.kernel, width, self.bias
        )


class FeedForward(nn.Module):
    """Two linear maps with a non-linearity in between.

        plain   W2 f(W1 x)                          Vaswani et al. 2017, section 3.3
        gated   W2 (f(Wg x) * (Wu x))               Shazeer 2020: ReGLU, GEGLU, SwiGLU
        kernel  x_i is [x_{i-1}; x_i; x_{i+1}]      a convolution, written as a linear map

    Differs: the convolution sees zeros in place of neighbours that are padding or belong to another packed text.
    """

    def __init__(self, config: FeedForwardConfig, width: int) -> None:
        super().__init__()
        self.activation = config.activation
        self.gated = config.activation in GATED
        self.function = FUNCTIONS[GATED.get(config.activation, config.activation)]
        self.kernel = config.kernel
        names = ("gate", "up") if self.gated else ("input",)
        self.input = FusedLinear(width * config.kernel, (config.hidden,) * len(names), names, bias=config.bias)
        self.dropout = Dropout(config.dropout)
        self.output = Linear(config.hidden * config.kernel, width, bias=config.bias)

    def forward(self, x: Tensor, *, mask: Mask) -> Tensor:
        whole = feed_forward(
            *(x, self.input, self.output),
            kind=self.kind(),
            gated=self.gated,
            kernel=self.kernel,
            dropout=self.dropout.p if self.training else 0.0,
        )
        if whole is not None:
            return whole
        if self.kernel == 1:
            return self.output(self._hidden(x))
        visible = mask.neighbours(x.shape[1], self.kernel, x.device)
        hidden = self._hidden(_neighbours(x, visible))
        return self.output(_neighbours(hidden, visible))

    def plan(self) -> FeedForwardPlan | Reason:
        first, second = child_plan(self, "input", LinearPlan), child_plan(self, "output", LinearPlan)
        dropout, kind = child_plan(self, "dropout", IdentityPlan), self.kind()
        if not (first and second and dropout):
            return first_reason(first, second, dropout)
        if self.kernel != 1:
            return Reason(f"kernel {self.kernel}: no kernel yet")
        if kind is None:
            return Reason("unknown activation: no kernel yet")
        hidden = second.inputs
        if first.parts != ((hidden, hidden) if self.gated else (hidden,)) or first.inputs != second.outputs:
            return Reason(f"linear maps to {first.parts} and from {hidden} do not fit")
        return FeedForwardPlan(first, second, kind, self.gated)

    def kind(self) -> str | None:
        """The name of the activation function, which may have been replaced; None = unknown."""
        return next((name for name, function in FUNCTIONS.items() if function is self.function), None)

    def _hidden(self, x: Tensor) -> Tensor:
        if self.gated:
            gate, up = self.input(x)
            hidden = self.function(gate) * up
        else:
            (inner,) = self.input(x)
            hidden = self.function(inner)
        dropped: Tensor = self.dropout(hidden)
        return dropped


def _neighbours(x: Tensor, visible: Tensor) -> Tensor:
    """batch query width -> batch query (kernel width), zeros where a neighbour is not visible."""
    batch, query, width = x.shape
    kernel = visible.shape[-1]
    padded = F.pad(x, (0, 0, kernel // 2, kernel // 2))
    windows = padded.unfold(1, kernel, 1).transpose(2, 3)  # batch query kernel width
    return windows.masked_fill(~visible[..., None], 0).reshape(batch, query, kernel * width)
