"""Makes the reference from the code: python docs/reference.py writes docs/reference/*.md."""

import textwrap
from pathlib import Path
from typing import Any

import typer

from heedful.commands.main import app
from heedful.data.prepare import DataConfig
from heedful.tasks.causal_lm import CausalLmConfig
from heedful.text.tokenizer import TokenizerConfig
from heedful.training.recipe import Recipe, TrainingConfig, read_recipe

FOLDER = Path(__file__).parent / "reference"
PARTS: dict[str, Any] = {
    "training": TrainingConfig,
    "tokenizer": TokenizerConfig,
    "data": DataConfig,
    "task (causal_lm)": CausalLmConfig,
}


def recipe() -> str:
    lines = ["# Recipe keys", "", "Made from the typed config by `python docs/reference.py`.", ""]
    lines += [
        "Any key can be changed on the command line: `heedful train pairs.tsv --out runs/x training.steps=500`.",
        "",
    ]
    lines += [f"`seed` ({Recipe.model_fields['seed'].default}): of everything random.", ""]
    for name, config in PARTS.items():
        lines += [f"## {name}", "", "```text", textwrap.dedent(config.__doc__ or "").strip(), "```", ""]
        lines += ["| key | default | allowed |", "|---|---|---|"]
        for key, schema in config.model_json_schema()["properties"].items():
            lines.append(f"| `{name.split()[0]}.{key}` | `{schema.get('default')}` | {_allowed(schema)} |")
        lines.append("")
    lines += ["## model", "", "Presets: `heedful params`. The keys of a model, as the recipe `tiny` has them:", ""]
    lines += ["| key | value |", "|---|---|", *_leaves(read_recipe("tiny").model.model_dump(mode="json"), "model")]
    return "\n".join(lines) + "\n"


def _allowed(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_allowed(one) for one in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{one}`" for one in schema.get("enum", [schema.get("const")]))
    bounds = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
    limits = [f"{word} {schema[name]:g}" for name, word in bounds.items() if name in schema]
    if schema.get("type") == "array":
        return f"{len(schema.get('prefixItems', []))} numbers"
    return ", ".join([schema.get("type", ""), *limits])


def _leaves(data: dict[str, Any], path: str) -> list[str]:
    lines = []
    for key, value in data.items():
        lines += _leaves(value, f"{path}.{key}") if isinstance(value, dict) else [f"| `{path}.{key}` | `{value}` |"]
    return lines


def command_line() -> str:
    lines = ["# Command line", "", "Made from the commands by `python docs/reference.py`.", ""]
    for path, command in _commands(typer.main.get_command(app), "heedful"):
        lines += [f"## {path}", "", *_help(command.help or ""), ""]
        for parameter in command.params:
            if parameter.name == "help":
                continue
            names = ", ".join(f"`{name}`" for name in parameter.opts) if parameter.opts else parameter.name
            if parameter.param_type_name == "argument":
                names = f"`{getattr(parameter, 'metavar', None) or str(parameter.name).upper()}`"
            lines.append(f"- {names}: {getattr(parameter, 'help', '') or ''}{_default(parameter)}")
        lines.append("")
    return "\n".join(lines) + "\n"


def _commands(command: Any, path: str) -> list[tuple[str, Any]]:
    if hasattr(command, "commands"):
        return [found for name, one in command.commands.items() for found in _commands(one, f"{path} {name}")]
    return [(path, command)]


def _help(text: str) -> list[str]:
    return ["```text", textwrap.dedent(text).strip(), "```"]


def _default(parameter: Any) -> str:
    value = parameter.default
    shown = value not in (None, "", False, ()) and not callable(value) and isinstance(value, str | int | float | Path)
    return f" Default: `{value}`." if shown else ""


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "recipe.md").write_text(recipe(), encoding="utf-8")
    (FOLDER / "cli.md").write_text(command_line(), encoding="utf-8")
