"""Normalisation of the residual stream."""

from typing import Literal

from pydantic import Field
from torch import nn

from heedful.config import Config


class NormConfig(Config):
    """LayerNorm (Ba et al. 2016) or RMSNorm (Zhang and Sennrich 2019):

    layer   (x - mean) / sqrt(var + eps) * weight + bias
    rms     x / sqrt(mean(x^2) + eps) * weight
    """

    kind: Literal["layer", "rms"] = "layer"
    eps: float = Field(1e-5, gt=0)

    def build(self, width: int) -> nn.Module:
        if self.kind == "rms":
            return nn.RMSNorm(width, eps=self.eps)
        return nn.LayerNorm(width, eps=self.eps)

    def parameters(self, width: int) -> int:
        return width if self.kind == "rms" else 2 * width
