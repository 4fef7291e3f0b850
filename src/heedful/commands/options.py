"""Options shared by several commands."""

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
        help="Folder or installed package with custom components that the model needs. Its code is executed.",
        callback=_use,
    ),
]
