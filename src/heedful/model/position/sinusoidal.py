"""Sinusoids of many wavelengths, added to the embeddings."""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from heedful.model.cpu.plan import PositionPlan
from heedful.model.position import Position, PositionConfig


class SinusoidalConfig(PositionConfig):
    """By default as in the paper; the keys cover published variations.

    layout    interleaved = sin, cos, sin, cos ...; halves = all sin, then all cos (Marian)
    closed    the longest wavelength is exactly 2 pi base, not one step shorter (tensor2tensor, OpenNMT, M2M100)
    offset    the number of the first position (OpenNMT 1, M2M100 2)
    """

    absolute: ClassVar[bool] = True
    base: float = Field(10000.0, gt=1)
    layout: Literal["interleaved", "halves"] = "interleaved"
    closed: bool = False
    offset: int = Field(0, ge=0)

    def build(self, *, width: int, heads: int, head_width: int, causal: bool) -> "Sinusoidal":
        return Sinusoidal(self)

    def check(self, *, width: int, head_width: int) -> None:
        if width % 2 or width < 4:
            raise ValueError(f"sinusoidal positions need an even width of at least 4, not {width}")


class Sinusoidal(Position):
    """Computed, not stored: any length, no parameters.      Vaswani et al. 2017, section 3.5

    PE(pos, 2i) = sin(pos / base^(2i / width)),     PE(pos, 2i + 1) = cos(pos / base^(2i / width))
    """

    def __init__(self, config: SinusoidalConfig) -> None:
        super().__init__()
        self.base = config.base
        self.interleaved = config.layout == "interleaved"
        self.closed = config.closed
        self.offset = config.offset

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self.waves(positions, x.shape[-1]).to(x.dtype)

    def plan(self) -> PositionPlan:
        return PositionPlan(self.embed, self.limit)

    def waves(self, positions: Tensor, width: int) -> Tensor:
        # In float64 if the device supports it: at position 10,000 a float32 angle is already off in the third digit.
        exact = torch.float32 if positions.device.type == "mps" else torch.float64
        pairs = width // 2
        share = torch.arange(pairs, dtype=exact, device=positions.device) / (pairs - 1 if self.closed else pairs)
        angles = (positions[..., None] + self.offset).to(exact) / self.base**share  # batch query width/2
        waves = torch.sin(angles), torch.cos(angles)
        return torch.stack(waves, dim=-1).flatten(-2) if self.interleaved else torch.cat(waves, dim=-1)
