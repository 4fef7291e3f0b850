"""Texts with labels: learn to generate such texts and to predict the labels."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from heedful.checkpoint import load_model
from heedful.data import batches
from heedful.data.columns import Column, Columns
from heedful.data.corpus import Line, read_rows
from heedful.data.padding import pad
from heedful.data.prepare import Prepared, load_tokenizers
from heedful.files import write_text
from heedful.objectives import Loss, Term, cross_entropy
from heedful.tasks import Direction, Processes, Scores, Settings, State, TaskConfig
from heedful.text.tokenizer import Tokenizer

from ..architecture.judge_and_writer import JudgeAndWriter

COLUMNS: Columns = (Column("text"), Column("label", "label"))


class JudgingConfig(TaskConfig):
    """`share` is the weight of the labels' loss. `balanced` adds to the score of each label the logarithm of its
    recent frequency, so that rare labels are learned too; the frequencies are carried from step to step."""

    trains = JudgeAndWriter
    metrics: ClassVar[Mapping[str, Direction]] = {"loss": "lower", "accuracy": "higher"}
    specials = ("<cls>",)
    share: float = Field(1.0, gt=0)
    balanced: bool = True

    @property
    def columns(self) -> Columns:
        return COLUMNS

    def positions(self, longest: int) -> dict[str, int]:
        return {"decoder": longest + 2}

    def fitted(self, model: dict[str, Any], prepared: Prepared) -> dict[str, Any]:
        return {**model, "vocab": prepared.tokenizers[0].vocab, "classes": len(prepared.labels["label"])}

    def build(self, prepared: Prepared, settings: Settings) -> "Judging":
        return Judging(self, prepared)

    def open(self, folder: Path, *others: Path, **options: Any) -> "Judge":
        labels = json.loads((folder / "labels.json").read_text(encoding="utf-8"))["label"]
        return Judge(load_model(folder), load_tokenizers(folder, columns=1)[0], labels)


@dataclass(frozen=True)
class LabelledBatch:
    """<s> text <cls>, and the label of each."""

    tokens: Tensor  # batch length
    valid: Tensor
    labels: Tensor  # batch

    @property
    def counts(self) -> dict[str, int]:
        return {"words": int(self.valid[:, 1:].sum()), "labels": len(self.labels)}

    def to(self, device: torch.device) -> "LabelledBatch":
        return LabelledBatch(self.tokens.to(device), self.valid.to(device), self.labels.to(device))


class Judging:
    def __init__(self, config: JudgingConfig, prepared: Prepared) -> None:
        self.config, self.tokenizer = config, prepared.tokenizers[0]
        self.classes = len(prepared.labels["label"])
        self.train = prepared.store("train")
        self.valid = prepared.store("valid") if prepared.has("valid") else self.train

    def epoch(self, number: int, *, budget: int, seed: int) -> Iterator[np.ndarray]:
        return batches.epoch(self.train, budget=budget, seed=seed, number=number)

    def worst(self, budget: int) -> np.ndarray:
        return batches.longest(self.train, budget=budget)

    def collate(self, rows: np.ndarray, *, seed: tuple[int, ...] = ()) -> LabelledBatch:
        return self._batch(self.train, rows)

    def loss(self, model: JudgeAndWriter, batch: LabelledBatch, *, state: State) -> Loss:
        states = model.decode(batch.tokens, valid=batch.valid)
        real = batch.valid[:, 1:]
        words = cross_entropy(model.logits(states[:, :-1][real]), batch.tokens[:, 1:][real])
        share = state.get("share", torch.full((self.classes,), 1 / self.classes, device=states.device))
        scores = model.judge(_last(states, batch.valid))
        if self.config.balanced:
            scores = scores + share.log()
            share = 0.9 * share + 0.1 * (F.one_hot(batch.labels, self.classes).float().mean(0) + 0.01)
        judged = cross_entropy(scores, batch.labels)
        labels = Term(judged.total, judged.count, weight=self.config.share)
        return Loss({"words": words, "labels": labels}, state={"share": share} if self.config.balanced else {})

    @torch.inference_mode()
    def evaluate(self, model: JudgeAndWriter, *, budget: int, samples: int, world: Processes) -> Scores:
        total, right, count = 0.0, 0, 0
        for rows in list(batches.in_order(self.valid, budget=budget))[world.rank :: world.size]:
            batch = self._batch(self.valid, rows).to(model.device)
            scores = model.judge(_last(model.decode(batch.tokens, valid=batch.valid), batch.valid))
            total += float(cross_entropy(scores, batch.labels).total)
            right += int((scores.argmax(-1) == batch.labels).sum())
            count += len(batch.labels)
        total, right, count = world.total(total), world.total(right), world.total(count)
        return Scores({"loss": total / max(1, count), "accuracy": 100 * right / max(1, count)})

    def finish(self, model: JudgeAndWriter, folder: Path) -> None:
        write_text(folder / "judge.json", json.dumps({"classes": self.classes}))

    def _batch(self, store: Any, rows: np.ndarray) -> LabelledBatch:
        tokens, valid = pad(store.rows(0, rows), first=self.tokenizer.bos, last=self.tokenizer.cls)
        return LabelledBatch(tokens, valid, torch.tensor([int(row[0]) for row in store.rows(1, rows)]))


class Judge:
    """What `heedful.load` returns."""

    def __init__(self, model: JudgeAndWriter, tokenizer: Tokenizer, labels: list[str]) -> None:
        self.model, self.tokenizer, self.labels = model, tokenizer, labels

    @torch.inference_mode()
    def predict(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        tokens, valid = pad(self.tokenizer.encode(texts), first=self.tokenizer.bos, last=self.tokenizer.cls)
        scores = self.model.judge(_last(self.model.decode(tokens, valid=valid), valid)).softmax(-1)
        found = zip(scores.argmax(-1).tolist(), scores.amax(-1).tolist(), strict=True)
        return [{"text": self.labels[best], "probability": probability} for best, probability in found]

    def evaluate(self, test: Path) -> dict[str, Any]:
        rows = [line.texts for line in read_rows([test], COLUMNS) if isinstance(line, Line)]
        found = self.predict([text for text, _ in rows])
        right = sum(one["text"] == label for one, (_, label) in zip(found, rows, strict=True))
        return {"rows": len(rows), "accuracy": 100 * right / max(1, len(rows))}


def _last(states: Tensor, valid: Tensor) -> Tensor:
    """The state of the last real token of each row."""
    return states[torch.arange(len(states)), valid.sum(1) - 1]
