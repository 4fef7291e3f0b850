"""Learning from rewards by proximal policy optimisation.      Schulman et al. 2017; for texts Ziegler et al. 2019

A batch of prompts is answered by the model itself (a rollout), and learned from in several passes; the training loop
sees each pass as a step on the same rows. What a rollout has found is the task's state, so that a training that is
killed between two passes goes on with the same answers, to the bit. Each token is rewarded with -beta times how much
likelier it is than by the reference, the last one also with the reward of the answer:

    r_t = -beta (log pi - log pi_ref)_t + [t is last] reward(answer)

A value head, which is not in the finished folder, predicts what is still to come.
"""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from heedful.adapters import Adapted, without
from heedful.config import Size
from heedful.data.columns import Columns
from heedful.data.prepare import Prepared
from heedful.decoding.generation import GenerationConfig
from heedful.model.architecture import Model
from heedful.model.heads import Scalar
from heedful.objectives import Loss, Term
from heedful.preferences import (
    divergence,
    estimate_advantages,
    policy_loss,
    positive_divergence,
    token_rewards,
    value_loss,
    whiten,
)
from heedful.tasks import Direction, Processes, Scores, Settings, State, TaskConfig
from heedful.tasks._answers import (
    AnswerBatch,
    Writers,
    cut_notes,
    finish_writer,
    fitted_writer,
    log_probs,
    open_writer,
    states,
    with_entropy,
    writer_positions,
)
from heedful.tasks._rewards import folder_of, forget_function
from heedful.tasks._rollouts import PromptBatch, Prompts, are_pairs, figures_of, prompt_columns

VALUE = "value"


class PpoConfig(TaskConfig):
    """Rows are prompts, or pairs of a source and its reference (`pair`; None = as the files have).

    reward          what an answer is worth: chrf, bleu, the folder of a reward model or a classifier, or
                    file.py:function (see --parts)
    label           the label whose probability is the reward, if that is a classifier's
    beta            what it costs to leave the model that training starts from
    samples         answers to each prompt, and `max_new_tokens` of each at most
    passes          steps on the same answers
    clip            by how much the probability of a token may change before it no longer counts
    value_clip      the same for values; `value_weight`: of their loss
    discount        of later rewards; `gae`: how far advantages look ahead
    """

    trains: ClassVar[type[Model]] = Model  # a sequence-to-sequence or a language model: see `fitted`
    metrics: ClassVar[Mapping[str, Direction]] = {"loss": "lower", "reward": "higher"}
    labelled: ClassVar[bool] = True
    writes: ClassVar[bool] = True
    adds_up: ClassVar[bool] = False  # advantages are compared with each other
    note: ClassVar[str] = "The reward is that of greedy answers to at most 100 held-out prompts; the loss is minus it."
    reward: str = "chrf"
    label: str = ""
    pair: bool | None = None
    beta: float = Field(0.05, ge=0)
    samples: Size = 1
    max_new_tokens: Size = 64
    passes: Size = 4
    clip: float = Field(0.2, gt=0, lt=1)
    value_clip: float = Field(0.2, gt=0)
    value_weight: float = Field(0.1, ge=0)
    discount: float = Field(1.0, gt=0, le=1)
    gae: float = Field(0.95, ge=0, le=1)

    @property
    def columns(self) -> Columns:
        return prompt_columns(bool(self.pair))

    def for_columns(self, width: int, names: Collection[str]) -> "PpoConfig":
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

    def build(self, prepared: Prepared, settings: Settings) -> "Ppo":
        return Ppo(self, prepared, settings)

    def open(self, folder: Path, *others: Path, **options: Any) -> Any:
        return open_writer(folder, others, options)

    def figures(self, use: Any, test: Path, config: GenerationConfig) -> dict[str, Any] | None:
        return figures_of(self, use, test)


