"""Reading corpora: TSV, CSV, two parallel files, JSONL, CoNLL or plain text, optionally gzipped; in UTF-8, or in UTF-16
or UTF-32 with a byte-order mark. The columns define what a row contains.

Reading never stops at a bad line and never hides one: an unusable line becomes a `Fault` with its line number.
"""

import csv
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, Literal

from heedful.data.columns import PAIR, Column, is_document, is_pair, names_of
from heedful.data.conll import as_word, is_conll, is_tagged, read_conll, to_iob2
from heedful.data.documents import id_column, in_documents, with_id, with_key
from heedful.data.layout import Layout, is_number, layout
from heedful.data.lines import Fault, Line, read_lines

Format = Literal["tsv", "jsonl", "parallel", "text"]
LONG_DOCUMENT = 1 << 16  # characters; a text without blank lines is split at a line break after this many
QUOTED_LINES = 50  # lines of a TSV that are examined to tell whether its cells are quoted
PAIR_KEYS = (("source", "target"), ("src", "tgt"), ("src", "trg"), ("input", "output"), ("en", "de"))


def read_rows(
    files: Sequence[Path], columns: Sequence[Column], fields: Sequence[str] = (), *, documents: bool = False
) -> Iterator[Line | Fault]:
    """All rows of these files, in order. Files of pairs that are neither tables nor JSONL are read in parallel, two by
    two. `fields`: the names of the columns in the files: see `layout`; `documents`: with the ids of their documents."""
    if is_document(columns):
        yield from read_texts(files)
        return
    if row_format(files, columns) == "parallel":
        for source, target in zip(files[::2], files[1::2], strict=True):
            yield from _read_parallel(source, target, documents)
        return
    for file in files:
        if is_conll(file, columns):
            yield from read_conll(file)
            continue
        kind = _format_of(file)
        if kind == "jsonl":
            for number, line in read_lines(file):
                if isinstance(line, Fault):
                    yield line
                    continue
                rows = _from_jsonl(file.name, number, line, columns, fields)
                yield from (with_key(row, _object(line)) for row in rows) if documents else rows
            continue
        places: Layout | None = None
        ids: int | None = None
        for number, cells in _read_table(file):
            if isinstance(cells, Fault):
                yield cells
                continue
            if places is None:
                places = layout(cells, columns, fields)
                if documents:
                    ids = id_column(cells if places.has_header else (), fields)
                if places.has_header:
                    yield Fault(file.name, number, "header row")
                    continue
            if documents and not any(cell.strip() for cell in cells):
                yield Fault(file.name, number, "empty line")
                continue
            yield with_id(_from_cells(file.name, number, cells, columns, places), cells, ids, len(columns))


def table_start(file: Path, rows: int, columns: Sequence[Column] = PAIR) -> list[list[str]]:
    """The cells of a table's first rows; none if it is no table."""
    if is_conll(file, columns) or _format_of(file) not in ("tsv", "csv"):
        return []
    found = (cells for _, cells in _read_table(file) if not isinstance(cells, Fault))
    return [cells for cells in islice(found, rows) if any(cell.strip() for cell in cells)]


def jsonl_start(file: Path) -> set[str]:
    """The keys of a JSONL file's first object; none if it is no JSONL."""
    if _format_of(file) != "jsonl":
        return set()
    lines = (line for _, line in read_lines(file) if isinstance(line, str) and line.strip())
    return next((set(_object(line) or ()) for line in lines), set())


def is_plain(file: Path) -> bool:
    """Whether a file is plain text: neither a table nor JSONL."""
    return _format_of(file) == "text"


def _read_table(file: Path) -> Iterator[tuple[int, list[str] | Fault]]:
    """The cells of each row of a TSV or CSV file, numbered by the line that it starts in."""
    kind = _format_of(file)
    if kind == "csv" or _is_quoted(file):
        yield from _read_quoted(file, "," if kind == "csv" else "\t")
        return
    for number, line in read_lines(file):
        yield number, line if isinstance(line, Fault) else line.split("\t")


def read_pairs(files: Sequence[Path], *, documents: bool = False) -> Iterator[Line | Fault]:
    rows = read_rows(files, PAIR, documents=documents)
    return in_documents(rows) if documents else rows


