"""The complexity table of the paper, measured here: what one layer of each kind costs as texts and widths grow.

Vaswani et al. 2017, table 1.      n tokens, width d, kernel k, r keys in sight of a query
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.model.attention import HeadShape
from heedful.model.attention.softmax import SoftmaxConfig
from heedful.model.attention.window import WindowConfig
from heedful.model.initialise import initialise
from heedful.model.mask import Mask
from heedful.model.multihead import merge_heads, split_heads
from heedful.model.sight import Sight
from heedful.model.stack import StackShape
from heedful.model.stack.convolutional import ConvolutionalConfig
from heedful.model.stack.recurrent import RecurrentConfig

HEAD, KERNEL, WINDOW = 64, 3, 32
LENGTHS, WIDTHS = (128, 256, 512, 1024, 2048, 4096), (64, 128, 256, 512, 1024)
WIDTH, LENGTH = 256, 512  # while the other grows
Layer = Callable[[Tensor], Tensor]  # 1 n d -> 1 n d


@dataclass(frozen=True)
class Kind:
    """`predicted`: operations of a layer, up to a constant; `steps`: those that must wait for each other; `path`: how
    many steps lie between two tokens at the ends of a text."""

    name: str
    cost: str
    predicted: Callable[[int, int], float]
    steps: str
    path: str
    build: Callable[[int], Layer]


@dataclass(frozen=True)
class Measured:
    """Seconds by length and by width, and how many inputs one output depends on in a text of `LENGTH`."""

    kind: Kind
    by_length: dict[int, float]
    by_width: dict[int, float]
    reach: int

    def exponents(self) -> tuple[float, float]:
        """The slopes in logarithms, over the larger half of the points."""
        return slope(self.by_length), slope(self.by_width)

    def predicted(self, length: int, width: int) -> float:
        """Seconds, by the formula with the constant that fits best."""
        points = [(n, WIDTH, seconds) for n, seconds in self.by_length.items()]
        points += [(LENGTH, d, seconds) for d, seconds in self.by_width.items()]
        constant = sum(math.log(seconds / self.kind.predicted(n, d)) for n, d, seconds in points) / len(points)
        return math.exp(constant) * self.kind.predicted(length, width)


def measure(*, lengths: Sequence[int] = LENGTHS, widths: Sequence[int] = WIDTHS) -> list[Measured]:
    return [
        Measured(
            kind,
            {length: _seconds(kind.build(WIDTH), length, WIDTH) for length in lengths},
            {width: _seconds(kind.build(width), LENGTH, width) for width in widths},
            _reach(kind.build(WIDTH)),
        )
        for kind in KINDS
    ]


def slope(points: dict[int, float]) -> float:
    last = sorted(points)[-max(2, (len(points) + 1) // 2) :]
    xs, ys = [math.log(one) for one in last], [math.log(points[one]) for one in last]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs)


def _attention(window: int | None) -> Callable[[int], Layer]:
    """The attention itself, without its projections, as the paper counts it."""

    def build(width: int) -> Layer:
        heads = max(1, width // HEAD)
        shape = HeadShape(heads, heads, min(width, HEAD), window=window, scale=min(width, HEAD) ** -0.5)
        mix = (SoftmaxConfig() if window is None else WindowConfig()).build(shape)

        def forward(x: Tensor) -> Tensor:
            states, places = split_heads(x, shape.head), torch.arange(x.shape[1])[None]
            return merge_heads(mix(states, states, states, sight=Sight(Mask(window=window), places, places)))

        return forward

    return build


def _recurrent(width: int) -> Layer:
    stack = RecurrentConfig(layers=1, bidirectional=False, dropout=0.0).build(StackShape(width, width))
    initialise(stack, "xavier")
    return stack.eval()


def _convolutional(width: int) -> Layer:
    config = ConvolutionalConfig.model_validate({"layers": 1, "kernel": KERNEL, "position": "none", "dropout": 0.0})
    stack = config.build(StackShape(width, width))
    initialise(stack, "xavier")
    return stack.eval()


@torch.inference_mode()
def _seconds(layer: Layer, length: int, width: int, *, enough: float = 0.2) -> float:
    """The best of several runs."""
    x = torch.randn(1, length, width)
    layer(x)
    best, spent = math.inf, 0.0
    while spent < enough:
        began = time.perf_counter()
        layer(x)
        took = time.perf_counter() - began
        best, spent = min(best, took), spent + took
    return best


def _reach(layer: Layer) -> int:
    """How many inputs the last output depends on."""
    x = torch.randn(1, LENGTH, WIDTH, requires_grad=True)
    (gradient,) = torch.autograd.grad(layer(x)[0, -1].sum(), x)
    return int((gradient[0] != 0).any(-1).sum())


KINDS = (
    Kind("self-attention", "n² d", lambda n, d: n * n * d, "1", "1", _attention(None)),
    Kind("recurrent", "n d²", lambda n, d: n * d * d, "n", "n", _recurrent),
    Kind("convolutional", "k n d²", lambda n, d: KERNEL * n * d * d, "1", "n / k", _convolutional),
    Kind("restricted self-attention", "r n d", lambda n, d: 2 * WINDOW * n * d, "1", "n / r", _attention(WINDOW)),
)
