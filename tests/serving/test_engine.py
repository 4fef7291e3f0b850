"""The engine alone: nobody waits for ever, and nobody pays for another's mistake."""

import threading
import time

import pytest

from heedful.decoding.generation import GenerationConfig
from heedful.decoding.runner import Request
from heedful.generator import Prompt
from heedful.generator import load as load_generator
from heedful.serving.engine import BusyError, ClosedError, Engine, Settings
from heedful.translator import Translation
from heedful.translator import load as load_translator
from tests.serving.running import small_models

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

    def steps(self, readings, config, *, dropped, **options):
        self.open.wait(5)
        self.batches.append([request.text for request in readings])
        if any("bad" in request.text for request in readings):
            raise TypeError("bad")
        yield [(n, Translation("" if dropped(n) else request.text, 0.0, [], [])) for n, request in enumerate(readings)]


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

    def gone_at_that_moment(first):
        for job in engine._queue:
            job.give_up()
        return plain(first)

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


# --- batches that take turns


class Steps:
    """The text of a request says how many steps it takes; notes each step."""

    def __init__(self):
        self.notes, self.ended = [], []

    def read(self, requests):
        return [int(request.text) for request in requests]

    def repeatable(self, reading):
        return True

    def size(self, reading, config):
        return reading

    def steps(self, readings, config, *, dropped, **options):
        try:
            for number in range(1, 1 + max(readings)):
                time.sleep(0.001)
                self.notes.append(max(readings))
                yield [(place, reading) for place, reading in enumerate(readings) if reading == number]
        finally:
            self.ended.append(max(readings))


@pytest.fixture
def steps():
    return Steps()


@pytest.fixture
def turning(steps):
    made = Engine(steps, streams=1, wait=0.0)
    yield made
    made.close()


def until(true, seconds=10):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_a_short_text_overtakes_a_long_one_which_goes_on_meanwhile(turning, steps):
    (long,) = ask(turning, "2000")
    until(lambda: steps.notes)
    for _ in range(10):
        began = len(steps.notes)
        (short,) = ask(turning, "40")
        assert short.future.result(10) == 40
        during = steps.notes[began:]
        while during[-1] != 40:
            during.pop()
        assert during.count(40) == 40 and 3 <= during.count(2000) <= 32, "about a quarter of the time"
    assert not long.future.done()
    long.give_up()


def test_each_is_answered_when_it_is_finished(turning, steps):
    (slow,) = ask(turning, "50")
    until(lambda: steps.notes)
    quick, slower = ask(turning, "3", "60")
    assert quick.future.result(10) == 3 and not slower.future.done() and not slow.future.done()
    assert (slower.future.result(10), slow.future.result(10)) == (60, 50)
    until(lambda: sorted(steps.ended) == [50, 60])  # two were one batch


def test_who_gives_up_frees_the_place_of_a_running_batch(turning, steps):
    (long,) = ask(turning, "100000")
    until(lambda: steps.notes)
    long.give_up()
    until(lambda: steps.ended == [100000])
    assert ask(turning, "2")[0].future.result(10) == 2


def test_texts_of_a_length_wait_until_half_of_their_batch_has_left(turning, steps):
    ask(turning, *["30"] * 4)
    until(lambda: steps.notes)
    turning.wait = 1.0  # from now on nobody is late
    more = ask(turning, "20", "20")
    time.sleep(0.01)
    assert turning.waiting == 2 and 20 not in steps.notes
    turning.wait = 0.0
    assert [job.future.result(10) for job in more] == [20, 20]
    assert steps.notes.index(20) >= 4


def test_an_idle_stream_takes_what_a_busy_one_could(steps):
    engine = Engine(steps, streams=2, wait=0.0)
    (long,) = ask(engine, "3000")
    until(lambda: steps.notes)
    threads = set()
    plain = steps.steps

    def noted(*given, **more):
        threads.add(threading.get_ident())
        yield from plain(*given, **more)

    steps.steps = noted
    for _ in range(5):
        assert ask(engine, "5")[0].future.result(10) == 5
    assert len(threads) == 1, "the other one had the long text"
    long.give_up()
    engine.close()


# --- models that take turns: each text is written as it would be alone


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return small_models(tmp_path_factory.mktemp("turns"), trained=False)


def asked_at_odd_times(engine, requests):
    """Answers to requests that come while others are being written. requests: (request, settings)"""
    jobs = []
    for number, (request, settings) in enumerate(requests):
        jobs += engine.submit([request], settings)
        if number % 3 == 1:
            time.sleep(0.004)
    return [job.future.result(60) for job in jobs]


@pytest.mark.parametrize("streams", [1, 2])
def test_translations_are_those_of_each_text_alone(folders, streams):
    translator = load_translator(folders[0], streams=1)
    beams = [Settings(GenerationConfig(num_beams=width, max_new_tokens=29)) for width in (4, 1)]
    beams += [Settings(GenerationConfig(num_beams=4, num_beam_groups=2, diversity_penalty=0.5, max_new_tokens=17))]
    beams += [Settings(GenerationConfig(do_sample=True, seed=3, num_return_sequences=2, max_new_tokens=23))]
    texts = [" ".join("abcdefghij"[(n * 7 + i) % 10] for i in range((n * 5) % 37 + 1)) for n in range(24)]
    texts[5] = " ".join(texts) * 3  # in parts
    requests = [(Request(text), beams[n % 4]) for n, text in enumerate(texts)]
    alone = [translator.translate(request, settings.config) for request, settings in requests]
    engine = Engine(translator, streams=streams, wait=0.001)
    together = asked_at_odd_times(engine, requests)
    engine.close()
    assert [one.text for one in together] == [one.text for one in alone]
    for one, other in zip(together, alone, strict=True):
        assert [two.text for two in one.alternatives] == [two.text for two in other.alternatives]
        assert one.score == pytest.approx(other.score, abs=1e-3)


def test_so_are_continuations_and_their_streams(folders):
    generator = load_generator(folders[1], streams=1)
    heard = {}

    def listener(number):
        return lambda row, piece: heard.setdefault(number, []).append(piece.log_prob) is None

    requests, alone = [], []
    for number in range(15):
        config = GenerationConfig(do_sample=True, seed=number, num_return_sequences=1 + number % 2,
                                  max_new_tokens=(7, 40, 90)[number % 3], temperature=0.7)  # fmt: skip
        text = "the quick brown fox"[: number + 1]
        alone.append(generator.generate(text, config))
        requests.append((Prompt(text, listener(number) if number % 2 == 0 else None), Settings(config)))
    engine = Engine(generator, streams=1, wait=0.001)
    together = asked_at_odd_times(engine, requests)
    engine.close()
    assert [[one.text for one in some] for some in together] == [[one.text for one in some] for some in alone]
    assert heard.keys() == {*range(0, 15, 2)}
    for number, log_probs in heard.items():
        assert log_probs == together[number][0].token_log_probs
