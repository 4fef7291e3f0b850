"""The columns of a corpus: a task declares them, and reading, tokenising and batching follow."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["text", "document", "label", "tags", "raw"]


@dataclass(frozen=True)
class Column:
    """A TSV column, or the JSONL field of that name.

    text       tokenised
    document   plain text files, tokenised: documents separated by blank lines; must be the only column
    label      one of a few names; a row stores the number of its label
    tags       a label for each word of the first text, separated by spaces
    raw        kept as bytes: a number, a span, the path of an image or a sound, which the task itself reads
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
    """Whether the columns are two texts, which may also come as two parallel files."""
    return [column.kind for column in columns] == ["text", "text"]


def names_of(columns: Sequence[Column]) -> str:
    """source, tab, target"""
    return ", tab, ".join(column.name for column in columns)
