"""Files are put in place whole or not at all."""

import os

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


def test_what_a_kill_left_is_written_over(tmp_path):
    (tmp_path / ".file.txt.tmp").write_text("left")
    write_text(tmp_path / "file.txt", "new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file.txt"] and (tmp_path / "file.txt").read_text() == "new"


def test_weights_may_be_read_by_others_as_the_umask_says(tmp_path):
    before = os.umask(0o022)
    try:
        with in_place(tmp_path / "model.safetensors") as temporary:
            save_file({"x": torch.ones(3)}, temporary)
    finally:
        os.umask(before)
    assert (tmp_path / "model.safetensors").stat().st_mode & 0o777 == 0o644
