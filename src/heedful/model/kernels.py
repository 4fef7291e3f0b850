"""Our own kernels for the CPU (native.c), on tensors. They are compiled when heedful is installed.

Where that was not possible, or the processor lacks what they need, `NATIVE` is None and torch does everything.
"""

from copy import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

try:
    from heedful.model import _native as NATIVE
except ImportError:
    NATIVE = None  # type: ignore[assignment]

PANEL = 16  # outputs side by side, as in native.c


def suits(*tensors: Tensor) -> bool:
    """Whether the kernels can work on these."""
    return NATIVE is not None and all(
        tensor.device.type == "cpu" and tensor.dtype == torch.float32 and tensor.is_contiguous() for tensor in tensors
    )


class Panels:
    """W x + b with W laid out as the kernels read it: panels of 16 outputs, in float32 or int8 with a scale each.

    w_ij = scale_i * q_ij,     scale_i = max_j |w_ij| / 127
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, int8: bool = False) -> None:
        self.columns, self.depth = weight.shape
        weight = weight.detach().float()
        missing = -self.columns % PANEL
        self.scales: Tensor | None = None
        if int8:
            scales = weight.abs().amax(dim=1).clamp(min=1e-12) / 127
            rows = F.pad((weight / scales[:, None]).round().to(torch.int8), (0, self.depth % 2, 0, missing))
            self.values = rows.view(-1, PANEL, rows.shape[1] // 2, 2).transpose(1, 2).contiguous()
            self.scales = F.pad(scales, (0, missing))
        else:
            self.values = F.pad(weight, (0, 0, 0, missing)).view(-1, PANEL, self.depth).transpose(1, 2).contiguous()
        self._add(bias)

    def _add(self, bias: Tensor | None) -> None:
        if bias is not None and bool(bias.any()):  # one of zeros is none
            bias = F.pad(bias.detach().float(), (0, -self.columns % PANEL)).contiguous()
        else:
            bias = None
        self.bias = bias
        addresses = [0 if one is None else one.data_ptr() for one in (self.values, self.scales, self.bias)]
        self.map = (*addresses, self.depth, self.columns)  # as native.c knows it

    def __call__(self, x: Tensor) -> Tensor:
        """x: anything depth -> anything columns"""
        if not suits(x):
            x = x.float().contiguous()
        if NATIVE is None:
            bias = None if self.bias is None else self.bias[: self.columns]
            return F.linear(x, self.rows(torch.arange(self.columns)), bias)
        y = torch.empty(*x.shape[:-1], self.columns)
        self.into(y, x)
        return y

    def into(self, y: Tensor, x: Tensor, *, add: bool = False, relu: bool = False) -> None:
        """W x + b, or y + W x + b, written to y. Both must suit."""
        assert NATIVE is not None
        rows = x.numel() // self.depth
        rounded = torch.empty(rows * self.rounded) if self.scales is not None else None
        at = 0 if rounded is None else rounded.data_ptr()
        NATIVE.product(*self.map, x.data_ptr(), y.data_ptr(), rows, add, relu, torch.get_num_threads(), at)

    @property
    def rounded(self) -> int:
        """How many numbers of scratch a row takes."""
        return 2 + self.depth // 2

    def with_bias(self, bias: Tensor) -> "Panels":
        """The same weights with a bias."""
        other = copy(self)
        other._add(bias)
        return other

    def rows(self, numbers: Tensor) -> Tensor:
        """Rows of W."""
        found = self.values[numbers // PANEL, :, numbers % PANEL].flatten(numbers.dim())[..., : self.depth]
        return found if self.scales is None else found * self.scales[numbers, None]


@dataclass(frozen=True)
class Source:
    """Keys and values of what is looked at, as the kernels read them; with zeros up to a multiple of eight."""

    keys: Tensor  # sentences heads head source
    values: Tensor  # sentences heads source head

    def select(self, sentences: Tensor) -> "Source":
        return Source(self.keys.index_select(0, sentences), self.values.index_select(0, sentences))


def lay(keys_values: Tensor, sentences: int, heads: int, head: int) -> Source:
    """keys_values: (sentences source) 2*heads*head"""
    assert NATIVE is not None
    rows, width = keys_values.shape
    source = rows // sentences
    room = source + -source % 8
    made = Source(torch.empty(sentences, heads, head, room), torch.empty(sentences, heads, room, head))
    at = (keys_values.data_ptr(), made.keys.data_ptr(), made.values.data_ptr())
    NATIVE.lay(*at, width, sentences, source, heads, head, room)
    return made


def embed(x: Tensor, tokens: Tensor, table: Tensor | Panels, factor: float, places: Tensor) -> None:
    """The vectors of tokens times the factor, and what says where they stand, written to x (rows width). `places` are
    taken again and again."""
    assert NATIVE is not None
    if isinstance(table, Panels):
        address, scales, _, _, size = table.map
    else:
        address, scales, size = table.data_ptr(), 0, len(table)
    NATIVE.embed(
        tokens.data_ptr(), address, scales, factor, places.data_ptr(), len(places), x.data_ptr(), *x.shape, size
    )


def norm(x: Tensor, weight: Tensor, bias: Tensor | None, *, rms: bool, eps: float) -> None:
    """LayerNorm or RMSNorm of each row of x, in place."""
    assert NATIVE is not None
    at = 0 if bias is None else bias.data_ptr()
    NATIVE.norm(weight.data_ptr(), at, rms, eps, x.data_ptr(), *x.shape, torch.get_num_threads())


def encode(style: tuple[float, ...], layers: Tensor, x: Tensor, scratch: Tensor, hidden: Tensor) -> None:
    """An encoder, in place. x: (sentences source) width; hidden: sentences source, added to what is seen, with -inf up
    to a multiple of eight. `style` and `layers` are native.c's."""
    assert NATIVE is not None
    at = (layers.data_ptr(), x.data_ptr(), scratch.data_ptr(), hidden.data_ptr())
    NATIVE.encode(*style, torch.get_num_threads(), *at, len(hidden), len(x) // len(hidden))


def step(
    style: tuple[float, ...],
    layers: Tensor,
    x: Tensor,
    scratch: Tensor,
    hidden: Tensor,
    origin: Tensor,
    slots: int,
    length: int,
) -> None:
    """A step of a decoder, in place. x: rows width; origin: rows room, the slot in which a row's token of each time
    stands; `length` counts the newest."""
    assert NATIVE is not None
    at = (layers.data_ptr(), x.data_ptr(), scratch.data_ptr(), hidden.data_ptr(), origin.data_ptr())
    sizes = (len(x), *hidden.shape, slots, origin.shape[1], length)
    NATIVE.step(*style, torch.get_num_threads(), *at, *sizes)


def log_softmax(x: Tensor) -> Tensor:
    """Of each row; where the kernels suit, in place."""
    if not suits(x):
        return x.float().log_softmax(-1)
    assert NATIVE is not None
    NATIVE.log_softmax(x.data_ptr(), x.numel() // x.shape[-1], x.shape[-1], torch.get_num_threads())
    return x


def largest(x: Tensor, count: int, offsets: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`topk` of each row: values and where they are. x: rows numbers. `offsets` (rows beams) are added to equal parts
    of the rows."""
    if not suits(x):
        if offsets is not None:
            x = (x.unflatten(1, (offsets.shape[1], -1)) + offsets[..., None]).flatten(1)
        found = x.max(1, keepdim=True) if count == 1 else x.topk(count)
        return found.values, found.indices
    assert NATIVE is not None
    rows, size = x.shape
    values, places = torch.empty(rows, count), torch.empty(rows, count, dtype=torch.long)
    beams, offset = (1, 0) if offsets is None else (offsets.shape[1], (offsets := offsets.contiguous()).data_ptr())
    at = (values.data_ptr(), places.data_ptr())
    NATIVE.largest(x.data_ptr(), offset, rows, beams, size // beams, count, *at, torch.get_num_threads())
    return values, places
