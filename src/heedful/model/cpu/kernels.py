"""Python bindings of our CPU kernels (native/), on tensors. The kernels are compiled when heedful is installed.

If that was not possible, or the processor lacks an instruction set they need, `NATIVE` is None and torch does
everything. The environment variable HEEDFUL_KERNELS=off requests that; avx2 selects the kernels without AVX-512.

C is given addresses and sizes. It checks sizes and indices; the functions here check what it cannot see: that a tensor
has the type, device, shape and layout that its address stands for.
"""

import importlib
import os
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful import busy

VERSION = 9  # as in native/native.c: raise both when the interface changes
PANEL = 16  # outputs per panel, as in native/product.h


def _compiled() -> tuple[Any, str]:
    """The kernels for this processor, or None and the reason."""
    asked = os.environ.get("HEEDFUL_KERNELS", "")
    if asked not in ("", "off", "avx2"):
        raise ValueError(f"HEEDFUL_KERNELS is {asked!r}; choose off or avx2, or unset it")
    if asked == "off":
        return None, "HEEDFUL_KERNELS is off"
    why = ""
    for name in ["_native"] if asked else ["_native_avx512", "_native"]:
        try:
            found = importlib.import_module(f"heedful.model.cpu.{name}")
        except ImportError as error:
            why = str(error)
            continue
        if found.VERSION == VERSION:
            return found, ""
        why = "compiled from another version; reinstall heedful"
    return None, why


NATIVE, MISSING = _compiled()


def suits(*tensors: Tensor) -> bool:
    """Whether the kernels can process these tensors."""
    return NATIVE is not None and all(
        tensor.is_cpu
        and tensor.dtype is torch.float32
        and tensor.is_contiguous()
        and not (tensor.requires_grad and torch.is_grad_enabled())
        for tensor in tensors
    )


def floats(*shape: int) -> Tensor:
    """An uninitialised float32 tensor on the CPU, whatever torch's defaults are."""
    return torch.empty(*shape, dtype=torch.float32, device="cpu")


class Panels:
    """W x + b with W packed as the kernels read it: panels of 16 outputs, in float32, or in int8 with a scale per row.

    w_ij = scale_i * q_ij,     scale_i = max_j |w_ij| / 127
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, int8: bool = False) -> None:
        if weight.dim() != 2 or not weight.numel():
            raise ValueError(f"weights of {list(weight.shape)} are not a matrix of outputs x inputs")
        self.columns, self.depth = weight.shape
        weight = weight.detach().float()
        missing = -self.columns % PANEL
        self.scales: Tensor | None = None
        self.bias = self._padded(bias)
        self._rows: Tensor | None = None  # without kernels: W in torch's layout
        if int8:
            scales = weight.abs().amax(dim=1).clamp(min=1e-12) / 127
            rows = F.pad((weight / scales[:, None]).round().to(torch.int8), (0, self.depth % 2, 0, missing))
            self.values = rows.reshape(-1, PANEL, rows.shape[1] // 2, 2).transpose(1, 2).contiguous()
            self.scales = F.pad(scales, (0, missing))
        elif (found := _packed(weight)) is not None:
            self.values = found
        else:
            rows = F.pad(weight, (0, 0, 0, missing))
            self.values = rows.reshape(-1, PANEL, self.depth).transpose(1, 2).contiguous()

    def with_bias(self, bias: Tensor) -> "Panels":
        """The same weights with a bias."""
        other = copy(self)
        other.bias = self._padded(bias)
        return other

    def _padded(self, bias: Tensor | None) -> Tensor | None:
        if bias is not None and bias.shape != (self.columns,):
            raise ValueError(f"a bias of {list(bias.shape)} does not fit weights of {self.columns} x {self.depth}")
        if bias is None or not bool(bias.any()):  # a bias of zeros is none
            return None
        return F.pad(bias.detach().float(), (0, -self.columns % PANEL)).contiguous()

    @property
    def fields(self) -> dict[str, int]:
        """`Map` of native/fields.h; valid as long as these panels exist."""
        addresses = {name: address(getattr(self, name)) for name in ("scales", "bias")}
        return {"weight": address(self.values), **addresses, "depth": self.depth, "columns": self.columns}

    def __call__(self, x: Tensor) -> Tensor:
        """x: anything depth -> anything columns. Gradients flow to x, not to the weights."""
        if x.requires_grad and torch.is_grad_enabled():
            found: Tensor = _Product.apply(x, self)
            return found
        return self._product(x)

    def _product(self, x: Tensor) -> Tensor:
        if NATIVE is None or x.device.type != "cpu":
            return self._by_torch(x)
        if not suits(x):
            x = x.detach().float().contiguous()
        y = floats(*x.shape[:-1], self.columns)
        self.into(y, x)
        return y

    def into(self, y: Tensor, x: Tensor, *, add: bool = False, relu: bool = False) -> None:
        """W x + b, or y + W x + b, written to y."""
        assert NATIVE is not None
        *before, depth = x.shape or (0,)
        if depth != self.depth or y.shape != (*before, self.columns) or not suits(x, y) or not self.values.is_cpu:
            raise ValueError(f"{described(x)} to {described(y)} does not fit weights of {self.columns} x {self.depth}")
        rows = x.numel() // self.depth
        rounded = None if self.scales is None else floats(rows * (2 + self.depth // 2))
        weights = (self.values.data_ptr(), address(self.scales), address(self.bias), self.depth, self.columns)
        NATIVE.product(
            *weights,
            x.data_ptr(),
            y.data_ptr(),
            rows,
            add,
            relu,
            threads(rows * self.depth * self.columns),
            address(rounded),
        )

    def rows(self, numbers: Tensor) -> Tensor:
        """Rows of W."""
        if numbers.is_floating_point() or numbers.dtype is torch.bool:
            raise IndexError(f"rows are numbered by integers, not {numbers.dtype}")
        numbers = numbers.long()  # torch would take uint8 for a mask
        if numbers.numel() and not 0 <= int(numbers.min()) <= int(numbers.max()) < self.columns:
            wrong = int(numbers.min()) if int(numbers.min()) < 0 else int(numbers.max())
            raise IndexError(f"there is no row {wrong}; rows are 0 to {self.columns - 1}")
        found = self.values[numbers // PANEL, :, numbers % PANEL].flatten(numbers.dim())[..., : self.depth]
        return found if self.scales is None else found * self.scales[numbers, None]

    def unfolded(self, device: torch.device) -> Tensor:
        """W in torch's layout: columns depth."""
        if self._rows is not None and self._rows.device == device:
            return self._rows
        return self.rows(torch.arange(self.columns)).to(device)

    def _by_torch(self, x: Tensor) -> Tensor:
        self._rows = self.unfolded(x.device)
        bias = None if self.bias is None else self.bias[: self.columns].to(x.device)
        return F.linear(x.float(), self._rows, bias)


