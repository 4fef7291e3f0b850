"""`heedful corpus`: a generated corpus to start with."""

import json
from pathlib import Path
from typing import Annotated

import typer

corpus = typer.Typer(name="corpus", help="Generate a corpus to start with.", no_args_is_help=True)


@corpus.callback()
def _corpus() -> None:
    pass


@corpus.command()
def mini(
    pair: Annotated[str, typer.Option(help="en-de or en-zh.")] = "en-de",
    lines: Annotated[int, typer.Option(help="Number of training pairs.")] = 20_000,
    out: Annotated[Path | None, typer.Option(help="The folder to write.", show_default="mini-PAIR")] = None,
    seed: Annotated[int, typer.Option(help="Random seed; another one gives other sentences.")] = 1,
    documents: Annotated[
        bool,
        typer.Option(
            "--documents",
            help="Documents of two sentences, separated by blank lines: the second has a pronoun for a noun of the "
            "first, for data.context=1.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False,
) -> None:
    """Write train.tsv, valid.tsv and test.tsv: correct sentences from a small grammar with a few hundred words.

    German covers gender, case, inflection, clause-final verbs and separable verbs. Chinese covers measure words, time
    expressions before the verb and relative clauses before the noun. The test set contains only word combinations that
    do not occur in training.

    Examples:

      heedful corpus mini --pair en-zh --lines 10000 --out corpus

      heedful train corpus/train.tsv --valid corpus/valid.tsv --out runs/mini
    """
    from heedful.mini.corpus import write

    folder = out or Path(f"mini-{pair}")
    counts = write(folder, pair, lines, seed=seed, documents=documents)
    if as_json:
        print(json.dumps({"folder": str(folder), **counts}))
    else:
        print(f"{folder}: " + ", ".join(f"{split}.tsv {count:,}" for split, count in counts.items()))
