"""`heedful predict`: a model's prediction for each line, for any task."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heedful.commands.languages import From, Length, To, check_languages
from heedful.commands.lines import as_line, reading, refuse_overwriting
from heedful.commands.options import Parts

if TYPE_CHECKING:
    from heedful.tasks import Use

Predict = Callable[[list[str]], list[dict[str, Any]]]
CHUNK = 512  # lines at a time


def predict(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    text: Annotated[list[str] | None, typer.Argument(help="Texts. Default: the lines of --input.")] = None,
    source: Annotated[str, typer.Option("--input", "-i", help="File to read; - = standard input.")] = "-",
    output: Annotated[str, typer.Option("--output", "-o", help="File to write; - = standard output.")] = "-",
    from_language: From = "",
    to_language: To = "",
    length: Length = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSONL with all details.")] = False,
    parts: Parts = None,
) -> None:
    """Predict for each line: a translation, a continuation or a label, by the model's task. One output line per input.

    If the task reads several columns, separate them with tabs.

    Examples:

      heedful predict runs/my-model "good morning"

      heedful predict runs/my-model -i lines.txt --json

      heedful predict runs/many "good morning" --from en --to de
    """
    import heedful
    from heedful.files import in_place

    if not text:
        refuse_overwriting(source, output)
    with nullcontext(iter(text)) if text else reading(source) as lines:
        use = heedful.load(model)
        answers = _answers(_predictor(use, from_language, to_language, length), use, lines, as_json)
        if output == "-":
            for line in answers:
                sys.stdout.write(line)
            return
        with in_place(Path(output)) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(answers)


def _predictor(use: "Use", source: str, target: str, length: str) -> Predict:
    """How it predicts: for translators, between these languages, and of this length."""
    from heedful.translator import Translator

    if isinstance(use, Translator):
        check_languages(use.languages, (source, target), length)
        return partial(use.predict, source=source, target=target, length=length)
    if source or target:
        raise ValueError("languages are for translators; leave them out")
    if length:
        raise ValueError("--length is for summarisers; leave it out")
    return use.predict


def _answers(predict: Predict, use: "Use", lines: Iterator[str], as_json: bool) -> Iterator[str]:
    show = getattr(use, "show", lambda found: found["text"])
    while chunk := list(islice(lines, CHUNK)):
        for line, found in zip(chunk, predict(chunk), strict=True):
            said = json.dumps({"input": line, **found}, ensure_ascii=False) if as_json else show(found)
            yield as_line(said)