def read_texts(files: Sequence[Path]) -> Iterator[Line | Fault]:
    """Documents: plain text separated by blank lines, line breaks included; or the `text` of each JSONL object."""
    for file in files:
        if not file.is_file():
            raise ValueError(f"there is no file {file}")
        if _format_of(file) == "jsonl":
            for number, line in read_lines(file):
                yield line if isinstance(line, Fault) else _text_of_json(file.name, number, line)
        else:
            yield from _read_documents(file)


def _read_documents(file: Path) -> Iterator[Line | Fault]:
    held, size, first = [], 0, 1
    for number, line in read_lines(file):
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
    formats = {_format_of(file) for file in files if not is_conll(file, columns)}
    if "text" not in formats:
        return "tsv"  # a table, JSONL or CoNLL
    names = ", ".join(file.name for file in files)
    if not is_pair(columns):
        kinds = "JSONL or CoNLL; this is none of them" if is_tagged(columns) else "or JSONL; this is neither"
        comma = "," if is_tagged(columns) else ""
        raise ValueError(f"{names}: rows must be TSV ({names_of(columns)}){comma} {kinds} (no tab in the first line)")
    if formats != {"text"} or len(files) % 2:
        raise ValueError(
            f"{names}: pairs must be TSV (source, tab, target), JSONL, or two parallel files; "
            "this is none of them (no tab in the first line). For a language model of plain text: --recipe char-gpt"
        )
    return "parallel"


def _format_of(file: Path) -> Literal["tsv", "csv", "jsonl", "text"]:
    """The format, by file name or else by the first line."""
    for kind in ("tsv", "csv", "jsonl"):
        if f".{kind}" in file.suffixes:
            return kind
    first = next((line for _, line in read_lines(file) if isinstance(line, str)), "")
    if first.startswith("{"):
        return "jsonl"
    return "tsv" if "\t" in first else "text"


def _is_quoted(file: Path) -> bool:
    """Whether the cells of a TSV are quoted, as spreadsheets write them: each of the first lines has a quoted cell, and
    none has an unclosed quote."""
    first = [line for _, line in islice(read_lines(file), QUOTED_LINES) if isinstance(line, str) and line.strip()]
    quoted = re.compile(r'(^|\t)"(?:[^"]|"")*"(\t|$)')
    return bool(first) and all(quoted.search(line) for line in first)


def _read_quoted(file: Path, delimiter: str) -> Iterator[tuple[int, list[str] | Fault]]:
    """A table with quoted cells, which may contain delimiters, quotes and line breaks."""
    faults: list[Fault] = []

    def lines() -> Iterator[str]:
        for _, line in read_lines(file):
            if isinstance(line, Fault):
                faults.append(line)
            else:
                yield line + "\n"

    reader = csv.reader(lines(), delimiter=delimiter)
    number = 1
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            yield number, Fault(file.name, number, f"not CSV: {error}")
            continue
        yield from ((fault.number, fault) for fault in faults)
        faults.clear()
        yield number, [" ".join(cell.splitlines()) for cell in cells]
        number = reader.line_num + 1
    yield from ((fault.number, fault) for fault in faults)


def _row(file: str, number: int, cells: Sequence[str], columns: Sequence[Column]) -> Line | Fault:
    cells = tuple(cell if column.kind == "raw" else cell.strip() for cell, column in zip(cells, columns, strict=True))
    words = next((len(cell.split()) for cell, column in zip(cells, columns, strict=True) if column.is_text), 0)
    note = ""
    for place, (cell, column) in enumerate(zip(cells, columns, strict=True)):
        if not cell and column.kind not in ("raw", "labels"):
            return Fault(file, number, "empty side" if is_pair(columns) else f"empty {column.name}")
        if column.kind == "number" and not is_number(cell):
            return Fault(file, number, f"{column.name} {cell[:40]!r} is not a number")
        if column.kind == "tags":
            tags, note = to_iob2(cell.split())
            if len(tags) != words:
                return Fault(file, number, f"{words} words, but {len(tags)} {column.name}; give one for each word")
            cells = (*cells[:place], " ".join(tags), *cells[place + 1 :])
    return Line(file, number, cells, note=note)


def _from_cells(
    file: str, number: int, cells: Sequence[str], columns: Sequence[Column], places: Layout
) -> Line | Fault:
    if len(cells) <= places.last:
        reason = "only one column" if len(cells) < 2 else f"only {len(cells)} columns"
        return Fault(file, number, reason if any(cell.strip() for cell in cells) else "empty line")
    found = _row(file, number, [cells[place] for place in places.places], columns)
    if isinstance(found, Line) and len(cells) > len(columns):
        return replace(found, more=len(cells))
    return found


