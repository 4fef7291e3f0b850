"""int8 weights on the CPU: a quarter of the memory, and less of it to read at every step of decoding.

    w_ij = scale_i * q_ij,     scale_i = max_j |w_ij| / 127

Each row of a matrix has its own scale, and so has each vector that is multiplied by it: a sentence's numbers do not
depend on its neighbours. The kernels are torch's own. For using a model, not for training it.
"""

import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.model.embedding import Embedding
from heedful.model.linear import FusedLinear
from heedful.model.surgery import replace_modules

# Activations take seven bits: without VNNI the kernels add pairs of products in 16 bits, which eight would overflow.
STEP, ZERO = 1 / 63, 64
LARGE = 1 << 18  # weights; a smaller matrix stays as it is: bringing vectors to scale takes longer than it saves


def quantize_int8(model: nn.Module, *, least: int = LARGE) -> int:
    """Every linear map and every table of at least so many weights, in place; gives how many were changed."""
    return replace_modules(model, lambda name, module: _quantised(module, least))


def _quantised(module: nn.Module, least: int) -> nn.Module | None:
    if not isinstance(module, nn.Linear | Embedding) or module.weight.numel() < least:
        return None
    if isinstance(module, FusedLinear):
        return Int8Linear(module, parts=module.parts)
    return Int8Linear(module) if isinstance(module, nn.Linear) else Int8Embedding(module)


class Int8Linear(nn.Module):
    """W x + b with W in int8; of several parts, as `FusedLinear` gives them."""

    def __init__(self, linear: nn.Linear, *, parts: tuple[int, ...] | None = None) -> None:
        super().__init__()
        self.parts = parts
        self.packed = _pack(linear.weight)
        self.bias = None if linear.bias is None else nn.Parameter(linear.bias.detach().float(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        result = self.whole(x)
        return result if self.parts is None else result.split(self.parts, dim=-1)

    def whole(self, x: Tensor) -> Tensor:
        return _product(x.float(), self.packed, self.bias)


class Int8Embedding(nn.Module):
    """A table in int8, to read from and to project with."""

    def __init__(self, table: Embedding) -> None:
        super().__init__()
        self.factor = table.factor
        weight = table.weight.detach().float()
        scale = _scales(weight)
        self.register_buffer("table", (weight / scale[:, None]).round().to(torch.int8), persistent=False)
        self.register_buffer("scale", scale * table.factor, persistent=False)
        self.packed = _pack(weight)

    def forward(self, tokens: Tensor) -> Tensor:
        table, scale = self.get_buffer("table"), self.get_buffer("scale")
        return table[tokens].float() * F.embedding(tokens, scale[:, None])

    def rows(self, tokens: Tensor) -> Tensor:
        return self(tokens) / self.factor

    def project(self, states: Tensor) -> Tensor:
        return _product(states.float(), self.packed, None)


def _scales(weight: Tensor) -> Tensor:
    return weight.abs().amax(dim=1).clamp(min=1e-12) / 127


def _pack(weight: Tensor) -> object:
    weight = weight.detach().float()
    scales, zeros = _scales(weight), torch.zeros(len(weight), dtype=torch.long)
    with warnings.catch_warnings():  # torch moves its quantisation to another package; these kernels stay
        warnings.simplefilter("ignore")
        rows = torch.quantize_per_channel(weight, scales.double(), zeros, 0, torch.qint8)
    return torch.ops.quantized.linear_prepack(rows, None)


def _product(x: Tensor, packed: object, bias: Tensor | None) -> Tensor:
    """W x + b: each vector is brought to [-1, 1], multiplied, and brought back."""
    size = x.abs().amax(dim=-1, keepdim=True).clamp_(min=1e-12)
    result: Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(x / size, STEP, ZERO, packed)
    return result.mul_(size) if bias is None else torch.addcmul(bias, result, size)
