"""DATA + OBJECTIVE + METRIC + USE: what a model learns, and what it is used for. One file per task; the file's name is
the name in a recipe.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from heedful.config import PartConfig
from heedful.data.batches import Cost, same_for_all
from heedful.data.columns import Columns
from heedful.data.languages import Layout
from heedful.data.prepare import Prepared
from heedful.decoding.generation import GenerationConfig
from heedful.model.architecture import ArchitectureConfig, Model
from heedful.objectives import Loss
from heedful.text.tokenizer import Tokenizer

Direction = Literal["higher", "lower"]  # which is better
State = dict[str, Tensor]  # what a task carries from step to step


@dataclass(frozen=True)
class Scores:
    """The results of a validation: numbers by name (always including `loss`), and a few samples to show."""

    numbers: dict[str, float]
    samples: list[dict[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Settings:
    """What a task gets from the recipe besides its own keys. `language`: the code of the target language; `cost`: of a
    token in a text of so many, for batches of about equal cost; `max_length`: the tokens of a window that a model reads
    at once; `context`: the sentences before that it sees; `layout`: where language tokens go; `model`: what is trained,
    fitted to the data; `start_from`: the model that training starts from, if any, `base`: the digest of its weights,
    and `reference`: what loads it again."""

    label_smoothing: float = 0.0
    bpe_dropout: float = 0.0
    language: str = ""
    cost: Cost = same_for_all
    max_length: int = 256
    context: int = 0
    layout: Layout = ""
    model: ArchitectureConfig | None = None
    start_from: str = ""
    base: str = ""
    reference: Callable[[], Model] | None = None


class Batch(Protocol):
    @property
    def counts(self) -> Mapping[str, float]:
        """How many items each term of the loss sums over (or the sum of their weights), known before it is computed;
        every term is listed, even with 0. Speed is measured in the first one, unless the batch has
        `tokens_read`."""
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
        """The texts of all processes, which were distributed as `texts[rank::size]`, in their original order."""
        ...

    def gather_rows(self, rows: Tensor) -> Tensor:
        """The rows (first axis) of all processes, one process after the other. Gradients flow back to the process that
        a row came from. All processes must call it."""
        ...


class Task(Protocol):
    """The contract. A batch is identified by its row numbers, so that it can be distributed, skipped and reproduced
    without being built. A task may have `notes`: messages to show before training starts; and
    `begin(model)`: what it does to a new model, before its first step; `equip(model)`: adds what only training needs,
    before each start and resumption: see `Model.aside`."""

    def epoch(self, number: int, *, budget: int, seed: int) -> Iterator[np.ndarray]:
        """The batches of an epoch, as row numbers; a function of its arguments alone."""
        ...

    def worst(self, budget: int) -> np.ndarray:
        """The batch that needs the most memory."""
        ...

    def collate(self, rows: np.ndarray, *, seed: tuple[int, ...] = ()) -> Batch:
        """Row numbers -> tensors. `seed` determines everything random in it."""
        ...

    def loss(self, model: Any, batch: Any, *, state: State) -> Loss:
        """`state` is what the loss of the previous step returned; empty at first. It survives interruptions."""
        ...

    def evaluate(self, model: Any, *, budget: int, samples: int, world: Processes) -> Scores:
        """On the validation set. Every process calls it, takes its share and returns the same scores."""
        ...

    def finish(self, model: Any, folder: Path) -> None:
        """Add to a finished folder what inference needs besides weights and tokenizer."""
        ...


class Use(Protocol):
    """What `heedful.load` returns: a model ready to use. It may have `show(found) -> str`: a prediction as the command
    line shows it, where that is not its `text`."""

    def predict(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        """The prediction for each line (columns separated by tabs): `text`, and whatever else the task gives."""
        ...


class TaskConfig(PartConfig):
    """The contract: the facts of a task.

    trains       the contract of `model/architecture` that its models implement
    metrics      the numbers that `evaluate` returns and a recipe may select by, and which direction is better
    specials     the special tokens it needs beyond <pad>, <s>, </s> and <unk>
    adds_up      whether its loss is a sum over rows. If rows are compared with each other (contrastive losses), a step
                 cannot be split into parts, and a recipe that asks for it is refused
    gathers      whether processes may share a step although its loss does not add up, since the task gathers the rows
                 of all processes itself: with its attribute `world`, which the trainer sets
    in_context   whether it can show a model the sentences before in a document: data.context
    labelled     whether rows are examples that people labelled, of which none may be lost: a row that cannot be used is
                 an error, and texts longer than data.max_length are kept whole, since the task reads them in windows
    mixes        whether it can be trained on several corpora: see `Prepared.parts`
    writes       whether its models are of either kind that writes word by word: sequence-to-sequence or language models
    translates   whether it gives a Translator that is scored on pairs: `evaluate` and `compare` do that themselves
    sizes        the recipes that `--budget` chooses a model from; none = the recipe's own model
    note         what the model card says about the scores
    """

    folder: ClassVar[str] = "tasks"
    trains: ClassVar[type[Model]]
    metrics: ClassVar[Mapping[str, Direction]] = {"loss": "lower"}
    specials: ClassVar[tuple[str, ...]] = ()
    adds_up: ClassVar[bool] = True
    gathers: ClassVar[bool] = False
    in_context: ClassVar[bool] = False
    labelled: ClassVar[bool] = False
    mixes: ClassVar[bool] = False
    writes: ClassVar[bool] = False
    translates: ClassVar[bool] = False
    sizes: ClassVar[tuple[str, ...]] = ()
    note: ClassVar[str] = ""

    @property
    def columns(self) -> Columns:
        """The columns it reads."""
        raise NotImplementedError

    def for_columns(self, width: int, names: Collection[str]) -> "TaskConfig":
        """The task for files with rows of so many cells (0 = not a table), and these names in the header row or as
        keys: where the task can read one text or two, the files decide."""
        return self

    def for_tokenizer(self, tokenizer: Tokenizer) -> "TaskConfig":
        """The task for a tokenizer that exists already, since training starts from a model: where the task can do with
        other special tokens, the tokenizer decides."""
        return self

    @property
    def facts(self) -> frozenset[str]:
        """The facts of `Mask` that it states: its model's attention must support them."""
        return frozenset()

    @property
    def tokenizers_from(self) -> str:
        """The folder of a model whose tokenizers must be used, if there is one."""
        return ""

    @property
    def models(self) -> Mapping[str, str]:
        """The folders of other models that training uses, by the key that names each: {"task.reward": "runs/polite"}.
        If their weights change, it is another training."""
        return {}

    @property
    def needs_start(self) -> str:
        """Why training must start from a model; empty: it need not."""
        return ""

    def positions(self, longest: int) -> dict[str, int]:
        """How many positions each stack needs for texts of up to `longest` tokens: {"decoder": 257}."""
        return {}

    def fitted(self, model: dict[str, Any], prepared: Prepared) -> dict[str, Any]:
        """The model's keys, with those that follow from the data filled in: vocabulary size, number of classes."""
        return {**model, "vocab": prepared.tokenizers[-1].vocab} if prepared.tokenizers else model

    def build(self, prepared: Prepared, settings: Settings) -> Task:
        raise NotImplementedError

    def open(self, folder: Path, *others: Path, **options: Any) -> Use:
        """The model of a finished folder, ready to use; several give an ensemble, if the task supports it."""
        raise NotImplementedError

    def figures(self, use: Any, test: Path, config: GenerationConfig) -> dict[str, Any] | None:
        """What `heedful evaluate` prints about a test file; by default what the Use gives. `config`: for tasks that
        generate text. None: the command's own table of BLEU and other scores, which compares translators."""
        if self.translates:
            return None
        if not hasattr(use, "evaluate"):
            raise ValueError(f"the task {self.kind} has no evaluation")
        found: dict[str, Any] = use.evaluate(test)
        return found
