"""What all tasks share that read one text and write another: their batches, their loss, and its value on held-out
pairs."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heedful.data import batches
from heedful.data.padding import Row, pad
from heedful.data.prepare import Prepared
from heedful.data.store import Store
from heedful.model.architecture import SequenceToSequence
from heedful.objectives import Loss, cross_entropy, vocabulary_cross_entropy
from heedful.tasks import Processes, Settings
from heedful.text.bpe import MergingBpe
from heedful.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class PairBatch:
    """The decoder reads `target` (<s> first) and must predict `wanted` (</s> last)."""

    source: Tensor  # batch source
    source_valid: Tensor
    target: Tensor  # batch target
    wanted: Tensor
    target_valid: Tensor

    @property
    def counts(self) -> dict[str, int]:
        return {"tokens": int(self.target_valid.sum())}

    def to(self, device: torch.device) -> "PairBatch":
        return PairBatch(**{name: tensor.to(device) for name, tensor in vars(self).items()})


class Pairs:
    """The tokenised pairs of a corpus, to train on and to validate on: columns 0 and 1 of its stores."""

    def __init__(self, prepared: Prepared, settings: Settings) -> None:
        self.prepared, self.cost = prepared, settings.cost
        self.smoothing, self.dropout = settings.label_smoothing, settings.bpe_dropout
        self.train = prepared.store("train")
        self.valid = prepared.store("valid") if prepared.has("valid") else self.train
        self.merging = [MergingBpe(tokenizer) for tokenizer in prepared.tokenizers] if self.dropout else []

    def epoch(self, number: int, *, budget: int, seed: int) -> Iterator[np.ndarray]:
        return batches.epoch(self.train, budget=budget, seed=seed, number=number, cost=self.cost)

    def worst(self, budget: int) -> np.ndarray:
        return batches.longest(self.train, budget=budget, cost=self.cost)

    def collate(self, rows: np.ndarray, seed: tuple[int, ...]) -> PairBatch:
        sources, targets = (self._rows(self.train, column, rows, seed) for column in (0, 1))
        return collate(sources, targets, self.prepared.tokenizers)

    def loss(self, model: SequenceToSequence, batch: PairBatch) -> Loss:
        """Only real positions are projected to the vocabulary."""
        memory = model.encode(batch.source, valid=batch.source_valid)
        written = model.decode(batch.target, memory)[batch.target_valid]
        wanted = batch.wanted[batch.target_valid]
        return Loss({"tokens": vocabulary_cross_entropy(*model.last_linear(written), wanted, smoothing=self.smoothing)})

    def measure(self, model: SequenceToSequence, *, budget: int, world: Processes) -> dict[str, float]:
        """Loss and accuracy per token of the held-out targets."""
        total, count, right = 0.0, 0, 0
        for rows in list(batches.in_order(self.valid, budget=budget, cost=self.cost))[world.rank :: world.size]:
            sources, targets = self.valid.rows(0, rows), self.valid.rows(1, rows)
            batch = collate(sources, targets, self.prepared.tokenizers).to(model.device)
            memory = model.encode(batch.source, valid=batch.source_valid)
            logits = model.logits(model.decode(batch.target, memory)[batch.target_valid])
            wanted = batch.wanted[batch.target_valid]
            total += float(cross_entropy(logits, wanted).total)
            right += int((logits.argmax(-1) == wanted).sum())
            count += len(wanted)
        total, count, right = world.total(total), int(world.total(count)), int(world.total(right))
        return {"loss": total / max(1, count), "accuracy": 100 * right / max(1, count)}

    def references(self, most: int) -> list[tuple[str, ...]]:
        """Held-out texts, evenly spaced if there are more than `most`; training pairs, if none were held out."""
        if self.prepared.has("valid"):
            texts = self.prepared.texts("valid")
        else:
            rows = np.arange(min(most, len(self.train)))
            decoded = [self.prepared.tokenizers[c].decode(self.train.rows(c, rows)) for c in (0, 1)]
            texts = list(zip(*decoded, strict=True))
        return texts[:: max(1, len(texts) // most)][:most]

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


def collate(sources: Sequence[Row], targets: Sequence[Row], tokenizers: Sequence[Tokenizer]) -> PairBatch:
    first, last = tokenizers[0], tokenizers[-1]
    source, source_valid = pad(sources, last=first.eos, fill=first.pad)
    target, target_valid = pad(targets, first=last.start, fill=last.pad)
    wanted, _ = pad(targets, last=last.eos, fill=last.pad)
    return PairBatch(source, source_valid, target, wanted, target_valid)


def fitted_pair(model: dict[str, Any], prepared: Prepared) -> dict[str, Any]:
    """The model's keys with the vocabulary of each side."""
    source, target = prepared.tokenizers[0], prepared.tokenizers[-1]
    fitted = {**model, "vocab": target.vocab}
    if "source_vocab" in model:
        fitted["source_vocab"] = None if source is target else source.vocab
    elif source is not target:
        raise ValueError(f"{model['kind']} has one vocabulary; set tokenizer.joint=true")
    return fitted
