"""What the rows of a corpus hold: a task names its columns, and everything between its files and its batches
follows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["text", "document", "label", "tags", "raw"]


@dataclass(frozen=True)
class Column:
    """A column of a TSV, or the field of that name in JSONL.

    text       tokenised
    document   plain text in a file of its own, tokenised: documents with blank lines between them; the only column
    label      one of a few names; a row holds the number of its label
    tags       a label for each word of the first text, with spaces between them
    raw        kept as it is, as bytes: a number, a span, the path of an image or a sound, for a task that reads it
    itself
    """

    name: str
    kind: Kind = "text"

    @property
    def is_text(self) -> bool:
        return self.kind in ("text", "document")


Columns = tuple[Column, ...]
PAIR: Columns = (Column("source"), Column("target"))
DOCUMENT: Columns = (Column("text", "document"),)


def is_document(columns: Sequence[Column]) -> bool:
    return any(column.kind == "document" for column in columns)


def is_pair(columns: Sequence[Column]) -> bool:
    """Two texts: what may also come as two parallel files."""
    return [column.kind for column in columns] == ["text", "text"]


def names_of(columns: Sequence[Column]) -> str:
    """source, tab, target"""
    return ", tab, ".join(column.name for column in columns)
