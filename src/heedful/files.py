"""Files are put in place whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def in_place(path: Path) -> Iterator[Path]:
    """Gives a temporary path beside `path` to write to; afterwards it takes the place of `path` in one step.

    Whatever goes wrong before that (a full disk, a kill), `path` is as it was.
    """
    temporary = path.with_name(f".{path.name}.tmp")  # always the same, so that what a kill left is written over
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())  # some libraries write files that only their owner may read
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0o022)  # it can only be read by setting it
    os.umask(mask)
    return mask


def write_text(path: Path, text: str) -> None:
    with in_place(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable, where the system knows how."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)
