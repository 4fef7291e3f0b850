"""On a busy machine threads yield: what is noticed, what is done, and that results stay the same."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from heedful import busy
from heedful.model.cpu.kernels import NATIVE, Panels

openmp = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere torch has another OpenMP")


@pytest.fixture
def noticed():
    busy.NOTICED.set()
    yield
    busy.NOTICED.clear()


def judged(shares):
    load = busy.Load()
    return [load.is_high(share, number * busy.PERIOD) for number, share in enumerate(shares)]


def test_short_bursts_of_other_work_are_not_heeded():
    """Windows as they were measured on a machine with nothing else to do."""
    assert not any(judged([*[0.01] * 9, 0.75, 0.29, 0.06, *[0.01] * 9, 0.36, 0.41, 0.05, *[0.06] * 9, 0.39, 0.22]))


@pytest.mark.parametrize("share", [0.3, 0.5, 0.9])
def test_a_busy_machine_is_noticed_within_a_second_and_as_long_as_it_lasts(share):
    found = judged([0.0] * 20 + [share] * 50)
    assert not any(found[:20]) and all(found[31:])


def test_a_free_machine_is_noticed_after_some_seconds():
    found = judged([0.5] * 20 + [0.0] * 40)
    assert all(found[3 : 20 + int(busy.HOLD / busy.PERIOD)]) and not any(found[-10:])


def test_threads_that_end_take_their_past_with_them():
    """The sum of all threads then falls: that is no waiting."""
    assert not any(judged([-3.0, 0.0, 0.0]))


@openmp
def test_what_is_noticed_begins_and_ends_the_team():
    class Seen:
        def __init__(self):
            self.calls = []

        def begin(self):
            self.calls.append((True, busy.NOTICED.is_set()))

        def end(self):
            self.calls.append((False, busy.NOTICED.is_set()))

    class OverError(Exception):
        pass

    clock = {"now": 0.0, "waited": 0.0}

    def pause(seconds):
        if clock["now"] > 10:
            raise OverError
        clock["now"] += seconds
        clock["waited"] += 0.6 * seconds if clock["now"] < 3 else 0.0

    seen = Seen()
    with pytest.raises(OverError):
        busy._watch(seen, lambda: clock["waited"], pause, lambda: clock["now"])
    begun = [number for number, (begins, _) in enumerate(seen.calls) if begins]
    assert begun == list(range(begun[0], begun[-1] + 1)) and 0 < begun[0] < 5 and 45 < begun[-1] < 60
    assert all(begins == noticed for begins, noticed in seen.calls)
    assert not busy.NOTICED.is_set()


@openmp
def test_the_team_has_more_threads_than_there_are_processors_and_goes_without_a_trace():
    code = """if True:
        import os, time, torch
        from heedful import busy, processors

        def settles_at(wanted):
            for _ in range(100):
                if threads() == wanted:
                    return True
                time.sleep(0.05)

        threads = lambda: len(os.listdir("/proc/self/task"))
        own, team = threads(), busy.Team()
        for _ in range(3):
            team.begin(), team.begin()
            assert settles_at(own + len(processors.allowed()) + 1), threads()
            team.end(), team.end()
            assert settles_at(own), threads()
    """
    subprocess.run([sys.executable, "-c", code], check=True)


@openmp
def test_nobody_watches_where_the_user_has_chosen():
    code = "import threading; from heedful import busy; busy.watch(); busy.watch(); print(threading.active_count())"
    for chosen, expected in (
        ({"OMP_NUM_THREADS": "2"}, "2"),
        ({"OMP_NUM_THREADS": "1"}, "1"),
        ({"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "active"}, "1"),
    ):
        own = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env={**own, **chosen}, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == expected, chosen


def test_the_system_says_how_long_threads_waited():
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("this system does not")
    assert busy.waited() > 0


@pytest.mark.skipif(NATIVE is None, reason="needs our kernels")
def test_small_work_takes_one_thread_and_comes_out_the_same(noticed):
    assert busy.few(busy.SMALL - 1, 7) == 1 and busy.few(busy.SMALL, 7) == 7
    torch.manual_seed(1)
    panels, x, before = Panels(torch.randn(521, 257)), torch.randn(13, 257), torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        alone = panels(x)
        busy.NOTICED.clear()
        assert busy.few(1, 7) == 7
        assert torch.equal(panels(x), alone)
    finally:
        torch.set_num_threads(before)
