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
from heedful.data.context import InContext, Read
from heedful.data.languages import Framing, Languages, plain
from heedful.data.lengths import bounds, numbers_of
from heedful.data.mixed import Mixed
from heedful.data.padding import Row, pad
from heedful.data.prepare import Prepared
from heedful.data.store import Store
from heedful.model.architecture import SequenceToSequence
from heedful.objectives import Loss, cross_entropy, vocabulary_cross_entropy
from heedful.tasks import Processes, Settings
from heedful.text.bpe import MergingBpe
from heedful.text.tokenizer import Tokenizer

Rows = Store | Mixed | InContext


@dataclass(frozen=True)
class PairBatch:
    """The decoder reads `target` (<s> first) and must predict `wanted` (</s> last), where `target_valid`: padding and
    the sentences before the one to learn are left out."""

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
    """The tokenised pairs of a corpus or a mixture, to train on and to validate on: columns 0 and 1 of their stores.
    `lengths`: how many length tokens sources begin with."""

    def __init__(self, prepared: Prepared, settings: Settings, *, lengths: int = 0) -> None:
        self.prepared, self.cost = prepared, settings.cost
        self.smoothing, self.dropout = settings.label_smoothing, settings.bpe_dropout
        self.train = self._store("train")
        self.valid = self._store("valid") if prepared.has("valid") else self.train
        directions = [part.direction for part in prepared.parts if part.direction is not None]
        self.languages = Languages(prepared.tokenizers, settings.layout, directions)
        self.framings = [self.languages.framing(*(part.direction or ())) for part in prepared.parts]
        known = len(prepared.tokenizers[0].lengths)
        if known != lengths:
            raise ValueError(
                f"start_from: this model was trained with task.length_tokens={known}; set the same for the task "
                "summarisation, or train from nothing"
            )
        # The longest targets of each length but the last.
        self.bounds = bounds(self.train.lengths(1), lengths) if lengths else None
        self.context, self.limit = settings.context, settings.max_length
        # What batches are cut from.
        self.learnt: Rows = self._in_context("train") if self.context else self.train
        held_out = "valid" if prepared.has("valid") else "train"
        self.scored: Rows = self._in_context(held_out) if self.context else self.valid
        self.merging = [MergingBpe(tokenizer) for tokenizer in prepared.tokenizers] if self.dropout else []

    def epoch(self, number: int, *, budget: int, seed: int) -> Iterator[np.ndarray]:
        return batches.epoch(self.learnt, budget=budget, seed=seed, number=number, cost=self.cost)

    def worst(self, budget: int) -> np.ndarray:
        return batches.longest(self.learnt, budget=budget, cost=self.cost)

    def collate(self, rows: np.ndarray, seed: tuple[int, ...]) -> PairBatch:
        return self._batch(self.learnt, rows, lambda column, some: self._rows(self.train, column, some, seed))

    def loss(self, model: SequenceToSequence, batch: PairBatch) -> Loss:
        """Only real positions are projected to the vocabulary."""
        memory = model.encode(batch.source, valid=batch.source_valid)
        written = model.decode(batch.target, memory)[batch.target_valid]
        wanted = batch.wanted[batch.target_valid]
        return Loss({"tokens": vocabulary_cross_entropy(*model.last_linear(written), wanted, smoothing=self.smoothing)})

    def measure(self, model: SequenceToSequence, *, budget: int, world: Processes) -> dict[str, float]:
        """Loss and accuracy per token of the held-out targets."""
        total, count, right = 0.0, 0, 0
        for rows in list(batches.in_order(self.scored, budget=budget, cost=self.cost))[world.rank :: world.size]:
            batch = self._batch(self.scored, rows, self.valid.rows).to(model.device)
            memory = model.encode(batch.source, valid=batch.source_valid)
            logits = model.logits(model.decode(batch.target, memory)[batch.target_valid])
            wanted = batch.wanted[batch.target_valid]
            total += float(cross_entropy(logits, wanted).total)
            right += int((logits.argmax(-1) == wanted).sum())
            count += len(wanted)
        total, count, right = world.total(total), int(world.total(count)), int(world.total(right))
        return {"loss": total / max(1, count), "accuracy": 100 * right / max(1, count)}

    def some(self, most: int) -> np.ndarray:
        """The first training rows; of a mixture as many from all over it."""
        count = len(self.train)
        return np.arange(count)[:: -(-count // most)] if self.prepared.parts else np.arange(min(most, count))

    def texts(self, rows: np.ndarray) -> list[tuple[str, ...]]:
        """The texts of training rows."""
        decoded = [self.prepared.tokenizers[column].decode(self.train.rows(column, rows)) for column in (0, 1)]
        return list(zip(*decoded, strict=True))

    def references(self, most: int) -> list[tuple[str, ...]]:
        """Held-out texts, evenly spaced if there are more than `most`; training pairs, if none were held out."""
        held_out = self.prepared.has("valid")
        texts = self.prepared.texts("valid") if held_out else self.texts(np.arange(min(most, len(self.train))))
        return texts[:: max(1, len(texts) // most)][:most]

    def _store(self, split: str) -> Store | Mixed:
        return self.prepared.mixed(split) if self.prepared.parts else self.prepared.store(split)

    def _in_context(self, split: str) -> InContext:
        return InContext(
            self.prepared.store(split),
            self.prepared.places(split),
            context=self.context,
            limit=self.limit,
            breaks=[tokenizer.sentence_break for tokenizer in self.prepared.tokenizers],
        )

    def _batch(self, rows: Rows, numbers: np.ndarray, read: Read) -> PairBatch:
        tokenizers = self.prepared.tokenizers
        if isinstance(rows, InContext):
            (sources, _), (targets, before) = (rows.rows(column, numbers, read) for column in (0, 1))
            return collate(sources, targets, tokenizers, before=before)
        if self.bounds is not None:
            asked = numbers_of(rows.rows(1, numbers), self.bounds)
            framings = [self.languages.framing(length=str(number)) for number in asked]
            return collate(read(0, numbers), read(1, numbers), tokenizers, framings)
        owners = rows.owners(numbers).tolist() if isinstance(rows, Mixed) else []
        return collate(read(0, numbers), read(1, numbers), tokenizers, [self.framings[owner] for owner in owners])

    def _rows(self, store: Store | Mixed, column: int, rows: np.ndarray, seed: tuple[int, ...]) -> list[np.ndarray]:
        found = store.rows(column, rows)
        if not self.dropout:
            return found
        texts = self.prepared.tokenizers[column].decode(found)
        merging = self.merging[column]
        return [
            np.array(merging.encode(text, dropout=self.dropout, chance=random.Random(f"{seed} {column} {row}")))
            for text, row in zip(texts, rows, strict=True)
        ]


def collate(
    sources: Sequence[Row],
    targets: Sequence[Row],
    tokenizers: Sequence[Tokenizer],
    framings: Sequence[Framing] = (),
    *,
    before: np.ndarray | None = None,
) -> PairBatch:
    """`framings`: the special tokens of each row; by default no language tokens. `before`: how many tokens of each
    target are not to be learnt."""
    first, last = tokenizers[0], tokenizers[-1]
    framings = framings or [plain(tokenizers)] * len(sources)
    source, source_valid = pad([f.source(row) for f, row in zip(framings, sources, strict=True)], fill=first.pad)
    target, target_valid = pad([f.read(row) for f, row in zip(framings, targets, strict=True)], fill=last.pad)
    wanted, _ = pad([f.wanted(row) for f, row in zip(framings, targets, strict=True)], fill=last.pad)
    if before is not None:
        target_valid &= torch.arange(target.shape[1]) >= torch.from_numpy(before)[:, None]
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
