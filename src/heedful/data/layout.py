"""Where a table has the columns of a task: by names in its header row, by --fields, by content, or in order."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from heedful.data.columns import Column

# Names that make a first line a header row, besides those of the task's own columns.
HEADERS = {
    "source", "target", "src", "tgt", "trg", "input", "output", "text", "label", "labels", "class", "sentence",
    "sentence1", "sentence2", "reference", "translation", "english", "german", "french", "spanish", "chinese", "en",
    "de", "fr", "es", "zh", "it", "pt", "ru", "ja", "id", "tag", "tags", "index", "idx",
}  # fmt: skip


@dataclass(frozen=True)
class Layout:
    """The place of each column in the rows of a table."""

    places: tuple[int, ...]
    has_header: bool = False

    @property
    def last(self) -> int:
        return max(self.places)


def layout(first: Sequence[str], columns: Sequence[Column], fields: Sequence[str] = ()) -> Layout:
    """The layout of a table whose first line has these cells.

    `fields`: the table's own names of the columns, in the task's order; or the task's names, in the table's order (a
    name that is not the task's marks a column to skip).
    """
    cells = [cell.strip().casefold() for cell in first]
    wanted = [field.casefold() for field in fields]
    ours = [column.name for column in columns]
    by_name = set(ours) <= set(wanted)
    if wanted and set(wanted) <= set(cells):
        return Layout(tuple(cells.index(name) for name in (ours if by_name else wanted)), True)
    named = [next((cells.index(name) for name in column.names if name in cells), -1) for column in columns]
    all_named = -1 not in named and len(set(named)) == len(named)
    known = HEADERS.union(*(column.names for column in columns))
    is_header = all_named or all(cell in known for cell in cells[: len(columns)])
    if wanted and by_name:
        return Layout(tuple(wanted.index(name) for name in ours), is_header)
    if all_named:
        return Layout(tuple(named), True)
    return Layout(tuple(range(len(columns))), is_header)


def guess(rows: Iterable[Sequence[str]], columns: Sequence[Column]) -> tuple[str, ...]:
    """The task's names in the table's order, judged by content: the label is the cell with the fewest values, the
    number the one that always is a number. Empty: in the task's own order, or not to be told."""
    held = [row for row in rows if len(row) == len(columns)]
    odd = [place for place, column in enumerate(columns) if column.kind in ("label", "labels", "number")]
    if not held or len(odd) != 1:
        return ()
    place = odd[0]
    cells = list(zip(*held, strict=True))
    if columns[place].kind == "number":
        fits = [all(is_number(cell) for cell in found) for found in cells]
        found = place if fits[place] or True not in fits else fits.index(True)
    else:
        distinct = [len(set(found)) for found in cells]
        found = place if distinct[place] == min(distinct) else distinct.index(min(distinct))
    if found == place:
        return ()
    names = [column.name for column in columns if column is not columns[place]]
    return (*names[:found], columns[place].name, *names[found:])


def is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False
