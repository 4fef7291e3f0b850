"""Documents in files of pairs: rows with the same id in a column or JSONL key, or rows between blank lines."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from heedful.data.lines import Fault, Line

# What people call the column or key with a document's id; `id` may also number the rows, so it comes last.
NAMES = ("document", "doc", "document_id", "doc_id", "docid", "id")


def id_column(*headers: Sequence[str]) -> int | None:
    """The place of the documents' ids, by the first of these lists of names that has it; None if there are none."""
    for header in headers:
        names = [name.strip().casefold() for name in header]
        for name in NAMES:
            if name in names:
                return names.index(name)
    return None


def with_id(row: Line | Fault, cells: Sequence[str], place: int | None, read: int) -> Line | Fault:
    """The row of a table with its document's id. `read`: how many columns are read besides."""
    if place is None or place >= len(cells) or isinstance(row, Fault):
        return row
    return replace(row, document=cells[place].strip(), more=row.more if len(cells) > read + 1 else 0)


def with_key(row: Line | Fault, data: Mapping[str, Any] | None) -> Line | Fault:
    """The row of a JSON object with its document's id."""
    found = next((data[name] for name in NAMES if name in data), None) if data else None
    return row if found is None or isinstance(row, Fault) else replace(row, document=str(found))


def in_documents(rows: Iterable[Line | Fault]) -> Iterator[Line | Fault]:
    """The rows, each with how many of its document stand before it, without the blank lines between documents.
    `document` becomes what decides about its split: the id, or the first source. After a row that cannot be used the
    count starts again from 0: the next row does not follow what stands before the gap."""
    begun, place, key = None, 0, ""
    for row in rows:
        if isinstance(row, Fault):
            place = 0
            if row.reason == "empty line":
                begun = None
            else:
                yield row
            continue
        if begun != (row.file, row.document):
            begun, place, key = (row.file, row.document), 0, row.document or row.texts[0]
        yield replace(row, document=key, before=place)
        place += 1


def refuse_without(rows: Iterable[Line | Fault], names: str) -> None:
    """Context needs more than one document, and more than one row in some of them."""
    begins = continues = 0
    for row in rows:
        if isinstance(row, Line):
            begins += row.before == 0
            continues += row.before > 0
        if begins > 1 and continues:
            return
    found = "every line is a document of its own" if begins > 1 else "it has no documents"
    raise ValueError(
        f"{names}: {found}, but data.context needs the sentences before; put blank lines between documents, name a "
        "column or JSONL key `document`, or set data.context=0"
    )
