"""A language model at work: prompts in, continuations out.

generator = load("runs/book")
generator.generate("Once upon")[0].text
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from heedful.checkpoint import load_model
from heedful.config import did_you_mean
from heedful.data.batches import cut
from heedful.data.corpus import Line, read_texts
from heedful.data.prepare import load_tokenizers
from heedful.decoding.beam import Hypothesis, search
from heedful.decoding.diverse import diverse_search
from heedful.decoding.generation import GenerationConfig, with_options
from heedful.decoding.rules import Rules
from heedful.decoding.sampling import sample
from heedful.decoding.stepper import PromptStepper, Recurrence
from heedful.decoding.stops import Stops, until
from heedful.model.architecture import LanguageModel
from heedful.text.tokenizer import Tokenizer

BATCH_TOKENS = 2048  # of prompts, times beams, continued together
TOP = 5  # of each token's alternatives
SAMPLED = GenerationConfig(do_sample=True, temperature=0.8, top_p=0.95, max_new_tokens=200)
GREEDY = GenerationConfig(num_beams=1, max_new_tokens=200)


@dataclass(frozen=True)
class Continuation:
    """`text` follows the prompt; `stopped` says why it ends: stop (an end or a stop string) or length."""

    text: str
    score: float
    token_log_probs: list[float]
    stopped: str


@dataclass(frozen=True)
class Piece:
    """A token just written. `text` is what can be shown of it: nothing yet, while a character or what may become a stop
    string is incomplete. `top`: the likeliest tokens in its place, with their log-probabilities."""

    text: str
    token: int
    log_prob: float
    top: list[tuple[int, float]]


class Generator:
    """`recurrence`: how a model with a memory of earlier segments reads; None = it keeps all it has read."""

    def __init__(self, model: LanguageModel, tokenizer: Tokenizer, *, recurrence: Recurrence | None = None) -> None:
        self.model, self.tokenizer = model.eval(), tokenizer
        self.recurrence = recurrence
        self.limit = model.limit
        self.device = model.device

    def __repr__(self) -> str:
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        return f"<Generator: {parameters:,} parameters, vocabulary {self.tokenizer.vocab:,}, on {self.device}>"

    @overload
    def generate(self, prompts: str, config: GenerationConfig = SAMPLED, **options: Any) -> list[Continuation]: ...

    @overload
    def generate(
        self, prompts: Sequence[str], config: GenerationConfig = SAMPLED, **options: Any
    ) -> list[list[Continuation]]: ...

    def generate(
        self, prompts: str | Sequence[str], config: GenerationConfig = SAMPLED, **options: Any
    ) -> list[Continuation] | list[list[Continuation]]:
        """As many continuations as `num_return_sequences`, the best first; of several prompts, a list of them each.
        Options are those of `GenerationConfig`.

        generator.generate("Once upon a time", temperature=0.7, seed=1)[0].text
        """
        config, others = with_options(config, options)
        if others:
            known = did_you_mean(next(iter(others)), GenerationConfig.model_fields)
            raise ValueError(f"unknown option {next(iter(others))!r}{known}")
        if isinstance(prompts, str):
            return self._all([prompts], config)[0]
        return self._all(prompts, config)

    def predict(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        """The likeliest continuation of each, token by token."""
        found = self.generate(texts, GREEDY)
        return [{"text": one.text, "score": one.score, "finish_reason": one.stopped} for (one,) in found]

    def stream(self, prompt: str, config: GenerationConfig, told: Callable[[int, Piece], bool]) -> list[Continuation]:
        """Sample, and tell of each piece of text as soon as it is there: (which continuation, piece) -> go on?"""
        streams = [_Stream(self.tokenizer, config.stop_strings) for _ in range(config.num_return_sequences)]

        def heard(row: int, token: int, log_probs: Tensor) -> bool:
            return told(row, streams[row].piece(token, log_probs))

        return self._all([prompt], config, heard)[0]

    @torch.inference_mode()
    def log_probs(self, text: str) -> list[float]:
        """The log-probability of each token after the first, in windows of the model's context: each by itself, or with
        the memory of those before."""
        tokens = self.tokenizer.encode([text])[0]
        size, memory = self.limit or 1024, None
        if self.recurrence is not None:
            size = self.recurrence.segment
            memory = self.model.new_memory(self.recurrence.memory, states=False)
        found: list[float] = []
        for start in range(0, max(0, len(tokens) - 1), size):
            window = torch.tensor([tokens[start : start + size + 1]], device=self.device)
            log_probs = self.model(window[:, :-1], cache=memory).float().log_softmax(-1)
            found += log_probs.gather(-1, window[:, 1:, None])[0, :, 0].tolist()
        return found

    def evaluate(self, test: Path) -> dict[str, Any]:
        """Perplexity and bits per byte of a text file."""
        text = "".join(line.texts[0] for line in read_texts([test]) if isinstance(line, Line))
        log_probs = self.log_probs(text)
        if not log_probs:
            raise ValueError(f"{test} is too short to score")
        total = -sum(log_probs)
        return {
            "tokens": len(log_probs),
            "perplexity": math.exp(total / len(log_probs)),
            "bits_per_byte": total / math.log(2) / len(text.encode()),
        }

    def perplexity(self, text: str) -> float:
        found = self.log_probs(text)
        return math.exp(-sum(found) / max(1, len(found)))

    def _all(
        self,
        prompts: Sequence[str],
        config: GenerationConfig,
        told: Callable[[int, int, Tensor], bool] = lambda row, token, log_probs: True,
    ) -> list[list[Continuation]]:
        """Prompts of about the same length are continued together."""
        rows = [row or [self.tokenizer.start] for row in self.tokenizer.encode(prompts)]
        if self.limit is not None:  # of a prompt that is too long, the end counts
            rows = [row[-(self.limit - 1) :] for row in rows]
        width = config.num_return_sequences if config.do_sample else config.num_beams
        lengths = np.array([[len(row)] for row in rows])
        found: list[list[Continuation]] = [[] for _ in rows]
        for chosen in cut(np.arange(len(rows)), lengths, max(1, BATCH_TOKENS // width)) if rows else []:
            hypotheses = self._search([rows[index] for index in chosen], config, told)
            for index, some in zip(chosen, hypotheses, strict=True):
                found[index] = [self._continuation(one, config) for one in some]
        return found

    @torch.inference_mode()
    def _search(
        self, rows: list[list[int]], config: GenerationConfig, told: Callable[[int, int, Tensor], bool]
    ) -> list[list[Hypothesis]]:
        copies = config.num_return_sequences if config.do_sample else 1
        new = config.max_new_tokens or 200
        limits = [new if self.limit is None else min(new, self.limit - len(row)) for row in rows for _ in range(copies)]
        prompt, valid = (tensor.repeat_interleave(copies, 0).to(self.device) for tensor in _padded_left(rows))
        stops = Stops(self.tokenizer, config.stop_strings) if config.stop_strings else None
        eos = self.tokenizer.eos
        rules = Rules(config=config, eos=eos, never=self.tokenizer.never, stops=stops)
        real = None if bool(valid.all()) else valid
        stepper = PromptStepper(self.model, prompt, length=max(limits), valid=real, recurrence=self.recurrence)
        first = prompt[:, -1]
        if config.do_sample:
            names = [copy for _ in rows for copy in range(copies)]  # a text does not depend on the other prompts
            drawn = sample(stepper, first, config, eos=eos, limits=limits, rules=rules, names=names, told=told)
            groups = [drawn[start : start + copies] for start in range(0, len(drawn), copies)]
            return [sorted(group, key=lambda hypothesis: -hypothesis.score) for group in groups]
        if config.num_beam_groups > 1:
            return diverse_search(stepper, first, config, eos=eos, limits=limits, rules=rules)
        return search(stepper, first, config, eos=eos, limits=limits, rules=rules)

    def _continuation(self, hypothesis: Hypothesis, config: GenerationConfig) -> Continuation:
        whole = self.tokenizer.decode([hypothesis.tokens])[0]
        text = until(whole, config.stop_strings)
        stopped = "stop" if text != whole or hypothesis.ended else "length"
        return Continuation(text, hypothesis.score, hypothesis.token_log_probs, stopped)


def _padded_left(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """(tokens, valid), so that all last tokens stand in the last column."""
    width = max(map(len, rows))
    tokens = torch.tensor([[0] * (width - len(row)) + list(row) for row in rows])
    valid = torch.tensor([[False] * (width - len(row)) + [True] * len(row) for row in rows])
    return tokens, valid


class _Stream:
    """Text that grows token by token, given out as far as it is certain."""

    def __init__(self, tokenizer: Tokenizer, stop_strings: Sequence[str]) -> None:
        self.tokenizer, self.stop_strings = tokenizer, stop_strings
        self.tokens: list[int] = []
        self.shown = 0

    def piece(self, token: int, log_probs: Tensor) -> Piece:
        ended = token == self.tokenizer.eos
        if not ended:
            self.tokens.append(token)
        whole = self.tokenizer.decode([self.tokens])[0]
        text = until(whole, self.stop_strings)
        certain = len(text) if ended or text != whole else len(text.rstrip("\ufffd")) - self._may_stop(text)
        new = text[self.shown : max(self.shown, certain)]
        self.shown += len(new)
        values, places = log_probs.topk(min(TOP, len(log_probs)))
        top = list(zip(places.tolist(), values.tolist(), strict=True))
        return Piece(new, token, float(log_probs[token]), top)

    def _may_stop(self, text: str) -> int:
        """How many characters at the end may be the beginning of a stop string."""
        ends = [n for stop in self.stop_strings for n in range(1, len(stop)) if text.endswith(stop[:n])]
        return max(ends, default=0)


def load(folder: str | Path, *, recurrence: Recurrence | None = None) -> Generator:
    folder = Path(folder)
    model = load_model(folder)
    if not isinstance(model, LanguageModel):
        raise ValueError(f"{folder} holds a {model.config.kind} model, which does not continue texts; try translate")
    return Generator(model, load_tokenizers(folder, columns=1)[0], recurrence=recurrence)
