"""`heedful recipes` and `heedful recipe show`: training settings."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from heedful.training.recipe import Recipe

recipe = typer.Typer(name="recipe", help="Show a recipe.", no_args_is_help=True)


@recipe.callback()
def _recipe() -> None:
    pass


def recipes(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the recipes that come with Heedful: `heedful train --recipe NAME`.

    Examples:

      heedful recipes
    """
    from heedful.training.recipe import read_recipe
    from heedful.training.recipe import recipes as known

    found = {name: _facts(name, read_recipe(name)) for name in known()}
    if as_json:
        print(json.dumps(found, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("recipe", "for", "layers")
    for column in ("width", "steps"):
        table.add_column(column, justify="right")
    for name, facts in found.items():
        table.add_row(name, facts["about"], facts["layers"], str(facts["width"]), f"{facts['steps']:,}")
    Console().print(table)


@recipe.command()
def show(
    name: Annotated[str, typer.Argument(help="A named recipe or a YAML file.")],
    changes: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Keys to change, as for train.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print a recipe with every key filled in, as YAML: a starting point for your own.

    Examples:

      heedful recipe show tiny

      heedful recipe show tiny training.steps=500 > mine.yaml
    """
    import yaml

    from heedful.training.recipe import read_recipe

    data = read_recipe(name, changes or []).model_dump(mode="json")
    print(json.dumps(data, indent=2) if as_json else yaml.safe_dump(data, sort_keys=False, allow_unicode=True).rstrip())


def _facts(name: str, found: "Recipe") -> dict[str, Any]:
    from heedful.training.recipe import FOLDER

    stacks = [getattr(found.model, side) for side in ("encoder", "decoder") if hasattr(found.model, side)]
    about = Path(FOLDER / f"{name}.yaml").read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
    return {
        "about": about,
        "layers": "+".join(str(stack.layers) for stack in stacks),
        "width": found.model.width,
        "steps": found.training.steps,
    }
