"""Corpora as people have them: TSV, two parallel files, JSONL, plain text; also gzipped, several, or standard input.
What a row holds, the columns say.

Reading never stops at a bad line and never hides one: what cannot be used comes out as a `Fault` with its line number.
"""

import gzip
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import IO, Any, Literal

from heedful.data.columns import PAIR, Column, is_document, is_pair, names_of

Format = Literal["tsv", "jsonl", "parallel", "text"]
LONG_DOCUMENT = 1 << 16  # characters; a text without blank lines is cut at a line break after this many
UNREADABLE = (OSError, EOFError, zlib.error)
PAIR_KEYS = (("source", "target"), ("src", "tgt"), ("src", "trg"), ("input", "output"), ("en", "de"))


@dataclass(frozen=True)
class Line:
    """A usable line: what stands in each column."""

    file: str
    number: int
    texts: tuple[str, ...]


@dataclass(frozen=True)
class Fault:
    """A line that cannot be used, and why."""

    file: str
    number: int
    reason: str


def read_rows(files: Sequence[Path], columns: Sequence[Column]) -> Iterator[Line | Fault]:
    """All rows of these files, one after the other. Files of pairs that are neither TSV nor JSONL go two by two."""
    if is_document(columns):
        yield from read_texts(files)
        return
    if row_format(files, columns) == "parallel":
        for source, target in zip(files[::2], files[1::2], strict=True):
            yield from _read_parallel(source, target)
        return
    for file in files:
        name, parse = file.name, _from_tsv if _format_of(file) == "tsv" else _from_jsonl
        for number, line in _lines(file):
            yield line if isinstance(line, Fault) else parse(name, number, line, columns)


def read_pairs(files: Sequence[Path]) -> Iterator[Line | Fault]:
    return read_rows(files, PAIR)


def read_texts(files: Sequence[Path]) -> Iterator[Line | Fault]:
    """Documents: of plain text what blank lines separate, line breaks included; of JSONL the `text` of each object."""
    for file in files:
        if not file.is_file():
            raise ValueError(f"there is no file {file}")
        if _format_of(file) == "jsonl":
            for number, line in _lines(file):
                yield line if isinstance(line, Fault) else _text_of_json(file.name, number, line)
        else:
            yield from _read_documents(file)


def _read_documents(file: Path) -> Iterator[Line | Fault]:
    held, size, first = [], 0, 1
    for number, line in _lines(file):
        if isinstance(line, Fault):
            yield line
            continue
        held.append(line + "\n")
        size += len(line)
        if not line.strip() or size > LONG_DOCUMENT:
            yield Line(file.name, first, ("".join(held),))
            held, size, first = [], 0, number + 1
    if held:
        yield Line(file.name, first, ("".join(held),))


def row_format(files: Sequence[Path], columns: Sequence[Column]) -> Format:
    for file in files:
        if not file.is_file():
            raise ValueError(f"there is no file {file}")
    formats = {_format_of(file) for file in files}
    if "text" not in formats:
        return "tsv"
    names = ", ".join(file.name for file in files)
    if not is_pair(columns):
        raise ValueError(
            f"{names}: rows come as TSV ({names_of(columns)}) or as JSONL; this is neither (no tab in the first line)"
        )
    if formats != {"text"} or len(files) % 2:
        raise ValueError(
            f"{names}: pairs come as TSV (source, tab, target), as JSONL, or as two parallel files side by side; "
            "this is none of them (no tab in the first line)"
        )
    return "parallel"


def open_bytes(file: Path) -> IO[bytes]:
    return gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb")  # type: ignore[return-value]


def _format_of(file: Path) -> Literal["tsv", "jsonl", "text"]:
    """By its name, or else by its first line."""
    suffixes = file.suffixes
    if ".tsv" in suffixes:
        return "tsv"
    if ".jsonl" in suffixes:
        return "jsonl"
    try:
        with open_bytes(file) as opened:
            first = opened.readline(1 << 20).lstrip(b"\xef\xbb\xbf")
    except UNREADABLE as error:
        raise ValueError(f"{file} cannot be read: {error}") from None
    if first.startswith(b"{"):
        return "jsonl"
    return "tsv" if b"\t" in first else "text"


