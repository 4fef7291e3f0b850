"""How many threads compute, and how they wait for each other. Imported before torch: its OpenMP reads this only once.

A thread that has finished its part of a product waits for the others. By itself OpenMP spins for milliseconds: it keeps
a core busy with nothing, even if other programs need it or the thread that is awaited. We spin briefly, then sleep.

The number of threads is the least of the processors that this process may use, of their physical cores and of its
container's quota; OpenMP and torch know only the first. What the user has set is left alone.
"""

import os
import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

from heedful import processors

COUNT, SPINS = "OMP_NUM_THREADS", "GOMP_SPINCOUNT"
WAITS = ("OMP_WAIT_POLICY", SPINS, "KMP_BLOCKTIME")  # if one of these is set, the user has chosen how to wait
TURNS = 10_000  # of the loop in which a thread waits, before it sleeps; see benchmarks/busy.py
LATE = "torch was imported before heedful"


@dataclass(frozen=True)
class Threads:
    """`count`: None if torch decides. `ours`: whether how threads wait is ours to choose. `why` and `waiting`: for
    `heedful doctor`."""

    count: int | None
    why: str
    ours: bool
    waiting: str


def settle(environment: MutableMapping[str, str], *, late: bool) -> Threads:
    """Set what the user has not, for OpenMP to read. `late`: it has read it already."""
    count, why = _count(environment, late)
    if count is not None and not environment.get(COUNT):
        environment[COUNT] = str(count)
    asked = next((f"{name}={environment[name]}" for name in WAITS if environment.get(name)), "")
    if asked:
        return Threads(count, why, False, f"as {asked} says")
    if sys.platform != "linux":  # where torch comes with another OpenMP than GCC's
        return Threads(count, why, False, "by OpenMP's own rule")
    if late:
        return Threads(count, why, True, f"by OpenMP's own rule: {LATE}")
    environment[SPINS] = str(TURNS)
    return Threads(count, why, True, f"threads spin {TURNS:,} times, then sleep; sooner on a busy machine")


def _count(environment: Mapping[str, str], late: bool) -> tuple[int | None, str]:
    asked = environment.get(COUNT, "")
    if asked:
        return int(asked) if asked.isdigit() else None, f"as {COUNT}={asked} says"
    if late:
        return None, f"by torch's own rule: {LATE}"
    usable = processors.allowed()
    limits = {"usable": len(usable), "physical cores": processors.physical(usable)}
    quota = processors.quota()
    if quota is not None:
        limits[f"container's quota of {quota:g}"] = processors.whole(quota)
    return min(limits.values()), "the least of " + ", ".join(f"{name}: {limit}" for name, limit in limits.items())


SETTLED = settle(os.environ, late="torch" in sys.modules)
