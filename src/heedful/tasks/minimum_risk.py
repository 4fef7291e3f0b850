"""Minimum-risk training: samples of the model are made likelier the better they are.      Shen et al. 2016

For translators above all, on chrF or BLEU. The expected cost 1 - reward of each source's samples is minimised directly,
without a value head and without a reference (`minimum_risk` in `heedful/preferences.py`).

Differs from the paper: the reference translation is not one of the samples.
"""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field

from heedful.data.columns import Columns
from heedful.data.prepare import Prepared
from heedful.decoding.generation import GenerationConfig
from heedful.model.architecture import Model
from heedful.objectives import Loss, Term
from heedful.preferences import minimum_risk
from heedful.tasks import Direction, Processes, Scores, Settings, State, TaskConfig
from heedful.tasks._answers import (
    Writers,
    cut_notes,
    finish_writer,
    fitted_writer,
    log_probs,
    open_writer,
    writer_positions,
)
from heedful.tasks._rewards import folder_of, forget_function
from heedful.tasks._rollouts import PromptBatch, Prompts, are_pairs, figures_of, prompt_columns


class MinimumRiskConfig(TaskConfig):
    """Rows are pairs of a source and its reference, or prompts (`pair`; None = as the files have). `reward` and
    `label`: what an answer is worth, as in task=ppo; `samples`: answers to each prompt, of at most `max_new_tokens`;
    `alpha`: how much their probabilities differ in the expectation."""

    trains: ClassVar[type[Model]] = Model  # a sequence-to-sequence or a language model: see `fitted`
    metrics: ClassVar[Mapping[str, Direction]] = {"loss": "lower", "reward": "higher"}
    labelled: ClassVar[bool] = True
    writes: ClassVar[bool] = True
    note: ClassVar[str] = "The reward is that of greedy answers to at most 100 held-out prompts; the loss is minus it."
    reward: str = "chrf"
    label: str = ""
    pair: bool | None = None
    samples: int = Field(8, ge=2)
    max_new_tokens: int = Field(64, ge=1)
    alpha: float = Field(0.005, gt=0)

    @property
    def columns(self) -> Columns:
        return prompt_columns(bool(self.pair))

    def for_columns(self, width: int, names: Collection[str]) -> "MinimumRiskConfig":
        return self if self.pair is not None else self.model_copy(update={"pair": are_pairs(self.reward, width, names)})

    @property
    def models(self) -> Mapping[str, str]:
        return {"task.reward": folder} if (folder := folder_of(self.reward)) else {}

    @property
    def needs_start(self) -> str:
        return "improves the answers of a model, so it must start from one"

    def positions(self, longest: int) -> dict[str, int]:
        return {**writer_positions(longest), "decoder": longest + self.max_new_tokens + 1}

    def fitted(self, model: dict[str, Any], prepared: Prepared) -> dict[str, Any]:
        return {**fitted_writer(self.kind, model, prepared), "heads": []}

    def build(self, prepared: Prepared, settings: Settings) -> "MinimumRisk":
        return MinimumRisk(self, prepared, settings)

    def open(self, folder: Path, *others: Path, **options: Any) -> Any:
        return open_writer(folder, others, options)

    def figures(self, use: Any, test: Path, config: GenerationConfig) -> dict[str, Any] | None:
        return figures_of(self, use, test)


class MinimumRisk:
    def __init__(self, config: MinimumRiskConfig, prepared: Prepared, settings: Settings) -> None:
        self.config, self.settings = config, settings
        self.prompts = Prompts(
            prepared, settings, reward=config.reward, label=config.label, samples=config.samples,
            longest=config.max_new_tokens,
        )  # fmt: skip
        self.writers = Writers(prepared.tokenizers, joined=self.prompts.joined)
        self.notes = cut_notes(prepared, settings)

    def epoch(self, number: int, *, budget: int, seed: int) -> Iterator[np.ndarray]:
        return self.prompts.epoch(number, budget=budget, seed=seed)

    def worst(self, budget: int) -> np.ndarray:
        return self.prompts.worst(budget)

    def collate(self, rows: np.ndarray, *, seed: tuple[int, ...] = ()) -> PromptBatch:
        return self.prompts.batch(rows, "answers")

    def loss(self, model: Any, batch: PromptBatch, *, state: State) -> Loss:
        drawn = self.prompts.answers(model, batch)
        rewards = torch.tensor(self.prompts.rate(batch, drawn), dtype=torch.float32, device=model.device)
        samples, count = self.config.samples, len(drawn)
        prompts = [prompt for prompt in batch.prompts for _ in range(samples)]
        rows, ended = [one.tokens for one in drawn], [one.ended for one in drawn]
        answers = self.writers.batch(prompts, rows, ended).to(model.device)
        found = log_probs(model, answers)
        keys = [(place // samples, tuple(one.tokens), one.ended) for place, one in enumerate(drawn)]
        first = {key: place for place, key in reversed(list(enumerate(keys)))}
        once = torch.tensor([first[key] == place for place, key in enumerate(keys)], device=model.device)
        risks = minimum_risk(
            found.sum(1).view(-1, samples), 1 - rewards.view(-1, samples), once.view(-1, samples),
            alpha=self.config.alpha,
        )  # fmt: skip
        figures = {
            "reward": Term(rewards.sum(), count),
            "entropy": Term(-found.detach().sum(), int(answers.valid.sum())),
            "different_samples": Term(once.sum(), len(risks)),
            "answer_tokens": Term(answers.valid.sum(), count),
        }
        return Loss({"answers": Term(samples * risks.sum(), count)}, figures=figures)

    @torch.inference_mode()
    def evaluate(self, model: Any, *, budget: int, samples: int, world: Processes) -> Scores:
        return self.prompts.evaluate(model, budget=budget, samples=samples, world=world)

    def finish(self, model: Model, folder: Path) -> None:
        finish_writer(self.settings, folder)
        forget_function(folder)