def _packed(weight: Tensor) -> Tensor | None:
    """A float32 matrix in panels, by our kernels, if they can; also of a matrix that is seen turned, as `W.T`."""
    columns, depth = weight.shape
    turned = not weight.is_contiguous()
    whole = weight.T if turned else weight
    if NATIVE is None or not is_plain(whole) or whole.shape[1] % PANEL:
        return None
    values = floats(-(-columns // PANEL), depth, PANEL)
    NATIVE.pack(whole.data_ptr(), *whole.shape, turned, values.data_ptr(), torch.get_num_threads())
    return values


class _Product(torch.autograd.Function):
    """y = W x + b, with gradients for x only: dx = dy W."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, panels: Panels) -> Tensor:
        ctx.panels, ctx.dtype = panels, x.dtype
        return panels._product(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        return (dy @ ctx.panels.unfolded(dy.device)).to(ctx.dtype), None


def fixed_linear(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    """W x + b with constant weights: packed once, if the kernels can process them."""
    return Panels(weight, bias) if suits(weight) else lambda x: F.linear(x, weight, bias)


@dataclass(frozen=True)
class Source:
    """Keys and values of a source, as the kernels read them; padded with zeros to a multiple of eight."""

    keys: Tensor  # sentences heads head source
    values: Tensor  # sentences heads source head

    def select(self, sentences: Tensor) -> "Source":
        return Source(self.keys.index_select(0, sentences), self.values.index_select(0, sentences))


def lay_out_source(keys_values: Tensor, sentences: int, heads: int, head: int) -> Source:
    """keys_values: (sentences source) 2*heads*head"""
    assert NATIVE is not None
    rows, width = matrix(keys_values)
    fit = min(sentences, heads, head) > 0 and width == 2 * heads * head and rows and rows % sentences == 0
    if not fit or not suits(keys_values):
        raise ValueError(f"{described(keys_values)} does not fit {heads} heads of {head} in {sentences} sentences")
    source = rows // sentences
    room = source + -source % 8
    made = Source(floats(sentences, heads, head, room), floats(sentences, heads, room, head))
    at = (keys_values.data_ptr(), made.keys.data_ptr(), made.values.data_ptr())
    NATIVE.lay_out(*at, 2 * heads * head, sentences, source, heads, head, room)
    return made


def embed(tokens: Tensor, table: Tensor | Panels, factor: float, positions: Tensor) -> Tensor:
    """The vectors of tokens times the factor, plus those of their positions, repeated for each sentence: rows width."""
    assert NATIVE is not None
    if not tokens.is_cpu or (tokens.dtype is not torch.long and tokens.is_floating_point()):
        raise ValueError(f"tokens are {described(tokens)}; they must be integers on the CPU")
    tokens = tokens.long().contiguous()
    if isinstance(table, Panels):
        values, scales, width, size = table.values.data_ptr(), address(table.scales), table.depth, table.columns
        fit = table.scales is not None
    else:
        values, scales, (size, width) = table.data_ptr(), 0, matrix(table)
        fit = is_plain(table)
    period, wide = matrix(positions)
    if not fit or not period or wide != width or not is_plain(positions) or tokens.numel() % period:
        given = f"{list(tokens.shape)} tokens and {list(positions.shape)} positions"
        raise ValueError(f"{given} do not fit a table of {size} x {width}")
    x = floats(tokens.numel(), width)
    at = (tokens.data_ptr(), values, scales)
    NATIVE.embed(*at, factor, positions.data_ptr(), period, x.data_ptr(), len(x), width, size)
    return x


def norm(x: Tensor, weight: Tensor, bias: Tensor | None, *, rms: bool, eps: float) -> None:
    """LayerNorm or RMSNorm of each row of x, in place."""
    assert NATIVE is not None
    rows, width = matrix(x)
    if weight.shape != (width,) or not is_plain(x) or not is_plain(weight):
        raise ValueError(f"a norm of {described(weight)} does not fit {described(x)}")
    if bias is not None and (bias.shape != (width,) or not is_plain(bias)):
        raise ValueError(f"a bias of {described(bias)} does not fit {described(x)}")
    NATIVE.norm(weight.data_ptr(), address(bias), rms, eps, x.data_ptr(), rows, width, threads(x.numel()))


def threads(operations: int) -> int:
    """How many threads are to do this: fewer where the machine is busy. Results do not depend on it."""
    return busy.few(operations, torch.get_num_threads())


def attention_room(keys: int, head: int) -> int:
    """The scratch space for attention over this many keys, for all threads."""
    assert NATIVE is not None
    return torch.get_num_threads() * int(NATIVE.attention_room(keys, head))


def is_plain(x: Tensor) -> bool:
    """Whether C can read it."""
    return x.dtype is torch.float32 and x.is_cpu and x.is_contiguous()


def matrix(x: Tensor) -> tuple[int, int]:
    """Its rows and columns."""
    shape = x.shape
    if len(shape) != 2:
        raise ValueError(f"{described(x)} does not fit: it must have two dimensions")
    return shape


def described(x: Tensor) -> str:
    """Its shape, and what C cannot read about it, for an error."""
    faults = [] if x.dtype is torch.float32 else [str(x.dtype).removeprefix("torch.")]
    faults += [] if x.device.type == "cpu" else [f"on {x.device.type}"]
    faults += [] if x.is_contiguous() else ["not contiguous"]
    faults += ["needs a gradient"] if x.requires_grad and torch.is_grad_enabled() else []
    return f"{list(x.shape)}{' (' + ', '.join(faults) + ')' if faults else ''}"


def address(tensor: Tensor | None) -> int:
    """Its address for C; 0 for None."""
    return 0 if tensor is None else tensor.data_ptr()


def log_softmax(x: Tensor) -> Tensor:
    """Of each row; in place if the kernels can process it."""
    if not suits(x) or not x.numel():
        return x.float().log_softmax(-1)
    assert NATIVE is not None
    NATIVE.log_softmax(x.data_ptr(), x.numel() // x.shape[-1], x.shape[-1], threads(x.numel()))
    return x


def largest(x: Tensor, count: int, offsets: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`topk` of each row: values and indices. x: rows numbers. `offsets` (rows beams) are added to equal parts
    of the rows."""
    rows, size = matrix(x)
    beams = 1 if offsets is None else matrix(offsets)[1]
    if not 0 < count <= size:
        raise ValueError(f"cannot find the {count} largest of {size} numbers; choose a count from 1 to {size}")
    if offsets is not None and (offsets.shape[0] != rows or not beams or size % beams):
        raise ValueError(f"offsets of {list(offsets.shape)} do not fit {rows} rows of {size} numbers")
    if not suits(x):
        if offsets is not None:
            x = (x.unflatten(1, (offsets.shape[1], -1)) + offsets[..., None]).flatten(1)
        found = x.max(1, keepdim=True) if count == 1 else x.topk(count)
        return found.values, found.indices
    assert NATIVE is not None
    values, indices = floats(rows, count), torch.empty(rows, count, dtype=torch.long, device="cpu")
    if offsets is not None:
        offsets = offsets.to("cpu", torch.float32).contiguous()
    to = (values.data_ptr(), indices.data_ptr())
    NATIVE.largest(x.data_ptr(), address(offsets), rows, beams, size // beams, count, *to, threads(x.numel()))
    return values, indices
