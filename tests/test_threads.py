"""How many threads there are and how they wait: on invented machines, and in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from heedful import processors, threads
from heedful.model.cpu.kernels import NATIVE

FIRST = "36 31 0:29 {root} {place} rw,relatime - cgroup cgroup rw,{controllers}\n"
SECOND = "41 31 0:38 {root} {place} rw,relatime - cgroup2 cgroup2 rw\n"


def machine(root: Path, groups: str, mounts: str, files: dict[str, str]) -> Path:
    for name, text in {"proc/self/cgroup": groups, "proc/self/mountinfo": mounts, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(("limit", "quota"), [("max 100000", None), ("250000 100000", 2.5), ("70000", 0.7), ("", None)])
def test_the_quota_of_a_container_with_a_namespace_of_its_own(tmp_path, limit, quota):
    mounts = SECOND.format(root="/", place="/sys/fs/cgroup")
    assert processors.quota(machine(tmp_path, "0::/\n", mounts, {"sys/fs/cgroup/cpu.max": limit})) == quota


def test_the_least_quota_of_all_groups_around_counts(tmp_path):
    mounts = SECOND.format(root="/", place="/sys/fs/cgroup")
    files = {
        "sys/fs/cgroup/a.slice/b.scope/cpu.max": "700000 100000",
        "sys/fs/cgroup/a.slice/cpu.max": "300000 100000",
        "sys/fs/cgroup/other.slice/cpu.max": "100000 100000",
    }
    assert processors.quota(machine(tmp_path, "0::/a.slice/b.scope\n", mounts, files)) == 3


def test_the_quota_of_the_first_kind_of_groups(tmp_path):
    """With both kinds mounted, as a hybrid system has them, and other controllers beside."""
    mounts = FIRST.format(root="/", place="/sys/fs/cgroup/cpu,cpuacct", controllers="cpu,cpuacct")
    mounts += FIRST.format(root="/", place="/sys/fs/cgroup/cpuset", controllers="cpuset")
    mounts += SECOND.format(root="/", place="/sys/fs/cgroup/unified")
    groups = "4:cpuset:/\n3:cpu,cpuacct:/jobs/seven\n0::/\n"
    files = {
        "sys/fs/cgroup/cpu,cpuacct/jobs/seven/cpu.cfs_quota_us": "550000\n",
        "sys/fs/cgroup/cpu,cpuacct/jobs/seven/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/cpu,cpuacct/jobs/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu,cpuacct/jobs/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/cpuset/cpu.cfs_quota_us": "100000\n",
        "sys/fs/cgroup/cpuset/cpu.cfs_period_us": "100000\n",
    }
    assert processors.quota(machine(tmp_path, groups, mounts, files)) == 5.5


@pytest.mark.parametrize("root", ["/docker/abc", "/", "/elsewhere"])
def test_a_container_that_is_told_its_group_of_the_host_finds_its_quota_at_the_mount_point(tmp_path, root):
    mounts = FIRST.format(root=root, place="/sys/fs/cgroup/cpu", controllers="cpu")
    place = "sys/fs/cgroup/cpu/cpu.cfs_{}_us"
    files = {place.format("quota"): "200000", place.format("period"): "50000"}
    assert processors.quota(machine(tmp_path, "2:cpu:/docker/abc\n", mounts, files)) == 4


@pytest.mark.parametrize("groups", ["", "what is this\n", "0::/../../other\n"])
def test_what_cannot_be_read_is_no_limit(tmp_path, groups):
    assert processors.quota(tmp_path) is None
    mounts = "nothing\n" + SECOND.format(root="/", place="/sys/fs/cgroup")
    assert processors.quota(machine(tmp_path, groups, mounts, {})) is None


@pytest.mark.parametrize(("quota", "count"), [(0.5, 1), (1, 1), (1.99, 1), (7.5, 7)])
def test_quotas_are_rounded_down_but_to_no_less_than_one(quota, count):
    assert processors.whole(quota) == count


def test_two_threads_of_a_core_are_one(tmp_path):
    for number, siblings in enumerate(["0,3", "1,4", "2,5"] * 2):
        place = tmp_path / f"sys/devices/system/cpu/cpu{number}/topology"
        place.mkdir(parents=True)
        (place / ("core_cpus_list" if number % 3 else "thread_siblings_list")).write_text(siblings + "\n")
    assert processors.physical(range(6), tmp_path) == 3
    assert processors.physical([1, 4], tmp_path) == 1
    assert processors.physical(range(6), tmp_path / "nothing is known") == 6


@pytest.mark.parametrize(
    ("usable", "cores", "quota", "count", "why"),
    [
        (7, 7, None, 7, "the least of usable: 7, physical cores: 7"),
        (7, 5, None, 5, "the least of usable: 7, physical cores: 5"),
        (7, 5, 3.7, 3, "the least of usable: 7, physical cores: 5, container's quota of 3.7: 3"),
    ],
)
def test_the_least_limit_counts(monkeypatch, usable, cores, quota, count, why):
    monkeypatch.setattr(processors, "allowed", lambda: frozenset(range(usable)))
    monkeypatch.setattr(processors, "physical", lambda processors: cores)
    monkeypatch.setattr(processors, "quota", lambda: quota)
    environment: dict[str, str] = {}
    found = threads.settle(environment, late=False)
    assert (found.count, found.why, environment[threads.COUNT]) == (count, why, str(count))


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"])
def test_what_the_user_has_set_is_left_alone(name):
    environment = {"OMP_NUM_THREADS": "5", name: "7"}
    found = threads.settle(environment, late=False)
    assert environment == {"OMP_NUM_THREADS": "5", name: "7"}
    assert (found.why, found.waiting) == ("as OMP_NUM_THREADS=5 says", f"as {name}=7 says")


def test_after_torch_it_is_too_late_and_said():
    environment: dict[str, str] = {}
    found = threads.settle(environment, late=True)
    assert not environment and found.count is None
    assert found.why == "by torch's own rule: torch was imported before heedful"
    assert found.waiting == "by OpenMP's own rule: torch was imported before heedful"


def run(code: str, **environment: str) -> str:
    own = {name: value for name, value in os.environ.items() if name not in (threads.COUNT, *threads.WAITS)}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env={**own, **environment}, capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere torch has another OpenMP")
def test_openmp_is_told_in_time():
    """It prints what it has read, when it is loaded."""
    code = (
        "import heedful, ctypes, sys; assert 'torch' not in sys.modules; import torch; print(torch.get_num_threads())"
    )
    own = {name: value for name, value in os.environ.items() if name not in (threads.COUNT, *threads.WAITS)}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**own, "OMP_DISPLAY_ENV": "verbose"}, capture_output=True, text=True
    )
    assert f"GOMP_SPINCOUNT = '{threads.TURNS}'" in done.stderr
    assert f"OMP_NUM_THREADS = '{done.stdout.strip()}'" in done.stderr


@pytest.mark.skipif(sys.platform != "linux" or NATIVE is None, reason="needs our kernels and /proc")
def test_our_kernels_use_the_openmp_of_torch():
    """Two of them would each start threads, and those of one would wait beside those of the other."""
    code = (
        "import torch; from heedful.model.cpu.kernels import Panels; torch.set_num_threads(2);"
        "Panels(torch.ones(521, 257))(torch.ones(61, 257));"
        "print(*{line.split()[-1] for line in open('/proc/self/maps') if 'omp' in line.split()[-1].rpartition('/')[2]})"
    )
    loaded = [Path(name).name for name in run(code).split()]
    assert len(loaded) == 1 and loaded[0].startswith("libgomp"), loaded
