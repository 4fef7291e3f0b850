"""Atomic file writes: a file is complete or absent."""

import errno
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from uuid import uuid4

STALE = 24 * 3600  # seconds without a write after which a temporary file counts as abandoned
_UMASK_LOCK = threading.Lock()


@contextmanager
def in_place(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to `path` to write to, then replace `path` with it atomically.

    If anything goes wrong before that (a full disk, a kill), `path` is unchanged. Several processes and threads may
    write the same `path` at once: each has its own temporary file, and the last to finish wins.
    """
    _remove_leftovers(path)
    temporary = path.with_name(f".{path.name}.{_host()}.{os.getpid()}.{uuid4().hex[:8]}.tmp")
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())  # some libraries write files that only their owner may read
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _remove_leftovers(path: Path) -> None:
    """Delete temporary files of `path` left by killed processes, so that they do not fill the disk.

    Whether a process on another machine is alive cannot be known: its files are deleted when they are `STALE`.
    """
    for old in path.parent.glob(f".{escape(path.name)}.*tmp"):
        with suppress(OSError):  # another process may remove it first, or own it
            named = re.fullmatch(r"\.(.+)\.(\d+)\.[0-9a-f]{8}\.tmp", old.name.removeprefix(f".{path.name}"))
            if named is not None and named[1] == _host():
                gone = not _is_running(int(named[2]))
            elif named is not None or old.name == f".{path.name}.tmp":  # the latter is the name used by 0.1
                gone = time.time() - old.stat().st_mtime > STALE
            else:
                continue
            if gone:
                old.unlink()


def _host() -> str:
    """Identifies the scope of process ids: a machine, or one of its containers, which may share its host name."""
    try:
        namespace = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        namespace = 0
    return f"{socket.gethostname()}-{namespace}"


def _is_running(process: int) -> bool:
    if os.name != "posix":
        return True  # signal 0 is not a mere check there
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # owned by another user
    return True


def _umask() -> int:
    with _UMASK_LOCK:
        mask = os.umask(0o022)  # it can only be read by setting it
        os.umask(mask)
        return mask


@contextmanager
def locked(path: Path, what: str, *, wait: Callable[[str], None] | None = None) -> Iterator[None]:
    """Hold a lock while the block runs; a second process gets an error that names the holder, or, with `wait`, is told
    so and waits. A kill releases it."""
    try:
        import fcntl
    except ImportError:  # not available on this system
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read(100).strip() or "unknown"
            if wait is None:
                raise ValueError(
                    f"{what} is already running in {path.parent} (process {holder}); wait for it, or stop it"
                ) from None
            wait(f"waiting for process {holder}, which is {what}")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP):
                raise  # on a file system without locks there are none
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def write_text(path: Path, text: str) -> None:
    with in_place(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, where the system supports it."""
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
