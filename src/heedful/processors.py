"""How many processors this process may use: by its affinity, by the quota of its container, and by physical cores.

Paths are read below `root`, so that tests can invent a machine.
"""

import math
import os
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath

ROOT = Path("/")


def allowed() -> frozenset[int]:
    """The numbers of the processors on which the system may run this process."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def physical(processors: Collection[int], root: Path = ROOT) -> int:
    """The physical cores of these processors; two of them may be threads of one core."""
    cores = set()
    for number in processors:
        topology = root / f"sys/devices/system/cpu/cpu{number}/topology"
        siblings = _text(topology / "core_cpus_list") or _text(topology / "thread_siblings_list")
        cores.add(siblings or str(number))
    return len(cores)


def quota(root: Path = ROOT) -> float | None:
    """How many processors' time the container gets, or None if there is no limit. A group is limited by those around
    it too: the least counts."""
    return min(_quotas(root), default=None)


def _quotas(root: Path) -> Iterator[float]:
    groups = [line.split(":", 2) for line in _text(root / "proc/self/cgroup").splitlines() if line.count(":") >= 2]
    for line in _text(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        mounted, place = PurePosixPath(fields[3]), root / fields[4].lstrip("/")
        for _, controllers, path in groups:
            if kind[0] == "cgroup2" and not controllers:
                read = _second
            elif kind[0] == "cgroup" and "cpu" in kind[2].split(",") and "cpu" in controllers.split(","):
                read = _first
            else:
                continue
            for folder in _upwards(PurePosixPath(path), mounted):
                found = read(place / folder)
                if found is not None:
                    yield found


def _upwards(path: PurePosixPath, mounted: PurePosixPath) -> list[PurePosixPath]:
    """The group and those around it, below the mount point. A container may see its own group as the root: the path
    is then one of the host, and nothing below the mount point."""
    own = path.relative_to(mounted) if path.is_relative_to(mounted) else PurePosixPath()
    return [PurePosixPath()] if ".." in own.parts else [own, *own.parents]


def _second(group: Path) -> float | None:
    """cgroup v2: `max 100000`, or microseconds out of every so many."""
    limit, _, period = _text(group / "cpu.max").partition(" ")
    return _share(limit, period or "100000")


def _first(group: Path) -> float | None:
    """cgroup v1: -1 is no limit."""
    return _share(_text(group / "cpu.cfs_quota_us"), _text(group / "cpu.cfs_period_us"))


def _share(limit: str, period: str) -> float | None:
    return int(limit) / int(period) if limit.isdigit() and period.isdigit() and int(period) else None


def whole(share: float) -> int:
    """Rounded down, and at least one: with a thread too many, all wait for one that is stopped, in every period."""
    return max(1, math.floor(share))


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
