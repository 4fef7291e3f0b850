"""A text read segment by segment with a memory: `task.windows=segments`."""

import json
import os
import random
import signal
import subprocess
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import heedful
from heedful.data.columns import DOCUMENT
from heedful.data.inputs import Inputs
from heedful.data.prepare import prepare
from heedful.decoding.generation import GenerationConfig
from heedful.generator import Generator
from heedful.model.create import create
from heedful.tasks import Settings
from heedful.training.parallel import World
from heedful.training.recipe import read_recipe
from heedful.training.run import train
from tests.processes import Started, program

CONTEXT, MEMORY = 7, 5
SMALL = [
    "task.windows=segments", f"task.context={CONTEXT}", f"task.memory={MEMORY}", "model.width=16", "model.tie=all",
    "model.decoder.layers=2", "model.decoder.feedforward.hidden=24", "model.decoder.attention.heads=2",
    "model.decoder.position=none", "model.decoder.attention.mix=transformer_xl", "training.batch_tokens=42",
    "training.steps=60", "training.save_every=10", "training.validate_every=30", "training.log_every=1",
    "training.samples=1", "training.warmup=5", "training.learning_rate=0.01", "training.schedule=constant",
]  # fmt: skip
GREEDY = GenerationConfig(num_beams=1, max_new_tokens=30)


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    words, chance = ["the", "quick", "brown", "fox", "lazy", "dog", "jumps", "over"], random.Random(3)
    paragraphs = [" ".join(chance.choices(words, k=chance.randint(2, 9))) for _ in range(60)]
    file = tmp_path_factory.mktemp("book") / "book.txt"
    file.write_text("\n\n".join(paragraphs) + "\n")
    return file


def recipe(*changes):
    return read_recipe("char-gpt", [*SMALL, *changes])


def run(book, out, *changes):
    train(recipe(*changes), Inputs((book,), columns=DOCUMENT), out, cache=book.parent / "cache")
    return out


def begun(book, *changes):
    """(task, model) at the beginning of a training"""
    chosen = recipe(*changes)
    inputs = Inputs((book,), columns=DOCUMENT)
    prepared = prepare(inputs, chosen.data, chosen.tokenizer, cache=book.parent / "cache")
    chosen = chosen.fitted(prepared)
    torch.manual_seed(1)
    model = create(chosen.model).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return chosen.task.build(prepared, Settings()), model


def losses(out):
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


@pytest.fixture(scope="module")
def trained(book, tmp_path_factory):
    return run(book, tmp_path_factory.mktemp("segments") / "run")


@pytest.mark.parametrize("budget", [1, 42, 100_000])
def test_each_row_of_a_batch_goes_on_where_that_of_the_batch_before_ended(book, budget):
    task, _ = begun(book)
    for number in (0, 1):
        batches = list(task.epoch(number, budget=budget, seed=3))
        assert all((second == first + CONTEXT).all() for first, second in pairwise(batches))
        places = np.concatenate(batches)
        assert len(set(places)) == len(places) and places.max() + CONTEXT < len(task.text.train)
        left = len(task.text.train) - 1 - len(places) * CONTEXT
        assert 0 <= left < len(batches[0]) * CONTEXT  # at most one segment a row is left out
        first, again = (next(iter(task.epoch(number, budget=budget, seed=3))) for _ in range(2))
        assert (first == again).all()


@torch.no_grad()
def test_with_a_memory_that_covers_the_text_segments_lose_what_one_pass_over_it_does(book):
    task, model = begun(book, "task.memory=1000")
    batches = list(task.epoch(0, budget=3 * CONTEXT, seed=3))
    state, total = {}, 0.0
    for rows in batches:
        loss = task.loss(model, task.collate(rows), state=state)
        state, total = loss.state, total + float(loss.terms["tokens"].total)
    length = len(batches) * CONTEXT
    whole = np.stack([task.text.train[start : start + length + 1] for start in batches[0]]).astype(np.int64)
    log_probs = model(torch.from_numpy(whole[:, :-1])).log_softmax(-1)
    wanted = -log_probs.gather(-1, torch.from_numpy(whole[:, 1:, None])).sum()
    assert total == pytest.approx(float(wanted), rel=1e-5)


