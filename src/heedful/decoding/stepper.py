"""The interface between a search and any model: feed one token per row, get the next log-probabilities."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from heedful.model.architecture import LanguageModel, SequenceToSequence
from heedful.model.cpu.decoding import Lowered
from heedful.model.cpu.kernels import log_softmax
from heedful.model.mask import positions_of


class Stepper(Protocol):
    """Rows are hypotheses: equally many per sentence, and those of a sentence are adjacent."""

    def advance(self, tokens: Tensor) -> Tensor:
        """The next token of each row -> log-probabilities of the one after it: rows vocab. The caller may
        modify them; the next call may overwrite them."""
        ...

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        """Keep these rows, in this order. `sentences`: the remaining ones, if some are finished."""
        ...


class SourceStepper:
    """The source is encoded once; its keys and values are shared by all rows of a sentence.

    `allowed` (sentences vocab): the tokens each sentence may use. Only tokens allowed in some sentence are scored, and
    each sentence is masked by its own, so its neighbours do not matter. `quick`: the model, lowered to CPU kernels.
    """

    def __init__(
        self,
        model: SequenceToSequence,
        source: Tensor,
        valid: Tensor | None,
        *,
        length: int,
        allowed: Tensor | None = None,
        quick: Lowered | None = None,
    ) -> None:
        self.model = model
        self.steps = ModuleSteps(model, source, valid, length) if quick is None else quick.begin(source, valid, length)
        self.logits: Callable[[Tensor], Tensor] = self.steps.logits
        self.words: Tensor | None = None
        if allowed is not None:
            self.words = allowed.any(0).nonzero()[:, 0]
            self.logits, self.barred = model.narrowed(self.words), ~allowed[:, self.words]
            self.all = torch.empty(0)  # rows vocab

    def advance(self, tokens: Tensor) -> Tensor:
        logits = self.logits(self.steps.advance(tokens))
        if self.words is None:
            return log_softmax(logits)
        logits.unflatten(0, (len(self.barred), -1)).masked_fill_(self.barred[:, None], -torch.inf)
        if len(self.all) != len(logits):
            self.all = logits.new_empty(len(logits), self.model.vocab)
        return self.all.fill_(-torch.inf).index_copy_(1, self.words, log_softmax(logits))

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        self.steps.select(rows, sentences)
        if sentences is not None and self.words is not None:
            self.barred = self.barred[sentences]


class ModuleSteps:
    """Decoding with the PyTorch modules, which support every variant."""

    def __init__(self, model: SequenceToSequence, source: Tensor, valid: Tensor | None, length: int) -> None:
        self.model, self.memory, self.cache = model, model.encode(source, valid=valid), model.new_cache(length)

    def read(self, tokens: Tensor) -> None:
        """What was written before the first step, in one pass: sentences target."""
        self.model.decode(tokens, self.memory, cache=self.cache)

    def advance(self, tokens: Tensor) -> Tensor:
        return self.model.decode(tokens[:, None], self.memory, cache=self.cache)[:, -1]

    def logits(self, states: Tensor) -> Tensor:
        return self.model.logits(states)

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        self.cache.select(rows)
        if sentences is not None:
            self.memory = self.memory.select(sentences)


class Recurrence(NamedTuple):
    """How a model with a memory reads (Transformer-XL): segment by segment, and what came before it."""

    segment: int
    memory: int


class PromptStepper:
    """The prompts are fed in one go, except their last tokens, which the search feeds. Prompts of different lengths are
    padded on the left; `valid` (rows query) says what is real. With a `recurrence`, only the memory is kept, and the
    prompts are fed by segments that end with them, so that each is read as it would be alone."""

    def __init__(
        self,
        model: LanguageModel,
        prompt: Tensor,
        *,
        length: int,
        valid: Tensor | None = None,
        recurrence: Recurrence | None = None,
    ) -> None:
        self.model = model
        fed, last = prompt.shape[1] - 1, 0
        if recurrence is None:
            self.cache, segment = model.new_cache(fed + 1 + length), max(1, fed)
        else:
            self.cache, segment = model.new_memory(recurrence.memory, states=False), recurrence.segment
        self.valid = None if valid is None else valid[:, :-1]
        self.places = None if valid is None else valid.sum(1) - 1  # of the next token
        positions = None if valid is None else positions_of(valid)
        for end in range(fed % segment or segment, fed + 1, segment):
            some = slice(last, end)
            model.decode(
                prompt[:, some],
                valid=None if self.valid is None else self.valid[:, :end],
                positions=None if positions is None else positions[:, some],
                cache=self.cache,
            )
            last = end

    def advance(self, tokens: Tensor) -> Tensor:
        if self.valid is None or self.places is None:
            states = self.model.decode(tokens[:, None], cache=self.cache)
        else:
            self.valid = torch.cat([self.valid, self.valid.new_ones(len(tokens), 1)], dim=1)
            states = self.model.decode(
                tokens[:, None], valid=self.valid, positions=self.places[:, None], cache=self.cache
            )
            self.places = self.places + 1
        return log_softmax(self.model.logits(states[:, -1]))

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        self.cache.select(rows)
        if self.valid is not None and self.places is not None:
            self.valid, self.places = self.valid[rows], self.places[rows]


class KernelPromptStepper:
    """The same as `PromptStepper` without a recurrence, by a model that is lowered to CPU kernels."""

    def __init__(self, quick: Lowered, prompt: Tensor, *, length: int, valid: Tensor | None = None) -> None:
        self.steps = quick.continue_from(prompt[:, :-1], None if valid is None else valid[:, :-1], length)

    def advance(self, tokens: Tensor) -> Tensor:
        return log_softmax(self.steps.logits(self.steps.advance(tokens)))

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        self.steps.select(rows)


class EnsembleStepper:
    """Several models as one: the mean of their probabilities."""

    def __init__(self, steppers: Sequence[Stepper]) -> None:
        self.steppers = steppers

    def advance(self, tokens: Tensor) -> Tensor:
        log_probs = torch.stack([stepper.advance(tokens) for stepper in self.steppers])
        return log_probs.logsumexp(0) - math.log(len(self.steppers))

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        for stepper in self.steppers:
            stepper.select(rows, sentences)
