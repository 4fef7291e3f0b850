"""int8 weights on the CPU: a quarter of the memory, and less of it to read at every decoding step.

Each row of a matrix has its own scale, and so does each vector it is multiplied by: the result for a sentence does not
depend on the rest of the batch. Vectors are rounded to 16 bits, so nearly all of the error comes from the weights. The
weights are fixed; gradients flow through to earlier layers.
"""

from collections.abc import Callable

from torch import Tensor, nn

from heedful.model.cpu.kernels import Panels
from heedful.model.cpu.plan import LinearPlan, TablePlan
from heedful.model.input import Input
from heedful.model.input.tokens import Tokens
from heedful.model.linear import FusedLinear
from heedful.model.surgery import replace_modules

LARGE = 1 << 12  # weights; a smaller matrix stays as it is


def quantize_int8(model: nn.Module, *, least: int = LARGE, only: Callable[[str], bool] = lambda name: True) -> int:
    """Quantise every linear map and table of at least `least` weights whose name `only` accepts, in place; returns how
    many were changed."""
    return replace_modules(model, lambda name, module: _quantised(module, least) if only(name) else None)


def quantize_as(model: nn.Module, asked: str) -> None:
    """In place, as the option `quantize` asks: int8, or an empty string for nothing."""
    if asked not in ("", "int8"):
        raise ValueError(f"unknown quantize {asked!r}; known: int8")
    if asked:
        quantize_int8(model)


def _quantised(module: nn.Module, least: int) -> nn.Module | None:
    if not isinstance(module, nn.Linear | Tokens) or module.weight.numel() < least:
        return None
    if isinstance(module, FusedLinear):
        return Int8Linear(module, parts=module.parts, names=module.names)
    return Int8Linear(module) if isinstance(module, nn.Linear) else Int8Embedding(module)


class Int8Linear(nn.Module):
    """W x + b with W in int8; split into `parts`, if given, as in `FusedLinear`."""

    def __init__(self, linear: nn.Linear, *, parts: tuple[int, ...] | None = None, names: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.parts, self.names = parts, names
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.panels = Panels(linear.weight, linear.bias, int8=True)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        result = self.panels(x)
        return result if self.parts is None else result.split(self.parts, dim=-1)

    def plan(self) -> LinearPlan:
        return LinearPlan(None, None, self.panels, self.parts or (self.out_features,), self.in_features)


class Int8Embedding(Input):
    """An embedding table in int8, for lookup and projection."""

    def __init__(self, table: Tokens) -> None:
        super().__init__()
        self.factor = table.factor
        self.panels = Panels(table.weight, int8=True)

    def forward(self, source: Tensor, *, valid: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        return self.embed(source), valid

    def plan(self) -> TablePlan:
        return TablePlan(None, self.panels, self.factor, self.panels.depth)

    def embed(self, tokens: Tensor) -> Tensor:
        return self.rows(tokens) * self.factor

    def rows(self, tokens: Tensor) -> Tensor:
        return self.panels.rows(tokens)

    def project(self, states: Tensor) -> Tensor:
        return self.panels(states)
