"""DATA + OBJECTIVE + METRIC + USE: what is learned, and what it is good for. One file per task; the file's name is the
name in a recipe.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from heedful.config import PartConfig
from heedful.data.columns import Columns
from heedful.data.prepare import Prepared
from heedful.model.architecture import Model
from heedful.objectives import Loss

Direction = Literal["higher", "lower"]  # which is better
State = dict[str, Tensor]  # what a task carries from step to step


@dataclass(frozen=True)
class Scores:
    """What a validation found: numbers by name (`loss` always among them), and a few examples to look at."""

    numbers: dict[str, float]
    samples: list[dict[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Settings:
    """What a task is told of the recipe beside its own keys. `language`: the code of the target's."""

    label_smoothing: float = 0.0
    bpe_dropout: float = 0.0
    language: str = ""


class Batch(Protocol):
    @property
    def counts(self) -> Mapping[str, int]:
        """How many things each term of the loss is a sum over, known before it is computed: of every term, 0 too. The
        first is the main one: speed is measured in it."""
        ...

    def to(self, device: torch.device) -> Self: ...


class Processes(Protocol):
    """The processes that validate together; there may be only one."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def total(self, number: float) -> float:
        """The sum over all processes."""
        ...

    def gather(self, texts: Sequence[str]) -> list[str]:
        """The texts of all processes, dealt out in turn as `texts[rank::size]`, in their first order again."""
        ...


class Task(Protocol):
    """The contract. A batch is known by the numbers of its rows, so that it can be dealt out, skipped and found again
    without being made. A task may have `notes`: lines that a person should read before it starts."""

    def epoch(self, number: int, *, budget: int, seed: int) -> Iterator[np.ndarray]:
        """The batches of an epoch, as row numbers; a function of its arguments alone."""
        ...

    def worst(self, budget: int) -> np.ndarray:
        """The batch that needs most memory."""
        ...

    def collate(self, rows: np.ndarray, *, seed: tuple[int, ...] = ()) -> Batch:
        """Row numbers -> tensors. `seed` fixes what is random in it."""
        ...

    def loss(self, model: Any, batch: Any, *, state: State) -> Loss:
        """`state` is what the loss of the step before gave back; empty at first. It survives a kill."""
        ...

    def evaluate(self, model: Any, *, budget: int, samples: int, world: Processes) -> Scores:
        """On the validation set. Every process calls it, takes its share and gives the same scores."""
        ...

    def finish(self, model: Any, folder: Path) -> None:
        """Add to a finished folder what its use needs beside weights and tokenizer."""
        ...


class Use(Protocol):
    """What `heedful.load` gives: a model at work."""

    def predict(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        """What the model says of each line (columns with tabs between them): `text`, and whatever else there is."""
        ...


class TaskConfig(PartConfig):
    """The contract: the facts of a task.

    trains       the contract of `model/architecture` that its models keep
    metrics      the numbers that `evaluate` gives and a recipe may choose by, and which way is better
    specials     the special tokens it needs beyond <pad>, <s>, </s> and <unk>
    adds_up      whether its loss is a sum over rows. Where rows are compared with each other (contrastive losses), a
    step
                 cannot be dealt out in parts, and a recipe that asks for it is refused
    sizes        the recipes that `--budget` chooses a model from; none = the recipe's own model
    note         what its card says of the scores
    """

    folder: ClassVar[str] = "tasks"
    trains: ClassVar[type[Model]]
    metrics: ClassVar[Mapping[str, Direction]] = {"loss": "lower"}
    specials: ClassVar[tuple[str, ...]] = ()
    adds_up: ClassVar[bool] = True
    sizes: ClassVar[tuple[str, ...]] = ()
    note: ClassVar[str] = ""

    @property
    def columns(self) -> Columns:
        """What it reads."""
        raise NotImplementedError

    @property
    def facts(self) -> frozenset[str]:
        """The facts of `Mask` that it states: its model's attention must support them."""
        return frozenset()

    def positions(self, longest: int) -> dict[str, int]:
        """How many positions it needs of each stack, where texts have up to `longest` tokens: {"decoder": 257}."""
        return {}

    def fitted(self, model: dict[str, Any], prepared: Prepared) -> dict[str, Any]:
        """The keys of a model that follow from the data: its vocabulary, how many classes there are."""
        return {**model, "vocab": prepared.tokenizers[-1].vocab} if prepared.tokenizers else model

    def build(self, prepared: Prepared, settings: Settings) -> Task:
        raise NotImplementedError

    def open(self, folder: Path, *others: Path, **options: Any) -> Use:
        """The model of a finished folder at work; of several, their ensemble, where the task has that."""
        raise NotImplementedError
