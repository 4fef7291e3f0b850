"""How parts make a model. One file per architecture; the file's name is the name in a recipe.

What the rest of the toolkit asks of a model stands here, as contracts: a translator works with every
`SequenceToSequence`, a generator with every `LanguageModel`, whichever file it comes from.
"""

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from heedful.config import PartConfig, Size
from heedful.model.cpu.plan import Plan, Reason
from heedful.model.stack import Cache, Memory, StackConfig, StackShape


class Model(nn.Module):
    """Every architecture. `limit`: how many positions there are of what it writes, or else reads; None = no end.
    `vocab`: how many words it scores; None where it writes no words. `heads_named`: its parts that may be new where
    training starts from another model."""

    config: "ArchitectureConfig"
    limit: int | None = None
    vocab: int | None = None
    heads_named: tuple[str, ...] = ("head", "heads")

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def plan(self) -> Plan | Reason:
        """What our CPU kernels need to run this, or why they cannot: a kernel is asked for by defining this method. It
        is not inherited by a class that changes what is computed (see `cpu/door.py`)."""
        return Reason("no kernel yet")


class LanguageModel(Model):
    """p(next token | tokens so far)"""

    vocab: int

    def forward(
        self,
        tokens: Tensor,
        *,
        valid: Tensor | None = None,
        segments: Tensor | None = None,
        prefix: Tensor | None = None,
        positions: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Token ids (rows query) -> logits (rows query vocab) for the token after each. Facts as in `Stack.forward`."""
        states = self.decode(tokens, valid=valid, segments=segments, prefix=prefix, positions=positions, cache=cache)
        return self.logits(states)

    def decode(
        self,
        tokens: Tensor,
        *,
        valid: Tensor | None = None,
        segments: Tensor | None = None,
        prefix: Tensor | None = None,
        positions: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """-> states, rows query width. With a cache, `tokens` are the new ones; the facts cover all: see `Stack`."""
        raise NotImplementedError

    def logits(self, states: Tensor) -> Tensor:
        """States of any leading shape -> a score for each word."""
        raise NotImplementedError

    def last_linear(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """(h, W, b) such that logits = W h + b."""
        raise NotImplementedError

    def new_cache(self, length: int) -> Cache:
        raise NotImplementedError

    def new_memory(self, length: int, *, states: bool = True) -> Cache:
        """A cache that keeps the last `length` tokens only: see `Stack`."""
        raise NotImplementedError


class SequenceToSequence(Model):
    """p(target | source), word by word. `source_limit`: how many positions a source may have; None = no end."""

    vocab: int
    source_limit: int | None = None

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        *,
        source_valid: Tensor | None = None,
        target_valid: Tensor | None = None,
    ) -> Tensor:
        """A source and token ids (batch target) -> logits (batch target vocab) for the word after each target token.

        Padding that stands after the last real target token needs no `target_valid`: the causal mask hides it.
        """
        memory = self.encode(source, valid=source_valid)
        return self.logits(self.decode(target, memory, valid=target_valid))

    def encode(self, source: Tensor, *, valid: Tensor | None = None) -> Memory:
        """Read a source: token ids, pixels or frames, as the model's input takes them. `valid`: which are real."""
        raise NotImplementedError

    def decode(
        self, target: Tensor, memory: Memory, *, valid: Tensor | None = None, cache: Cache | None = None
    ) -> Tensor:
        """-> states, rows target width. With a cache, `target` holds the new tokens only. There may be several rows
        (beams) to a sentence of the memory, side by side."""
        raise NotImplementedError

    def logits(self, states: Tensor) -> Tensor:
        """States of any leading shape -> a score for each word."""
        raise NotImplementedError

    def last_linear(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """(h, W, b) such that logits = W h + b."""
        raise NotImplementedError

    def narrowed(self, words: Tensor) -> Callable[[Tensor], Tensor]:
        """`logits` for these words only."""
        return lambda states: self.logits(states)[..., words]

    def new_cache(self, length: int) -> Cache:
        raise NotImplementedError


class Reader(Model):
    """Reads, and says something about what it read: through heads, by name."""

    def predict(self, head: str, states: Tensor) -> Tensor:
        """What this head says of the states that `forward` gave."""
        raise NotImplementedError


class ArchitectureConfig(PartConfig):
    """The contract. `gives`: which of the contracts above its model keeps; a task says which one it trains."""

    folder: ClassVar[str] = "model/architecture"
    gives: ClassVar[type[Model]] = Model
    width: Size = 512

    def build(self) -> Model:
        raise NotImplementedError

    @property
    def supports(self) -> frozenset[str]:
        """The facts of `Mask` that a task may state."""
        return frozenset()

    def limits(self) -> dict[str, int]:
        """The number of positions there are, of each stack that has an end: {"decoder": 512}."""
        return {}

    def parameters(self) -> dict[str, int]:
        """By component, from closed formulas; unless a file has some, they are counted."""
        with torch.device("meta"):
            counts: dict[str, int] = {}
            for name, parameter in self.build().named_parameters():
                counts[name.split(".")[0]] = counts.get(name.split(".")[0], 0) + parameter.numel()
            return counts

    def flops(self, length: int) -> dict[str, int]:
        """Of one forward pass, for one token of each kind, each looking at `length` others; matrix products only."""
        return {}

    def remembered(self) -> dict[str, int]:
        """How many numbers are kept for each token of each kind while decoding."""
        return {}


def checked(name: str, stack: StackConfig, shape: StackShape) -> None:
    """Raise ValueError, with the stack's name in front, where it does not fit."""
    try:
        stack.check(shape)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def stack_limits(**stacks: StackConfig) -> dict[str, int]:
    return {name: stack.limit for name, stack in stacks.items() if stack.limit is not None}