@torch.no_grad()
def test_a_row_that_does_not_go_on_sees_nothing_of_the_memory(book):
    task, model = begun(book)
    first = task.collate(np.array([0, 40]))
    state = task.loss(model, first, state={}).state
    assert state["memory"].shape == (2, 2, MEMORY, 16)
    for start, follows in ((CONTEXT, True), (CONTEXT + 1, False), (0, False)):
        batch = task.collate(np.array([start, 40 + CONTEXT]))
        new, both = (task.loss(model, batch, state=carried) for carried in ({}, state))
        alone = task.loss(model, task.collate(np.array([start])), state={}).terms["tokens"].total
        other = task.loss(model, task.collate(np.array([40 + CONTEXT])), state=row(state, 1)).terms["tokens"].total
        assert new.terms["tokens"].total != both.terms["tokens"].total
        expected = float(both.terms["tokens"].total) == pytest.approx(float(alone + other), rel=1e-5)
        assert expected is not follows


def row(state, index):
    rows = {name: tensor[[index]] for name, tensor in state.items() if name != "memory"}
    return {**rows, "memory": state["memory"][:, [index]]}


@torch.no_grad()
def test_with_borders_no_document_sees_another_in_training_and_validation(book):
    """Each loses what it does alone, cut where the segments were."""
    task, model = begun(book, "task.borders=true", "task.memory=1000")
    stream, bos = task.text.train, task.text.tokenizer.bos
    batches = list(task.epoch(0, budget=CONTEXT, seed=3))
    state, total = {}, 0.0
    for rows in batches:
        loss = task.loss(model, task.collate(rows), state=state)
        state, total = loss.state, total + float(loss.terms["tokens"].total)
    text = torch.from_numpy(stream[batches[0][0] : batches[-1][0] + CONTEXT + 1].astype(np.int64))
    starts = [0, *((text[:-1] == bos).nonzero()[:, 0].tolist()), len(text) - 1]
    expected = 0.0
    for start, end in pairwise(sorted(set(starts))):
        log_probs = model(text[None, start:end]).log_softmax(-1)[0]
        expected -= float(log_probs.gather(-1, text[start + 1 : end + 1, None]).sum())
    assert total == pytest.approx(expected, rel=1e-5)
    scores = task.evaluate(model, budget=CONTEXT, samples=0, world=World())
    assert np.isfinite(scores.numbers["loss"])


def test_validation_has_a_memory_of_its_own_and_it_may_be_longer(book):
    task, model = begun(book)
    longer, _ = begun(book, "task.test_memory=50")
    loss = {}
    for name, one in (("same", task), ("longer", longer)):
        loss[name] = one.evaluate(model, budget=42, samples=0, world=World()).numbers["loss"]
        assert loss[name] == one.evaluate(model, budget=42, samples=0, world=World()).numbers["loss"]
    assert loss["same"] != loss["longer"]
    none, _ = begun(book, "task.test_memory=0")
    assert none.evaluate(model, budget=42, samples=0, world=World()).numbers["loss"] not in loss.values()


def test_micro_batches_equal_one_batch_and_carry_a_memory_each(book, tmp_path, trained):
    out = run(book, tmp_path / "parts", "training.accumulate=3")
    assert losses(out) == pytest.approx(losses(trained), abs=2e-3)
    assert losses(out)[:20] == pytest.approx(losses(trained)[:20], abs=1e-4)
    carried = load_file(out / "checkpoints" / "60" / "task.0.safetensors")
    assert carried["0/memory"].shape == carried["2/memory"].shape == (2, 2, MEMORY, 16)


