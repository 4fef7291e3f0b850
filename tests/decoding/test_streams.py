"""Batches side by side: the same results in the same order, and no error lost."""

import os
import signal

import pytest

from heedful.decoding.streams import Streams


def test_results_come_in_order():
    with Streams(lambda number: number * number, 3) as streams:
        assert streams.map(range(20)) == [number * number for number in range(20)]
        assert streams.map([5]) == [25]
        assert streams.map([]) == []


def test_each_has_a_process_and_one_thread():
    import torch

    with Streams(lambda _: (os.getpid(), torch.get_num_threads()), 2) as streams:
        found = streams.map(range(50))
    assert os.getpid() not in {process for process, _ in found} and {threads for _, threads in found} == {1}


def fail(number):
    if number == 3:
        raise ValueError("three is too many")
    if number == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.parametrize(("last", "error", "message"), [(3, ValueError, "three"), (4, RuntimeError, "has died")])
def test_errors_reach_the_one_who_asked(last, error, message):
    with Streams(fail, 2) as streams, pytest.raises(error, match=message):
        streams.map([1, 2, last])
