"""One engine per model: requests join and leave while others are being written.

Streams (threads) take batches from one queue. A batch holds requests of similar length with the same settings, as many
as its token budget allows; a request that is alone waits a moment for others, no longer than the latency cap. Each
request is answered when it is finished, whatever else is in its batch. A stream writes several batches in turn: see
`turns.py`. A disconnected client frees its place.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import torch

from heedful.decoding.generation import GenerationConfig
from heedful.serving.turns import AnswerT, Batch, Job, ReadingT, Settings, Turns

RequestT = TypeVar("RequestT", contravariant=True)
SEVERAL = 2  # batches of a kind that a stream writes in turn
PATIENCE = 10  # times the latency cap: after that, the second one is begun, however few are waiting
SMALL = 4  # a batch of a long text has this part of the others' tokens


class Worker(Protocol[RequestT, ReadingT, AnswerT]):
    """A translator or a language model: requests are tokenised on arrival and decoded in batches."""

    def read(self, requests: Sequence[RequestT]) -> list[ReadingT]: ...

    def size(self, reading: ReadingT, config: GenerationConfig) -> int: ...

    def repeatable(self, reading: ReadingT) -> bool:
        """Whether it may be written again after a failure: nobody has heard of its first try."""
        ...

    def steps(
        self,
        readings: Sequence[ReadingT],
        config: GenerationConfig,
        *,
        batch_tokens: int,
        dropped: Callable[[int], bool],
        **options: Any,
    ) -> Iterator[Sequence[tuple[int, AnswerT]]]:
        """After each step, the answers that it finished, with the places of their readings."""
        ...


class BusyError(Exception):
    """The queue is full: try again later."""


STOPPED = "the worker that had this request stopped and was restarted; try again"


class StoppedError(Exception):
    """A worker stopped before it had answered."""


class ClosedError(Exception):
    """The engine accepts no more requests."""


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
        self._idle = 0  # streams that have nothing to write
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
        torch.set_num_threads(threads)
        turns = Turns()
        while (jobs := self._next(turns)) or turns.batches:
            if running := [job for job in jobs if job.future.set_running_or_notify_cancel()]:
                turns.batches.append(self._begun(running))
            if turns.batches:
                self._advance(turns)

    def _next(self, turns: Turns) -> list[Job[ReadingT, AnswerT]]:
        """The jobs of a new batch; none if it is not yet time for one, or if the engine is closed and all are done."""
        with self._changed:
            while True:
                while self._queue and self._queue[0].gone:
                    self._queue.popleft()
                now = time.monotonic()
                first = next((job for job in self._heads() if self._may_begin(job, turns, now)), None)
                if first is not None:
                    return self._take(first)
                if turns.batches or (self._closed and not self._queue):
                    return []
                self._idle += 1
                self._changed.wait(max(0, self.wait - now + self._queue[0].arrived) if self._queue else None)
                self._idle -= 1

    def _heads(self) -> list[Job[ReadingT, AnswerT]]:
        """The oldest job of each kind."""
        found: dict[int, Job[ReadingT, AnswerT]] = {}
        for job in self._queue:
            if not job.gone:
                found.setdefault(job.kind, job)
        return [*found.values()]

    def _may_begin(self, job: Job[ReadingT, AnswerT], turns: Turns, now: float) -> bool:
        """Whether to begin a batch with this job: there are others to join it, or it has waited long enough; and the
        stream is not busy with more of its kind than are waiting."""
        if turns.batches and self._idle:  # another stream will
            return False
        age = now - job.arrived
        kin = [one for one in self._queue if one.kind == job.kind and not one.gone]
        if age < self.wait and sum(one.tokens for one in kin) < self._budget(job.settings) and not self._closed:
            return False
        running = [batch for batch in turns.batches if batch.kind == job.kind]
        if len(running) < SEVERAL:
            return len(kin) >= sum(len(batch.open) for batch in running) or age >= PATIENCE * self.wait
        return False

    def _budget(self, settings: Settings) -> int:
        config = settings.config
        return max(1, self.batch_tokens // (config.num_return_sequences if config.do_sample else config.num_beams))

    def _take(self, first: Job[ReadingT, AnswerT]) -> list[Job[ReadingT, AnswerT]]:
        """This job and others of its kind with the same settings, within the budget; the rest keep their order."""
        budget, key, longest = self._budget(first.settings), first.settings.key, first.tokens
        taken: list[Job[ReadingT, AnswerT]] = []
        rest: deque[Job[ReadingT, AnswerT]] = deque()
        for job in self._queue:
            if job.gone:
                continue
            longest_then = max(longest, job.tokens)
            fits = job is first or (longest_then * (len(taken) + 1) <= budget and job.kind == first.kind)
            if fits and job.settings.key == key:
                taken.append(job)
                longest = longest_then
            else:
                rest.append(job)
        self._queue = rest
        return taken

    def _begun(self, jobs: Sequence[Job[ReadingT, AnswerT]]) -> Batch[ReadingT, AnswerT]:
        # A text that fills more than a batch is written in small ones: its steps are what others have to wait for.
        large = sum(job.tokens for job in jobs) > self._budget(jobs[0].settings)
        batch_tokens = max(1, self.batch_tokens // SMALL) if large else self.batch_tokens

        def steps() -> Generator[Sequence[tuple[int, AnswerT]], None, None]:
            yield from self.worker.steps(
                [job.reading for job in jobs],
                jobs[0].settings.config,
                batch_tokens=batch_tokens,
                dropped=lambda place: jobs[place].gone,
                **jobs[0].settings.options,
            )

        return Batch(jobs, steps())

    def _advance(self, turns: Turns) -> None:
        """One step of a batch. Whatever happens in it, its requests are answered, and the others get their turn."""
        batch = turns.next()
        began = time.monotonic()
        try:
            found = next(batch.steps, None) if batch.wanted else None
        except Exception as error:  # each job is retried alone, so that only the failing one gets the error
            turns.remove(batch)
            turns.batches += self._again(batch, error)
            return
        except BaseException as error:
            logging.getLogger("heedful").error("a worker stopped: %r", error, exc_info=error)
            turns.remove(batch)
            batch.fail(StoppedError())
            return
        turns.took(batch, time.monotonic() - began)
        for place, answer in found or ():
            batch.answer(place, answer)
            batch.written += self.written(answer)
        if found is None or not batch.open:
            batch.fail(StoppedError())
            turns.remove(batch)
            self.watch.batch(len(batch.jobs), batch.written, batch.spent)

    def _again(self, batch: Batch[ReadingT, AnswerT], error: Exception) -> list[Batch[ReadingT, AnswerT]]:
        jobs = [batch.jobs[place] for place in sorted(batch.open)]
        alone = len(batch.jobs) == 1
        for job in jobs:
            if alone or not self.worker.repeatable(job.reading):
                job.future.set_exception(error)
        return [self._begun([job]) for job in jobs if not job.future.done()]


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
