"""Trainings of dialogues and summaries that are killed and run again end as if left alone, to the byte."""

import json
import os
import signal
import subprocess

import pytest

from tests.corpora import SMALL, pairs
from tests.processes import python
from tests.tasks.test_dialogue import CODER, talks

STEPS = ["training.steps=30", "training.save_every=10", "training.validate_every=15", "training.log_every=1",
         "training.samples=0"]  # fmt: skip
WRITER = ["model.width=16", "model.decoder.layers=1", "model.decoder.attention.heads=2", "initialise=xavier"]
PROGRAM = """
import os, signal, sys
from heedful.commands import main
from heedful.training import loop
plain, killed = loop.Trainer._apply, int(sys.argv.pop(1))
def dying(self, loss):
    if self.progress.step == killed:
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(self, loss)
loop.Trainer._apply = dying
main.main()
"""
KINDS = {
    "dialogue": ("dialogue", [*WRITER, "tokenizer.kind=word"]),
    "dialogue, encoder-decoder": ("dialogue", [*CODER, *SMALL]),
    "summarise": ("summarise", SMALL),
}


@pytest.mark.parametrize("kind", KINDS)
def test_killed_training_equals_uninterrupted_training(tmp_path, kind):
    recipe, changes = KINDS[kind]
    if recipe == "summarise":
        pytest.importorskip("rouge_score")
    file = talks(tmp_path / "t.jsonl") if recipe == "dialogue" else pairs(tmp_path / "t.tsv", 150)
    environment = {**os.environ, "HEEDFUL_CACHE": str(tmp_path / "cache")}

    def run(out, killed):
        command = python("-c", PROGRAM, killed, "train", file, "--out", tmp_path / out, "--recipe", recipe)
        command += [*changes, *STEPS]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == (-signal.SIGKILL if killed else 0), done.stderr[-800:]

    run("whole", 0)
    run("cut", 23)
    run("cut", 0)
    whole, cut = (tmp_path / name for name in ("whole", "cut"))
    for name in ("model.safetensors", "checkpoints/30/optimizer.safetensors"):
        assert (whole / name).read_bytes() == (cut / name).read_bytes(), name
    losses = [[json.loads(line).get("loss") for line in (one / "metrics.jsonl").read_text().splitlines()]
              for one in (whole, cut)]  # fmt: skip
    assert [one for one in losses[0] if one is not None] == [one for one in losses[1] if one is not None]
