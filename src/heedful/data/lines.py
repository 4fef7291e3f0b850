"""The lines of a text file, optionally gzipped: in UTF-8, or in UTF-16 or UTF-32 with a byte-order mark."""

import codecs
import gzip
import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

UNREADABLE = (OSError, EOFError, zlib.error)
# Longest first: the UTF-16 mark is a prefix of the UTF-32 mark.
MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"), (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"),
)  # fmt: skip


class Placed:
    """`unit`: what the number counts, if it is not lines."""

    file: str
    number: int
    unit: str

    @property
    def place(self) -> str:
        """Where it is, for messages: file:7, or file, question 7."""
        return f"{self.file}:{self.number}" if self.unit == "line" else f"{self.file}, {self.unit} {self.number}"


@dataclass(frozen=True)
class Line(Placed):
    """A usable line: the content of each column that is read."""

    file: str
    number: int
    texts: tuple[str, ...]
    more: int = 0  # the number of columns, if there are more than are read
    note: str = ""  # what was corrected in reading it
    unit: str = "line"
    document: str = ""  # the document it belongs to, and how many rows of it stand before: see `documents`
    before: int = 0


@dataclass(frozen=True)
class Fault(Placed):
    """An unusable line, and the reason."""

    file: str
    number: int
    reason: str
    unit: str = "line"


def open_bytes(file: Path) -> IO[bytes]:
    return gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb")  # type: ignore[return-value]


def read_lines(file: Path) -> Iterator[tuple[int, str | Fault]]:
    """Lines, numbered from 1; split at line feeds only, since U+2028 and similar belong to the text."""
    try:
        with open_bytes(file) as opened:
            start = opened.read(4)
            encoding = next((name for mark, name in MARKS if start.startswith(mark)), "")
            opened.seek(0)
            if encoding in ("utf-16", "utf-32"):
                yield from _recoded_lines(file, opened, encoding)
                return
            for number, raw in enumerate(opened, start=1):
                if number == 1:
                    raw = raw.removeprefix(codecs.BOM_UTF8)
                if b"\0" in raw:
                    raise ValueError(
                        f"{file}:{number} contains a NUL byte, so it is not UTF-8 text; is it UTF-16 without a "
                        "byte-order mark, or a binary file? Save it as UTF-8"
                    )
                try:
                    yield number, raw.rstrip(b"\n").removesuffix(b"\r").decode("utf-8")
                except UnicodeDecodeError:
                    yield number, Fault(file.name, number, "invalid UTF-8")
    except UNREADABLE as error:
        raise ValueError(f"{file} cannot be read: {error}") from None


def _recoded_lines(file: Path, opened: IO[bytes], encoding: str) -> Iterator[tuple[int, str | Fault]]:
    text = io.TextIOWrapper(opened, encoding=encoding, newline="\n")
    try:
        for number, line in enumerate(text, start=1):
            yield number, line.rstrip("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{file} has the byte-order mark of {encoding.upper()}, but is not valid: {error.reason}"
        ) from None
