"""`heedful data check`: check a corpus before training on it."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from heedful.data.prepare import Prepared

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
    source: Annotated[str, typer.Option("--from", help="The language of the sources; reports other ones.")] = "",
    target: Annotated[str, typer.Option("--to", help="The language of the targets; reports other ones.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Report line counts, lengths, duplicates and suspicious lines, with line numbers.

    With languages, also lines that are in another one, as py3langid recognises it.

    Examples:

      heedful data check pairs.tsv

      heedful data check train.en train.de --valid dev.en --valid dev.de

      heedful data check pairs.tsv --from en --to de
    """
    from heedful.data.check import wrong_language
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
    found = look_over(inputs)
    if source or target:
        try:
            found.noticed.update(wrong_language(inputs.read("train"), (source, target)))
        except ModuleNotFoundError:
            print("heedful: languages are not checked; for that: pip install 'heedful[serve]'", file=sys.stderr)
    report = found.as_data()
    if as_json:
        print(json.dumps(report, indent=2, ensure_ascii=False))
        return
    from rich.console import Console

    Console().print(report_table(report))


def shares_table(prepared: "Prepared") -> "Table":
    """What an epoch of a mixture holds: the shares of rows and target tokens that result, and how often a row comes."""
    from rich.table import Table

    table = Table("part", title="an epoch of the mixture", title_justify="left")
    for name in ("rows", "drawn", "% of rows", "% of target tokens", "passes"):
        table.add_column(name, justify="right")
    total = sum(part.rows for part in prepared.parts)
    tokens = sum(part.share * part.tokens[1] for part in prepared.parts)
    for part in prepared.parts:
        drawn, weight = total * part.share, part.share * part.tokens[1] / max(1e-9, tokens)
        cells = [f"{part.rows:,}", f"{drawn:,.0f}", f"{100 * part.share:.1f}", f"{100 * weight:.1f}"]
        table.add_row(part.name, *cells, f"{drawn / max(1, part.rows):.2f}")
    return table


def report_table(report: dict[str, Any], name: str = "corpus") -> "Table":
    from rich.table import Table

    table = Table(name, title_justify="left")
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
