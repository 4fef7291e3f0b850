"""Pairs of texts: read one, write the other. Translation, and every other sequence-to-sequence task."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from heedful.data import batches
from heedful.data.padding import Row, pad
from heedful.data.prepare import Prepared
from heedful.data.store import Store
from heedful.decoding.generation import GenerationConfig
from heedful.evaluation.metrics import quick_score
from heedful.model.architecture import Model, SequenceToSequence
from heedful.objectives import Loss, cross_entropy, vocabulary_cross_entropy
from heedful.tasks import Scores, Task, TaskConfig
from heedful.text.bpe import MergingBpe
from heedful.text.tokenizer import BOS, EOS
from heedful.translator import Translator

SCORED = 200  # sentences translated at a validation
GREEDY = GenerationConfig(num_beams=1)


class TranslationConfig(TaskConfig):
    pairs: ClassVar[bool] = True
    model_kind: ClassVar[str] = "encoder_decoder"

    def build(self, prepared: Prepared, *, dropout: float, language: str) -> Task:
        return Translation(prepared, dropout=dropout, language=language)


@dataclass(frozen=True)
class PairBatch:
    """The decoder reads `target` (<s> first) and is to write `wanted` (</s> last)."""

    source: Tensor  # batch source
    source_valid: Tensor
    target: Tensor  # batch target
    wanted: Tensor
    target_valid: Tensor

    @property
    def count(self) -> int:
        return int(self.target_valid.sum())

    def to(self, device: torch.device) -> "PairBatch":
        return PairBatch(**{name: tensor.to(device) for name, tensor in vars(self).items()})


class Translation:
    def __init__(self, prepared: Prepared, *, dropout: float = 0.0, language: str = "") -> None:
        self.prepared = prepared
        self.train = prepared.store("train")
        self.valid = prepared.store("valid") if prepared.has("valid") else self.train
        self.dropout = dropout
        self.language = language
        try:
            quick_score(["a"], ["a"], language=language)
        except (RuntimeError, ImportError) as error:  # some languages need a tokeniser that is not installed
            raise ValueError(f"BLEU for data.target_language={language} is not possible here: {error}") from None
        self.merging = [MergingBpe(tokenizer) for tokenizer in prepared.tokenizers] if dropout else []

    def epoch(self, number: int, *, budget: int, seed: int) -> Iterator[np.ndarray]:
        return batches.epoch(self.train, budget=budget, seed=seed, number=number)

    def worst(self, budget: int) -> np.ndarray:
        return batches.longest(self.train, budget=budget)

    def collate(self, rows: np.ndarray, *, seed: tuple[int, ...] = ()) -> PairBatch:
        sources, targets = (self._rows(self.train, column, rows, seed) for column in (0, 1))
        return collate(sources, targets)

    def loss(self, model: Model, batch: PairBatch, *, smoothing: float) -> Loss:
        """Only real positions are projected to the vocabulary."""
        assert isinstance(model, SequenceToSequence)
        memory = model.encode(batch.source, valid=batch.source_valid)
        states = model.decode(batch.target, memory)
        written = states[batch.target_valid]
        return vocabulary_cross_entropy(
            *model.last_linear(written), batch.wanted[batch.target_valid], smoothing=smoothing
        )

    @torch.inference_mode()
    def validate(self, model: Model, *, budget: int, samples: int) -> Scores:
        assert isinstance(model, SequenceToSequence)
        total, count, right = 0.0, 0, 0
        device = model.device
        for rows in batches.in_order(self.valid, budget=budget):
            batch = collate(self.valid.rows(0, rows), self.valid.rows(1, rows)).to(device)
            memory = model.encode(batch.source, valid=batch.source_valid)
            logits = model.logits(model.decode(batch.target, memory)[batch.target_valid])
            wanted = batch.wanted[batch.target_valid]
            total += float(cross_entropy(logits, wanted).total)
            right += int((logits.argmax(-1) == wanted).sum())
            count += len(wanted)
        texts = self._references()
        translator = Translator([model], self.prepared.tokenizers, limit=1 << 30)
        written = [
            found.text for found in translator.translate([source for source, _ in texts], GREEDY, batch_tokens=budget)
        ]
        numbers = {"loss": total / count, "accuracy": 100 * right / count}
        numbers |= quick_score(written, [target for _, target in texts], language=self.language)
        shown = [
            {"source": source, "reference": target, "hypothesis": text}
            for (source, target), text in zip(texts[:samples], written, strict=False)
        ]
        return Scores(numbers, shown)

    def _references(self) -> list[tuple[str, str]]:
        if self.prepared.has("valid"):
            texts = self.prepared.texts("valid")
        else:
            rows = np.arange(min(SCORED, len(self.train)))
            decoded = [self.prepared.tokenizers[c].decode(self.train.rows(c, rows)) for c in (0, 1)]
            texts = list(zip(*decoded, strict=True))
        stride = max(1, len(texts) // SCORED)
        return [(text[0], text[1]) for text in texts[::stride][:SCORED]]

    def _rows(self, store: Store, column: int, rows: np.ndarray, seed: tuple[int, ...]) -> list[np.ndarray]:
        found = store.rows(column, rows)
        if not self.dropout:
            return found
        texts = self.prepared.tokenizers[column].decode(found)
        merging = self.merging[column]
        return [
            np.array(merging.encode(text, dropout=self.dropout, chance=random.Random(f"{seed} {column} {row}")))
            for text, row in zip(texts, rows, strict=True)
        ]


def collate(sources: Sequence[Row], targets: Sequence[Row]) -> PairBatch:
    source, source_valid = pad(sources, last=EOS)
    target, target_valid = pad(targets, first=BOS)
    wanted, _ = pad(targets, last=EOS)
    return PairBatch(source, source_valid, target, wanted, target_valid)
