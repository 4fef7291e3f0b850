"""Lines of text in and out, for the commands that translate: reading, chunks, progress."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TypeVar

EVERY = 60  # seconds between reports of progress, where there is no terminal to draw a bar on
T = TypeVar("T")


@contextmanager
def progress(source: str, *, shown: bool, done: int = 0, logged: bool = False) -> Iterator[Callable[[int], None]]:
    """Yield a function to call with the number of lines of a file that are done. `shown`: draw a progress bar, if
    messages go to a terminal; `logged`: otherwise print a line now and then; `done`: lines of an earlier run."""
    if not (shown and sys.stderr.isatty()):
        yield _logged(_line_count(source), done) if logged else lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("translating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=_line_count(source), completed=done)
        yield lambda count: bar.advance(task, count)


def _logged(total: int | None, done: int) -> Callable[[int], None]:
    began = latest = time.monotonic()
    first = done

    def advance(count: int) -> None:
        nonlocal done, latest
        done += count
        now = time.monotonic()
        if now - latest < EVERY:
            return
        latest, speed = now, (done - first) / (now - began)
        left = "" if total is None else f" of {total:,}"
        rest = "" if total is None else f", {(total - done) / max(1e-9, speed) / 60:,.0f} minutes left"
        print(f"heedful: {done:,}{left} lines, {speed:,.1f} lines/s{rest}", file=sys.stderr, flush=True)

    return advance


def _line_count(source: str) -> int | None:
    """The number of lines in a file; unknown for standard input."""
    from heedful.data.lines import open_bytes

    if source == "-":
        return None
    with open_bytes(Path(source)) as opened:
        return sum(1 for _ in opened)


def chunks(lines: Iterable[T], size: int) -> Iterator[list[T]]:
    chunk: list[T] = []
    for line in lines:
        chunk.append(line)
        if len(chunk) >= size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


@contextmanager
def reading(name: str) -> Iterator[Iterator[str]]:
    """Lines of text; invalid UTF-8 is replaced and reported with its line number."""
    from heedful.data.lines import open_bytes

    if name != "-" and not Path(name).is_file():
        raise ValueError(f"there is no file {name}")
    opened: IO[bytes] = sys.stdin.buffer if name == "-" else open_bytes(Path(name))
    try:
        yield _decoded(opened)
    finally:
        if name != "-":
            opened.close()


def _decoded(opened: IO[bytes]) -> Iterator[str]:
    for number, raw in enumerate(opened, start=1):
        raw = raw.rstrip(b"\n").removesuffix(b"\r")
        try:
            yield raw.decode("utf-8")
        except UnicodeDecodeError:
            print(f"heedful: line {number} is not valid UTF-8; invalid bytes are replaced", file=sys.stderr)
            yield raw.decode("utf-8", "replace")
