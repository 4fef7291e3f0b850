"""Batches that one stream writes in turn, step by step, so that a short text need not wait for a long one."""

import time
from bisect import bisect_right
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from heedful.decoding.generation import GenerationConfig

ReadingT = TypeVar("ReadingT")
AnswerT = TypeVar("AnswerT", covariant=True)
KINDS = (64, 256, 1024)  # tokens: texts of a similar length share a batch
OTHERS = 1 / 3  # of the time of the batch that comes first, the others have together


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

    @property
    def kind(self) -> int:
        return bisect_right(KINDS, self.tokens)

    def give_up(self) -> None:
        """Cancel it: nobody is waiting for the answer."""
        self.gone = True
        self.future.cancel()


@dataclass(eq=False)
class Batch(Generic[ReadingT, AnswerT]):
    """Jobs that are written together. Each is answered as soon as it is finished, and then leaves the batch. `steps`:
    after each, the answers that it finished, with the places of their jobs."""

    jobs: Sequence[Job[ReadingT, AnswerT]]
    steps: Generator[Sequence[tuple[int, AnswerT]], None, None]
    spent: float = 0.0  # seconds
    last: float = 0.0  # of them, by the last step
    written: int = 0  # tokens

    def __post_init__(self) -> None:
        self.open = set(range(len(self.jobs)))

    @property
    def kind(self) -> int:
        return self.jobs[0].kind

    @property
    def wanted(self) -> bool:
        """Whether anybody still waits for an answer."""
        return any(not self.jobs[place].gone for place in self.open)

    def answer(self, place: int, answer: Any) -> None:
        self.open.discard(place)
        self.jobs[place].future.set_result(answer)

    def fail(self, error: BaseException) -> None:
        """Say so to all who still wait."""
        for place in self.open:
            if not self.jobs[place].gone:
                self.jobs[place].future.set_exception(error)


class Turns:
    """The batches of a stream. Next is the one with the shortest texts, and of several the one that has had the least
    time; but a quarter of the time is for the others, in turn, so that none waits for ever."""

    def __init__(self) -> None:
        self.batches: list[Batch[Any, Any]] = []
        self.owed = 0.0  # seconds, to the others

    def next(self) -> Batch[Any, Any]:
        self.first = min(self.batches, key=lambda batch: (batch.kind, batch.spent))
        other = next((batch for batch in self.batches if batch is not self.first), None)
        if other is None:
            self.owed = 0.0
        elif self.owed >= other.last:
            self.batches.remove(other)
            self.batches.append(other)
            return other
        return self.first

    def remove(self, batch: Batch[Any, Any]) -> None:
        """Its memory is freed."""
        self.batches.remove(batch)
        batch.steps.close()

    def took(self, batch: Batch[Any, Any], seconds: float) -> None:
        batch.spent, batch.last = batch.spent + seconds, seconds
        self.owed = self.owed + OTHERS * seconds if batch is self.first else max(0.0, self.owed - seconds)