def command(book, *arguments, processes=1):
    environment = {**os.environ, "HEEDFUL_CACHE": str(book.parent / "cache"), "OMP_NUM_THREADS": "1"}
    return program(*arguments, processes=processes), environment


def heedful_(book, *arguments, processes=1):
    words, environment = command(book, *arguments, processes=processes)
    result = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_two_processes_equal_one(book, tmp_path, trained):
    out = tmp_path / "two"
    heedful_(book, "train", book, "--recipe", "char-gpt", "--out", out, *SMALL, "training.steps=20", processes=2)
    assert losses(out)[:20] == pytest.approx(losses(trained)[:20], abs=1e-3)


def test_killed_it_ends_as_if_left_alone_and_its_memory_with_it(book, tmp_path, trained):
    out = tmp_path / "killed"
    words, environment = command(book, "train", book, "--recipe", "char-gpt", "--out", out, *SMALL)
    quiet = subprocess.DEVNULL
    with Started(words, env=environment, stdout=quiet, stderr=quiet) as process:
        deadline = time.monotonic() + 120
        while not (out / "checkpoints" / "20").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    assert not (out / "README.md").exists(), "it was through before it could be killed"
    run(book, out)
    for name in ("model", "optimizer", "task.0"):
        file = Path("checkpoints") / "60" / f"{name}.safetensors"
        assert (out / file).read_bytes() == (trained / file).read_bytes(), file
    assert losses(out) == losses(trained)


def test_it_writes_and_scores_through_the_command_line(book, trained):
    assert heedful_(book, "generate", trained, "the quick brown fox jumps over the lazy dog", "--seed", "1").strip()
    found = json.loads(heedful_(book, "evaluate", trained, book, "--json"))
    assert "perplexity" in json.dumps(found)


def test_a_generator_reads_by_segments_with_the_memory_of_the_task(trained):
    generator = heedful.load(trained)
    assert generator.recurrence == (CONTEXT, MEMORY)
    prompts = ["the quick brown fox jumps over the lazy dog", "fox", "over the lazy dog the quick"]
    together = generator.generate(prompts, GREEDY)
    for prompt, (found,) in zip(prompts, together, strict=True):
        (alone,) = generator.generate(prompt, GREEDY)
        assert found.text == alone.text
        assert found.score == pytest.approx(alone.score, abs=1e-4)
    longer = Generator(generator.model, generator.tokenizer)  # keeps all that it has read
    assert len(longer.generate(prompts[0] * 3, GREEDY)[0].text) > 0
    text = " ".join(prompts)
    covered = Generator(generator.model, generator.tokenizer, recurrence=type(generator.recurrence)(CONTEXT, 999))
    assert covered.log_probs(text) == pytest.approx(longer.log_probs(text), abs=1e-4)
    assert generator.log_probs(text) != pytest.approx(longer.log_probs(text), abs=1e-3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["task.windows=random"], "memory 5 needs windows that follow each other, not random; set task.windows=segme"),
        (["task.windows=documents", "task.memory=0", "task.borders=true"], "borders True needs windows that follow"),
        (
            ["model.decoder.attention.mix=softmax", "model.decoder.position={kind: learned, length: 64}"],
            "supports recurrence, which this model's does not; choose mix transformer_xl with position none, or mix",
        ),
        (["model.decoder.position=alibi"], "attention transformer_xl does not support bias; choose a position that"),
    ],
)
def test_what_does_not_fit_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        recipe(*changes)


def test_recurrence_goes_with_other_distances_and_distances_without_recurrence(book, tmp_path):
    rotary = ["model.decoder.attention.mix=softmax", "model.decoder.position=rotary", "training.steps=6"]
    assert len(losses(run(book, tmp_path / "rotary", *rotary))) == 6
    assert len(losses(run(book, tmp_path / "plain", "task.memory=0", "training.steps=6"))) == 6
    assert not (tmp_path / "plain" / "checkpoints" / "6" / "task.0.safetensors").exists()
