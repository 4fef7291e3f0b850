"""Linear maps, and several maps of one input fused into one."""

from itertools import pairwise

from torch import Tensor, nn

from heedful.model.cpu.plan import LinearPlan
from heedful.model.cpu.training import linear, split


class Linear(nn.Linear):
    """torch's, with our own kernels for training where they apply."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)

    def plan(self) -> LinearPlan:
        return LinearPlan(self.weight, self.bias, None, (self.out_features,), self.in_features)


class FusedLinear(nn.Linear):
    """`[W_1 x, W_2 x, ...]` in one product: faster than separate products, especially for small inputs.

    The parts remain accessible, because initialisation, weight names and adapters are defined for each of them.
    `names`: what adapters call them.
    """

    def __init__(self, inputs: int, outputs: tuple[int, ...], names: tuple[str, ...], bias: bool = True) -> None:
        super().__init__(inputs, sum(outputs), bias=bias)
        self.parts, self.names = outputs, names

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        return split(linear(x, self.weight, self.bias), self.parts)

    def last(self, x: Tensor, skipped: int) -> tuple[Tensor, ...]:
        """The parts without the first ones."""
        start = sum(self.parts[:skipped])
        bias = None if self.bias is None else self.bias[start:]
        return split(linear(x, self.weight[start:], bias), self.parts[skipped:])

    def plan(self) -> LinearPlan:
        return LinearPlan(self.weight, self.bias, None, self.parts, self.in_features)

    def part_weights(self) -> list[Tensor]:
        """Views of the parts' weights: writing to them writes to the whole."""
        ends = [0]
        for size in self.parts:
            ends.append(ends[-1] + size)
        return [self.weight[start:end] for start, end in pairwise(ends)]


def linear_parameters(inputs: int, outputs: int, bias: bool) -> int:
    return inputs * outputs + (outputs if bias else 0)
