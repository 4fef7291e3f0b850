"""Several batches in parallel, each on its own core.

Two batches in parallel on one core each take less time than one after the other on two cores: small matrix products do
not parallelise well. The workers are forks of this process, so the weights are in memory once, and they do not share
the GIL. Each has one thread and never starts another, which is what makes forking a multi-threaded process safe here.
"""

import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Generic, TypeVar, cast

import torch

from heedful.memory import keep_freed_memory

Item = TypeVar("Item")
Result = TypeVar("Result")


def cores() -> int:
    """How many streams are worthwhile here: one if processes cannot be forked, if a GPU does the work, or if this is
    itself a worker, which may not fork."""
    daemon = multiprocessing.current_process().daemon
    forks = sys.platform == "linux" and not torch.cuda.is_available() and not daemon
    return torch.get_num_threads() if forks else 1


class Streams(Generic[Item, Result]):
    """`with Streams(work, 2) as streams: streams.map(items)`. `work` sees the state of this process at their start."""

    def __init__(self, work: Callable[[Item], Result], count: int) -> None:
        context = multiprocessing.get_context("fork")
        self._workers: list[tuple[Connection, BaseProcess]] = []
        for _ in range(count):
            ours, theirs = context.Pipe()
            inherited = [pipe for pipe, _ in self._workers] + [ours]
            seed = int(torch.randint(2**62, ()))  # or all workers would draw the same samples
            process = context.Process(target=_serve, args=(work, theirs, inherited, seed), daemon=True)
            with warnings.catch_warnings():  # Python warns about threads, which the workers never use
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
            theirs.close()
            self._workers.append((ours, process))

    def map(self, items: Sequence[Item]) -> list[Result]:
        """Results in the order of the items, which are also started in that order."""
        results: dict[int, Result] = {}
        todo = iter(enumerate(items))
        busy: dict[Connection, int] = {}
        for pipe, _ in self._workers:
            self._give(pipe, todo, busy)
        while busy:
            for ready in wait(list(busy)):
                pipe = cast(Connection, ready)
                try:
                    done, answer = pipe.recv()
                except EOFError:
                    raise RuntimeError("a worker process has died; is there enough memory?") from None
                if not done:
                    raise answer
                results[busy.pop(pipe)] = answer
                self._give(pipe, todo, busy)
        return [results[place] for place in range(len(items))]

    def _give(self, pipe: Connection, todo: "enumerate[Item]", busy: dict[Connection, int]) -> None:
        for place, item in todo:
            pipe.send(item)
            busy[pipe] = place
            return

    def __enter__(self) -> "Streams[Item, Result]":
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    def close(self) -> None:
        for pipe, process in self._workers:
            pipe.close()
            process.terminate()
            process.join()
        self._workers = []


def _serve(work: Callable[[Item], Result], pipe: Connection, others: list[Connection], seed: int) -> None:
    for other in others:  # otherwise a worker would keep another's pipe open
        other.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles it
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    keep_freed_memory()
    try:
        while True:
            item = pipe.recv()
            try:
                answer: tuple[bool, object] = True, work(item)
            except Exception as error:
                answer = False, error
            pipe.send(answer)
    except (EOFError, BrokenPipeError):
        return
