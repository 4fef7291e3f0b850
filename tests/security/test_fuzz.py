"""Folders and files of strangers are opened or refused, whatever is in them: see `fuzz.py`."""

import sys

import pytest

from tests.security.fuzz import KINDS, run

CASES = 20  # of each kind


@pytest.mark.skipif(sys.platform != "linux", reason="limits memory by the sizes that Linux tells")
@pytest.mark.parametrize("kind", KINDS)
def test_one_thing_changed_never_hangs_or_crashes(kind):
    if kind == "gguf":
        pytest.importorskip("gguf")
    if kind == "index":
        pytest.importorskip("bm25s")
    counts, failures = run(CASES, kinds=(kind,))
    assert not failures, "\n".join(failures)
    assert counts[kind]["opened"] and counts[kind]["refused"]