def _lines(file: Path) -> Iterator[tuple[int, str | Fault]]:
    """Numbered from 1; split at line feeds only, since U+2028 and the like belong to the text."""
    try:
        with open_bytes(file) as opened:
            for number, raw in enumerate(opened, start=1):
                if number == 1:
                    raw = raw.removeprefix(b"\xef\xbb\xbf")
                try:
                    yield number, raw.rstrip(b"\n").removesuffix(b"\r").decode("utf-8")
                except UnicodeDecodeError:
                    yield number, Fault(file.name, number, "invalid UTF-8")
    except UNREADABLE as error:
        raise ValueError(f"{file} cannot be read: {error}") from None


def _row(file: str, number: int, cells: Sequence[str], columns: Sequence[Column]) -> Line | Fault:
    cells = tuple(cell if column.kind == "raw" else cell.strip() for cell, column in zip(cells, columns, strict=True))
    for cell, column in zip(cells, columns, strict=True):
        if not cell and column.kind != "raw":
            return Fault(file, number, "empty side" if column.is_text else f"empty {column.name}")
        words = len(cells[0].split())
        if column.kind == "tags" and len(cell.split()) != words:
            return Fault(file, number, f"not one of {column.name} for each word")
    return Line(file, number, cells)


def _from_tsv(file: str, number: int, line: str, columns: Sequence[Column]) -> Line | Fault:
    cells = line.split("\t")
    if len(cells) < len(columns):
        reason = "only one column" if len(cells) == 1 else f"only {len(cells)} columns"
        return Fault(file, number, reason if line.strip() else "empty line")
    return _row(file, number, cells[: len(columns)], columns)


def _from_jsonl(file: str, number: int, line: str, columns: Sequence[Column]) -> Line | Fault:
    data = _object(line)
    if data is None:
        return Fault(file, number, "not a JSON object" if line.strip() else "empty line")
    if is_pair(columns) and isinstance(data.get("translation"), dict):
        data = dict(zip((column.name for column in columns), data["translation"].values(), strict=False))
    names = [column.name for column in columns]
    for keys in (tuple(names), *(PAIR_KEYS if is_pair(columns) else ())):
        cells = [_cell(data.get(key), column) for key, column in zip(keys, columns, strict=True)]
        if all(cell is not None for cell in cells):
            return _row(file, number, [cell for cell in cells if cell is not None], columns)
    return Fault(file, number, f"no {' and '.join(names)}")


def _cell(value: Any, column: Column) -> str | None:
    """A JSON value as a cell; a list of tags with spaces between them, a number or a list of a raw column as JSON."""
    if isinstance(value, str):
        return value
    if column.kind == "tags" and isinstance(value, list):
        return " ".join(map(str, value))
    if value is None or column.is_text:
        return None
    return json.dumps(value, ensure_ascii=False)


def _text_of_json(file: str, number: int, line: str) -> Line | Fault:
    text = (_object(line) or {}).get("text")
    return Line(file, number, (text,)) if isinstance(text, str) else Fault(file, number, "no text")


def _object(line: str) -> dict[str, Any] | None:
    try:
        data = json.loads(line)
        json.dumps(data, ensure_ascii=False).encode()  # half a surrogate pair is JSON, but no text
    except (json.JSONDecodeError, UnicodeEncodeError):
        return None
    return data if isinstance(data, dict) else None


def _read_parallel(source: Path, target: Path) -> Iterator[Line | Fault]:
    for left, right in zip_longest(_lines(source), _lines(target)):
        if left is None or right is None:
            counts = [sum(1 for _ in _lines(file)) for file in (source, target)]
            raise ValueError(
                f"{source.name} has {counts[0]:,} lines and {target.name} has {counts[1]:,}; "
                "parallel files must match line by line"
            )
        (number, first), (_, second) = left, right
        if isinstance(first, Fault):
            yield first
        elif isinstance(second, Fault):
            yield second
        else:
            yield _row(source.name, number, (first, second), PAIR)


def near(text: str) -> str:
    """What two texts that differ only in case, spaces and punctuation have in common."""
    return re.sub(r"[\W_]+", "", text).casefold()
