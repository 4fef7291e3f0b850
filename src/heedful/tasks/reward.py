"""How good an answer to a prompt is, learned from pairs of a better and a worse one.      Ouyang et al. 2022, section
3.5; Stiennon et al. 2020

A language model reads prompt and answer, an encoder-decoder encodes the prompt and reads the answer. The reward is a
linear map of the state of the last token, which has seen everything.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from heedful.checkpoint import load_model, open_tokenizers, read_config
from heedful.config import Probability
from heedful.data import batches
from heedful.data.columns import Columns
from heedful.data.padding import Row
from heedful.data.preferences import PAIRED, prompt_of, shown
from heedful.data.prepare import Prepared
from heedful.data.store import Store
from heedful.decoding.generation import GenerationConfig
from heedful.model.architecture import LanguageModel, Model, SequenceToSequence
from heedful.objectives import Loss, Term
from heedful.preferences import bradley_terry
from heedful.tasks import Direction, Processes, Scores, Settings, State, TaskConfig
from heedful.tasks._answers import (
    BUDGET,
    AnswerBatch,
    Compared,
    Reading,
    Writers,
    compared_rows,
    cut_notes,
    fitted_writer,
    is_joined,
    rewards,
    writer_positions,
)
from heedful.tasks._reading import in_batches
from heedful.text.chat import Message

HEAD = "reward"


class RewardConfig(TaskConfig):
    """Rows are a prompt, a chosen and a rejected answer. `label_smoothing`: the share of them that is labelled the
    wrong way round."""

    trains: ClassVar[type[Model]] = Model  # a sequence-to-sequence or a language model: see `fitted`
    metrics: ClassVar[Mapping[str, Direction]] = {"loss": "lower", "accuracy": "higher", "margin": "higher"}
    labelled: ClassVar[bool] = True
    note: ClassVar[str] = "Accuracy: how often the chosen answer has the higher reward, in percent."
    label_smoothing: Probability = 0.0

    @property
    def columns(self) -> Columns:
        return PAIRED

    def positions(self, longest: int) -> dict[str, int]:
        return writer_positions(longest)

    def fitted(self, model: dict[str, Any], prepared: Prepared) -> dict[str, Any]:
        return {**fitted_writer(self.kind, model, prepared), "heads": [{"kind": HEAD}]}

    def build(self, prepared: Prepared, settings: Settings) -> "Reward":
        return Reward(self, prepared, settings)

    def open(self, folder: Path, *others: Path, **options: Any) -> "Judge":
        options.pop("streams", None)
        if others or options:
            raise ValueError("a reward model takes no ensemble and no options of translators; give one folder")
        return Judge(folder)

    def figures(self, use: Any, test: Path, config: GenerationConfig) -> dict[str, Any]:
        assert isinstance(use, Judge)
        return use.evaluate(test)


@dataclass(frozen=True)
class ComparedBatch:
    """The chosen answers of all pairs, then the rejected ones."""

    answers: AnswerBatch

    @property
    def counts(self) -> dict[str, int]:
        return {"pairs": len(self.answers) // 2}

    @property
    def tokens_read(self) -> int:
        return self.answers.tokens_read

    def to(self, device: torch.device) -> "ComparedBatch":
        return ComparedBatch(self.answers.to(device))


class Reward:
    def __init__(self, config: RewardConfig, prepared: Prepared, settings: Settings) -> None:
        self.prepared, self.smoothing = prepared, config.label_smoothing
        joined = is_joined(settings.model)
        self.writers = Writers(prepared.tokenizers, joined=joined)
        self.train = Compared(prepared.store("train"), joined=joined)
        self.valid = Compared(prepared.store("valid"), joined=joined) if prepared.has("valid") else self.train
        self.notes = cut_notes(prepared, settings)

    def epoch(self, number: int, *, budget: int, seed: int) -> Iterator[np.ndarray]:
        return batches.epoch(self.train, budget=budget, seed=seed, number=number)

    def worst(self, budget: int) -> np.ndarray:
        return batches.longest(self.train, budget=budget)

    def collate(self, rows: np.ndarray, *, seed: tuple[int, ...] = ()) -> ComparedBatch:
        return self._batch(self.train.store, rows)

    def loss(self, model: Model, batch: ComparedBatch, *, state: State) -> Loss:
        chosen, rejected = rewards(model, batch.answers).chunk(2)
        pairs = len(chosen)
        total = bradley_terry(chosen, rejected, smoothing=self.smoothing).sum()
        right = (chosen > rejected).sum() * 100.0
        figures = {"accuracy": Term(right, pairs), "margin": Term((chosen - rejected).sum(), pairs)}
        return Loss({"pairs": Term(total, pairs)}, figures=figures)

    @torch.inference_mode()
    def evaluate(self, model: Model, *, budget: int, samples: int, world: Processes) -> Scores:
        sums = np.zeros(4)
        for rows in list(self.valid.in_order(budget))[world.rank :: world.size]:
            batch = self._batch(self.valid.store, rows).to(model.device)
            chosen, rejected = rewards(model, batch.answers).double().chunk(2)
            losses = bradley_terry(chosen, rejected)
            sums += [float(losses.sum()), float((chosen > rejected).sum()), float((chosen - rejected).sum()), len(rows)]
        loss, right, margin, count = (world.total(float(one)) for one in sums)
        numbers = {"loss": loss / count, "accuracy": 100 * right / count, "margin": margin / count}
        return Scores(numbers, self._samples(model, samples))

    def finish(self, model: Model, folder: Path) -> None:
        """Nothing to add: the head is one of the model's."""

    def _samples(self, model: Model, count: int) -> list[dict[str, str]]:
        texts = self.prepared.texts("valid")[:count] if self.prepared.has("valid") else []
        if not texts:
            return []
        batch = self._batch(self.valid.store, np.arange(len(texts))).to(model.device)
        found = rewards(model, batch.answers).view(2, -1).tolist()
        return [
            {"prompt": shown(prompt), "chosen": f"{better:.3f}  {chosen}", "rejected": f"{worse:.3f}  {rejected}"}
            for (prompt, chosen, rejected), better, worse in zip(texts, *found, strict=True)
        ]

    def _batch(self, store: Store, rows: np.ndarray) -> ComparedBatch:
        prompts, chosen, rejected = (store.rows(column, rows) for column in range(3))
        return ComparedBatch(self.writers.whole([*prompts, *prompts], [*chosen, *rejected]))


