"""Options that several verbs share."""

from typing import Annotated

import typer


def _use(names: list[str] | None) -> list[str] | None:
    if names:
        from heedful import parts

        for name in names:
            parts.use(name)
    return names


Parts = Annotated[
    list[str] | None,
    typer.Option(
        "--parts",
        help="A folder, or an installed package, with parts of your own that the model needs. Its code is run.",
        callback=_use,
    ),
]
