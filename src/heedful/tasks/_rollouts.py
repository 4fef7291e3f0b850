"""Prompts, and the answers that the model being trained gives to them.

They are drawn from the policy itself: no temperature, nothing left out, no shortest length. An answer that reaches the
longest length has no end, and none is pretended.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from heedful.data import batches
from heedful.data.columns import PAIR, Columns
from heedful.data.inputs import Inputs
from heedful.data.lines import Line
from heedful.data.padding import Row
from heedful.data.preferences import ALONE, prompt_of
from heedful.data.prepare import Prepared
from heedful.decoding.beam import Hypothesis
from heedful.decoding.from_prompt import FromPrompt
from heedful.decoding.from_source import FromSource
from heedful.decoding.generation import GenerationConfig
from heedful.decoding.rules import Rules
from heedful.decoding.runner import Job, Request, Runner, Stepwise
from heedful.decoding.sampling import sample
from heedful.evaluation.metrics import METRICS, quick_score, tokenization
from heedful.generator import Generator
from heedful.model.architecture import LanguageModel, SequenceToSequence
from heedful.tasks import Processes, Scores, Settings
from heedful.tasks._answers import Writer, is_joined
from heedful.tasks._rewards import open_reward
from heedful.text.tokenizer import Tokenizer
from heedful.translator import Translator

BUDGET = 16_384  # tokens of prompts and answers that are written together
SCORED = 100  # prompts answered per validation


@dataclass(frozen=True)
class PromptBatch:
    """Prompts, as tokens; `references`: the texts beside them, if rows are pairs; `terms`: those of the loss."""

    prompts: list[list[int]]
    references: list[str]
    samples: int
    terms: tuple[str, ...]

    @property
    def answers(self) -> int:
        return len(self.prompts) * self.samples

    @property
    def counts(self) -> dict[str, int]:
        return dict.fromkeys(self.terms, self.answers)

    @property
    def tokens_read(self) -> int:
        """Those of the prompts: nobody knows yet how long the answers are."""
        return self.samples * sum(map(len, self.prompts))

    def to(self, device: torch.device) -> "PromptBatch":
        return self


class Prompts:
    """The prompts of a corpus. `samples` answers of at most `longest` tokens are given to each."""

    counted = (0,)

    def __init__(
        self, prepared: Prepared, settings: Settings, *, reward: str, label: str, samples: int, longest: int
    ) -> None:
        self.prepared, self.tokenizers = prepared, prepared.tokenizers
        self.samples, self.longest, self.joined = samples, longest, is_joined(settings.model)
        self.paired = len(prepared.columns) == 2
        if reward in METRICS and not self.paired:
            raise ValueError(f"task.reward={reward} compares with references, and these rows have none; give pairs")
        separate = getattr(settings.model, "source_vocab", None) is not None
        if separate and not self.paired:
            raise ValueError("this model has a vocabulary for each side, so rows must be pairs: source, tab, target")
        self.reward = open_reward(reward, label, self.tokenizers, joined=self.joined)
        self.train = prepared.store("train")
        self.held_out = prepared.store("valid" if prepared.has("valid") else "train")
        self.cut_by = ""
        if self.paired:
            references = self.tokenizers[-1].decode(self.held_out.rows(1, self._scored()))
            self.cut_by = tokenization(references, language=settings.language).name

    def __len__(self) -> int:
        return len(self.train)

    def lengths(self, column: int, start: int = 0, end: int | None = None) -> np.ndarray:
        found: np.ndarray = self.samples * (self.train.lengths(0, start, end) + self.longest)
        return found

    def forget(self) -> None:
        self.train.forget()

    def epoch(self, number: int, *, budget: int, seed: int, passes: int = 1) -> Iterator[np.ndarray]:
        for rows in batches.epoch(self, budget=budget, seed=seed, number=number):
            for _ in range(passes):
                yield rows

    def worst(self, budget: int) -> np.ndarray:
        return batches.longest(self, budget=budget)

    def batch(self, rows: np.ndarray, *terms: str) -> PromptBatch:
        prompts = [[*map(int, row)] for row in self.train.rows(0, rows)]
        references = self.tokenizers[-1].decode(self.train.rows(1, rows)) if self.paired else []
        return PromptBatch(prompts, references, self.samples, terms)

    def answers(self, model: LanguageModel | SequenceToSequence, batch: PromptBatch) -> list[Hypothesis]:
        """Samples of the model's answers: those of the first prompt, then those of the next one."""
        prompts = [prompt for prompt in batch.prompts for _ in range(self.samples)]
        return draw(model, self.tokenizers, prompts, longest=self.longest)

    def rate(self, batch: PromptBatch, found: Sequence[Hypothesis]) -> list[float]:
        prompts = [prompt for prompt in batch.prompts for _ in range(self.samples)]
        references = [one for one in batch.references for _ in range(self.samples)]
        return self.reward(prompts, [one.tokens for one in found], [one.ended for one in found], references)

    @torch.inference_mode()
    def evaluate(
        self, model: LanguageModel | SequenceToSequence, *, budget: int, samples: int, world: Processes
    ) -> Scores:
        """The reward of the greedy answers to held-out prompts; BLEU and chrF, where there are references."""
        rows = self._scored()
        prompts = [[*map(int, row)] for row in self.held_out.rows(0, rows)]
        references = self.tokenizers[-1].decode(self.held_out.rows(1, rows)) if self.paired else []
        found = greedy_answers(model, self.tokenizers, prompts, longest=self.longest)
        rewards = self.reward(prompts, [one.tokens for one in found], [one.ended for one in found], references)
        texts = self.tokenizers[-1].decode([one.tokens for one in found])
        mean = float(np.mean(rewards))
        numbers = {"loss": -mean, "reward": mean}
        if self.paired:
            scores = quick_score(texts, references, tokenizer=self.cut_by)
            numbers |= {name: scores[name] for name in ("bleu", "chrf")}
        asked = self.tokenizers[0].decode(prompts[:samples])
        shown = [
            {"prompt": prompt, "answer": text, "reward": f"{reward:.3f}"}
            for prompt, text, reward in zip(asked, texts, rewards, strict=False)
        ]
        return Scores(numbers, shown)

    def _scored(self) -> np.ndarray:
        count = len(self.held_out)
        return np.arange(count)[:: max(1, count // SCORED)][:SCORED]


def greedy_answers(
    model: Any, tokenizers: Sequence[Tokenizer], prompts: Sequence[Row], *, longest: int
) -> list[Hypothesis]:
    config = GenerationConfig(num_beams=1, max_new_tokens=longest)
    rows = [[*map(int, prompt)] or [tokenizers[-1].start] for prompt in prompts]
    jobs = [Job(number, row, Request("")) for number, row in enumerate(rows)]
    written = Runner(_starter(model, tokenizers)).run([(config, jobs)], batch_tokens=BUDGET)
    return [written[number][0] for number in range(len(rows))]


@torch.inference_mode()
def draw(
    model: LanguageModel | SequenceToSequence,
    tokenizers: Sequence[Tokenizer],
    prompts: Sequence[Row],
    *,
    longest: int,
    budget: int = BUDGET,
) -> list[Hypothesis]:
    """An answer to each prompt, by torch's random numbers."""
    config = GenerationConfig(do_sample=True, max_new_tokens=longest)
    training = model.training
    model.eval()
    starter, end = _starter(model, tokenizers), tokenizers[-1].eos
    rows = [[*map(int, prompt)] or [tokenizers[-1].start] for prompt in prompts]
    sizes = np.array([[len(row) + longest] for row in rows])
    found: dict[int, Hypothesis] = {}
    for chosen in batches.cut(np.arange(len(rows)), sizes, budget):
        start = starter.start([Job(number, rows[number], Request("")) for number in chosen.tolist()], config)
        free = Rules(config, end)  # special tokens too: what the policy may write, it may be drawn to write
        drawn = sample(start.stepper, start.first, config, eos=end, limits=start.limits, rules=free)
        found.update(zip(chosen.tolist(), drawn, strict=True))
    model.train(training)
    return [found[number] for number in range(len(rows))]


def _starter(model: LanguageModel | SequenceToSequence, tokenizers: Sequence[Tokenizer]) -> Stepwise:
    if isinstance(model, LanguageModel):
        return FromPrompt(model, tokenizers[-1])
    return FromSource([model], tokenizers)


def are_pairs(reward: str, width: int, names: Collection[str]) -> bool:
    """Whether rows are pairs, by what the reward needs, or by what the files have."""
    return reward in METRICS or width > 1 or bool({"target", "reference"} & set(names))


def figures_of(task: Any, use: Generator | Translator, test: Path) -> dict[str, Any] | None:
    """The reward of greedy answers to the prompts of a test file; None: a translator's own scores, for pairs."""
    paired = bool(task.pair)
    if paired and isinstance(use, Translator):
        return None
    writer = Writer(use)
    inputs = Inputs((test,), columns=prompt_columns(paired), strict=True)
    rows = [line.texts for line in inputs.read("train") if isinstance(line, Line)]
    if not rows:
        raise ValueError(f"{test}: no prompts to evaluate on")
    prompts = [writer.reading.tokens(row[0] if paired else prompt_of(row[0])) for row in rows]
    found = greedy_answers(writer.model, writer.tokenizers, prompts, longest=task.max_new_tokens)
    rate = open_reward(task.reward, task.label, writer.tokenizers, joined=writer.writers.joined)
    references = [row[1] for row in rows] if paired else []
    rewards = rate(prompts, [one.tokens for one in found], [one.ended for one in found], references)
    return {
        "prompts": len(rows),
        "reward": float(np.mean(rewards)),
        "answers cut off by the length limit": sum(not one.ended for one in found),
    }


def prompt_columns(paired: bool) -> Columns:
    return PAIR if paired else ALONE
