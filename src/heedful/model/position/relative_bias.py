"""A learned bias on the score for each range of distances."""

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor

from heedful.config import Size
from heedful.model.cpu.plan import PositionPlan
from heedful.model.input.tokens import new_table
from heedful.model.position import Position, PositionConfig


class RelativeBiasConfig(PositionConfig):
    needs: ClassVar[frozenset[str]] = frozenset({"bias"})
    buckets: int = Field(32, ge=4)
    max_distance: Size = 128

    @model_validator(mode="after")
    def _buckets_fit(self) -> "RelativeBiasConfig":
        if self.buckets % 4:
            raise ValueError(f"buckets {self.buckets} is not a multiple of 4; choose one that is, such as 32")
        if self.max_distance <= self.buckets // 2:
            raise ValueError(
                f"max_distance {self.max_distance} leaves no room for wide buckets; "
                f"choose more than buckets / 2 = {self.buckets // 2}"
            )
        return self

    def build(self, *, width: int, heads: int, head_width: int, causal: bool) -> "RelativeBias":
        return RelativeBias(self, heads, causal)

    def parameters(self, *, width: int, heads: int, head_width: int) -> int:
        return self.buckets * heads


class RelativeBias(Position):
    """score_ij = q_i . k_j + B[bucket(j - i), h].      Raffel et al. 2020 (T5), section 2.1

    Small distances have a bucket each, larger ones share buckets of logarithmically increasing width, and everything
    beyond `max_distance` shares the last one. Encoders reserve half of the buckets for keys after the query.
    """

    def __init__(self, config: RelativeBiasConfig, heads: int, causal: bool) -> None:
        super().__init__()
        self.buckets = config.buckets
        self.max_distance = config.max_distance
        self.causal = causal
        self.weight = new_table(config.buckets, heads)

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        offset = key_positions[:, None, :] - query_positions[:, :, None]  # batch query key
        return F.embedding(self.bucket(offset), self.weight).permute(0, 3, 1, 2)

    def plan(self) -> PositionPlan:
        return PositionPlan(self.embed, self.limit, (self.weight,), bias=self.bias)

    def bucket(self, offset: Tensor) -> Tensor:
        if self.causal:
            buckets, first, distance = self.buckets, torch.zeros_like(offset), (-offset).clamp(min=0)
        else:
            buckets = self.buckets // 2
            first, distance = (offset > 0) * buckets, offset.abs()
        exact = buckets // 2
        growth = torch.log(distance.clamp(min=1).float() / exact) / math.log(self.max_distance / exact)
        shared = (exact + (growth * (buckets - exact)).long()).clamp(max=buckets - 1)
        return first + torch.where(distance < exact, distance, shared)
