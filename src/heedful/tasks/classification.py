"""Labels for texts or pairs of texts: one of several, or any number."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.data.build import unknown_label
from heedful.data.columns import Column, Columns
from heedful.data.corpus import Line
from heedful.data.prepare import Prepared
from heedful.data.store import Store
from heedful.evaluation.classes import confusion, f1_by_class, macro_f1
from heedful.model.architecture import Model, Reader
from heedful.objectives import Loss, Term
from heedful.tasks import Direction, Processes, Scores, Settings, State, TaskConfig
from heedful.tasks._labelled import FIRST, SECOND, TEXT, Opened, Rows, opened
from heedful.tasks._reading import SPECIALS, Windows, read, shares

HEAD = "sequence_classification"
LABEL = ("labels", "class", "category", "intent", "sentiment", "topic", "target", "tag")


class ClassificationConfig(TaskConfig):
    """`pair`: whether a row has two texts; None = as the files have. `multi_label`: a row may have any number of
    labels, separated by commas. `class_weights`: how much an example of each label counts: as much as any other,
    `balanced` (rare labels count more: rows / (labels x rows with it)), or a table of numbers by label. With several
    labels, an example that has the label counts so many times one that has not."""

    trains: ClassVar[type[Model]] = Reader
    metrics: ClassVar[Mapping[str, Direction]] = {"loss": "lower", "accuracy": "higher", "macro_f1": "higher"}
    specials: ClassVar[tuple[str, ...]] = SPECIALS
    labelled: ClassVar[bool] = True
    pair: bool | None = None
    multi_label: bool = False
    class_weights: Literal["equal", "balanced"] | dict[str, float] = "equal"

    @property
    def columns(self) -> Columns:
        texts = (
            (Column("first", also=FIRST), Column("second", also=SECOND)) if self.pair else (Column("text", also=TEXT),)
        )
        return (*texts, Column("label", "labels" if self.multi_label else "label", also=LABEL))

    def for_columns(self, width: int, names: Collection[str]) -> "ClassificationConfig":
        if self.pair is not None:
            return self
        return self.model_copy(update={"pair": width == 3 or bool({"second", *SECOND} & set(names))})

    def positions(self, longest: int) -> dict[str, int]:
        return {"encoder": longest}

    def fitted(self, model: dict[str, Any], prepared: Prepared) -> dict[str, Any]:
        return with_head(model, prepared, HEAD, classes=len(prepared.labels["label"]))

    def build(self, prepared: Prepared, settings: Settings) -> "Classification":
        return Classification(self, prepared, settings)

    def open(self, folder: Path, *others: Path, **options: Any) -> "Classifier":
        return Classifier(opened(folder, self.columns, others, options), several=self.multi_label)


def with_head(model: dict[str, Any], prepared: Prepared, kind: str, *, classes: int) -> dict[str, Any]:
    """The model's keys with the vocabulary's size and a single head; its other keys are kept if the model has it."""
    held: dict[str, Any] = next((head for head in model.get("heads") or () if head["kind"] == kind), {})
    return {**model, "vocab": prepared.tokenizers[0].vocab, "heads": [{**held, "kind": kind, "classes": classes}]}


@dataclass(frozen=True)
class LabelledBatch:
    """`wanted`: rows (the number of the label), or rows labels (0 or 1). `weight`: what all rows count together."""

    texts: Windows
    wanted: Tensor
    weight: float

    @property
    def counts(self) -> dict[str, float]:
        return {"labels": self.weight}

    @property
    def tokens_read(self) -> int:
        return self.texts.tokens_read

    def to(self, device: torch.device) -> "LabelledBatch":
        return LabelledBatch(self.texts.to(device), self.wanted.to(device), self.weight)


class Classification:
    def __init__(self, config: ClassificationConfig, prepared: Prepared, settings: Settings) -> None:
        self.rows, self.smoothing, self.several = Rows(prepared, settings), settings.label_smoothing, config.multi_label
        self.labels = prepared.labels["label"]
        self.place = len(prepared.columns) - 1
        if len(self.labels) < 2 and not self.several:
            raise ValueError(f"there is only one label, {self.labels[0]!r}; a classifier needs at least two")
        counts = self._counts()
        self.weights = torch.tensor(_weights(config, self.labels, counts, len(self.rows.train)), dtype=torch.float32)
        self.texts = prepared.texts("valid") if prepared.has("valid") else []
        self.notes = [f"{len(self.labels)} labels: " + ", ".join(_shares(self.labels, counts))]
        if missing := [name for name, count in zip(self.labels, counts, strict=True) if not count]:
            self.notes.append(f"no example is left to train on for {', '.join(missing[:10])}: all were held out")

    def epoch(self, number: int, *, budget: int, seed: int) -> Iterator[np.ndarray]:
        return self.rows.epoch(number, budget=budget, seed=seed)

    def worst(self, budget: int) -> np.ndarray:
        return self.rows.worst(budget)

    def collate(self, rows: np.ndarray, *, seed: tuple[int, ...] = ()) -> LabelledBatch:
        return self._batch(self.rows.train, rows)

    def loss(self, model: Reader, batch: LabelledBatch, *, state: State) -> Loss:
        logits = batch.texts.mean(model.predict(HEAD, read(model, batch.texts)))
        return Loss({"labels": Term(self._total(logits, batch, self.smoothing), batch.weight)})

    @torch.inference_mode()
    def evaluate(self, model: Reader, *, budget: int, samples: int, world: Processes) -> Scores:
        total, weight = 0.0, 0.0
        # One line of figures for each class, to be summed over processes: right, wanted, found.
        counts = np.zeros((3, len(self.labels)))
        right, count = 0, 0
        for rows in shares(self.rows.valid, budget=budget, world=world, cost=self.rows.cost):
            batch = self._batch(self.rows.valid, rows).to(model.device)
            logits = batch.texts.mean(model.predict(HEAD, read(model, batch.texts)))
            total += float(self._total(logits, batch))
            weight += batch.weight
            found = _chosen(logits, self.several)
            wanted = batch.wanted.bool() if self.several else F.one_hot(batch.wanted, len(self.labels)).bool()
            right += int((found == wanted).all(1).sum())
            count += len(rows)
            counts += np.stack([part.sum(0).cpu().numpy() for part in (found & wanted, wanted, found)])
        counts = np.array([[world.total(float(cell)) for cell in row] for row in counts])
        loss = world.total(total) / max(1e-9, world.total(weight))
        f1 = f1_by_class(*counts)[counts[1] + counts[2] > 0]
        numbers = {
            "loss": loss,
            "accuracy": 100 * world.total(right) / max(1, world.total(count)),
            "macro_f1": 100 * float(f1.mean()) if len(f1) else 0.0,
        }
        return Scores(numbers, self._samples(model, samples))

    def finish(self, model: Reader, folder: Path) -> None:
        """Nothing to add: the labels are saved with the tokenizer."""

    def _batch(self, store: Store, rows: np.ndarray) -> LabelledBatch:
        numbers = store.rows(self.place, rows)
        if not self.several:
            wanted = torch.tensor([int(row[0]) for row in numbers])
            return LabelledBatch(self.rows.windows(store, rows), wanted, float(self.weights[wanted].sum()))
        wanted = torch.zeros(len(rows), len(self.labels))
        for place, row in enumerate(numbers):
            wanted[place, row.astype(np.int64)] = 1
        return LabelledBatch(self.rows.windows(store, rows), wanted, float(wanted.numel()))

    def _total(self, logits: Tensor, batch: LabelledBatch, smoothing: float = 0.0) -> Tensor:
        weights = self.weights.to(logits.device)
        if self.several:
            return F.binary_cross_entropy_with_logits(logits.float(), batch.wanted, pos_weight=weights, reduction="sum")
        return F.cross_entropy(logits.float(), batch.wanted, weight=weights, reduction="sum", label_smoothing=smoothing)

    def _counts(self) -> list[int]:
        """How many training rows have each label."""
        store = self.rows.train
        found = np.concatenate(store.rows(self.place, np.arange(len(store)))).astype(np.int64)
        return np.bincount(found, minlength=len(self.labels)).tolist()

    def _samples(self, model: Reader, count: int) -> list[dict[str, str]]:
        store, shown = self.rows.valid, min(count, len(self.rows.valid), len(self.texts))
        if not shown:
            return []
        batch = self._batch(store, np.arange(shown)).to(model.device)
        found = _chosen(batch.texts.mean(model.predict(HEAD, read(model, batch.texts))), self.several)
        return [
            {"text": " | ".join(cells[:-1]), "label": cells[-1], "predicted": ", ".join(_named(row, self.labels))}
            for cells, row in zip(self.texts, found.cpu(), strict=False)
        ]


def _weights(config: ClassificationConfig, labels: Sequence[str], counts: Sequence[int], rows: int) -> list[float]:
    if config.class_weights == "equal":
        return [1.0] * len(labels)
    if config.class_weights == "balanced":
        if config.multi_label:
            return [(rows - count) / count if count else 1.0 for count in counts]
        held = sum(count > 0 for count in counts)
        return [rows / (held * count) if count else 1.0 for count in counts]
    strange = sorted(set(config.class_weights) - set(labels))
    if strange:
        raise ValueError(f"class_weights names {', '.join(strange)}, but the labels are {', '.join(labels[:20])}")
    found = [config.class_weights.get(label, 1.0) for label in labels]
    if min(found) <= 0:
        raise ValueError("class_weights must be greater than 0; remove the rows of a label that should not count")
    return found


def _shares(labels: Sequence[str], counts: Sequence[int]) -> list[str]:
    """The ten most frequent labels, with how many rows have each."""
    order = sorted(range(len(labels)), key=lambda place: -counts[place])
    return [f"{labels[place]} {counts[place]:,}" for place in order[:10]] + ["..."] * (len(order) > 10)


def _chosen(logits: Tensor, several: bool) -> Tensor:
    """Which labels are chosen: rows labels."""
    if several:
        return logits > 0
    return F.one_hot(logits.argmax(-1), logits.shape[1]).bool()


def _named(row: Tensor, labels: Sequence[str]) -> list[str]:
    return [label for label, chosen in zip(labels, row.tolist(), strict=True) if chosen]


class Classifier:
    """A classifier ready to use."""

    def __init__(self, held: Opened, *, several: bool) -> None:
        self.opened, self.several = held, several
        self.labels = held.labels["label"]

    def probabilities(self, texts: Sequence[str]) -> np.ndarray:
        """texts labels; for a pair, the texts are separated by a tab."""
        if not texts:
            return np.zeros((0, len(self.labels)), dtype=np.float32)
        logits = self.opened.logits(self.opened.texts(texts), HEAD)
        return (torch.sigmoid(logits) if self.several else torch.softmax(logits, -1)).numpy()

    def predict(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        """`label` and `score`, its probability, and those of all labels, best first; with several, `labels`."""
        found: list[dict[str, Any]] = []
        for row in self.probabilities(texts).tolist():
            scores = dict(sorted(zip(self.labels, row, strict=True), key=lambda pair: -pair[1]))
            if self.several:
                chosen = [label for label, score in scores.items() if score > 0.5]
                found.append({"text": ",".join(chosen), "labels": chosen, "scores": scores})
            else:
                best = next(iter(scores))
                found.append({"text": best, "label": best, "score": scores[best], "scores": scores})
        return found

    def evaluate(self, test: Path) -> dict[str, Any]:
        """Accuracy and macro F1 in percent, F1 of each label, and the confusion matrix."""
        rows = self.opened.rows(test)
        texts, cells = self.opened.split(rows)
        wanted = self._wanted(rows, cells)
        chosen = _chosen(self.opened.logits(texts, HEAD), self.several).numpy()
        right, count = (chosen & wanted).sum(0), len(rows)
        f1 = f1_by_class(right, wanted.sum(0), chosen.sum(0))
        occurs = wanted.sum(0) + chosen.sum(0) > 0
        found: dict[str, Any] = {
            "rows": count,
            "accuracy": 100 * float((chosen == wanted).all(1).mean()),
            "macro_f1": 100 * float(f1[occurs].mean()) if occurs.any() else 0.0,
            "f1": {label: 100 * float(value) for label, value in zip(self.labels, f1, strict=True)},
        }
        if self.several:
            both = wanted.sum() + chosen.sum()
            return {**found, "micro_f1": 100 * float(2 * right.sum() / both) if both else 0.0}
        matrix = confusion(wanted.argmax(1).tolist(), chosen.argmax(1).tolist(), len(self.labels))
        found["macro_f1"] = 100 * macro_f1(matrix)
        return {**found, "labels": self.labels, "confusion": matrix.tolist()}

    def _wanted(self, rows: Sequence[Line], cells: Sequence[str]) -> np.ndarray:
        numbers = {label: number for number, label in enumerate(self.labels)}
        column = self.opened.columns[-1]
        wanted = np.zeros((len(rows), len(self.labels)), dtype=bool)
        for place, (row, cell) in enumerate(zip(rows, cells, strict=True)):
            for label in column.labels(cell):
                if label not in numbers:
                    raise unknown_label(row, column.name, label, self.labels)
                wanted[place, numbers[label]] = True
        return wanted
