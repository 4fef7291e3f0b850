"""`heedful params`: the size and cost of a model, before it is built."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from heedful.commands.options import Parts

if TYPE_CHECKING:
    from heedful.inspection.cost import Cost
    from heedful.model.architecture import ArchitectureConfig


def params(
    preset: Annotated[
        str | None,
        typer.Argument(help="A preset, such as vaswani-base, or a recipe's YAML file. Default: list the presets."),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Keys to change, such as vocab=8000 encoder.layers=3."),
    ] = None,
    length: Annotated[int, typer.Option(min=1, help="Context length in tokens, for the FLOPs.")] = 512,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    parts: Parts = None,
) -> None:
    """Print parameters by component, FLOPs per token, and the memory of weights and key/value cache.

    Parameters are computed by formula and by counting those of the model, which is built without allocating memory.

    Examples:

      heedful params

      heedful params vaswani-base vocab=8000 decoder.layers=3

      heedful params llama2-70b --json
    """
    from heedful.config import override
    from heedful.families import preset as find
    from heedful.families import presets
    from heedful.inspection.cost import cost

    if preset is None:
        _list(presets(), as_json)
        return
    if preset.endswith((".yaml", ".yml")):
        from heedful.training.recipe import read_recipe

        config = override(read_recipe(preset).model, changes or [])
    else:
        config = override(find(preset), changes or [])
    found = cost(config, length=length)
    if as_json:
        print(json.dumps(_as_data(preset, found), indent=2))
    else:
        _print(preset, found)


def _list(known: "dict[str, ArchitectureConfig]", as_json: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    if as_json:
        print(json.dumps({name: sum(config.parameters().values()) for name, config in known.items()}, indent=2))
        return
    table = Table("preset", "class")
    table.add_column("parameters", justify="right")
    for name, config in known.items():
        table.add_row(name, config.kind, f"{sum(config.parameters().values()):,}")
    Console().print(table)


def _as_data(preset: str, cost: "Cost") -> dict[str, object]:
    from heedful.inspection.cost import BYTES

    return {
        "preset": preset,
        "total": cost.total,
        "components": {
            name: {"formula": count, "counted": cost.counted.get(name, 0)} for name, count in cost.formula.items()
        },
        "flops_per_token": {"length": cost.length, **cost.flops},
        "cache_bytes_per_token": {
            format_: {kind: size * count for kind, count in cost.cache.items()} for format_, size in BYTES.items()
        },
        "weight_bytes": {format_: size * cost.total for format_, size in BYTES.items()},
    }


def _print(preset: str, cost: "Cost") -> None:
    from rich.console import Console
    from rich.table import Table

    from heedful.inspection.cost import BYTES

    parameters = Table("component", title=f"{preset}: parameters", title_justify="left")
    for column in ("by formula", "counted", "share"):
        parameters.add_column(column, justify="right")
    for name, count in cost.formula.items():
        parameters.add_row(name, f"{count:,}", f"{cost.counted.get(name, 0):,}", f"{count / cost.total:.1%}")
    parameters.add_section()
    parameters.add_row("total", f"{cost.total:,}", f"{sum(cost.counted.values()):,}", "")

    memory = Table("memory", title="bytes", title_justify="left")
    for column in BYTES:
        memory.add_column(column, justify="right")
    memory.add_row("weights", *(f"{size * cost.total:,}" for size in BYTES.values()))
    for kind, count in cost.cache.items():
        memory.add_row(f"key/value cache, per {kind}", *(f"{size * count:,}" for size in BYTES.values()))

    console = Console()
    console.print(parameters)
    console.print(memory)
    for kind, flops in cost.flops.items():
        console.print(f"forward pass: {flops:,} FLOPs per {kind}, context {cost.length} tokens", highlight=False)
