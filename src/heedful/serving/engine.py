"""One engine per model: requests that arrive at about the same time are answered together.

Streams (threads) take batches from one queue, so that new requests start while others are being written. A batch holds
requests with the same settings, as many as its token budget allows; a request that is alone waits a moment for others,
no longer than the latency cap. A disconnected client frees its slot.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

import torch

from heedful.decoding.generation import GenerationConfig

RequestT = TypeVar("RequestT", contravariant=True)
ReadingT = TypeVar("ReadingT")
AnswerT = TypeVar("AnswerT", covariant=True)


class Worker(Protocol[RequestT, ReadingT, AnswerT]):
    """A translator or a language model: requests are tokenised on arrival and decoded in batches."""

    def read(self, requests: Sequence[RequestT]) -> list[ReadingT]: ...

    def size(self, reading: ReadingT, config: GenerationConfig) -> int: ...

    def repeatable(self, reading: ReadingT) -> bool:
        """Whether it may be written again after a failure: nobody has heard of its first try."""
        ...

    def write(
        self,
        readings: Sequence[ReadingT],
        config: GenerationConfig,
        *,
        batch_tokens: int,
        dropped: Callable[[int], bool],
        **options: Any,
    ) -> Sequence[AnswerT]: ...


class BusyError(Exception):
    """The queue is full: try again later."""


STOPPED = "the worker that had this request stopped and was restarted; try again"


class StoppedError(Exception):
    """A worker stopped before it had answered."""


class ClosedError(Exception):
    """The engine accepts no more requests."""


@dataclass(frozen=True)
class Settings:
    """How a request is to be answered. Only requests with equal settings share a batch."""

    config: GenerationConfig
    alignment: bool = False
    links: bool = False
    history: bool = False

    @property
    def key(self) -> str:
        return f"{self.config.model_dump_json()} {self.options}"

    @property
    def options(self) -> dict[str, bool]:
        return {name: True for name in ("alignment", "links", "history") if getattr(self, name)}


@dataclass(eq=False)
class Job(Generic[ReadingT, AnswerT]):
    reading: ReadingT
    settings: Settings
    tokens: int
    arrived: float = field(default_factory=time.monotonic)
    future: "Future[AnswerT]" = field(default_factory=Future)
    gone: bool = False

    def give_up(self) -> None:
        """Cancel it: nobody is waiting for the answer."""
        self.gone = True
        self.future.cancel()


@dataclass
class Watch:
    """Callbacks from the engine, for metrics."""

    batch: Callable[[int, int, float], None] = lambda jobs, tokens, seconds: None


class Engine(Generic[RequestT, ReadingT, AnswerT]):
    """`written`: how many tokens an answer has, for metrics."""

    def __init__(
        self,
        worker: Worker[RequestT, ReadingT, AnswerT],
        *,
        written: Callable[[Any], int] = lambda answer: 0,
        streams: int = 1,
        batch_tokens: int = 2048,
        wait: float = 0.005,
        limit: int = 1024,
        watch: Watch | None = None,
    ) -> None:
        self.worker, self.written = worker, written
        self.batch_tokens, self.wait, self.limit = batch_tokens, wait, limit
        self.watch = watch or Watch()
        self._queue: deque[Job[ReadingT, AnswerT]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._share = max(1, torch.get_num_threads() // streams)
        self._threads = [self._started() for _ in range(streams)]

    def _started(self) -> threading.Thread:
        thread = threading.Thread(target=self._work, args=(self._share,), daemon=True)
        thread.start()
        return thread

    def submit(self, requests: Sequence[RequestT], settings: Settings) -> list[Job[ReadingT, AnswerT]]:
        """Accept all requests, or none."""
        readings = self.worker.read(requests)
        jobs: list[Job[ReadingT, AnswerT]] = [
            Job(reading, settings, self.worker.size(reading, settings.config)) for reading in readings
        ]
        with self._changed:
            if self._closed:
                raise ClosedError
            if sum(not job.gone for job in self._queue) + len(jobs) > self.limit:
                raise BusyError
            self._threads = [one if one.is_alive() else self._started() for one in self._threads]
            self._queue.extend(jobs)
            self._changed.notify_all()
        return jobs

    def choosing(self, **fields: Any) -> "Engine[RequestT, ReadingT, AnswerT]":
        """The same engine, for requests that get these fields."""
        return _Choosing(self, fields)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def close(self) -> None:
        """Finish the accepted requests; accept no more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self, threads: int) -> None:
        """Whatever happens to a batch, its requests are answered, and the next batch gets its turn."""
        torch.set_num_threads(threads)
        while batch := self._next():
            try:
                self._answer_pending(batch)
            except BaseException as error:
                logging.getLogger("heedful").error("a worker stopped: %r", error, exc_info=error)
                for job in batch:
                    if not job.future.done():
                        job.future.set_exception(StoppedError())

    def _next(self) -> list[Job[ReadingT, AnswerT]]:
        """The next batch; empty when the engine is closed and everything is done."""
        with self._changed:
            while True:
                while self._queue and self._queue[0].gone:
                    self._queue.popleft()
                if not self._queue:
                    if self._closed:
                        return []
                    self._changed.wait()
                    continue
                age = time.monotonic() - self._queue[0].arrived
                if age < self.wait and not self._is_full() and not self._closed:
                    self._changed.wait(self.wait - age)
                    continue
                if batch := self._take():  # empty if all were cancelled meanwhile
                    return batch

    def _budget(self, settings: Settings) -> int:
        config = settings.config
        return max(1, self.batch_tokens // (config.num_return_sequences if config.do_sample else config.num_beams))

    def _is_full(self) -> bool:
        return sum(job.tokens for job in self._queue) >= self._budget(self._queue[0].settings)

    def _take(self) -> list[Job[ReadingT, AnswerT]]:
        """The oldest job and others with the same settings, within the budget; the rest keep their order."""
        first = self._queue[0]
        budget, key, longest = self._budget(first.settings), first.settings.key, 0
        batch: list[Job[ReadingT, AnswerT]] = []
        rest: deque[Job[ReadingT, AnswerT]] = deque()
        for job in self._queue:
            longest_then = max(longest, job.tokens)
            if job.gone:
                continue
            if job.settings.key == key and (not batch or longest_then * (len(batch) + 1) <= budget):
                batch.append(job)
                longest = longest_then
            else:
                rest.append(job)
        self._queue = rest
        return batch

    def _answer_pending(self, batch: list[Job[ReadingT, AnswerT]]) -> None:
        batch = [job for job in batch if job.future.set_running_or_notify_cancel()]
        if batch:
            self._answer(batch)

    def _answer(self, batch: list[Job[ReadingT, AnswerT]]) -> None:
        began = time.monotonic()
        settings = batch[0].settings
        try:
            found = self.worker.write(
                [job.reading for job in batch],
                settings.config,
                batch_tokens=self.batch_tokens,
                dropped=lambda index: batch[index].gone,
                **settings.options,
            )
        except Exception as error:  # each job is retried alone, so that only the failing one gets the error
            for job in batch:
                if len(batch) == 1 or not self.worker.repeatable(job.reading):
                    job.future.set_exception(error)
                else:
                    self._answer([job])
            return
        for job, answer in zip(batch, found, strict=True):
            job.future.set_result(answer)
        self.watch.batch(len(batch), sum(map(self.written, found)), time.monotonic() - began)


class _Choosing(Engine[RequestT, ReadingT, AnswerT]):
    """See `Engine.choosing`. It has neither threads nor a queue of its own."""

    def __init__(self, engine: Engine[RequestT, ReadingT, AnswerT], fields: dict[str, Any]) -> None:
        self.engine, self.fields = engine, fields
        self.worker, self.written, self.watch, self.limit = engine.worker, engine.written, engine.watch, engine.limit

    def submit(self, requests: Sequence[RequestT], settings: Settings) -> list[Job[ReadingT, AnswerT]]:
        return self.engine.submit([replace(one, **self.fields) for one in requests], settings)  # type: ignore[type-var]

    @property
    def waiting(self) -> int:
        return 0  # they wait in the engine's queue, and count there

    def close(self) -> None:
        """Nothing to do: the engine is closed with its own model."""
