"""Rotate queries and keys by an angle proportional to their position."""

import math

import torch
from pydantic import Field, model_validator
from torch import Tensor

from heedful.config import Config, Size
from heedful.model.cpu.plan import PositionPlan
from heedful.model.cpu.training import rotated
from heedful.model.position import Position, PositionConfig, Rotation


class ScalingConfig(Config):
    """LLaMA 3's scaling to longer contexts: low frequencies are divided by `factor`, high ones kept, those in between
    interpolated."""

    factor: float = Field(8.0, ge=1)
    low_frequency_factor: float = Field(1.0, gt=0)
    high_frequency_factor: float = Field(4.0, gt=0)
    original_length: Size = 8192

    @model_validator(mode="after")
    def _low_is_below_high(self) -> "ScalingConfig":
        if self.low_frequency_factor >= self.high_frequency_factor:
            raise ValueError(
                f"low_frequency_factor {self.low_frequency_factor} must be below "
                f"high_frequency_factor {self.high_frequency_factor}"
            )
        return self


class RotaryConfig(PositionConfig):
    base: float = Field(10000.0, gt=1)
    scaling: ScalingConfig | None = None

    def build(self, *, width: int, heads: int, head_width: int, causal: bool) -> "Rotary":
        return Rotary(self, head_width)

    def check(self, *, width: int, head_width: int) -> None:
        if head_width % 2:
            raise ValueError(f"rotary needs heads of even width, not {head_width}; choose another number of heads")


class Rotary(Position):
    """q_i . k_j then depends on i - j only.      Su et al. 2021, section 3.4

        (a, b) -> (a cos t - b sin t, b cos t + a sin t),     t = position * base^(-2i / head)

    Differs: the pair is (x_i, x_{i + head/2}), as in GPT-NeoX and Hugging Face, not (x_2i, x_2i+1) as in the paper; the
    two differ by a permutation of the rows of the query and key projections.
    """

    def __init__(self, config: RotaryConfig, head_width: int) -> None:
        super().__init__()
        self.base = config.base
        self.scaling = config.scaling
        self.head_width = head_width

    def rotation(self, positions: Tensor) -> Rotation:
        angles = positions[..., None].float() * self.frequencies(positions.device)  # batch query head/2
        angles = torch.cat([angles, angles], dim=-1)[:, None]  # batch 1 query head
        return angles.cos(), angles.sin()

    def plan(self) -> PositionPlan:
        return PositionPlan(self.embed, self.limit, rotation=self.rotation)

    def frequencies(self, device: torch.device) -> Tensor:
        pair = torch.arange(0, self.head_width, 2, dtype=torch.float32, device=device)
        frequencies = 1.0 / self.base ** (pair / self.head_width)
        return frequencies if self.scaling is None else _stretch(frequencies, self.scaling)


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """x: batch heads query head"""
    cos, sin = rotation
    found = rotated(x, cos, sin)
    if found is not None:
        return found
    half = x.shape[-1] // 2
    turned = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
    return (x * cos + turned * sin).to(x.dtype)


def _stretch(frequencies: Tensor, scaling: ScalingConfig) -> Tensor:
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    turns = scaling.original_length * frequencies / (2 * math.pi)  # in the original context
    keep = ((turns - low) / (high - low)).clamp(0, 1)
    return keep * frequencies + (1 - keep) * frequencies / scaling.factor
