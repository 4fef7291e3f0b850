"""A number for a text or a pair of texts: similarity, rating, price."""

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.bounded import read_object
from heedful.data.columns import Column, Columns
from heedful.data.prepare import Prepared
from heedful.data.store import Store
from heedful.evaluation.classes import pearson, spearman
from heedful.files import write_text
from heedful.model.architecture import Model, Reader
from heedful.objectives import Loss, Term
from heedful.tasks import Direction, Processes, Scores, Settings, State, TaskConfig
from heedful.tasks._labelled import FIRST, SECOND, TEXT, Opened, Rows, opened
from heedful.tasks._reading import SPECIALS, Windows, read, shares
from heedful.tasks.classification import HEAD, with_head

SCORE = ("label", "similarity", "rating", "stars", "value", "target", "number")


class RegressionConfig(TaskConfig):
    """`pair`: whether a row has two texts; None = as the files have."""

    trains: ClassVar[type[Model]] = Reader
    metrics: ClassVar[Mapping[str, Direction]] = {"loss": "lower", "pearson": "higher", "spearman": "higher"}
    specials: ClassVar[tuple[str, ...]] = SPECIALS
    labelled: ClassVar[bool] = True
    note: ClassVar[str] = "The loss is the mean squared error, in units of the training numbers' variance."
    pair: bool | None = None

    @property
    def columns(self) -> Columns:
        texts = (
            (Column("first", also=FIRST), Column("second", also=SECOND)) if self.pair else (Column("text", also=TEXT),)
        )
        return (*texts, Column("score", "number", also=SCORE))

    def for_columns(self, width: int, names: Collection[str]) -> "RegressionConfig":
        if self.pair is not None:
            return self
        return self.model_copy(update={"pair": width == 3 or bool({"second", *SECOND} & set(names))})

    def positions(self, longest: int) -> dict[str, int]:
        return {"encoder": longest}

    def fitted(self, model: dict[str, Any], prepared: Prepared) -> dict[str, Any]:
        return with_head(model, prepared, HEAD, classes=1)

    def build(self, prepared: Prepared, settings: Settings) -> "Regression":
        return Regression(prepared, settings)

    def open(self, folder: Path, *others: Path, **options: Any) -> "Regressor":
        return Regressor(opened(folder, self.columns, others, options), Scale.load(folder))


@dataclass(frozen=True)
class Scale:
    """The model predicts (number - mean) / deviation, so that prices are learned as easily as stars."""

    mean: float
    deviation: float

    FILE: ClassVar[str] = "scale.json"

    def save(self, folder: Path) -> None:
        write_text(folder / self.FILE, json.dumps(vars(self)))

    @classmethod
    def load(cls, folder: Path) -> "Scale":
        """A folder without one (imported from elsewhere) predicts numbers as they are."""
        file = folder / cls.FILE
        if not file.is_file():
            return cls(0.0, 1.0)
        data = read_object(file)
        mean, deviation = data.get("mean"), data.get("deviation")
        if not (isinstance(mean, int | float) and isinstance(deviation, int | float) and 0 < deviation < math.inf):
            raise ValueError(f"{file} must hold two numbers, mean and deviation, the second above 0")
        if not math.isfinite(mean):
            raise ValueError(f"{file}: mean must be finite, not {mean}")
        return cls(mean, deviation)


@dataclass(frozen=True)
class NumberedBatch:
    texts: Windows
    wanted: Tensor  # rows, scaled

    @property
    def counts(self) -> dict[str, float]:
        return {"numbers": len(self.wanted)}

    @property
    def tokens_read(self) -> int:
        return self.texts.tokens_read

    def to(self, device: torch.device) -> "NumberedBatch":
        return NumberedBatch(self.texts.to(device), self.wanted.to(device))


