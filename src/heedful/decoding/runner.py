"""Tokens in, hypotheses out, for every autoregressive model: batches by length, several in parallel, and the search
that fits the settings. Only the start of a batch depends on the kind of model: `from_source.py`, `from_prompt.py`.
"""

import math
import threading
import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from heedful.data.batches import cut
from heedful.decoding.beam import Found, History, Hypothesis, gathered, search_steps
from heedful.decoding.diverse import diverse_steps
from heedful.decoding.generation import GenerationConfig
from heedful.decoding.greedy import greedy_steps
from heedful.decoding.rules import Rules
from heedful.decoding.sampling import sample_steps
from heedful.decoding.stepper import Stepper
from heedful.decoding.streams import Streams
from heedful.model.architecture import Model

# (job number, sample number, token, log-probabilities of all tokens) -> whether to continue
Heard = Callable[[int, int, int, Tensor], bool]


@dataclass(frozen=True)
class Request:
    """An input text, what its output must begin with, and phrases that the output must and must not contain.
    `context`: the sentences before it and their translations, for models that read them. `source` and `target`: its
    languages, for models that know several. `length`: short, medium, long or a number, for models with length tokens.
    `adapter`: by name, for a base with several."""

    text: str
    prefix: str = ""
    required: Sequence[str] = ()
    banned: Sequence[str] = ()
    context: Sequence[tuple[str, str]] = ()
    source: str = ""
    target: str = ""
    length: str = ""
    adapter: str = ""

    def __post_init__(self) -> None:
        for phrase in self.required:
            for other in self.banned:
                if other.strip() and other.strip() in phrase:
                    raise ValueError(f"the phrase {phrase!r} is required, but {other!r} is banned")


@dataclass(frozen=True)
class Job:
    """A text to decode: its index in the input, and its tokens."""

    number: int
    tokens: list[int]
    request: Request


@dataclass(frozen=True)
class Start:
    """A batch that is ready to decode. Rows are the jobs; `first`: the token after which each one starts; `limits`: how
    many tokens each may write."""

    stepper: Stepper
    first: Tensor
    limits: list[int]
    rules: Rules


class Starter(Protocol):
    """What a runner needs to know about a model or an ensemble."""

    @property
    def models(self) -> Sequence[Model]: ...

    def size(self, tokens: Sequence[int], config: GenerationConfig) -> int:
        """How much of a batch's budget a text takes, in tokens."""
        ...

    @property
    def key(self) -> object:
        """Changes when anything other than the models' parameters does."""
        ...

    def refresh(self) -> None:
        """Pick up changed weights."""
        ...


class Stepwise(Starter, Protocol):
    """A starter of a model that writes word by word."""

    def start(self, jobs: Sequence[Job], config: GenerationConfig) -> Start: ...


@runtime_checkable
class ParallelWriter(Starter, Protocol):
    """A starter of a model that writes all words at once, so that there is nothing to search step by step."""

    def write(self, jobs: Sequence[Job], config: GenerationConfig) -> list[list[Hypothesis]]:
        """The hypotheses of each job, best first."""
        ...


@dataclass(frozen=True)
class Batch:
    """Jobs that are decoded together."""

    config: GenerationConfig
    jobs: list[Job]
    size: int


