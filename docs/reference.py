"""Generates the reference from the code: python docs/reference.py writes docs/reference/*.md."""

import inspect
import json
from pathlib import Path
from typing import Any

import typer

from heedful.commands.main import app
from heedful.config import kinds, part_config
from heedful.data.corpora import CorpusConfig
from heedful.data.inputs import DataConfig
from heedful.model.architecture import ArchitectureConfig
from heedful.model.attention import MixConfig
from heedful.model.feedforward import FeedForwardConfig
from heedful.model.heads import MaskedLmConfig, PoolerConfig, SequenceConfig, TokenConfig, VocabularyConfig
from heedful.model.input import InputConfig
from heedful.model.multihead import MultiHeadConfig
from heedful.model.norm import NormConfig
from heedful.model.position import PositionConfig
from heedful.model.position.rotary import ScalingConfig
from heedful.model.stack import StackConfig
from heedful.tasks import TaskConfig
from heedful.text.tokenizer import TokenizerConfig
from heedful.training.recipe import Recipe, TrainingConfig

FOLDER = Path(__file__).parent / "reference"
PARTS: dict[str, Any] = {
    "training": TrainingConfig,
    "tokenizer": TokenizerConfig,
    "data": DataConfig,
    "data.corpora": CorpusConfig,
}
# Interchangeable components, found by their files, and their place in a recipe.
FOLDERS: dict[str, tuple[str, Any]] = {
    "TaskConfig": ("task", TaskConfig),
    "ArchitectureConfig": ("model", ArchitectureConfig),
    "InputConfig": ("model.embedding", InputConfig),
    "StackConfig": ("S", StackConfig),
    "PositionConfig": ("S.position", PositionConfig),
    "MixConfig": ("S.attention.mix", MixConfig),
}
MODEL: dict[str, tuple[str, Any]] = {
    "MultiHead": ("S.attention", MultiHeadConfig),
    "FeedForward": ("S.feedforward", FeedForwardConfig),
    "Norm": ("S.norm", NormConfig),
    "Vocabulary": ("model.head", VocabularyConfig),
    "MaskedLm": ("one of model.heads", MaskedLmConfig),
    "Pooler": ("one of model.heads", PoolerConfig),
    "Sequence": ("one of model.heads", SequenceConfig),
    "Token": ("one of model.heads", TokenConfig),
    "Scaling": ("S.position.scaling", ScalingConfig),
}


def recipe() -> str:
    lines = ["# Recipe keys", "", "Generated from the typed config by `python docs/reference.py`.", ""]
    lines += [
        "Any key can be changed on the command line: `heedful train pairs.tsv --out runs/x training.steps=500`.",
        "",
    ]
    seed = Recipe.model_fields["seed"].default
    lines += [
        f"`seed` ({seed}): the random seed. `parts`: folders with custom components. `start_from`: a model",
        "",
    ]
    lines[-2] += " folder to start from. `initialise`: the weight initialisation scheme."
    for name, config in PARTS.items():
        lines += _part(name, config, name.split()[0])
    lines += _kinds(*FOLDERS["TaskConfig"])
    lines += [
        "## model",
        "",
        "Presets: `heedful params`; a complete recipe: `heedful recipe show tiny`. A model consists",
        "",
    ]
    lines[-2] += " of the components below. `S` stands for `model.encoder` or `model.decoder`."
    for path, base in list(FOLDERS.values())[1:]:
        lines += _kinds(path, base)
    for name, (path, config) in MODEL.items():
        lines += _part(name, config, path)
    return "\n".join(lines).rstrip() + "\n"


def _kinds(path: str, base: Any) -> list[str]:
    """The components of a folder, in order."""
    return [line for kind in kinds(base.folder) for line in _part(f"{path}={kind}", part_config(base, kind), path)]


def _part(name: str, config: Any, path: str) -> list[str]:
    """A heading, the docstring of the class, and its keys."""
    said = inspect.cleandoc(config.__doc__ or "")
    lines = [f"## {name}", "", *(["```text", said, "```", ""] if said else [])]
    if not config.model_fields:
        return [*lines, "No keys.", ""]
    lines += ["| key | default | allowed |", "|---|---|---|"]
    for key, schema in config.model_json_schema()["properties"].items():
        default = json.dumps(schema.get("default")) if "default" in schema else ""
        lines.append(f"| `{path}.{key}` | {default and f'`{default}`'} | {_allowed(schema)} |")
    return [*lines, ""]


def _allowed(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        if name in FOLDERS:
            return "one of " + ", ".join(f"`{kind}`" for kind in kinds(FOLDERS[name][1].folder))
        return f"a part: {name.removesuffix('Config')}"
    if "anyOf" in schema:
        return " or ".join(_allowed(one) for one in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{one}`" for one in schema.get("enum", [schema.get("const")]))
    bounds = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
    limits = [f"{word} {schema[name]:g}" for name, word in bounds.items() if name in schema]
    if schema.get("type") == "array" and "items" in schema:
        return "a list"
    if schema.get("type") == "array":
        return f"{len(schema.get('prefixItems', []))} numbers"
    return ", ".join([schema.get("type", ""), *limits])


def command_line() -> str:
    lines = ["# Command line", "", "Generated from the commands by `python docs/reference.py`.", ""]
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
    return ["```text", inspect.cleandoc(text), "```"]


def _default(parameter: Any) -> str:
    value = parameter.default
    shown = value not in (None, "", False, ()) and not callable(value) and isinstance(value, str | int | float | Path)
    return f" Default: `{value}`." if shown else ""


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "recipe.md").write_text(recipe(), encoding="utf-8")
    (FOLDER / "cli.md").write_text(command_line(), encoding="utf-8")
