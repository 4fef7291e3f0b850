"""The commands of docs/dialogue.md, run as they stand, with small models."""

import json
import os
import random
import re
import subprocess
from pathlib import Path

from tests.processes import path

PAGE = Path(__file__).parents[2] / "docs" / "dialogue.md"
SHORT = (
    " training.steps=2 training.warmup=1 training.validate_every=2 training.save_every=2 training.batch_tokens=600"
    " tokenizer.vocab=300 model.width=16 model.decoder.layers=1 model.decoder.attention.heads=2"
)
WORDS = ["we", "study", "long", "texts", "and", "make", "them", "short", "with", "a", "model", "of", "words"]


def files(place):
    chance = random.Random(1)

    def text(count):
        return " ".join(chance.choices(WORDS, k=count)).capitalize() + "."

    papers = [{"source": [text(7), text(5), text(4)], "target": [text(3 + number % 5)]} for number in range(40)]
    talks = [
        {"turns": [{"speaker": ("user", "system")[turn % 2], "text": text(3)} for turn in range(4)]} for _ in range(40)
    ]
    for name, rows in (("papers", papers), ("talks", talks)):
        for ending, some in (("", rows), ("-test", rows[:3])):
            lines = (json.dumps(row) + "\n" for row in some)
            (place / f"{name}{ending}.jsonl").write_text("".join(lines), encoding="utf-8")
    (place / "documents.txt").write_text("".join(text(9) + "\n" for _ in range(2)), encoding="utf-8")


def test_the_commands_of_the_page_run(tmp_path):
    files(tmp_path)
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    printed = {}
    for line in (line for block in blocks for line in block.splitlines() if line.strip()):
        command = line
        if " train " in command:
            encoder = "--recipe summarise" in command or "vaswani" in command
            command += SHORT + (" model.encoder.layers=1 model.encoder.attention.heads=2" if encoder else "")
        environment = {**os.environ, "PATH": path(), "HEEDFUL_CACHE": str(tmp_path / "cache")}
        done = subprocess.run(command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True,
                              timeout=300)  # fmt: skip
        assert done.returncode == 0, (line, done.stderr[-800:])
        printed[line.split(" runs/")[0]] = done.stdout
    assert "lead-3:" in printed["heedful evaluate"] or "distinct-2" in printed["heedful evaluate"]
    assert printed["printf 'hello\\nhow are you?\\n' | heedful chat"].count("\n") >= 2
    assert (tmp_path / "runs/talk/chat_template.jinja").read_text(encoding="utf-8").startswith("{{ bos_token }}")
