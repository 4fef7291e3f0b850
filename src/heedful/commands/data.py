"""`heedful data check`: check a corpus before training on it."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

data = typer.Typer(name="data", help="Check corpora.", no_args_is_help=True)


@data.callback()
def verbs() -> None:
    """Check corpora."""


@data.command()
def check(
    files: Annotated[list[Path], typer.Argument(help="TSV or JSONL with pairs, or two parallel files; .gz too.")],
    valid: Annotated[
        list[Path] | None, typer.Option(help="Validation pairs; reports those found in the files.")
    ] = None,
    test: Annotated[list[Path] | None, typer.Option(help="Test pairs; reports those found in the files.")] = None,
    fields: Annotated[str, typer.Option(help="JSONL field names of the columns, such as en,zh.")] = "",
    text: Annotated[bool, typer.Option("--text", help="The files are plain text, not pairs.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Report line counts, lengths, duplicates and suspicious lines, with line numbers.

    Examples:

      heedful data check pairs.tsv

      heedful data check train.en train.de --valid dev.en --valid dev.de
    """
    from heedful.data.columns import DOCUMENT, PAIR
    from heedful.data.inputs import Inputs, look_over

    columns = DOCUMENT if text else PAIR
    inputs = Inputs(
        train=tuple(files),
        valid=tuple(valid or ()),
        test=tuple(test or ()),
        columns=columns,
        fields=tuple(name.strip() for name in fields.split(",") if name.strip()),
    )
    report = look_over(inputs).as_data()
    if as_json:
        print(json.dumps(report, indent=2, ensure_ascii=False))
        return
    from rich.console import Console

    Console().print(report_table(report))


def report_table(report: dict[str, Any]) -> "Table":
    from rich.table import Table

    table = Table("corpus", title_justify="left")
    table.add_column("count", justify="right")
    table.add_column("where")
    table.add_row("lines", f"{report['lines']:,}", "")
    table.add_row("usable", f"{report['usable']:,}", "")
    for side in report["sides"]:
        half, most, nearly, longest = side["quantiles"]
        lengths = f"words per line: median {half}, 90 % up to {most}, 99 % up to {nearly}, longest {longest}"
        table.add_row(f"{side['name']} words", f"{side['words']:,}", lengths)
    for name, found in report["labels"].items():
        most = sorted(found.items(), key=lambda pair: -pair[1])[:8]
        table.add_row(f"{name}: labels", f"{len(found):,}", ", ".join(f"{label} {count:,}" for label, count in most))
    for kind, verb in (("skipped", "skipped: "), ("noticed", "")):
        for name, finding in report[kind].items():
            table.add_row(verb + name, f"{finding['count']:,}", " ".join(finding["where"]))
    return table
