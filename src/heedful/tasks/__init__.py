"""DATA + OBJECTIVE + METRIC: what is learned. One file per task; the file's name is the name in a recipe."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import torch

from heedful.config import PartConfig
from heedful.data.prepare import Prepared
from heedful.model.architecture import Model
from heedful.objectives import Loss


@dataclass(frozen=True)
class Scores:
    """What a validation found: numbers by name (`loss` always among them), and a few examples to look at."""

    numbers: dict[str, float]
    samples: list[dict[str, str]] = field(default_factory=list)


class Batch(Protocol):
    @property
    def count(self) -> int:
        """How many tokens the loss is a sum over."""
        ...

    def to(self, device: torch.device) -> Self: ...


class Task(Protocol):
    """The contract. A batch is known by the numbers of its rows, so that it can be dealt out, skipped and found again
    without being made."""

    def epoch(self, number: int, *, budget: int, seed: int) -> Iterator[np.ndarray]:
        """The batches of an epoch, as row numbers; a function of its arguments alone."""
        ...

    def worst(self, budget: int) -> np.ndarray:
        """The batch that needs most memory."""
        ...

    def collate(self, rows: np.ndarray, *, seed: tuple[int, ...] = ()) -> Batch:
        """Row numbers -> tensors. `seed` fixes what is random in it."""
        ...

    def loss(self, model: Model, batch: Any, *, smoothing: float) -> Loss: ...

    def validate(self, model: Model, *, budget: int, samples: int) -> Scores: ...


class TaskConfig(PartConfig):
    folder: ClassVar[str] = "tasks"
    pairs: ClassVar[bool]  # whether it reads pairs or plain text
    model_kind: ClassVar[str]  # the class of model it trains

    def build(self, prepared: Prepared, *, dropout: float, language: str) -> Task:
        raise NotImplementedError
