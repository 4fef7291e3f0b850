"""The languages and the length that a command asks for, of models that know several."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from heedful.data.languages import Languages

From = Annotated[str, typer.Option("--from", help="Source language, if the model knows several.")]
To = Annotated[str, typer.Option("--to", help="Target language, if the model knows several.")]
Length = Annotated[
    str, typer.Option(help="How long: short, medium, long or a number, for a summariser with task.length_tokens.")
]


def check_languages(known: "Languages", asked: tuple[str, str], length: str = "") -> None:
    """Check the languages before anything is read, and warn of a direction without training (zero-shot)."""
    direction = known.direction(*asked)
    known.framing(*asked, length)
    if not known.trained(direction) and direction.source:
        print(f"heedful: {direction} was not trained: this is zero-shot translation", file=sys.stderr)
