"""The commands of docs/reading.md run, in their order, on small files with the names that the page uses; trainings are
cut short, and their models are small."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.processes import path
from tests.tasks.labelled import sentences, write

PAGE = Path(__file__).parents[2] / "docs" / "reading.md"
SHORT = (
    " model.encoder.layers=1 model.width=32 model.encoder.feedforward.hidden=64 model.encoder.attention.heads=2"
    " tokenizer.vocab=200"
)
STEPS = " training.steps=4 training.validate_every=4 training.save_every=4 training.batch_tokens=256"


def files(place: Path) -> None:
    rows = sentences(80)
    write(place / "tickets.tsv", rows)
    write(place / "tickets-test.tsv", sentences(20, seed=7))
    write(place / "pairs.tsv", [(text, text.upper()) for text, _ in rows])
    tagged = "anna\tB-PER\nlives\tO\nin\tO\nparis\tB-LOC\n\ntom\tB-PER\nsleeps\tO\n\n"
    (place / "people.conll").write_text(tagged * 30, encoding="utf-8")
    (place / "people-test.conll").write_text(tagged, encoding="utf-8")
    paragraphs = []
    for number in range(40):
        context = f"anna has the book. tom has lamp {number}."
        answers = [{"text": "tom", "answer_start": context.index("tom")}]
        question = {"id": str(number), "question": f"who has lamp {number}?", "answers": answers}
        paragraphs.append({"context": context, "qas": [question]})
    squad = {"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}
    (place / "questions.json").write_text(json.dumps(squad), encoding="utf-8")
    documents = [
        ("1", "wings", "heat transfer at a wing"),
        ("2", "books", "a book about a fox"),
        ("3", "lamps", "a lamp"),
    ]
    write(place / "documents.tsv", documents)
    (place / "book.txt").write_text("the quick brown fox jumps over the lazy dog\n\n" * 60, encoding="utf-8")


def commands() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


def test_the_commands_of_the_page_run(tmp_path):
    pytest.importorskip("bm25s")
    files(tmp_path)
    printed = {}
    for line in commands():
        command = line
        if " train " in command:
            command += STEPS + ("" if "--start-from" in command else SHORT)
        environment = {**os.environ, "PATH": path(), "HEEDFUL_CACHE": str(tmp_path / "cache")}
        done = subprocess.run(command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True,
                              timeout=300)  # fmt: skip
        assert done.returncode == 0, (line, done.stderr[-800:])
        printed[line] = done.stdout
    assert (tmp_path / "confusion.png").exists() and "<html" in (tmp_path / "why.html").read_text(encoding="utf-8")
    (found,) = (text for line, text in printed.items() if line.startswith("heedful search"))
    assert found.index("wing") < len(found)
    (tags,) = (text for line, text in printed.items() if "predict runs/people" in line)
    assert len(tags.split()) == 4
