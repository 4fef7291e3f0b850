"""Architectures: how parts are combined into a model. One file each; the file's name is the name in a recipe.

The contracts here are what the rest of the toolkit expects of a model: a translator works with every
`SequenceToSequence`, a generator with every `LanguageModel`, whichever file it comes from.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from heedful.config import PartConfig, Size
from heedful.model.cpu.plan import Plan, Reason
from heedful.model.stack import Cache, Memory, StackConfig, StackShape


class Model(nn.Module):
    """The base of all architectures. `limit`: the number of positions of its output, or of its input if it generates no
    text; None = unlimited. `vocab`: the size of the output vocabulary; None if it generates no text. `heads_named`: the
    parts that may be new when training starts from another model. `aside`: parts that only training needs, which are in
    its checkpoints, but not in the finished folder."""

    config: "ArchitectureConfig"
    limit: int | None = None
    vocab: int | None = None
    heads_named: tuple[str, ...] = ("head", "heads")
    aside: tuple[str, ...] = ()

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def plan(self) -> Plan | Reason:
        """What our CPU kernels need to run this, or the reason why they cannot. Define this method to use a kernel. A
        class that changes what is computed does not inherit it (see `cpu/door.py`)."""
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
    """p(target | source), token by token. `source_limit`: the number of source positions; None = unlimited."""

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
        """A source and token ids (batch target) -> logits (batch target vocab) for the token after each target token.

        Padding after the last real target token needs no `target_valid`: the causal mask hides it.
        """
        memory = self.encode(source, valid=source_valid)
        return self.logits(self.decode(target, memory, valid=target_valid))

    def encode(self, source: Tensor, *, valid: Tensor | None = None) -> Memory:
        """Read a source: token ids, pixels or frames, as the model's input takes them. `valid`: which are real."""
        raise NotImplementedError

    def decode(
        self, target: Tensor, memory: Memory, *, valid: Tensor | None = None, cache: Cache | None = None
    ) -> Tensor:
        """-> states, rows target width. With a cache, `target` holds the new tokens only. There may be several
        adjacent rows (beams) per sentence of the memory."""
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


@dataclass(frozen=True)
class Encoded:
    """A source as read by a model that writes all words at once."""

    inputs: Tensor  # batch source width: its embeddings
    valid: Tensor | None
    memory: Memory
    fertilities: Tensor  # batch source (highest fertility + 1): logits


class ParallelSequenceToSequence(Model):
    """p(target | source), all tokens at once, given how many each source token stands for (its fertility). `method`:
    what `decode` reads, see `architecture/non_autoregressive.py`; `source_limit`: the number of source positions."""

    vocab: int
    method: Literal["fertility", "mask_predict"]
    source_limit: int | None = None

    def encode(self, source: Tensor, *, valid: Tensor | None = None) -> Encoded:
        raise NotImplementedError

    def copied(self, encoded: Encoded, fertilities: Tensor) -> tuple[Tensor, Tensor]:
        """What the decoder reads with method fertility: (rows target width, which of it is real). `fertilities`: rows
        source, with several adjacent rows (candidates) per sentence."""
        raise NotImplementedError

    def masked(self, target: Tensor, hidden: Tensor) -> Tensor:
        """What the decoder reads with method mask_predict: rows target width. `hidden`: which tokens are masked."""
        raise NotImplementedError

    def decode(self, inputs: Tensor, encoded: Encoded, *, valid: Tensor | None = None) -> Tensor:
        """-> states, rows target width. There may be several adjacent rows (candidates) per sentence."""
        raise NotImplementedError

    def logits(self, states: Tensor) -> Tensor:
        """States of any leading shape -> a score for each word."""
        raise NotImplementedError

    def last_linear(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """(h, W, b) such that logits = W h + b."""
        raise NotImplementedError


class Reader(Model):
    """An encoder with named heads, which make predictions about the text."""

    def predict(self, head: str, states: Tensor) -> Tensor:
        """The prediction of a head for the states returned by `forward`."""
        raise NotImplementedError


class ArchitectureConfig(PartConfig):
    """The contract. `gives`: which of the contracts above its model implements; a task declares which one it trains."""

    folder: ClassVar[str] = "model/architecture"
    gives: ClassVar[type[Model]] = Model
    width: Size = 512

    def build(self) -> Model:
        raise NotImplementedError

    @property
    def supports(self) -> frozenset[str]:
        """The facts of `Mask` that a task may use."""
        return frozenset()

    def limits(self) -> dict[str, int]:
        """The number of positions of each stack that has a limit: {"decoder": 512}."""
        return {}

    def parameters(self) -> dict[str, int]:
        """By component. Counted on the model, unless the architecture overrides this with closed formulas."""
        with torch.device("meta"):
            counts: dict[str, int] = {}
            for name, parameter in self.build().named_parameters():
                counts[name.split(".")[0]] = counts.get(name.split(".")[0], 0) + parameter.numel()
            return counts

    def flops(self, length: int) -> dict[str, int]:
        """Of one forward pass, for one token of each kind that attends to `length` others; matrix products only."""
        return {}

    def remembered(self) -> dict[str, int]:
        """How many numbers are cached per token of each kind while decoding."""
        return {}


def checked(name: str, stack: StackConfig, shape: StackShape) -> None:
    """Raise ValueError, prefixed with the stack's name, if it does not fit."""
    try:
        stack.check(shape)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def stack_limits(**stacks: StackConfig) -> dict[str, int]:
    return {name: stack.limit for name, stack in stacks.items() if stack.limit is not None}
