"""Where am I? One file per scheme; the file's name is the name in a recipe.

The schemes of the papers act in one of three places, and a scheme overrides the method of its place:

    embed      added to the embeddings                (sinusoidal, learned)
    rotation   turns queries and keys                 (rotary)
    bias       added to the attention scores          (alibi, relative_bias)

One `Position` serves all layers of a stack, and what it computes for a pass is computed once (`Where`).
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from heedful.config import PartConfig

Rotation = tuple[Tensor, Tensor]  # cos and sin, each (batch or 1) 1 query head


class Position(nn.Module):
    """The contract. `positions` are integers of shape (batch or 1) query."""

    limit: int | None = None  # the number of positions there are; None = no end

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x

    def rotation(self, positions: Tensor) -> Rotation | None:
        return None

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor | None:
        """(batch or 1) heads query key"""
        return None


class PositionConfig(PartConfig):
    folder: ClassVar[str] = "model/position"

    def build(self, *, width: int, heads: int, head_width: int, causal: bool) -> Position:
        raise NotImplementedError

    def parameters(self, *, width: int, heads: int) -> int:
        return 0

    def check(self, *, width: int, head_width: int) -> None:
        """Raise ValueError where the scheme does not fit these sizes."""


@dataclass(frozen=True)
class Where:
    """What one pass through a stack needs to know of positions; shared by its layers.

    The bias, where there is one, already carries the mask (-inf where a query may not look).
    """

    rotation: Rotation | None = None
    bias: Tensor | None = None
