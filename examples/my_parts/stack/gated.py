"""A gated recurrent unit in place of attention.      Cho et al. 2014"""

import torch
from torch import Tensor, nn

from heedful.model.stack import Stack, StackConfig, StackShape


class GatedConfig(StackConfig):
    @property
    def supports(self) -> frozenset[str]:
        return frozenset({"causal"})

    def check(self, shape: StackShape) -> None:
        if shape.cross:
            raise ValueError("gated has no cross-attention; use it in an encoder, or choose stack transformer")

    def build(self, shape: StackShape) -> "Gated":
        return Gated(shape)

    def parameters(self, shape: StackShape) -> dict[str, int]:
        each = 3 * shape.width * (shape.input_width + shape.width) + 6 * shape.width
        return {"there": each} if shape.causal else {"there": each, "back": each}

    def flops(self, shape: StackShape, length: int) -> int:
        return (1 if shape.causal else 2) * 6 * shape.width * (shape.input_width + shape.width)


class Gated(Stack):
    """h_t = GRU(x_t, h_{t-1}); an encoder adds a second one that runs backwards."""

    def __init__(self, shape: StackShape) -> None:
        super().__init__()
        self.there = nn.GRUCell(shape.input_width, shape.width)
        self.back = None if shape.causal else nn.GRUCell(shape.input_width, shape.width)

    def first_weights(self) -> None:
        for cell in (self.there, self.back):
            if cell is not None:
                nn.init.orthogonal_(cell.weight_hh)
                nn.init.xavier_uniform_(cell.weight_ih)
                nn.init.zeros_(cell.bias_ih)
                nn.init.zeros_(cell.bias_hh)

    def forward(self, x, *, valid=None, segments=None, prefix=None, global_tokens=None, positions=None, memory=None,
                cache=None):  # fmt: skip
        if segments is not None or prefix is not None or global_tokens is not None:
            raise ValueError("stack gated does not support segments, prefix or global_tokens")
        real = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if valid is None else valid[:, -x.shape[1] :]
        states, last = _run(self.there, x, real, None if cache is None else cache.state)
        if cache is not None:
            cache.state, cache.length = last, cache.length + x.shape[1]
        if self.back is not None:
            states = states + _run(self.back, x.flip(1), real.flip(1), None)[0].flip(1)
        return states

    def new_cache(self, length: int) -> "GatedCache":
        return GatedCache()


def _run(cell: nn.GRUCell, x: Tensor, real: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """The state after each input; padding leaves it unchanged."""
    state = x.new_zeros(len(x), cell.hidden_size) if state is None else state
    states = []
    for now, counts in zip(x.unbind(1), real.expand(len(x), -1).unbind(1), strict=True):
        state = torch.where(counts[:, None], cell(now, state), state)
        states.append(state)
    return torch.stack(states, dim=1), state


class GatedCache:
    def __init__(self) -> None:
        self.state: Tensor | None = None
        self.length = 0

    def select(self, rows: Tensor) -> None:
        if self.state is not None:
            self.state = self.state.index_select(0, rows)
