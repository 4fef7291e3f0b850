"""Files are put in place whole or not at all."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from safetensors.torch import save_file

from heedful.files import in_place, write_text


def test_a_failure_leaves_what_was_there_and_nothing_else(tmp_path):
    path = tmp_path / "file.txt"
    write_text(path, "old")
    with pytest.raises(OSError, match="full"), in_place(path) as temporary:
        temporary.write_text("half of the n")
        raise OSError("full")
    assert path.read_text() == "old" and [entry.name for entry in tmp_path.iterdir()] == ["file.txt"]


def test_the_next_write_removes_what_a_killed_process_left(tmp_path):
    path = tmp_path / "file.txt"
    killed = run(WRITE_AND_DIE, path)
    assert killed.wait() == -signal.SIGKILL and len(list(tmp_path.iterdir())) == 1
    write_text(path, "new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file.txt"] and path.read_text() == "new"


def test_a_running_process_keeps_its_temporary_file(tmp_path):
    path = tmp_path / "file.txt"
    other = run(WRITE_SLOWLY, path)
    try:
        assert other.stdout.readline() == "writing\n"
        write_text(path, "mine")
        assert path.read_text() == "mine"
        other.communicate("go on\n")
    finally:
        other.kill()
    assert other.returncode == 0 and path.read_text() == "theirs" and len(list(tmp_path.iterdir())) == 1


def test_files_of_another_host_and_of_version_0_1_go_when_nobody_writes_them_any_more(tmp_path):
    names = [".file.txt.elsewhere-7.31.0123abcd.tmp", ".file.txt.tmp"]
    for name in names:
        (tmp_path / name).write_text("left")
    write_text(tmp_path / "file.txt", "new")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted([*names, "file.txt"])
    for name in names:
        os.utime(tmp_path / name, (1e9, 1e9))
    write_text(tmp_path / "file.txt", "newer")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file.txt"]


def test_files_that_only_look_similar_are_left_alone(tmp_path):
    for name in [".file.txt.mine.tmp", ".file.txt.notes", "file.txt.tmp", ".other.txt.tmp"]:
        (tmp_path / name).write_text("mine")
        os.utime(tmp_path / name, (1e9, 1e9))
    write_text(tmp_path / "file.txt", "new")
    assert len(list(tmp_path.iterdir())) == 5


def test_processes_may_write_the_same_file_at_once(tmp_path):
    path = tmp_path / "file.txt"
    writers = [run(WRITE_OFTEN, path) for _ in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert path.read_text() == "x" * 5000 and len(list(tmp_path.iterdir())) == 1


def test_threads_may_write_the_same_file_at_once(tmp_path):
    path, before = tmp_path / "file.txt", os.umask(0o027)
    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda number: write_text(path, str(number) * 5000), [number % 10 for number in range(200)]))
        after = os.umask(0o027)
    finally:
        os.umask(before)
    assert len(set(path.read_text())) == 1 and len(path.read_text()) == 5000
    assert len(list(tmp_path.iterdir())) == 1 and after == 0o027


WRITE_AND_DIE = """
with in_place(path) as temporary:
    temporary.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
WRITE_SLOWLY = """
with in_place(path) as temporary:
    temporary.write_text("theirs")
    print("writing", flush=True)
    input()
"""
WRITE_OFTEN = """
for _ in range(100):
    write_text(path, "x" * 5000)
    assert len(path.read_text()) == 5000
"""


def run(code, path):
    """Another process that does this to the path."""
    start = "import os, signal, sys\nfrom pathlib import Path\nfrom heedful.files import in_place, write_text\n"
    start += "path = Path(sys.argv[1])\n"
    command = [sys.executable, "-c", start + code, str(path)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_weights_may_be_read_by_others_as_the_umask_says(tmp_path):
    before = os.umask(0o022)
    try:
        with in_place(tmp_path / "model.safetensors") as temporary:
            save_file({"x": torch.ones(3)}, temporary)
    finally:
        os.umask(before)
    assert (tmp_path / "model.safetensors").stat().st_mode & 0o777 == 0o644
