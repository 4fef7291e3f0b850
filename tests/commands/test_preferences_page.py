"""The commands of docs/preferences.md, run as they stand, with small models."""

import os
import re
import subprocess
from pathlib import Path

from tests.corpora import pairs
from tests.processes import path

PAGE = Path(__file__).parents[2] / "docs" / "preferences.md"
SHORT = (
    " training.steps=4 training.warmup=1 training.validate_every=4 training.save_every=4 training.batch_tokens=600"
    " training.log_every=1"
)
MODEL = (
    " model.width=16 model.encoder.layers=1 model.decoder.layers=1 model.encoder.attention.heads=2"
    " model.decoder.attention.heads=2 model.encoder.feedforward.hidden=32 model.decoder.feedforward.hidden=32"
    " tokenizer.kind=character"
)


def files(place):
    lines = [line.split("\t") for line in pairs(place / "pairs.tsv", 60).read_text(encoding="utf-8").splitlines()]
    rows = [f"{source}\t{target}\t{target} a\n" for source, target in lines]
    (place / "preferences.tsv").write_text("".join(rows), encoding="utf-8")
    (place / "sources.txt").write_text("".join(f"{source}\n" for source, _ in lines), encoding="utf-8")
    (place / "rated.tsv").write_text("a b\tb a\na b\tb\n", encoding="utf-8")
    (place / "my_rewards").mkdir()
    (place / "my_rewards" / "rewards.py").write_text(
        "def short(prompts, answers):\n    return [-len(answer) / 10 for answer in answers]\n", encoding="utf-8"
    )


def test_the_commands_of_the_page_run(tmp_path):
    files(tmp_path)
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    printed = {}
    for line in (line for block in blocks for line in block.splitlines() if line.strip()):
        command = line
        if " train " in command:
            command += SHORT + (MODEL if "tiny" in command else "")
            command += " task.max_new_tokens=12" if "ppo" in command or "minimum-risk" in command else ""
        environment = {**os.environ, "PATH": path(), "HEEDFUL_CACHE": str(tmp_path / "cache")}
        done = subprocess.run(command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True,
                              timeout=300)  # fmt: skip
        assert done.returncode == 0, (line, done.stderr[-800:])
        printed[" ".join(line.split()[1:3])] = done.stdout
    assert "accuracy:" in printed["evaluate runs/preferred"] and "margin:" in printed["evaluate runs/reward"]
    assert len({float(line) for line in printed["predict runs/reward"].splitlines()}) == 2
    assert printed["translate runs/preferred"].count("\n") == 60
    assert "chrF2" in printed["evaluate runs/less-risk"]
