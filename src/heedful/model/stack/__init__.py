"""Stacks of layers, from embedded inputs to final states: an encoder or a decoder. One file each; the file's name is
the name in a recipe.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol, Self

from torch import Tensor, nn

from heedful.config import PartConfig
from heedful.model.cpu.plan import Plan, Reason


@dataclass(frozen=True)
class StackShape:
    """What a stack is built for. `causal`: no state may depend on later inputs; `cross`: it also looks at a memory, of
    a source whose embeddings are `source_width` wide (None = width). `parallel`: all words are written at once (Gu et
    al. 2018), so no position sees itself, and each layer also looks at positions; only for stack transformer."""

    width: int
    input_width: int
    causal: bool = False
    cross: bool = False
    source_width: int | None = None
    parallel: bool = False


class Memory(Protocol):
    """What a decoder needs of a source, computed once by the decoder's `read`."""

    def select(self, sentences: Tensor) -> Self:
        """Keep these sentences, in this order."""
        ...


class Cache(Protocol):
    """What a stack remembers between steps. Passed in as an argument, changed in place, never stored in the model."""

    @property
    def length(self) -> int:
        """The number of tokens processed so far."""
        ...

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order; a row may occur several times (beam reordering) or not at all."""
        ...


class Stack(nn.Module):
    """The contract. `limit`: the number of positions; None = unlimited. `recomputed`: gradient checkpointing is on, so
    what the layers share must be computed before them."""

    limit: int | None = None
    recomputed: bool = False

    def forward(
        self,
        x: Tensor,
        *,
        valid: Tensor | None = None,
        segments: Tensor | None = None,
        prefix: Tensor | None = None,
        global_tokens: Tensor | None = None,
        positions: Tensor | None = None,
        memory: Memory | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """x: rows query input_width -> rows query width. For `valid` (as key_valid) and the other facts see `Mask`;
        with a cache, `x` holds the new tokens only, and the facts cover all. A stack that does not support a given
        fact must raise ValueError."""
        raise NotImplementedError

    def read(self, states: Tensor, valid: Tensor | None = None, *, inputs: Tensor | None = None) -> Memory:
        """The memory of a source, from the encoder's output: computed once, used at every step and by every beam.
        `inputs`: the embedded source, batch source source_width, for a decoder that looks at both."""
        raise NotImplementedError

    def new_cache(self, length: int) -> Cache:
        """An empty cache with room for this many tokens; it grows if there are more."""
        raise NotImplementedError

    def new_memory(self, length: int, *, states: bool = True) -> Cache:
        """A cache that keeps the last `length` tokens before the newest (Transformer-XL). It holds what the layers
        read, a `SegmentMemory`, for training from segment to segment; or, without `states`, keys and values, which give
        the same while the weights stay as they are, for less work."""
        raise ValueError("this stack remembers no earlier segments; choose stack transformer, or set task.memory=0")

    def recomputable(self) -> list[nn.Module]:
        """The modules whose intermediate results may be discarded and recomputed (gradient checkpointing)."""
        return []

    def plan(self) -> Plan | Reason:
        """What our CPU kernels need to run this, or the reason why they cannot. Define this method to use a kernel. A
        class that changes what is computed does not inherit it (see `cpu/door.py`)."""
        return Reason("no kernel yet")


class StackConfig(PartConfig):
    """The contract. `recomputes`: whether gradient checkpointing may be asked of it."""

    folder: ClassVar[str] = "model/stack"
    default: ClassVar[str] = "transformer"
    recomputes: ClassVar[bool] = True

    @property
    def supports(self) -> frozenset[str]:
        """The facts of `Mask` that it supports."""
        return frozenset()

    @property
    def limit(self) -> int | None:
        """The number of positions; None = unlimited."""
        return None

    @property
    def source_limit(self) -> int | None:
        """Of a decoder: the longest source that it can attend to; None = no end."""
        return None

    def check(self, shape: StackShape) -> None:
        """Raise ValueError if its parts do not fit each other or this shape."""

    def build(self, shape: StackShape) -> Stack:
        raise NotImplementedError

    def parameters(self, shape: StackShape) -> dict[str, int]:
        """By component, for the whole stack, from closed formulas."""
        raise NotImplementedError

    def flops(self, shape: StackShape, length: int) -> int:
        """For one token that attends to `length` others, in one forward pass; matrix products only."""
        raise NotImplementedError

    def remembered(self, shape: StackShape) -> int:
        """How many numbers a decoder caches per token."""
        return 0

    def reading(self, shape: StackShape) -> tuple[int, int]:
        """For a decoder with a memory: the FLOPs of reading a source token, and how many numbers are cached for it."""
        return 0, 0