class Regression:
    def __init__(self, prepared: Prepared, settings: Settings) -> None:
        self.rows = Rows(prepared, settings)
        self.place = len(prepared.columns) - 1
        numbers = self._numbers(self.rows.train, np.arange(len(self.rows.train)))
        if numbers.min() == numbers.max():
            raise ValueError(f"every row has the number {numbers[0]:g}, so there is nothing to learn from")
        self.scale = Scale(float(numbers.mean()), float(numbers.std()))
        self.texts = prepared.texts("valid") if prepared.has("valid") else []
        self.notes = [f"numbers from {numbers.min():g} to {numbers.max():g}, mean {self.scale.mean:.4g}"]

    def epoch(self, number: int, *, budget: int, seed: int) -> Iterator[np.ndarray]:
        return self.rows.epoch(number, budget=budget, seed=seed)

    def worst(self, budget: int) -> np.ndarray:
        return self.rows.worst(budget)

    def collate(self, rows: np.ndarray, *, seed: tuple[int, ...] = ()) -> NumberedBatch:
        return self._batch(self.rows.train, rows)

    def loss(self, model: Reader, batch: NumberedBatch, *, state: State) -> Loss:
        found = batch.texts.mean(model.predict(HEAD, read(model, batch.texts)))[:, 0]
        return Loss({"numbers": Term(F.mse_loss(found.float(), batch.wanted, reduction="sum"), len(batch.wanted))})

    @torch.inference_mode()
    def evaluate(self, model: Reader, *, budget: int, samples: int, world: Processes) -> Scores:
        found, wanted = self._read_all(model, budget, world)
        loss = float(((found - wanted) ** 2).mean())
        shown = [
            {"text": " | ".join(cells[:-1]), "score": cells[-1], "predicted": f"{value:.3f}"}
            for cells, value in zip(self.texts[:samples], found * self.scale.deviation + self.scale.mean, strict=False)
        ]
        return Scores({"loss": loss, "pearson": pearson(found, wanted), "spearman": spearman(found, wanted)}, shown)

    def finish(self, model: Reader, folder: Path) -> None:
        self.scale.save(folder)

    def _read_all(self, model: Reader, budget: int, world: Processes) -> tuple[np.ndarray, np.ndarray]:
        """What is found and what is wanted for every validation row, on every process: each adds its share to zeros."""
        store = self.rows.valid
        found = np.zeros(len(store))
        for rows in shares(store, budget=budget, world=world, cost=self.rows.cost):
            batch = self._batch(store, rows).to(model.device)
            found[rows] = batch.texts.mean(model.predict(HEAD, read(model, batch.texts)))[:, 0].float().cpu().numpy()
        if world.size > 1:
            found = np.array([world.total(float(value)) for value in found])
        wanted = self._numbers(store, np.arange(len(store)))
        return found, (wanted - self.scale.mean) / self.scale.deviation

    def _batch(self, store: Store, rows: np.ndarray) -> NumberedBatch:
        wanted = (self._numbers(store, rows) - self.scale.mean) / self.scale.deviation
        return NumberedBatch(self.rows.windows(store, rows), torch.tensor(wanted, dtype=torch.float32))

    def _numbers(self, store: Store, rows: np.ndarray) -> np.ndarray:
        return np.array([float(bytes(row.astype(np.uint8))) for row in store.rows(self.place, rows)])


class Regressor:
    """A model that predicts numbers, ready to use."""

    def __init__(self, held: Opened, scale: Scale) -> None:
        self.opened, self.scale = held, scale

    def numbers(self, texts: Sequence[str]) -> np.ndarray:
        """One for each text; for a pair, the texts are separated by a tab."""
        return self._numbers(self.opened.texts(texts)) if texts else np.zeros(0)

    def predict(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        """`score`: the number."""
        return [{"text": f"{value:.4f}", "score": value} for value in self.numbers(texts).tolist()]

    def evaluate(self, test: Path) -> dict[str, Any]:
        """Correlations, and the root of the mean squared error."""
        rows = self.opened.rows(test)
        texts, cells = self.opened.split(rows)
        found, wanted = self._numbers(texts), np.array([float(cell) for cell in cells])
        error = float(np.sqrt(((found - wanted) ** 2).mean()))
        return {
            "rows": len(rows),
            "pearson": pearson(found, wanted),
            "spearman": spearman(found, wanted),
            "rmse": error,
        }

    def _numbers(self, texts: Sequence[Sequence[str]]) -> np.ndarray:
        logits = self.opened.logits(texts, HEAD)[:, 0].double().numpy()
        return logits * self.scale.deviation + self.scale.mean
