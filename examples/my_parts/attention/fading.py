"""A running mean of the visible values, weighted less with distance; it uses no queries and keys."""

import torch
from torch import Tensor, nn

from heedful.model.attention import HeadShape, Mix, MixConfig
from heedful.model.sight import Sight


class FadingConfig(MixConfig):
    supports = frozenset({"causal"})
    exact = False

    def build(self, shape: HeadShape) -> "Fading":
        return Fading(shape.heads, causal=shape.causal)

    def parameters(self, shape: HeadShape) -> int:
        return shape.heads

    def flops(self, shape: HeadShape, length: int) -> int:
        return 4 * shape.heads * shape.head  # independent of the length

    def remembered(self, shape: HeadShape) -> int:
        return 0  # per token: only one sum and one weight per text


class Fading(Mix):
    """y_i = sum_j r_h^|i - j| v_j / sum_j r_h^|i - j|,     r_h = sigmoid(rate_h), learned

    Not exact: it never looks at queries and keys. Decoding needs constant memory, whatever the length of the text.
    """

    def __init__(self, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.empty(heads))
        self.causal = causal

    def first_weights(self) -> None:
        nn.init.uniform_(self.rate, 0.0, 3.0)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        sight: Sight,
        cache: "RunningMean | None" = None,
        others: tuple[Tensor, ...] = (),
    ) -> Tensor:
        batch, _, length, _ = value.shape
        real = torch.ones(batch, length, dtype=torch.bool, device=value.device)
        if sight.mask.key_valid is not None:
            real = sight.mask.key_valid[:, -length:].expand(batch, -1)
        weight = real[:, None, :, None].to(value.dtype)  # batch 1 length 1
        start = None if cache is None else cache.held
        sums, weights, last = self._run(value * weight, weight, start)
        if cache is not None:
            cache.held, cache.length = last, cache.length + length
        if not self.causal:  # add the same from the other end, counting each value once
            back, back_weights, _ = self._run((value * weight).flip(2), weight.flip(2), None)
            sums = sums + back.flip(2) - value * weight
            weights = weights + back_weights.flip(2) - weight
        return sums / weights.clamp(min=1e-6)

    def _run(
        self, value: Tensor, weight: Tensor, held: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """The decayed sums of values and of weights up to each position, and the last ones."""
        rate = self.rate.sigmoid()[:, None].to(value.dtype)  # heads 1
        batch, heads, _, head = value.shape
        total, count = held or (value.new_zeros(batch, heads, head), value.new_zeros(batch, heads, 1))
        sums, counts = [], []
        for now, real in zip(value.unbind(2), weight.expand(-1, heads, -1, -1).unbind(2), strict=True):
            total, count = rate * total + now, rate * count + real
            sums.append(total)
            counts.append(count)
        return torch.stack(sums, 2), torch.stack(counts, 2), (total, count)

    def new_cache(self, length: int) -> "RunningMean":
        return RunningMean()


class RunningMean:
    """The cache: what is kept between steps."""

    def __init__(self) -> None:
        self.held: tuple[Tensor, Tensor] | None = None
        self.length = 0

    def select(self, rows: Tensor) -> None:
        if self.held is not None:
            self.held = (self.held[0].index_select(0, rows), self.held[1].index_select(0, rows))
