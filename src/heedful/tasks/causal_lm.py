"""Plain text: predict the next token."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from heedful.config import Size
from heedful.data.columns import DOCUMENT, Columns
from heedful.data.prepare import Prepared
from heedful.data.store import Store
from heedful.decoding.generation import GenerationConfig
from heedful.decoding.greedy import greedy
from heedful.decoding.rules import Rules
from heedful.decoding.stepper import PromptStepper, Recurrence
from heedful.generator import Generator
from heedful.generator import load as load_generator
from heedful.model.architecture import LanguageModel, Model
from heedful.objectives import Loss, cross_entropy, vocabulary_cross_entropy
from heedful.tasks import Direction, Processes, Scores, Settings, State, Task, TaskConfig
from heedful.tasks._segments import VALIDATED, SegmentLm


class CausalLmConfig(TaskConfig):
    """`windows`: how windows of `context` tokens are taken from the text.

    windows     anywhere at random, with no regard to where a document ends
    documents   one after the other, documents packed end to end: each starts with <s>, ends with </s>, sees only itself
    segments    one after the other, each row of a batch going on where that of the batch before ended, with a `memory`:
                every layer also sees what it read of that many tokens before (Transformer-XL). `test_memory` is that of
                validation, evaluation and generation, if another. With `borders`, documents are marked as above, and
                none sees another one
    """

    trains: ClassVar[type[Model]] = LanguageModel
    metrics: ClassVar[Mapping[str, Direction]] = {"loss": "lower", "accuracy": "higher", "bits_per_byte": "lower"}
    context: Size = 256
    windows: Literal["random", "documents", "segments"] = "random"
    memory: int = Field(0, ge=0)
    test_memory: int | None = Field(None, ge=0)
    borders: bool = False

    @model_validator(mode="after")
    def _only_segments_are_remembered(self) -> "CausalLmConfig":
        for key in ("memory", "test_memory", "borders"):
            if self.windows != "segments" and getattr(self, key):
                raise ValueError(
                    f"{key} {getattr(self, key)} needs windows that follow each other, not {self.windows}; "
                    f"set task.windows=segments, or drop task.{key}"
                )
        return self

    @property
    def tested_memory(self) -> int:
        return self.memory if self.test_memory is None else self.test_memory

    @property
    def columns(self) -> Columns:
        return DOCUMENT

    @property
    def facts(self) -> frozenset[str]:
        recurrence = {"recurrence"} if self.memory or self.tested_memory else set()
        return frozenset(recurrence | ({"segments"} if self.windows == "documents" or self.borders else set()))

    def positions(self, longest: int) -> dict[str, int]:
        return {"decoder": self.context + max(self.memory, self.tested_memory)}

    def build(self, prepared: Prepared, settings: Settings) -> Task:
        text = CausalLm(self, prepared, smoothing=settings.label_smoothing)
        if self.windows != "segments":
            return text
        return SegmentLm(text, memory=self.memory, test_memory=self.tested_memory, borders=self.borders)

    def open(self, folder: Path, *others: Path, **options: Any) -> Generator:
        if others:
            raise ValueError("language models cannot form an ensemble; give one folder")
        known = {name: options.pop(name) for name in ("streams", "adapters", "quantize") if name in options}
        if options:
            raise ValueError(f"{', '.join(options)} is for translators; leave it out")
        recurrence = Recurrence(self.context, self.tested_memory) if self.tested_memory else None
        return load_generator(folder, recurrence=recurrence, **known)


@dataclass(frozen=True)
class TextBatch:
    tokens: Tensor  # batch context
    wanted: Tensor
    segments: Tensor | None = None

    @property
    def counts(self) -> dict[str, int]:
        return {"tokens": self.wanted.numel()}

    def to(self, device: torch.device) -> "TextBatch":
        segments = None if self.segments is None else self.segments.to(device)
        return TextBatch(self.tokens.to(device), self.wanted.to(device), segments)


class CausalLm:
    def __init__(self, config: CausalLmConfig, prepared: Prepared, *, smoothing: float = 0.0) -> None:
        self.smoothing = smoothing
        self.context = config.context
        self.packed = config.windows == "documents" or config.borders
        self.tokenizer = prepared.tokenizers[0]
        self.train = self._stream(prepared.store("train"))
        self.valid = self._stream(prepared.store("valid")) if prepared.has("valid") else self.train
        if len(self.valid) < 2:
            self.valid = self.train
        if len(self.train) <= self.context:
            raise ValueError(
                f"the text has {len(self.train):,} tokens, too few for windows of {self.context}; "
                "lower task.context or add text"
            )
        self.bytes = sum(len(text.encode()) for (text,) in prepared.texts("valid")) if prepared.has("valid") else 0

    def epoch(self, number: int, *, budget: int, seed: int) -> Iterator[np.ndarray]:
        """Windows by their start position. An epoch has as many as cover the text once."""
        order = np.random.default_rng((seed, number))
        rows = max(1, budget // self.context)
        last = len(self.train) - self.context  # one more token is needed: the one after the window
        if self.packed:
            starts = order.permutation(-(-last // self.context)) * self.context
            starts = np.minimum(starts, last - 1)
            for start in range(0, len(starts), rows):
                yield starts[start : start + rows]
            return
        for _ in range(0, max(1, len(self.train) // self.context), rows):
            yield order.integers(0, last, size=rows)

    def worst(self, budget: int) -> np.ndarray:
        return np.zeros(max(1, budget // self.context), dtype=np.int64)

    def collate(self, rows: np.ndarray, *, seed: tuple[int, ...] = ()) -> TextBatch:
        return self._windows(self.train, rows, self.context)

    def loss(self, model: LanguageModel, batch: TextBatch, *, state: State) -> Loss:
        states = model.decode(batch.tokens, segments=batch.segments)
        states, weight, bias = model.last_linear(states.flatten(0, 1))
        wanted = batch.wanted.flatten()
        return Loss({"tokens": vocabulary_cross_entropy(states, weight, bias, wanted, smoothing=self.smoothing)})

    @torch.inference_mode()
    def evaluate(self, model: LanguageModel, *, budget: int, samples: int, world: Processes) -> Scores:
        size = min(self.context, len(self.valid) - 1)
        starts = np.arange(0, len(self.valid) - size, size)
        rows = max(1, budget // self.context)
        stride = max(1, len(starts) // (rows * VALIDATED))
        starts = starts[::stride]
        total, count, right = 0.0, 0, 0
        for start in range(world.rank * rows, len(starts), world.size * rows):
            batch = self._windows(self.valid, starts[start : start + rows], size).to(model.device)
            logits = model.logits(model.decode(batch.tokens, segments=batch.segments)).flatten(0, 1)
            wanted = batch.wanted.flatten()
            total += float(cross_entropy(logits, wanted).total)
            right += int((logits.argmax(-1) == wanted).sum())
            count += len(wanted)
        numbers = self.numbers(world.total(total), int(world.total(count)), int(world.total(right)))
        return Scores(numbers, [self.sample(model, index) for index in range(samples)])

    def finish(self, model: LanguageModel, folder: Path) -> None:
        """Nothing to add: weights and tokenizer suffice."""

    def numbers(self, total: float, count: int, right: int) -> dict[str, float]:
        """The scores, of the sum of losses over `count` tokens, of which `right` came first."""
        numbers = {"loss": total / max(1, count), "accuracy": 100 * right / max(1, count)}
        if self.bytes:
            numbers["bits_per_byte"] = numbers["loss"] / math.log(2) * len(self.valid) / self.bytes
        return numbers

    def sample(self, model: LanguageModel, index: int) -> dict[str, str]:
        """A piece of the validation text, and how the model goes on."""
        size = max(1, min(self.context, len(self.valid)) // 2)
        place = index * len(self.valid) // 7 % max(1, len(self.valid) - size)
        prompt = torch.tensor(self.valid[place : place + size].astype(np.int64))[None].to(model.device)
        stepper = PromptStepper(model, prompt, length=size)
        rules = Rules(GenerationConfig(num_beams=1), self.tokenizer.eos)
        (found,) = greedy(stepper, prompt[:, -1], limits=[size], rules=rules)
        prompted, written = self.tokenizer.decode([prompt[0].tolist(), found.tokens])
        return {"prompt": prompted, "continuation": written}

    def _windows(self, stream: np.ndarray, starts: np.ndarray, size: int) -> TextBatch:
        windows = np.stack([stream[start : start + size + 1] for start in starts]).astype(np.int64)
        whole = torch.from_numpy(windows)
        tokens, wanted = whole[:, :-1].contiguous(), whole[:, 1:].contiguous()
        segments = (tokens == self.tokenizer.bos).cumsum(-1) if self.packed else None
        return TextBatch(tokens, wanted, segments)

    def _stream(self, store: Store) -> np.ndarray:
        """All tokens as one sequence; packed documents with <s> and </s> around each, which needs a copy."""
        if not self.packed:
            return store.tokens[0]
        rows = store.rows(0, np.arange(len(store)))
        kind = store.tokens[0].dtype
        start, end = (np.array([token], dtype=kind) for token in (self.tokenizer.bos, self.tokenizer.eos))
        marks = (start, end) if start != end else (start, end[:0])  # GPT-2 has one token for both
        return np.concatenate([part for row in rows for part in (marks[0], row, marks[1])])