class Ppo:
    def __init__(self, config: PpoConfig, prepared: Prepared, settings: Settings) -> None:
        self.config, self.settings = config, settings
        self.prompts = Prompts(
            prepared, settings, reward=config.reward, label=config.label, samples=config.samples,
            longest=config.max_new_tokens,
        )  # fmt: skip
        self.writers = Writers(prepared.tokenizers, joined=self.prompts.joined)
        self.notes = cut_notes(prepared, settings)
        self.reference: Model | None = None

    def equip(self, model: Model) -> None:
        """The value head: 0 at first, whatever is random elsewhere."""
        head = Scalar(model.config.width)
        for parameter in head.parameters():
            torch.nn.init.zeros_(parameter)
        setattr(model, VALUE, head)
        model.aside = (VALUE,)

    def epoch(self, number: int, *, budget: int, seed: int) -> Iterator[np.ndarray]:
        return self.prompts.epoch(number, budget=budget, seed=seed, passes=self.config.passes)

    def worst(self, budget: int) -> np.ndarray:
        return self.prompts.worst(budget)

    def collate(self, rows: np.ndarray, *, seed: tuple[int, ...] = ()) -> PromptBatch:
        return self.prompts.batch(rows, "policy", "value")

    def loss(self, model: Any, batch: PromptBatch, *, state: State) -> Loss:
        config = self.config
        if not state or not int(state["left"]):
            state = self._rollout(model, batch)
        answers = AnswerBatch(**{name.removeprefix("batch."): one for name, one in state.items() if "batch." in name})
        valid, read = answers.valid, states(model, answers)
        found, entropy = with_entropy(model, answers, read)
        policy, clipped = policy_loss(found, state["old"], state["advantages"], valid, clip=config.clip)
        values = value_loss(model.value(read).float(), state["values"], state["returns"], valid, clip=config.value_clip)
        count = batch.answers
        terms = {
            "policy": Term(policy * count, count), "value": Term(values * count, count, weight=config.value_weight)
        }  # fmt: skip
        # Estimates of the divergence hold for the policy that has drawn the answers. Both are 0 outside the answers.
        figures = {
            "reward": Term(state["rewards"].sum(), count),
            "kl": Term(divergence(state["old"], state["reference"]).sum(), count),
            "kl_positive": Term(positive_divergence(state["old"], state["reference"]).sum(), count),
            "entropy": Term(entropy, int(valid.sum())),
            "value_loss": Term(values.detach(), 1),
            "clip_fraction": Term(clipped.detach(), 1),
            "answer_tokens": Term(valid.sum(), count),
        }
        return Loss(terms, {**state, "left": state["left"] - 1}, figures)

    @torch.inference_mode()
    def evaluate(self, model: Any, *, budget: int, samples: int, world: Processes) -> Scores:
        return self.prompts.evaluate(model, budget=budget, samples=samples, world=world)

    def finish(self, model: Model, folder: Path) -> None:
        finish_writer(self.settings, folder)
        forget_function(folder)

    def reference_log_probs(self, model: Model, answers: AnswerBatch) -> Tensor:
        """log p of each token of these answers by the model that training started from: batch length."""
        if any(isinstance(module, Adapted) for module in model.modules()):
            with without(model):  # the base under the adapter: no second model in memory
                return log_probs(model, answers)
        if self.reference is None:
            assert self.settings.reference is not None
            self.reference = self.settings.reference()
        return log_probs(self.reference, answers)

    @torch.no_grad()
    def _rollout(self, model: Any, batch: PromptBatch) -> State:
        """Answers, their rewards, and all that the passes need of the model as it is now."""
        drawn = self.prompts.answers(model, batch)
        rewards = torch.tensor(self.prompts.rate(batch, drawn), dtype=torch.float32, device=model.device)
        prompts = [prompt for prompt in batch.prompts for _ in range(self.config.samples)]
        rows, ended = [one.tokens for one in drawn], [one.ended for one in drawn]
        answers = self.writers.batch(prompts, rows, ended).to(model.device)
        read = states(model, answers)
        old, values = log_probs(model, answers, read), torch.where(answers.valid, model.value(read).float(), 0)
        reference = self.reference_log_probs(model, answers)
        each = token_rewards(rewards, old, reference, answers.valid, beta=self.config.beta)
        advantages, returns = estimate_advantages(
            each, values, answers.valid, discount=self.config.discount, smoothing=self.config.gae
        )
        return {
            "left": torch.tensor(self.config.passes),
            "rewards": rewards,
            "old": old,
            "values": values,
            "reference": reference,
            "advantages": whiten(advantages, answers.valid),
            "returns": returns,
            **{f"batch.{name}": one for name, one in answers.tensors.items()},
        }
