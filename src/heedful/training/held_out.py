"""The held-out test rows of a training, saved for `heedful evaluate MODEL`."""

from collections.abc import Sequence
from pathlib import Path

from heedful.data import dialogues, preferences
from heedful.data.columns import has_answers, has_messages, has_prompts
from heedful.data.prepare import Prepared
from heedful.data.squad import as_jsonl
from heedful.files import write_text


def save_test(prepared: Prepared, out: Path, documents: bool) -> None:
    """Save the held-out test rows for `heedful evaluate MODEL`; labelled ones with a header row, questions as JSONL,
    since spaces count where an answer is a place in a text; documents are separated by blank lines. Each part of a
    mixture has a file of its own."""
    for part in prepared.parts:
        _save_rows(part.texts("test"), out / f"test.{part.name}.tsv")
    if prepared.parts:
        return
    if prepared.has("test") and has_messages(prepared.columns):
        write_text(out / "test.jsonl", "".join(map(dialogues.as_jsonl, prepared.texts("test"))))
    elif prepared.has("test") and has_prompts(prepared.columns):
        lines = (preferences.as_jsonl(row, prepared.columns) for row in prepared.texts("test"))
        write_text(out / "test.jsonl", "".join(lines))
    elif prepared.has("test") and has_answers(prepared.columns):
        write_text(out / "test.jsonl", "".join(map(as_jsonl, prepared.texts("test"))))
    elif prepared.has("test"):
        names = [] if all(column.is_text for column in prepared.columns) else [tuple(c.name for c in prepared.columns)]
        rows = [*names, *prepared.texts("test")]
        if documents:
            begins = prepared.places("test") == 0
            rows = [row for place, row in enumerate(rows) for row in ([(), row] if place and begins[place] else [row])]
        _save_rows(rows, out / "test.tsv")


def _save_rows(rows: Sequence[Sequence[str]], file: Path) -> None:
    lines = ("\t".join(" ".join(cell.split()) for cell in row) + "\n" for row in rows)
    if rows:
        write_text(file, "".join(lines))
