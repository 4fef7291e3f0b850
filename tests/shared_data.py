"""Real data that stands beside the project, where there is any. Tests that need it skip without it."""

import os
from pathlib import Path

import pytest

ROOT = Path(os.environ.get("HEEDFUL_DATA", Path(__file__).parents[2] / "shared" / "data"))


def shared(path: str) -> Path:
    found = ROOT / path
    if not found.exists():
        pytest.skip(f"no {path} beside the project (HEEDFUL_DATA names another place)")
    return found
