"""`heedful corpus`: a corpus to begin with."""

import json
from pathlib import Path
from typing import Annotated

import typer

corpus = typer.Typer(name="corpus", help="A corpus to begin with, made up on the spot.", no_args_is_help=True)


@corpus.callback()
def _corpus() -> None:
    pass


@corpus.command()
def mini(
    pair: Annotated[str, typer.Option(help="en-de or en-zh.")] = "en-de",
    lines: Annotated[int, typer.Option(help="How many pairs to train on.")] = 20_000,
    out: Annotated[Path | None, typer.Option(help="The folder to write.", show_default="mini-PAIR")] = None,
    seed: Annotated[int, typer.Option(help="Another one makes up other sentences.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False,
) -> None:
    """Write train.tsv, valid.tsv and test.tsv: correct sentences of a small grammar with a few hundred words.

    German: gender, case, endings, verbs at the end and verbs that come apart. Chinese: measure words, the time before
    the verb, clauses before the noun. The test set puts words together that were never together in training.

    Examples:

      heedful corpus mini --pair en-zh --lines 10000 --out corpus

      heedful train corpus/train.tsv --valid corpus/valid.tsv --out runs/mini
    """
    from heedful.mini.corpus import write

    folder = out or Path(f"mini-{pair}")
    counts = write(folder, pair, lines, seed=seed)
    if as_json:
        print(json.dumps({"folder": str(folder), **counts}))
    else:
        print(f"{folder}: " + ", ".join(f"{split}.tsv {count:,}" for split, count in counts.items()))
