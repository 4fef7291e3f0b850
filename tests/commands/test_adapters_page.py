"""The commands of docs/adapters.md run, on small folders with the names that the page uses."""

import os
import re
import subprocess
from pathlib import Path

import pytest

import heedful
from tests.corpora import pairs
from tests.exchange import folders
from tests.processes import path, python

PAGE = Path(__file__).parents[2] / "docs" / "adapters.md"


def test_the_commands_of_the_page_run(tmp_path):
    pairs(tmp_path / "domain.tsv", 300)
    small = {"model.width": 16, "model.encoder.layers": 1, "model.decoder.layers": 1, "tokenizer.vocab": 60}
    heedful.train(tmp_path / "domain.tsv", out=tmp_path / "runs" / "general", changes={**small, "training.steps": 4})
    folders.published(tmp_path / "gpt2", "gpt2")
    (tmp_path / "book.txt").write_text("the quick brown fox jumps over the lazy dog\n\n" * 60)
    tuned = {"task.kind": "causal_lm", "task.context": 32, "training.steps": 3, "adapter": {"kind": "lora"}}
    book, gpt2 = tmp_path / "book.txt", tmp_path / "gpt2"
    heedful.train(book, out=tmp_path / "runs" / "lm-adapter", start_from=gpt2, changes=tuned)
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.strip()]
    assert len(lines) == 8
    environment = {**os.environ, "PATH": path(), "HEEDFUL_CACHE": str(tmp_path / "cache")}
    for line in lines:
        done = subprocess.run(line, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True,
                              timeout=300)  # fmt: skip
        assert done.returncode == 0, (line, done.stderr[-800:])
        assert done.stdout.strip(), line
    (code,) = re.findall(r"```py\n(.*?)```", text, flags=re.DOTALL)
    done = subprocess.run(python("-c", code), cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "2", done.stderr[-800:]


def test_an_adapter_of_peft_comes_back_the_same(tmp_path, monkeypatch, capsys):
    from tests.commands.in_process import run

    folders.published(tmp_path / "gpt2", "gpt2")
    (tmp_path / "book.txt").write_text("the quick brown fox jumps over the lazy dog\n\n" * 60)
    changes = {"task.kind": "causal_lm", "task.context": 32, "training.steps": 6, "adapter": {"kind": "lora"}}
    changes |= {"training.learning_rate": 0.05, "training.warmup": 1}
    found = heedful.train(tmp_path / "book.txt", out=tmp_path / "a", start_from=tmp_path / "gpt2", changes=changes)
    run(monkeypatch, capsys, "export", tmp_path / "a", "--to", "peft", "--out", tmp_path / "peft")
    said = run(monkeypatch, capsys, "import", tmp_path / "peft", "--base", tmp_path / "gpt2", "--out", tmp_path / "b")
    assert "adapter lora of" in said
    again = heedful.load(tmp_path / "b", streams=1)
    assert again.log_probs("the quick fox") == pytest.approx(found.log_probs("the quick fox"), abs=1e-4)
    base = run(monkeypatch, capsys, "import", tmp_path / "gpt2", "--out", tmp_path / "base") and tmp_path / "base"
    assert again.log_probs("the quick fox") != pytest.approx(heedful.load(base).log_probs("the quick fox"), abs=1e-3)
