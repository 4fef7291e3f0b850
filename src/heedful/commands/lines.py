"""Lines in, lines out: for every line of the input one of the output, whatever bytes it holds.

A line ends at a line feed, and nowhere else: U+2028, U+0085, NUL and a lone carriage return are part of their line.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

BREAKS = str.maketrans(dict.fromkeys("\n\r", " "))
EVERY = 60  # seconds between reports of progress, where there is no terminal to draw a bar on
T = TypeVar("T")


@contextmanager
def reading(source: str) -> Iterator[Iterator[str]]:
    """The lines of a file, gzipped or not, or of standard input (-). Invalid UTF-8 is replaced and reported with its
    line number; a compressed file that ends too early is an error."""
    from heedful.data.lines import UNREADABLE, open_bytes

    if source != "-" and not Path(source).is_file():
        raise ValueError(f"there is no file {source}")
    with open_bytes(Path(source)) if source != "-" else _standard_input() as opened:
        lines = _decoded(opened)

        def checked() -> Iterator[str]:
            while True:
                try:
                    line = next(lines, None)
                except UNREADABLE as error:
                    raise ValueError(f"{source} cannot be read: {error}") from None
                if line is None:
                    return
                yield line

        yield checked()


@contextmanager
def _standard_input() -> Iterator[IO[bytes]]:
    yield sys.stdin.buffer


def _decoded(opened: IO[bytes]) -> Iterator[str]:
    for number, raw in enumerate(opened, start=1):
        raw = raw.removesuffix(b"\n").removesuffix(b"\r")
        try:
            yield raw.decode("utf-8")
        except UnicodeDecodeError:
            print(f"heedful: line {number} is not valid UTF-8; invalid bytes are replaced", file=sys.stderr)
            yield raw.decode("utf-8", "replace")


def as_line(text: str) -> str:
    """A text as one line of output."""
    return text.translate(BREAKS) + "\n"


def refuse_overwriting(source: str, output: str) -> None:
    """ValueError if the output would be written onto the input: under the same name, by a link, or by the shell."""
    try:
        read = os.fstat(sys.stdin.fileno()) if source == "-" else Path(source).stat()
        written = os.fstat(sys.stdout.fileno()) if output == "-" else Path(output).stat()
    except (OSError, ValueError):  # not there yet, or not a file
        return
    if _is_file(read) and os.path.samestat(read, written):
        raise ValueError("the input would be overwritten; give --output another name")


def _is_file(found: Any) -> bool:
    import stat

    return stat.S_ISREG(found.st_mode)


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
