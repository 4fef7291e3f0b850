"""A text read as several streams, segment by segment, with a memory of the segments before.      Dai et al. 2019,
section 3.2

The text is cut into as many equal streams as a batch has rows; row i of each batch goes on where row i of the one
before ended, so what the layers read there (`SegmentMemory`) can be looked at again. It is the task's state: it goes in
and comes out of each step, belongs to one process and one micro-batch, and survives a kill. Validation begins with an
empty memory of its own.

      rows   |  step 1   |  step 2   |  step 3   |
       0     | the quick | brown fox | jumps ov  |      each segment sees itself and, in each layer, the last `memory`
       1     | er the la | zy dog th | e quick b |      tokens before it
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from heedful.model.architecture import LanguageModel
from heedful.model.cache import SegmentMemory
from heedful.objectives import Loss, cross_entropy, vocabulary_cross_entropy
from heedful.tasks import Processes, Scores, State

if TYPE_CHECKING:
    from heedful.tasks.causal_lm import CausalLm

VALIDATED = 200  # batches at most
LONG = 16  # segments that a stream has at least in validation: at its start it has no memory


@dataclass(frozen=True)
class SegmentBatch:
    tokens: Tensor  # batch context
    wanted: Tensor
    starts: Tensor  # batch: where in the text each row begins
    documents: Tensor  # batch context: how many documents have begun since the row did

    @property
    def counts(self) -> dict[str, int]:
        return {"tokens": self.wanted.numel()}

    def to(self, device: torch.device) -> "SegmentBatch":
        parts = (part.to(device) for part in (self.tokens, self.wanted, self.starts, self.documents))
        return SegmentBatch(*parts)


class SegmentLm:
    """`memory`: how many tokens before a segment each layer sees in training; `test_memory`: in validation. `borders`:
    no document sees another one."""

    def __init__(self, text: "CausalLm", *, memory: int, test_memory: int, borders: bool) -> None:
        self.text, self.context = text, text.context
        self.memory, self.test_memory, self.borders = memory, test_memory, borders

    def epoch(self, number: int, *, budget: int, seed: int) -> Iterator[np.ndarray]:
        """Segments by the place where they start. What is left over is left out at another place in each epoch."""
        rows, steps = self._streams(len(self.text.train), budget)
        left = len(self.text.train) - 1 - rows * steps * self.context
        first = int(np.random.default_rng((seed, number)).integers(0, left + 1))
        starts = first + np.arange(rows) * steps * self.context
        for step in range(steps):
            yield starts + step * self.context

    def worst(self, budget: int) -> np.ndarray:
        return np.zeros(self._streams(len(self.text.train), budget)[0], dtype=np.int64)

    def collate(self, rows: np.ndarray, *, seed: tuple[int, ...] = ()) -> SegmentBatch:
        return self._segments(self.text.train, rows, self.context)

    def loss(self, model: LanguageModel, batch: SegmentBatch, *, state: State) -> Loss:
        memory, documents = self._recalled(model, batch, state)
        states = model.decode(batch.tokens, segments=_told_apart(documents), cache=memory)
        states, weight, bias = model.last_linear(states.flatten(0, 1))
        wanted = batch.wanted.flatten()
        term = vocabulary_cross_entropy(states, weight, bias, wanted, smoothing=self.text.smoothing)
        kept = None if memory is None else memory.state()
        if kept is None:
            return Loss({"tokens": term})
        ends = batch.starts + batch.tokens.shape[1]
        return Loss({"tokens": term}, {"memory": kept, "documents": documents[:, -kept.shape[2] :], "ends": ends})

    @torch.inference_mode()
    def evaluate(self, model: LanguageModel, *, budget: int, samples: int, world: Processes) -> Scores:
        valid, size = self.text.valid, min(self.context, len(self.text.valid) - 1)
        rows, steps = self._streams(len(valid), budget, size=size, least=LONG)
        starts = (np.arange(rows) * steps * size)[world.rank :: world.size]
        memory = model.new_memory(self.test_memory, states=False) if self.test_memory else None
        documents = torch.zeros(len(starts), 0, dtype=torch.long, device=model.device)
        total, count, right = 0.0, 0, 0
        for step in range(min(steps, VALIDATED) if len(starts) else 0):
            batch = self._segments(valid, starts + step * size, size).to(model.device)
            documents = _joined(documents[:, max(0, documents.shape[1] - self.test_memory) :], batch)
            states = model.decode(batch.tokens, segments=_told_apart(documents), cache=memory)
            logits, wanted = model.logits(states).flatten(0, 1), batch.wanted.flatten()
            total += float(cross_entropy(logits, wanted).total)
            right += int((logits.argmax(-1) == wanted).sum())
            count += len(wanted)
        numbers = self.text.numbers(world.total(total), int(world.total(count)), int(world.total(right)))
        return Scores(numbers, [self.text.sample(model, index) for index in range(samples)])

    def finish(self, model: LanguageModel, folder: Path) -> None:
        """Weights and tokenizer are all it takes."""

    def _streams(self, length: int, budget: int, *, size: int | None = None, least: int = 1) -> tuple[int, int]:
        """(how many streams a text of this length is cut into, segments in each)"""
        segments = (length - 1) // (size or self.context)  # one token more is needed: the one after the last segment
        rows = max(1, min(budget // self.context, segments // least))
        return rows, segments // rows

    def _segments(self, stream: np.ndarray, starts: np.ndarray, size: int) -> SegmentBatch:
        windows = np.stack([stream[start : start + size + 1] for start in starts]).astype(np.int64)
        whole = torch.from_numpy(windows)
        tokens, wanted = whole[:, :-1].contiguous(), whole[:, 1:].contiguous()
        documents = (tokens == self.text.tokenizer.bos).cumsum(-1) if self.borders else torch.zeros_like(tokens)
        return SegmentBatch(tokens, wanted, torch.from_numpy(np.asarray(starts, dtype=np.int64)), documents)

    def _recalled(self, model: LanguageModel, batch: SegmentBatch, state: State) -> tuple[SegmentMemory | None, Tensor]:
        """What is remembered, and the documents of all that is seen: batch key. A row that does not go on where the one
        before it ended sees nothing of the memory: at the start of an epoch, and whatever else may happen."""
        if not self.memory:
            return None, batch.documents
        memory = model.new_memory(self.memory)
        assert isinstance(memory, SegmentMemory)
        goes_on = torch.zeros_like(batch.starts, dtype=torch.bool)
        if state and len(state["ends"]) == len(batch.starts):
            goes_on = state["ends"] == batch.starts
        if not bool(goes_on.any()):
            return memory, batch.documents
        memory.restore(state["memory"])
        documents = _joined(state["documents"], batch)
        documents[:, : memory.length].masked_fill_(~goes_on[:, None], -1)
        return memory, documents


def _joined(held: Tensor, batch: SegmentBatch) -> Tensor:
    """The documents of what is remembered and of the segment after it: batch key. The last one remembered is 0."""
    last = held[:, -1:] if held.shape[1] else batch.documents.new_zeros(len(batch.documents), 1)
    return torch.cat([held - last, batch.documents], dim=1)


def _told_apart(documents: Tensor) -> Tensor | None:
    """The fact that a mask needs: None where there is only one document in sight."""
    return None if bool((documents == documents[:, :1]).all()) else documents
