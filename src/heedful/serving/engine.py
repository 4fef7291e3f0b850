"""One engine for all who ask: what arrives at about the same time is translated together.

Streams (threads) take batches from one queue, so that new requests start while others are being written. A batch holds
requests with the same settings, as many as its budget of tokens allows; a request that is alone waits a moment for
company, no longer than the latency cap. Who gives up frees the place.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch

from heedful.decoding.generation import GenerationConfig
from heedful.decoding.writer import Request
from heedful.translator import Translation, Translator


class BusyError(Exception):
    """The queue is full: come back later."""


class ClosedError(Exception):
    """The engine takes nothing new."""


@dataclass(frozen=True)
class Settings:
    """How a request wants to be translated. Only equals go together."""

    config: GenerationConfig
    alignment: bool = False
    history: bool = False

    @property
    def key(self) -> str:
        return f"{self.config.model_dump_json()} {self.alignment} {self.history}"


@dataclass(eq=False)
class Job:
    request: Request
    settings: Settings
    tokens: int
    arrived: float = field(default_factory=time.monotonic)
    future: "Future[Translation]" = field(default_factory=Future)
    gone: bool = False

    def give_up(self) -> None:
        """Nobody waits for it any longer."""
        self.gone = True
        self.future.cancel()


@dataclass
class Watch:
    """What the engine tells those who measure it; all of it may be ignored."""

    batch: Callable[[int, int, float], None] = lambda jobs, tokens, seconds: None


class Engine:
    def __init__(
        self,
        translator: Translator,
        *,
        streams: int = 1,
        batch_tokens: int = 2048,
        wait: float = 0.005,
        limit: int = 1024,
        watch: Watch | None = None,
    ) -> None:
        self.translator = translator
        self.batch_tokens, self.wait, self.limit = batch_tokens, wait, limit
        self.watch = watch or Watch()
        self._queue: deque[Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        share = max(1, torch.get_num_threads() // streams)
        self._threads = [threading.Thread(target=self._work, args=(share,), daemon=True) for _ in range(streams)]
        for thread in self._threads:
            thread.start()

    def submit(self, requests: Sequence[Request], settings: Settings) -> list[Job]:
        """All of them are taken, or none."""
        sizes = [len(row) + 1 for row in self.translator.source.encode([request.text for request in requests])]
        jobs = [Job(request, settings, size) for request, size in zip(requests, sizes, strict=True)]
        with self._changed:
            if self._closed:
                raise ClosedError
            if sum(not job.gone for job in self._queue) + len(jobs) > self.limit:
                raise BusyError
            self._queue.extend(jobs)
            self._changed.notify_all()
        return jobs

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def close(self) -> None:
        """Finish what was accepted, take nothing new."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self, threads: int) -> None:
        torch.set_num_threads(threads)
        while batch := self._next():
            self._translate(batch)

    def _next(self) -> list[Job]:
        """The next batch; nothing, when the engine is closed and all is done."""
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
                if batch := self._take():  # none, if all have gone meanwhile
                    return batch

    def _budget(self, settings: Settings) -> int:
        config = settings.config
        return max(1, self.batch_tokens // (config.num_return_sequences if config.do_sample else config.num_beams))

    def _is_full(self) -> bool:
        return sum(job.tokens for job in self._queue) >= self._budget(self._queue[0].settings)

    def _take(self) -> list[Job]:
        """The oldest and those that go with it, within the budget; the others stay in their order."""
        first = self._queue[0]
        budget, key, longest = self._budget(first.settings), first.settings.key, 0
        batch: list[Job] = []
        rest: deque[Job] = deque()
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

    def _translate(self, batch: list[Job]) -> None:
        batch = [job for job in batch if job.future.set_running_or_notify_cancel()]
        if batch:
            self._answer(batch)

    def _answer(self, batch: list[Job]) -> None:
        began = time.monotonic()
        settings = batch[0].settings
        try:
            found = self.translator.translate(
                [job.request for job in batch],
                settings.config,
                batch_tokens=self.batch_tokens,
                alignment=settings.alignment,
                history=settings.history,
                dropped=lambda index: batch[index].gone,
            )
        except Exception as error:  # whatever it is, those who wait must hear of it, and only those it concerns
            if len(batch) == 1:
                batch[0].future.set_exception(error)
            else:
                for job in batch:
                    self._answer([job])
            return
        for job, translation in zip(batch, found, strict=True):
            job.future.set_result(translation)
        self.watch.batch(len(batch), sum(len(one.tokens) + 1 for one in found), time.monotonic() - began)
