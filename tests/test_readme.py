"""Every command and snippet of the README works as it is written."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.corpora import pairs
from tests.processes import path, python

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


COMMANDS = [line.split("#")[0].strip() for block in blocks("sh") for line in block.splitlines() if "heedful " in line]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with what a reader has: pairs, lines, a book, tickets. The commands share it, in the README's order."""
    folder = tmp_path_factory.mktemp("readme")
    pairs(folder / "pairs.tsv")
    (folder / "lines.txt").write_text("a b c\n\nd e f\n")
    (folder / "book.txt").write_text("the quick brown fox jumps over the lazy dog\n\n" * 200)
    rows = [("the app crashes", "bug"), ("please add a dark mode", "wish"), ("it does not start", "bug")] * 20
    (folder / "tickets.tsv").write_text(
        "".join(f"{number} {text}\t{label}\n" for number, (text, label) in enumerate(rows))
    )
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_run(command, place):
    """As they are written, but for the length of a budget."""
    command = command.replace("--budget 20s", "--budget 2s")
    environment = {**os.environ, "PATH": path(), "HEEDFUL_CACHE": str(place / "cache")}
    result = subprocess.run(
        command, shell=True, cwd=place, env=environment, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() or "-o out.txt" in command
    assert '"error"' not in result.stdout
    if "-o out.txt" in command:
        assert len((place / "out.txt").read_text().splitlines()) == 3


def test_snippets_run_one_after_the_other(place):
    code = "\n".join(blocks("python"))
    result = subprocess.run(python("-c", code), cwd=place, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "str\n2\n"


def test_there_is_something_to_test():
    assert len(COMMANDS) >= 4 and len(blocks("python")) >= 1