def _from_jsonl(
    file: str, number: int, line: str, columns: Sequence[Column], fields: Sequence[str]
) -> Iterator[Line | Fault]:
    """The row of a JSON object; several, if a column has several texts."""
    data = _object(line)
    if data is None:
        yield Fault(file, number, "not a JSON object" if line.strip() else "empty line")
        return
    for one in _without_lists(data, columns, fields):
        yield _from_object(file, number, one, columns, fields)


def _without_lists(data: dict[str, Any], columns: Sequence[Column], fields: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The object, with lists as their columns read them."""
    for place, column in enumerate(columns):
        key = _key(data, fields[place] if len(fields) == len(columns) else column.name, column)
        value = data.get(key)
        if not column.lists or not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            continue
        if column.lists == "sentences":
            data = {**data, key: " ".join(item.strip() for item in value)}
        else:
            yield from ({**data, key: item} for item in value)
            if value:
                return
    yield data


def _from_object(
    file: str, number: int, data: dict[str, Any], columns: Sequence[Column], fields: Sequence[str]
) -> Line | Fault:
    if is_pair(columns) and isinstance(data.get("translation"), dict):
        data = dict(zip((column.name for column in columns), data["translation"].values(), strict=False))
    names = [column.name for column in columns]
    if set(names) <= set(fields):  # the order of a table's columns, which says nothing here
        fields = names
    known = (tuple(fields),) if fields else (tuple(names), *(PAIR_KEYS if is_pair(columns) else ()))
    for keys in known:
        values = [data.get(_key(data, key, column)) for key, column in zip(keys, columns, strict=True)]
        if is_tagged(columns):
            if any(_are_numbers(value) for value in values):
                return Fault(file, number, "tags are numbers; write their names, such as B-PER")
            values = [_words(data, value, column) for value, column in zip(values, columns, strict=True)]
        cells = [_cell(value, column) for value, column in zip(values, columns, strict=True)]
        if all(cell is not None for cell in cells):
            return _row(file, number, [cell for cell in cells if cell is not None], columns)
    wanted = " and ".join(fields or names)
    strange = data and not set(data) & {*fields, *names}  # none of the field names match
    found = f" (it has {', '.join(map(str, list(data)[:6]))}; name them with --fields)" if strange else ""
    return Fault(file, number, f"no {wanted}{found}")


def _key(data: dict[str, Any], key: str, column: Column) -> str:
    """The key of a column: as it is named, or any of the names people give it."""
    return key if key in data else next((name for name in column.also if name in data), key)


def _words(data: dict[str, Any], value: Any, column: Column) -> Any:
    """A list of words as a text, where each word has a tag; it is preferred to the text that it comes from."""
    if column.is_text:
        value = next((data[name] for name in column.names if isinstance(data.get(name), list)), value)
    if not isinstance(value, list):
        return value
    if not value or not all(isinstance(item, str) for item in value):
        return None
    return " ".join(map(as_word, value)) if column.is_text else value


def _are_numbers(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, int) for item in value)


def _cell(value: Any, column: Column) -> str | None:
    """A JSON value as a cell: a list of tags is joined by spaces, one of labels by commas, a number or list in a raw
    column is kept as JSON."""
    if isinstance(value, str):
        return value
    if column.kind == "labels" and isinstance(value, list):
        return ",".join(map(str, value))
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
        json.dumps(data, ensure_ascii=False).encode()  # an unpaired surrogate is valid JSON, but not text
    except (json.JSONDecodeError, UnicodeEncodeError):
        return None
    return data if isinstance(data, dict) else None


def _read_parallel(source: Path, target: Path, documents: bool) -> Iterator[Line | Fault]:
    for left, right in zip_longest(read_lines(source), read_lines(target)):
        if left is None or right is None:
            counts = [sum(1 for _ in read_lines(file)) for file in (source, target)]
            raise ValueError(
                f"{source.name} has {counts[0]:,} lines and {target.name} has {counts[1]:,}; "
                "parallel files must match line by line"
            )
        (number, first), (_, second) = left, right
        if isinstance(first, Fault):
            yield first
        elif isinstance(second, Fault):
            yield second
        elif documents and not (first + second).strip():
            yield Fault(source.name, number, "empty line")
        else:
            yield _row(source.name, number, (first, second), PAIR)


def near(text: str) -> str:
    """A key that is equal for texts that differ only in case, spaces and punctuation."""
    return re.sub(r"[\W_]+", "", text).casefold()
