"""Notice that other programs need the processors, and let threads that wait for each other sleep at once.

Where nothing else runs, it pays to spin for a while before sleeping: what a thread waits for is microseconds away.
Beside other programs it may be milliseconds away: the awaited thread is not running, perhaps for want of the very core.

The system counts how long a thread was ready to run but did not. If that is much, we start a team of threads that do
nothing: GCC's OpenMP then has more threads than processors, for which case it lets all of them spin a hundred times at
most (see GOMP_SPINCOUNT in its manual). And what is soon done by one thread waits for no other: `few`. After some
seconds, or when the machine is free, the team is dissolved.
"""

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from heedful import processors, threads

PERIOD = 0.1  # seconds between two looks
WEIGHT = 0.2  # of the latest look in the average: short bursts of other work are not worth it
BUSY, FREE = 0.2, 0.1  # seconds of waiting in a second: busy above the first, free again below the second
HOLD = 2.0  # seconds; with one thread for small work there may be nothing to wait for until there are two again
SMALL = 1 << 22  # multiplications that take one thread less than two need where one of them may not run
TASKS = Path("/proc/self/task")
NOTICED = threading.Event()  # that the machine is busy
_watching = threading.Event()


def watch() -> None:
    """From now on, until the process ends. Nothing is done where the user has chosen how threads wait."""
    if threads.SETTLED.ours and threads.SETTLED.count != 1 and not _watching.is_set():
        _watching.set()
        threading.Thread(target=_watch, args=(Team(), waited, time.sleep, time.monotonic), daemon=True).start()


def few(operations: int, count: int) -> int:
    """How many of `count` threads are to do this."""
    return 1 if operations < SMALL and NOTICED.is_set() else count


def _watch(
    team: "Team", waited: Callable[[], float], pause: Callable[[float], None], clock: Callable[[], float]
) -> None:
    while openmp() is None:
        pause(PERIOD)
    load, before, then = Load(), waited(), clock()
    while True:
        pause(PERIOD)
        so_far, now = waited(), clock()
        if load.is_high((so_far - before) / (now - then), now):
            NOTICED.set()
            team.begin()
        else:
            NOTICED.clear()
            team.end()
        before, then = so_far, now


class Load:
    """Whether the machine is busy, judged by the seconds of waiting in each second."""

    def __init__(self) -> None:
        self.mean, self.high, self.until = 0.0, False, 0.0

    def is_high(self, share: float, now: float) -> bool:
        self.mean += WEIGHT * (max(0.0, share) - self.mean)
        if self.mean > BUSY:
            self.until = now + HOLD
        self.high = now < self.until or (self.high and self.mean > FREE)
        return self.high


class Team:
    """OpenMP threads that sleep, so many that there are more of them than processors."""

    def __init__(self) -> None:
        self._end: threading.Event | None = None

    def begin(self) -> None:
        if self._end is None:
            self._end = threading.Event()
            threading.Thread(target=_lead, args=(self._end,), daemon=True).start()

    def end(self) -> None:
        if self._end is not None:
            self._end.set()
            self._end = None


def _lead(end: threading.Event) -> None:
    """Threads that are started here end with this one."""
    parallel = openmp()
    if parallel is not None:
        nothing = ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p)  # a function that may be called by each
        parallel(nothing, None, len(processors.allowed()) + 1, 0)
        end.wait()


def openmp() -> Any:
    """OpenMP's function that starts threads, of the library that torch has brought; None before torch is imported."""
    return getattr(ctypes.CDLL(None), "GOMP_parallel", None)


def waited() -> float:
    """Seconds that the threads of this process were ready to run but did not; zero where the system does not say."""
    total = 0
    for task in TASKS.glob("*/schedstat"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # the thread has ended, or there are no numbers
            total += int(task.read_text().split()[1])
    return total / 1e9
