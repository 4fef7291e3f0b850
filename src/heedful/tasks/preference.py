"""Preferences learned directly, without a reward model: DPO and IPO (`heedful/preferences.py`).

The reference is the model that training starts from. Its log-probabilities are computed once, before the first step,
when the model itself still is the reference (with an adapter, too: an untrained one changes nothing), and kept beside
the tokenised corpus under the digest of the base's weights. There is no second model in memory.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from safetensors.torch import load_file, save_file
from torch import Tensor

from heedful.adapters import without
from heedful.config import Probability
from heedful.data import batches
from heedful.data.columns import Columns
from heedful.data.preferences import PAIRED, prompt_of
from heedful.data.prepare import Prepared
from heedful.data.store import Store
from heedful.decoding.generation import GenerationConfig
from heedful.files import in_place
from heedful.model.architecture import Model
from heedful.objectives import Loss, Term
from heedful.preferences import dpo, ipo
from heedful.tasks import Direction, Processes, Scores, Settings, State, TaskConfig
from heedful.tasks._answers import (
    BUDGET,
    AnswerBatch,
    Compared,
    Writer,
    Writers,
    compared_rows,
    cut_notes,
    finish_writer,
    fitted_writer,
    is_joined,
    log_probs,
    open_writer,
    writer_positions,
)

FIGURES = ("accuracy", "margin", "chosen_log_prob", "rejected_log_prob")


class PreferenceConfig(TaskConfig):
    """Rows are a prompt, a chosen and a rejected answer. `beta`: how much it costs to leave the reference;
    `label_smoothing`: the share of rows that is labelled the wrong way round."""

    trains: ClassVar[type[Model]] = Model  # a sequence-to-sequence or a language model: see `fitted`
    metrics: ClassVar[Mapping[str, Direction]] = {
        "loss": "lower", "accuracy": "higher", "margin": "higher", "chosen_log_prob": "higher",
        "rejected_log_prob": "lower",
    }  # fmt: skip
    labelled: ClassVar[bool] = True
    writes: ClassVar[bool] = True
    note: ClassVar[str] = (
        "Accuracy: how often the chosen answer has the higher implied reward, beta (log p - log p of the base), in "
        "percent; margin: by how much on average. Log-probabilities are sums over an answer."
    )
    loss: Literal["dpo", "ipo"] = "dpo"
    beta: float = Field(0.1, gt=0)
    label_smoothing: Probability = 0.0

    @property
    def columns(self) -> Columns:
        return PAIRED

    @property
    def needs_start(self) -> str:
        return "moves a model away from what it prefers now, so it must start from one"

    def positions(self, longest: int) -> dict[str, int]:
        return writer_positions(longest)

    def fitted(self, model: dict[str, Any], prepared: Prepared) -> dict[str, Any]:
        return {**fitted_writer(self.kind, model, prepared), "heads": []}

    def build(self, prepared: Prepared, settings: Settings) -> "Preference":
        return Preference(self, prepared, settings)

    def open(self, folder: Path, *others: Path, **options: Any) -> Any:
        return open_writer(folder, others, options)

    def figures(self, use: Any, test: Path, config: GenerationConfig) -> dict[str, Any]:
        """As in validation, against the base, whose folder must still be there."""
        writer = Writer(use)
        rows = compared_rows(test)
        prompts = [writer.reading.tokens(prompt_of(row.texts[0])) for row in rows]
        answers = [writer.tokenizers[-1].encode([row.texts[place] for row in rows]) for place in (1, 2)]
        found = torch.zeros(2, len(rows), 2)  # which model, pair, chosen or rejected
        for number, one in enumerate((writer.base(), writer.model)):
            for place in range(0, len(rows), 8):
                some = slice(place, place + 8)
                batch = writer.writers.batch(prompts[some] * 2, [*answers[0][some], *answers[1][some]]).to(one.device)
                with torch.inference_mode():
                    found[number, some] = log_probs(one, batch).sum(1).view(2, -1).T.cpu()
        ratios = self.beta * (found[1] - found[0])
        margins = ratios[:, 0] - ratios[:, 1]
        return {
            "pairs": len(rows),
            "accuracy": 100 * float((margins > 0).float().mean()),
            "margin": float(margins.mean()),
            "log_prob of the chosen": float(found[1, :, 0].mean()),
            "log_prob of the rejected": float(found[1, :, 1].mean()),
        }


@dataclass(frozen=True)
class PreferenceBatch:
    """The chosen answers of all pairs, then the rejected ones. `reference`: log p of each by the reference."""

    answers: AnswerBatch
    reference: Tensor

    @property
    def counts(self) -> dict[str, int]:
        return {"pairs": len(self.answers) // 2}

    @property
    def tokens_read(self) -> int:
        return self.answers.tokens_read

    def to(self, device: torch.device) -> "PreferenceBatch":
        return PreferenceBatch(self.answers.to(device), self.reference.to(device))


class Preference:
    def __init__(self, config: PreferenceConfig, prepared: Prepared, settings: Settings) -> None:
        self.config, self.prepared, self.settings = config, prepared, settings
        joined = is_joined(settings.model)
        self.writers = Writers(prepared.tokenizers, joined=joined)
        names = ["train", *(["valid"] if prepared.has("valid") else [])]
        self.splits = {name: Compared(prepared.store(name), joined=joined) for name in names}
        self.held_out = names[-1]
        digest = blake2b(settings.base.encode(), digest_size=12).hexdigest()
        self.file = prepared.folder / f"reference-{digest}.safetensors"
        self.references: dict[str, Tensor] | None = load_file(self.file) if self.file.exists() else None
        known = "are known from an earlier start" if self.references else "are computed once, before the first step"
        rows = sum(map(len, self.splits.values()))
        self.notes = [
            *cut_notes(prepared, settings), f"the base's log-probabilities of {2 * rows:,} answers {known}"
        ]  # fmt: skip

    def begin(self, model: Model) -> None:
        """At this point the model is the reference."""
        if self.references is None:
            with without(model):
                self._keep_references(model)

    def epoch(self, number: int, *, budget: int, seed: int) -> Iterator[np.ndarray]:
        return batches.epoch(self.splits["train"], budget=budget, seed=seed, number=number)

    def worst(self, budget: int) -> np.ndarray:
        return batches.longest(self.splits["train"], budget=budget)

    def collate(self, rows: np.ndarray, *, seed: tuple[int, ...] = ()) -> PreferenceBatch:
        return self._batch("train", rows)

    def loss(self, model: Model, batch: PreferenceBatch, *, state: State) -> Loss:
        losses, figures = self._measured(model, batch, smoothing=self.config.label_smoothing)
        pairs = len(losses)
        terms = {name: Term(one.sum(), pairs) for name, one in figures.items()}
        return Loss({"pairs": Term(losses.sum(), pairs)}, figures=terms)

    @torch.inference_mode()
    def evaluate(self, model: Model, *, budget: int, samples: int, world: Processes) -> Scores:
        sums = np.zeros(2 + len(FIGURES))
        for rows in list(self.splits[self.held_out].in_order(budget))[world.rank :: world.size]:
            batch = self._batch(self.held_out, rows).to(model.device)
            losses, figures = self._measured(model, batch)
            sums += [len(rows), float(losses.sum()), *(float(figures[name].sum()) for name in FIGURES)]
        count, *totals = (world.total(float(one)) for one in sums)
        return Scores({name: one / count for name, one in zip(("loss", *FIGURES), totals, strict=True)})

    def finish(self, model: Model, folder: Path) -> None:
        finish_writer(self.settings, folder)

    def _measured(
        self, model: Model, batch: PreferenceBatch, *, smoothing: float = 0.0
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of each pair, and what is to be logged of it."""
        found = log_probs(model, batch.answers).sum(1)
        chosen, rejected = (found - batch.reference).chunk(2)
        margin = self.config.beta * (chosen - rejected)
        figures = {
            "accuracy": 100.0 * (margin > 0), "margin": margin, **dict(zip(FIGURES[2:], found.chunk(2), strict=True))
        }  # fmt: skip
        if self.config.loss == "dpo":
            return dpo(chosen, rejected, beta=self.config.beta, smoothing=smoothing), figures
        sizes = batch.answers.valid.sum(1).chunk(2)
        return ipo(chosen / sizes[0], rejected / sizes[1], beta=self.config.beta, smoothing=smoothing), figures

    def _batch(self, split: str, rows: np.ndarray) -> PreferenceBatch:
        if self.references is None:  # resumed, but the cache has been emptied since
            assert self.settings.reference is not None
            self._keep_references(self.settings.reference())
        assert self.references is not None
        return PreferenceBatch(self._answers(self.splits[split].store, rows), self.references[split][rows].T.flatten())

    def _answers(self, store: Store, rows: np.ndarray) -> AnswerBatch:
        prompts, chosen, rejected = (store.rows(column, rows) for column in range(3))
        return self.writers.batch([*prompts, *prompts], [*chosen, *rejected])

    @torch.inference_mode()
    def _keep_references(self, model: Model) -> None:
        """log p of the chosen and the rejected answer of every row (rows 2), by a model that is not being trained."""
        training = model.training
        model.eval()
        found = {}
        for split, rows in self.splits.items():
            held = torch.zeros(len(rows), 2)
            for some in rows.in_order(BUDGET):
                batch = self._answers(rows.store, some).to(model.device)
                held[some] = log_probs(model, batch).sum(1).view(2, -1).T.cpu()
            found[split] = held
        model.train(training)
        with in_place(self.file) as path:
            save_file(found, path)
        self.references = load_file(self.file)
