"""Position schemes. One file each; the file's name is the name in a recipe.

Published schemes act in one of four places, and a scheme overrides the corresponding method:

    embed      added to the embeddings                                          (sinusoidal, learned)
    rotation   rotates queries and keys                                         (rotary)
    bias       added to the attention scores, independent of the query          (alibi, relative_bias)
    score      added to the attention scores, dependent on the query            (Shaw et al. 2018)

All layers of a stack share one `Position`, and its results are computed at most once per pass, on demand (`Sight`).
"""

from typing import ClassVar

from torch import Tensor, nn

from heedful.config import PartConfig
from heedful.model.cpu.plan import Plan, Reason

Rotation = tuple[Tensor, Tensor]  # cos and sin, each (batch or 1) 1 query head


class Position(nn.Module):
    """The contract. `positions` are integers of shape (batch or 1) query."""

    limit: int | None = None  # the number of positions; None = unlimited

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x

    def rotation(self, positions: Tensor) -> Rotation | None:
        return None

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor | None:
        """(batch or 1) heads query key, added to the scaled scores"""
        return None

    def score(self, query: Tensor, key: Tensor, *, query_positions: Tensor, key_positions: Tensor) -> Tensor | None:
        """batch heads query key, added to q . k before scaling.  query: batch heads query head; key: batch
        kv_heads key head"""
        return None

    def plan(self) -> Plan | Reason:
        """What our CPU kernels need to run this, or the reason why they cannot. Define this method to use a kernel. A
        class that changes what is computed does not inherit it (see `cpu/door.py`)."""
        return Reason("no kernel yet")


class PositionConfig(PartConfig):
    """The contract. `needs`: what it asks of the attention, of `bias` and `score`. `absolute`: whether states carry
    where they stand, so that those of an earlier segment would contradict the new ones."""

    folder: ClassVar[str] = "model/position"
    absolute: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset()

    @property
    def limit(self) -> int | None:
        """The number of positions; None = unlimited."""
        return None

    def build(self, *, width: int, heads: int, head_width: int, causal: bool) -> Position:
        raise NotImplementedError

    def parameters(self, *, width: int, heads: int, head_width: int) -> int:
        return 0

    def check(self, *, width: int, head_width: int) -> None:
        """Raise ValueError if the scheme does not fit these sizes."""
