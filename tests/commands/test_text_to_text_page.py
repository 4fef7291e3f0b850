"""The commands of docs/text-to-text.md run, in their order, on small files with the names that the page uses; trainings
are cut short, and their models are small."""

import os
import re
import subprocess
from pathlib import Path

from tests.processes import path
from tests.tasks.test_masked_lm import farm

PAGE = Path(__file__).parents[2] / "docs" / "text-to-text.md"
SMALL = (
    " model.encoder.layers=1 model.decoder.layers=1 model.width=32 model.encoder.attention.heads=2"
    " model.decoder.attention.heads=2 tokenizer.vocab=420"
)
STEPS = " training.steps=4 training.validate_every=4 training.save_every=4 training.batch_tokens=512"


def test_the_commands_of_the_page_run(tmp_path):
    farm(tmp_path / "book.txt")
    farm(tmp_path / "held-out.txt", documents=5, seed=3)
    (tmp_path / "pairs.tsv").write_text("the cat says meow\tdie Katze sagt miau\n" * 40, encoding="utf-8")
    (tmp_path / "gaps.txt").write_text("the old <extra_id_0> says woof\n", encoding="utf-8")
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    for line in [line for block in blocks for line in block.splitlines() if line.strip()]:
        command = line
        if " train " in command:
            command += STEPS + ("" if "--start-from" in command else SMALL)
        environment = {**os.environ, "PATH": path(), "HEEDFUL_CACHE": str(tmp_path / "cache")}
        done = subprocess.run(command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True,
                              timeout=300)  # fmt: skip
        assert done.returncode == 0, (line, done.stderr[-800:])
        if "predict" in line:
            assert "sat" in done.stdout and "<extra_id" not in done.stdout
        elif "evaluate" in line:
            assert "accuracy" in done.stdout
    assert "<html" in (tmp_path / "gap.html").read_text(encoding="utf-8")
