"""`heedful predict`: a model's prediction for each line, for any task."""

import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heedful.commands.lines import as_line, reading, refuse_overwriting
from heedful.commands.options import Parts

if TYPE_CHECKING:
    from heedful.tasks import Use

CHUNK = 512  # lines at a time


def predict(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    text: Annotated[list[str] | None, typer.Argument(help="Texts. Default: the lines of --input.")] = None,
    source: Annotated[str, typer.Option("--input", "-i", help="File to read; - = standard input.")] = "-",
    output: Annotated[str, typer.Option("--output", "-o", help="File to write; - = standard output.")] = "-",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSONL with all details.")] = False,
    parts: Parts = None,
) -> None:
    """Predict for each line: a translation, a continuation or a label, by the model's task. One output line per input.

    If the task reads several columns, separate them with tabs.

    Examples:

      heedful predict runs/my-model "good morning"

      heedful predict runs/my-model -i lines.txt --json
    """
    import heedful
    from heedful.files import in_place

    if not text:
        refuse_overwriting(source, output)
    with nullcontext(iter(text)) if text else reading(source) as lines:
        answers = _answers(heedful.load(model), lines, as_json)
        if output == "-":
            for line in answers:
                sys.stdout.write(line)
            return
        with in_place(Path(output)) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(answers)


def _answers(use: "Use", lines: Iterator[str], as_json: bool) -> Iterator[str]:
    show = getattr(use, "show", lambda found: found["text"])
    while chunk := list(islice(lines, CHUNK)):
        for line, found in zip(chunk, use.predict(chunk), strict=True):
            said = json.dumps({"input": line, **found}, ensure_ascii=False) if as_json else show(found)
            yield as_line(said)
