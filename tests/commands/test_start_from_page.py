"""The commands of docs/start-from.md run, on small folders with the names that the page uses."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.exchange import folders
from tests.processes import path

PAGE = Path(__file__).parents[2] / "docs" / "start-from.md"


def test_the_commands_of_the_page_run(tmp_path):
    pytest.importorskip("gguf")
    from tests.exchange.test_gguf import write

    folders.published(tmp_path / "gpt2", "gpt2")
    folders.published(tmp_path / "opus-mt-en-de", "marian")
    write(tmp_path / "smollm2.gguf")
    (tmp_path / "book.txt").write_text("the quick brown fox jumps over the lazy dog\n\n" * 60)
    (tmp_path / "pairs.tsv").write_text("".join(f"{text}\t{text}\n" for text in folders.TEXT * 9), encoding="utf-8")
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.strip()]
    assert len(lines) == 6
    for line in lines:
        environment = {**os.environ, "PATH": path(), "HEEDFUL_CACHE": str(tmp_path / "cache")}
        done = subprocess.run(line, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True,
                              timeout=300)  # fmt: skip
        assert done.returncode == 0, (line, done.stderr[-800:])
        assert done.stdout.strip(), line
    transformers = pytest.importorskip("transformers")
    transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "book-hf")
