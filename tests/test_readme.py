"""Every command and snippet of the README works as it is written."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


COMMANDS = [line.split("#")[0].strip() for block in blocks("sh") for line in block.splitlines() if "heedful " in line]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_run(command, tmp_path):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    result = subprocess.run(
        command, shell=True, cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()


def test_snippets_run_one_after_the_other(tmp_path):
    code = "\n".join(blocks("python"))
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "marian 128\n"


def test_there_is_something_to_test():
    assert len(COMMANDS) >= 4 and len(blocks("python")) >= 2
