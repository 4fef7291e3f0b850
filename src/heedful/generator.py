"""Generate text with a language model: prompts in, continuations out.

>>> generator = heedful.load("runs/book")
>>> generator.generate("the quick", do_sample=False, num_beams=1, max_new_tokens=6)[0].text
' brown'
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor

from heedful.checkpoint import load_model, open_adapters, open_tokenizers
from heedful.config import did_you_mean
from heedful.data.corpus import Line, read_texts
from heedful.decoding.beam import Hypothesis
from heedful.decoding.from_prompt import FromPrompt
from heedful.decoding.from_source import FromSource
from heedful.decoding.generation import GenerationConfig, with_options
from heedful.decoding.runner import Request, Runner, Starter, numbered
from heedful.decoding.stepper import Recurrence
from heedful.decoding.stops import until
from heedful.decoding.streams import cores
from heedful.model.architecture import LanguageModel, SequenceToSequence
from heedful.model.int8 import quantize_as
from heedful.text.growing import GrowingText
from heedful.text.tokenizer import Tokenizer

BATCH_TOKENS = 16_384  # per batch, prompts and continuations together
TOP = 5  # alternatives reported for each token
SAMPLED = GenerationConfig(do_sample=True, temperature=0.8, top_p=0.95, max_new_tokens=200)
GREEDY = GenerationConfig(num_beams=1, max_new_tokens=200)


@dataclass(frozen=True)
class Continuation:
    """`text` follows the prompt; `stopped` says why it ends: stop (</s> or a stop string) or length."""

    text: str
    score: float
    token_log_probs: list[float]
    stopped: str


@dataclass(frozen=True)
class Piece:
    """A token just generated. `text` is what can be shown of it: nothing yet, while a character or what may become a
    stop string is incomplete. `top`: the most likely tokens at its position, with their log-probabilities."""

    text: str
    token: int
    log_prob: float
    top: list[tuple[int, float]]


@dataclass(frozen=True)
class Prompt:
    """A text to continue. `heard` is called with each sampled piece of text as soon as it is generated (number of the
    continuation, piece), and returns whether to continue. `tokens`: those of the text, if they are known. `adapter`: by
    name, for a base with several."""

    text: str
    heard: Callable[[int, Piece], bool] | None = None
    tokens: Sequence[int] | None = None
    adapter: str = ""


@dataclass(frozen=True)
class Reading:
    """A prompt and its tokens."""

    prompt: Prompt
    tokens: list[int]


class Generator:
    """`recurrence`: how a model with a memory of earlier segments reads; None = it keeps all it has read. `streams`:
    batches of prompts continued in parallel. A sequence-to-sequence model encodes the prompt and writes the rest."""

    def __init__(
        self,
        model: LanguageModel | SequenceToSequence,
        tokenizer: Tokenizer,
        *,
        recurrence: Recurrence | None = None,
        streams: int = 1,
        adapters: Sequence[str] = (),
    ) -> None:
        self.model, self.tokenizer, self.recurrence = model.eval(), tokenizer, recurrence
        self.adapters = tuple(adapters)
        self.starter: Starter = (
            FromPrompt(model, tokenizer, recurrence=recurrence, adapters=adapters)
            if isinstance(model, LanguageModel)
            else FromSource([model], [tokenizer], adapters=adapters)
        )
        self.runner = Runner(self.starter, streams=streams)
        self.limit = model.limit if isinstance(model, LanguageModel) else model.source_limit
        self.device = model.device
        self.folder: Path | None = None

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
        """`num_return_sequences` continuations, best first; for several prompts, such a list for each.
        Options are those of `GenerationConfig`.

        >>> generator = heedful.load("runs/book")
        >>> [len(some) for some in generator.generate(["the", "a"], seed=1, n_best=3, max_new_tokens=5)]
        [3, 3]
        """
        config, others = with_options(config, options)
        if others:
            known = did_you_mean(next(iter(others)), GenerationConfig.model_fields)
            raise ValueError(f"unknown option {next(iter(others))!r}{known}")
        found = self.write(self.read([Prompt(text) for text in _listed(prompts)]), config)
        return found[0] if isinstance(prompts, str) else found

    def read(self, prompts: Sequence[Prompt]) -> list[Reading]:
        """Tokenise, once. A prompt that is too long for the model is truncated at its beginning."""
        texts = self.tokenizer.encode([prompt.text if prompt.tokens is None else "" for prompt in prompts])
        rows = [row if one.tokens is None else [*one.tokens] for row, one in zip(texts, prompts, strict=True)]
        last = 0 if self.limit is None else -(self.limit - 1)
        return [
            Reading(prompt, (row or [self.tokenizer.start])[last:]) for prompt, row in zip(prompts, rows, strict=True)
        ]

    def write(self, readings: Sequence[Reading], config: GenerationConfig, **options: Any) -> list[list[Continuation]]:
        """The continuations of each prompt, best first; for the options see `steps`."""
        found = dict(one for some in self.steps(readings, config, **options) for one in some)
        return [found[number] for number in range(len(readings))]

    def steps(
        self,
        readings: Sequence[Reading],
        config: GenerationConfig,
        *,
        batch_tokens: int = BATCH_TOKENS,
        dropped: Callable[[int], bool] | None = None,
    ) -> Iterator[list[tuple[int, list[Continuation]]]]:
        """After each step, the prompts that it finished, with their numbers. Prompts of similar length are continued
        together. `dropped`: whether a prompt has been cancelled, asked while it is being continued."""
        pieces: dict[tuple[int, int], _Pieces] = {}

        def heard(number: int, copy: int, token: int, log_probs: Tensor) -> bool:
            listener = readings[number].prompt.heard
            if listener is None:
                return True
            written = pieces.setdefault((number, copy), _Pieces(self.tokenizer, config.stop_strings))
            return listener(copy, written.piece(token, log_probs))

        listening = any(reading.prompt.heard for reading in readings)
        jobs = numbered(
            [reading.tokens for reading in readings],
            [Request(one.prompt.text, adapter=one.prompt.adapter) for one in readings],
        )
        for found in self.runner.steps(
            [(config, jobs)], batch_tokens=batch_tokens, dropped=dropped, heard=heard if listening else None
        ):
            yield [(number, [self._continuation(one, config) for one in some]) for number, some in found]

    def repeatable(self, reading: Reading) -> bool:
        """Whether it may be continued again after a failure: not if somebody has heard its first pieces."""
        return reading.prompt.heard is None

    def size(self, reading: Reading, config: GenerationConfig) -> int:
        """How much of a batch's budget a prompt takes, in tokens."""
        return self.starter.size(reading.tokens, config)

    def close(self) -> None:
        """Stop the streams, if any; the next call restarts them."""
        self.runner.close()

    def predict(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        """The greedy continuation of each."""
        found = self.generate(texts, GREEDY)
        return [{"text": one.text, "score": one.score, "finish_reason": one.stopped} for (one,) in found]

    def stream(self, prompt: str, config: GenerationConfig, heard: Callable[[int, Piece], bool]) -> list[Continuation]:
        """Sample, and report each piece of text as soon as it is generated; for `heard`, see `Prompt`."""
        return self.write(self.read([Prompt(prompt, heard)]), config)[0]

    @torch.inference_mode()
    def log_probs(self, text: str) -> list[float]:
        """The log-probability of each token after the first, in windows of the model's context: each by itself, or with
        the memory of those before."""
        if not isinstance(self.model, LanguageModel):
            raise ValueError("a model of kind " + self.model.config.kind + " gives no probability of a text by itself")
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

    def _continuation(self, hypothesis: Hypothesis, config: GenerationConfig) -> Continuation:
        whole = self.tokenizer.decode([hypothesis.tokens])[0]
        text = until(whole, config.stop_strings)
        stopped = "stop" if text != whole or hypothesis.ended else "length"
        return Continuation(text, hypothesis.score, hypothesis.token_log_probs, stopped)


def _listed(texts: str | Sequence[str]) -> Sequence[str]:
    return [texts] if isinstance(texts, str) else texts


class _Pieces:
    """Text that grows token by token, released as far as it is certain, up to a stop string."""

    def __init__(self, tokenizer: Tokenizer, stop_strings: Sequence[str]) -> None:
        self.eos, self.stop_strings = tokenizer.eos, stop_strings
        self.text = GrowingText(tokenizer)
        self.held = ""  # may be the beginning of a stop string

    def piece(self, token: int, log_probs: Tensor) -> Piece:
        ended = token == self.eos
        text = self.held + (self.text.rest() if ended else self.text.add(token))
        new = until(text, self.stop_strings)
        if new != text or ended:
            self.held = ""
        else:
            certain = len(text) - self._may_stop(text)
            new, self.held = text[:certain], text[certain:]
        values, places = log_probs.topk(min(TOP, len(log_probs)))
        top = list(zip(places.tolist(), values.tolist(), strict=True))
        return Piece(new, token, float(log_probs[token]), top)

    def _may_stop(self, text: str) -> int:
        """How many characters at the end may be the beginning of a stop string."""
        ends = [n for stop in self.stop_strings for n in range(1, len(stop)) if text.endswith(stop[:n])]
        return max(ends, default=0)


def refuse_both(adapters: Mapping[str, str | Path] | None, quantize: str) -> None:
    if adapters and quantize:
        raise ValueError("adapters share one base in float32; leave out quantize")


def load(
    folder: str | Path,
    *,
    recurrence: Recurrence | None = None,
    streams: int | None = None,
    adapters: Mapping[str, str | Path] | None = None,
    quantize: str = "",
) -> Generator:
    """The language model of a folder. `streams`: batches at once, by default one per core; `adapters`: those that
    prompts may choose, by name; `quantize`: int8, for a quarter of the weight memory."""
    folder = Path(folder)
    model = load_model(folder)
    if not isinstance(model, LanguageModel):
        kind = model.config.kind
        raise ValueError(f"{folder}: a model of kind {kind} does not continue texts; use heedful translate or predict")
    (tokenizer,) = open_tokenizers(folder, model, columns=1)
    refuse_both(adapters, quantize)
    open_adapters(folder, model, adapters or {})
    quantize_as(model, quantize)
    streams = cores() if streams is None else streams
    found = Generator(model, tokenizer, recurrence=recurrence, streams=streams, adapters=tuple(adapters or ()))
    found.folder = folder
    return found