class Judge:
    """A reward model ready to use."""

    inputs = ("prompt", "answer")

    def __init__(self, folder: Path) -> None:
        self.model = load_model(folder)
        writes = isinstance(self.model, LanguageModel | SequenceToSequence)
        if not writes or HEAD not in getattr(self.model, "heads", ()):
            raise ValueError(f"{folder}: this model has no reward head; train it with the recipe reward")
        self.tokenizers = open_tokenizers(folder, self.model, columns=3)
        data = read_config(folder).get("data", {})
        self.fields = tuple(data.get("fields") or ())
        self.reading = Reading(self.tokenizers[0], int(data.get("max_length", 256)))
        self.writers = Writers(self.tokenizers, joined=isinstance(self.model, LanguageModel))

    def score(self, prompts: Sequence[str | Sequence[Message]], answers: Sequence[str]) -> list[float]:
        """The reward of each answer. A prompt is a text or messages, read as in training; of a long one the end."""
        rows = [self.reading.tokens(prompt) for prompt in prompts]
        return self.score_tokens(rows, self.tokenizers[-1].encode(list(answers)))

    @torch.inference_mode()
    def score_tokens(
        self, prompts: Sequence[Row], answers: Sequence[Row], ended: Sequence[bool] | None = None
    ) -> list[float]:
        ends = ended or [True] * len(answers)

        def run(some: list[int]) -> list[float]:
            chosen = [(prompts[place], answers[place], ends[place]) for place in some]
            batch = self.writers.whole(*(list(column) for column in zip(*chosen, strict=True)))
            found: list[float] = rewards(self.model, batch.to(self.model.device)).tolist()
            return found

        sizes = [len(one) + len(other) for one, other in zip(prompts, answers, strict=True)]
        return in_batches(sizes, run, budget=BUDGET)

    def predict(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        """`score`: the reward of each line: a prompt and an answer, separated by a tab."""
        cells = [line.split("\t") for line in texts]
        for number, row in enumerate(cells, start=1):
            if len(row) != 2 or not row[1].strip():
                raise ValueError(f"line {number} must be a prompt and an answer, separated by a tab")
        found = self.score([prompt for prompt, _ in cells], [answer for _, answer in cells])
        return [{"text": f"{value:.4f}", "score": value} for value in found]

    def evaluate(self, test: Path) -> dict[str, Any]:
        """How often the chosen answer has the higher reward, and by how much."""
        rows = compared_rows(test, self.fields)
        prompts = [prompt_of(row.texts[0]) for row in rows]
        better, worse = (self.score(prompts, [row.texts[place] for row in rows]) for place in (1, 2))
        margins = np.array(better) - np.array(worse)
        return {"pairs": len(rows), "accuracy": 100 * float((margins > 0).mean()), "margin": float(margins.mean())}
