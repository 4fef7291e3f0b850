"""LSH attention and the reversible stack through the command line: trained, killed, resumed to the bit, used."""

import json
import os
import signal
import subprocess
import time

import pytest

from tests.corpora import SMALL, pairs
from tests.processes import Started, program

LSH = [f"model.{side}.attention.mix={{kind: lsh, buckets: 4, rounds: 2, chunk: 2}}" for side in ("encoder", "decoder")]
REVERSIBLE = ["model.encoder=reversible", "model.decoder=reversible"]
KINDS = {"lsh": ([], LSH), "reformer": (REVERSIBLE, LSH)}  # before SMALL, and after it
STEPS = ["training.steps=40", "training.save_every=10", "training.validate_every=40", "training.log_every=10"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return pairs(tmp_path_factory.mktemp("corpus") / "p.tsv", 200)


def command(corpus, *words):
    environment = {**os.environ, "HEEDFUL_CACHE": str(corpus.parent / "cache"), "OMP_NUM_THREADS": "1"}
    return program(*words), environment


def run(corpus, *words):
    arguments, environment = command(corpus, *words)
    result = subprocess.run(arguments, capture_output=True, text=True, timeout=240, env=environment)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_killed_and_resumed_it_ends_as_if_left_alone_and_translates(corpus, tmp_path, kind):
    before, after = KINDS[kind]
    changes = [*before, *SMALL, *after, *STEPS]
    run(corpus, "train", corpus, "--out", tmp_path / "alone", *changes)
    arguments, environment = command(corpus, "train", corpus, "--out", tmp_path / "killed", *changes)
    with Started(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment) as process:
        deadline = time.monotonic() + 120
        while not (tmp_path / "killed/checkpoints/20").exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
    assert not (tmp_path / "killed/README.md").exists(), "it was through before it could be killed"
    run(corpus, "train", corpus, "--out", tmp_path / "killed", *changes)
    for file in ("model.safetensors", "checkpoints/40/optimizer.safetensors"):
        assert (tmp_path / "killed" / file).read_bytes() == (tmp_path / "alone" / file).read_bytes(), file
    found = json.loads(run(corpus, "predict", tmp_path / "alone", "a b c", "--json"))
    assert found["input"] == "a b c" and isinstance(found["text"], str)
    shown = json.loads(run(corpus, "inspect", tmp_path / "alone", "a b c", "--json"))
    assert set(shown["inspected"]["attention"]) == {"encoder", "decoder", "cross"}


def test_its_cost_is_told(corpus):
    changes = ["encoder=reversible", "encoder.attention.mix=lsh", "decoder.attention.mix.kind=lsh"]
    assert "encoder.attention" in run(corpus, "params", "vaswani-tiny", *changes)
