"""Attentions that one key of a recipe chooses, run as people run them: trained, stopped, resumed, decoded, counted."""

import os
import shutil
import subprocess
from itertools import pairwise

import pytest
from safetensors.torch import load_file

from tests.corpora import SMALL, pairs
from tests.processes import program

STEPS = ["training.steps=12", "training.save_every=6", "training.validate_every=12", "training.log_every=6"]
CHANGES = {
    "linear": ["model.encoder.attention.mix=linear", "model.decoder.attention.mix=linear"],
    "performer": [
        "model.encoder.attention.mix=performer",
        "model.encoder.attention.mix.redraw=4",
        "model.decoder.attention.mix=performer",
        "model.decoder.attention.mix.redraw=5",
    ],
    "linformer": ["model.encoder.attention.mix=linformer", "model.encoder.length=257"],
    "scores": [  # of other kinds, where each is usual
        "model.encoder.position=relative",
        "model.decoder.attention.mix=multiplicative",
        "model.decoder.cross={heads: 2, mix: additive}",
    ],
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return pairs(tmp_path_factory.mktemp("corpus") / "p.tsv", 60)


def heedful(corpus, *arguments, **options):
    environment = {**os.environ, "HEEDFUL_CACHE": str(corpus.parent / "cache"), "OMP_NUM_THREADS": "1"}
    command = program(*arguments)
    result = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, **options)
    assert result.returncode == 0, result.stderr
    return result


@pytest.mark.parametrize("kind", CHANGES)
def test_it_trains_resumes_to_the_bit_and_decodes(corpus, tmp_path, kind):
    changes = [*SMALL, *STEPS, *CHANGES[kind]]
    heedful(corpus, "train", corpus, "--out", tmp_path / "alone", *changes)
    # As if killed after the first checkpoint: nothing that came later is left.
    shutil.copytree(tmp_path / "alone", tmp_path / "half")
    shutil.rmtree(tmp_path / "half" / "checkpoints" / "12")
    for name in ("README.md", "model.safetensors"):
        (tmp_path / "half" / name).unlink()
    heedful(corpus, "train", corpus, "--out", tmp_path / "half", *changes)
    for name in ("model.safetensors", "checkpoints/12/model.safetensors", "checkpoints/12/optimizer.safetensors"):
        assert (tmp_path / "half" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()
    lines = ["a b c", "d"]
    written = heedful(corpus, "translate", tmp_path / "alone", "--beam-size", 3, input="\n".join(lines) + "\n").stdout
    assert len(written.splitlines()) == len(lines)


def test_a_performer_is_redrawn_in_training_only(corpus, tmp_path):
    changes = [*SMALL, *STEPS, *CHANGES["performer"], "training.keep=5", "training.save_every=1", "training.steps=5"]
    heedful(corpus, "train", corpus, "--out", tmp_path / "run", *changes, "training.average=false")
    drawn = [load_file(tmp_path / "run" / "checkpoints" / str(step) / "model.safetensors") for step in range(1, 6)]
    name = "encoder.layers.0.attention.mix.directions"
    same = [bool((after[name] == before[name]).all()) for before, after in pairwise(drawn)]
    assert same == [True, True, False, True]  # before step 4