class Runner:
    """`streams`: how many batches are decoded in parallel, each in its own process."""

    def __init__(self, starter: Stepwise | ParallelWriter, *, streams: int = 1) -> None:
        self.starter, self.streams = starter, streams
        self._mapping = threading.Lock()  # the workers' pipes serve one caller at a time
        self._several: tuple[object, Streams[Batch, list[list[Hypothesis]]], Callable[[], object]] | None = None

    def run(
        self, groups: Sequence[tuple[GenerationConfig, Sequence[Job]]], **options: Any
    ) -> dict[int, list[Hypothesis]]:
        """The hypotheses of each job, by its number, best first; for the options see `steps`."""
        return dict(one for some in self.steps(groups, **options) for one in some)

    def steps(
        self,
        groups: Sequence[tuple[GenerationConfig, Sequence[Job]]],
        *,
        batch_tokens: int,
        batch_size: int | None = None,
        histories: list[History] | None = None,
        dropped: Callable[[int], bool] | None = None,
        heard: Heard | None = None,
    ) -> Iterator[Found]:
        """After each step, the jobs that it finished: their numbers and hypotheses, best first. Jobs of a group share
        their settings. A batch has at most `batch_tokens` tokens, times beams, and `batch_size` jobs. `dropped`:
        whether a job has been cancelled, asked while it is being decoded. `heard`: called with each sampled token.

        With several streams all batches are one step, unless somebody listens or may cancel."""
        batches = [batch for config, jobs in groups for batch in self._batches(config, jobs, batch_tokens, batch_size)]
        batches.sort(key=lambda batch: -batch.size)  # the largest first, so that streams end together
        if min(self.streams, len(batches)) > 1 and histories is None and dropped is None and heard is None:
            with self._mapping:
                try:
                    found = self._started().map(batches)
                except BaseException:  # some workers may still be running
                    self.close()
                    raise
            done = [
                (job.number, hypotheses)
                for batch, each in zip(batches, found, strict=True)
                for job, hypotheses in zip(batch.jobs, each, strict=True)
            ]
            yield _checked(done, dropped)
            return
        for batch in batches:
            for some in self._steps(batch, histories, dropped, heard):
                yield _checked([(batch.jobs[place].number, hypotheses) for place, hypotheses in some], dropped)

    def close(self) -> None:
        """Stop the streams, if any; the next call restarts them."""
        if self._several is not None:
            self._several[2]()
            self._several = None

    def _batches(
        self, config: GenerationConfig, jobs: Sequence[Job], batch_tokens: int, batch_size: int | None
    ) -> list[Batch]:
        """Batches of jobs of similar length."""
        if not jobs:
            return []
        sizes = np.array([[self.starter.size(job.tokens, config)] for job in jobs])
        width = _copies(config) if config.do_sample else config.num_beams
        found = []
        for chosen in cut(np.arange(len(jobs)), sizes, max(1, batch_tokens // width)):
            step = batch_size or len(chosen)
            for place in range(0, len(chosen), step):
                some = chosen[place : place + step]
                found.append(Batch(config, [jobs[index] for index in some], len(some) * int(sizes[some].max())))
        return found

    def _started(self) -> "Streams[Batch, list[list[Hypothesis]]]":
        """The streams, with the weights as they are now."""
        held = [parameter for model in self.starter.models for parameter in model.parameters()]
        weights = [(id(one), 0 if one.is_inference() else one._version) for one in held]
        now = (weights, self.streams, self.starter.key)
        if self._several is None or self._several[0] != now:
            self.close()
            self.starter.refresh()
            several = Streams(self._search, self.streams)
            self._several = (now, several, weakref.finalize(self, several.close))
        return self._several[1]

    def _search(self, batch: Batch) -> list[list[Hypothesis]]:
        """The hypotheses of each job."""
        return gathered(self._steps(batch), len(batch.jobs))

    def _steps(
        self,
        batch: Batch,
        histories: list[History] | None = None,
        dropped: Callable[[int], bool] | None = None,
        heard: Heard | None = None,
    ) -> Iterator[Found]:
        """After each step, the jobs that it finished, by their place in the batch."""
        config = batch.config
        if isinstance(self.starter, ParallelWriter):
            yield list(enumerate(self.starter.write(batch.jobs, config)))
            return
        copies = _copies(config)
        jobs = [job for job in batch.jobs for _ in range(copies)]
        with torch.inference_mode():
            start = self.starter.start(jobs, config)
        stepper, first, limits, rules, eos = start.stepper, start.first, start.limits, start.rules, start.rules.eos
        gone = (lambda row: False) if dropped is None else lambda row: dropped(jobs[row].number)

        def on_token(row: int, token: int, log_probs: Tensor) -> bool:
            wanted = heard is None or heard(jobs[row].number, row % copies, token, log_probs)
            return wanted and not gone(row)

        if config.do_sample:
            names = [_name(job, row % copies) for row, job in enumerate(jobs)]
            drawn = sample_steps(
                stepper, first, config, eos=eos, limits=limits, rules=rules, names=names, on_token=on_token
            )
            yield from _by_job(drawn, copies)
        elif config.num_beam_groups > 1:
            yield from diverse_steps(stepper, first, config, eos=eos, limits=limits, rules=rules)
        elif config.num_beams == 1 and histories is None and not rules.look_back:
            yield from greedy_steps(stepper, first, limits=limits, rules=rules, dropped=gone)
        else:
            into = None if histories is None else [histories[job.number] for job in jobs]
            yield from search_steps(
                stepper, first, config, eos=eos, limits=limits, rules=rules, histories=into, dropped=gone
            )


def _checked(found: Found, dropped: Callable[[int], bool] | None) -> Found:
    for number, hypotheses in found:
        finite = hypotheses and all(math.isfinite(one.score) for one in hypotheses)
        if not finite and (dropped is None or not dropped(number)):
            raise ValueError("the model computes NaN or infinite numbers: its weights are damaged or too large")
    return found


def _by_job(steps: Iterator[Found], copies: int) -> Iterator[Found]:
    """Samples as the hypotheses of their texts, once all of a text are there."""
    drawn: dict[int, list[tuple[int, Hypothesis]]] = {}
    for some in steps:
        ready: Found = []
        for row, (hypothesis,) in some:
            rows = drawn.setdefault(row // copies, [])
            rows.append((row, hypothesis))
            if len(rows) == copies:
                ready.append((row // copies, [one for _, one in sorted(rows, key=lambda one: (-one[1].score, one[0]))]))
        yield ready


def _copies(config: GenerationConfig) -> int:
    """How many samples of a text are drawn in parallel."""
    return config.num_return_sequences if config.do_sample else 1


def _name(job: Job, copy: int) -> int:
    """What a sample's random numbers depend on besides the seed: the text itself, not its index."""
    return zlib.crc32(np.array(job.tokens, dtype=np.int64).tobytes()) + copy


def numbered(rows: Sequence[list[int]], requests: Sequence[Request]) -> list[Job]:
    """The jobs of these texts; an empty text has none."""
    both = enumerate(zip(rows, requests, strict=True))
    return [Job(number, row, request) for number, (row, request) in both if row]
