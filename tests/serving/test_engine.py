"""The engine alone: nobody waits for ever, and nobody pays for another's mistake."""

import threading
import time

import pytest

from heedful.decoding.generation import GenerationConfig
from heedful.decoding.runner import Request
from heedful.serving.engine import BusyError, ClosedError, Engine, Settings
from heedful.translator import Translation

PLAIN = Settings(GenerationConfig())


class Echo:
    """Gives back what it is given, after a moment; breaks on `bad`."""

    def __init__(self):
        self.batches, self.open = [], threading.Event()
        self.open.set()

    def read(self, requests):
        return list(requests)

    def repeatable(self, reading):
        return "once" not in reading.text

    def size(self, reading, config):
        return len(reading.text.split()) + 1

    def write(self, readings, config, *, dropped, **options):
        self.open.wait(5)
        self.batches.append([request.text for request in readings])
        if any("bad" in request.text for request in readings):
            raise TypeError("bad")
        return [Translation("" if dropped(n) else request.text, 0.0, [], []) for n, request in enumerate(readings)]


@pytest.fixture
def echo():
    return Echo()


@pytest.fixture
def engine(echo):
    made = Engine(echo, streams=1, wait=0.05, limit=8)
    yield made
    made.close()


def ask(engine, *texts, settings=PLAIN):
    return engine.submit([Request(text) for text in texts], settings)


def test_what_arrives_together_goes_together(engine, echo):
    first, second = ask(engine, "a"), ask(engine, "b", "c")
    assert [job.future.result(5).text for job in (*first, *second)] == ["a", "b", "c"]
    assert echo.batches == [["a", "b", "c"]]


def test_settings_are_not_mixed(engine, echo):
    other = Settings(GenerationConfig(num_beams=1))
    jobs = [*ask(engine, "a"), *ask(engine, "b", settings=other), *ask(engine, "c")]
    assert [job.future.result(5).text for job in jobs] == ["a", "b", "c"]
    assert echo.batches == [["a", "c"], ["b"]]


def test_a_bad_request_harms_only_itself(engine):
    good, bad, fine = ask(engine, "a", "bad", "b")
    assert (good.future.result(5).text, fine.future.result(5).text) == ("a", "b")
    with pytest.raises(TypeError, match="bad"):
        bad.future.result(5)


def test_what_somebody_has_heard_of_is_not_written_again(engine, echo):
    good, once, bad = ask(engine, "a", "once", "bad")
    assert good.future.result(5).text == "a"
    for job in (once, bad):
        with pytest.raises(TypeError, match="bad"):
            job.future.result(5)
    assert sum("once" in batch for batch in echo.batches) == 1


def test_a_stream_lives_on_when_all_it_was_to_take_have_gone(engine, monkeypatch):
    plain = engine._take

    def gone_at_that_moment():
        for job in engine._queue:
            job.give_up()
        return plain()

    monkeypatch.setattr(engine, "_take", gone_at_that_moment)
    ask(engine, "a")
    time.sleep(0.2)
    monkeypatch.undo()
    (job,) = ask(engine, "b")
    assert job.future.result(5).text == "b"


def test_a_full_queue_takes_all_of_a_request_or_nothing(engine, echo):
    echo.open.clear()
    ask(engine, "first")
    time.sleep(0.2)  # now it is being translated
    ask(engine, *"abcdef")
    with pytest.raises(BusyError):
        ask(engine, "g", "h", "i")
    assert engine.waiting == 6
    echo.open.set()


def test_closing_finishes_what_was_accepted(echo):
    engine = Engine(echo, streams=2, wait=0.5)
    jobs = ask(engine, "a", "b")
    engine.close()
    assert [job.future.result(0).text for job in jobs] == ["a", "b"]
    with pytest.raises(ClosedError):
        ask(engine, "c")
