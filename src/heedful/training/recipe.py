"""A recipe: everything that decides what a training does. YAML, by name or path; any key can be changed.

model:
  preset: vaswani-tiny        # where to start from
  decoder: {layers: 2}        # what is different
training: {steps: 5000}
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, SerializeAsAny, ValidationError, model_validator

from heedful.config import Config, Probability, Size, did_you_mean, explain
from heedful.data.prepare import DataConfig
from heedful.families import preset
from heedful.model.architecture import ArchitectureConfig
from heedful.tasks import TaskConfig
from heedful.tasks.translation import TranslationConfig
from heedful.text.tokenizer import TokenizerConfig

FOLDER = Path(__file__).parents[1] / "recipes"
Metric = Literal["loss", "accuracy", "bleu", "chrf", "exact"]


class TrainingConfig(Config):
    """How a model is trained.

    batch_tokens    tokens on the longer side of a step's batch, padding included; auto = as many as fit and help
    accumulate      deal a step's batch out in this many parts: the same result in less memory
    learning_rate   the highest; 0 = the paper's, 1 / sqrt(width * warmup)
    schedule        what follows the warm-up: inverse_sqrt (the paper), linear and cosine (to a fiftieth at the last
                    step), constant
    metric          what decides which model is best, and when `patience` validations without a better one end training
    ema             decay of a running average of the weights, used for validation and as the result; 0 = none
    average         at the end, try the mean of the last checkpoints, as many as kept; taken if it is better
    recompute       gradient checkpointing: a third more arithmetic, much less memory
    bad_steps       so many steps in a row with a loss that is not a number, or explodes, end training
    """

    steps: Size = 20000
    batch_tokens: Size | Literal["auto"] = 4096
    accumulate: Size = 1
    optimizer: Literal["adam", "adamw"] = "adam"
    learning_rate: float = Field(0.0, ge=0)
    schedule: Literal["inverse_sqrt", "linear", "cosine", "constant"] = "inverse_sqrt"
    warmup: int = Field(4000, ge=0)
    betas: tuple[Probability, Probability] = (0.9, 0.98)
    eps: float = Field(1e-9, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    clip: float = Field(1.0, ge=0)
    label_smoothing: Probability = 0.1
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    ema: Probability = 0.0
    average: bool = True
    compile: bool = False
    recompute: bool = False
    log_every: Size = 50
    validate_every: Size = 500
    save_every: Size = 500
    keep: Size = 5
    metric: Metric = "loss"
    patience: int = Field(0, ge=0)
    samples: int = Field(3, ge=0)
    bad_steps: Size = 10


class Recipe(Config):
    """`initialise` is the scheme of the first weights."""

    seed: int = Field(1, ge=0)
    task: SerializeAsAny[TaskConfig] = Field(default_factory=TranslationConfig)
    model: SerializeAsAny[ArchitectureConfig]
    initialise: Literal["xavier", "gpt2", "bert", "t5"] = "xavier"
    tokenizer: TokenizerConfig = Field(default_factory=TokenizerConfig)
    data: DataConfig = Field(default_factory=DataConfig)
    training: TrainingConfig = Field(default_factory=TrainingConfig)

    @model_validator(mode="after")
    def _fits_together(self) -> "Recipe":
        if self.model.kind != self.task.model_kind:
            wanted = self.task.model_kind
            raise ValueError(f"task {self.task.kind} trains a {wanted}, but the model is {self.model.kind}")
        if self.training.metric in ("bleu", "chrf", "exact") and not self.task.pairs:
            raise ValueError(f"task {self.task.kind} has no {self.training.metric}; choose metric loss or accuracy")
        needed = getattr(self.task, "context", self.data.max_length + 1)
        for side in ("encoder", "decoder"):
            stack = getattr(self.model, side, None)
            limit = getattr(stack.position, "length", None) if stack else None
            if limit is not None and needed > limit:
                raise ValueError(f"the model learns {limit} positions, but texts may have {needed} tokens; raise "
                                 f"model.{side}.position.length, or lower data.max_length or task.context")  # fmt: skip
        if not self.tokenizer.joint and self.task.pairs and getattr(self.model, "tie", "") in ("all", "inputs"):
            raise ValueError("two vocabularies cannot share one table; set model.tie=output with tokenizer.joint=false")
        return self

    def with_vocab(self, source: int, target: int) -> "Recipe":
        """The recipe of a model for these vocabularies."""
        data = self.model_dump()
        data["model"]["vocab"] = target
        if self.task.pairs:
            data["model"]["source_vocab"] = None if self.tokenizer.joint else source
        return Recipe.model_validate(data)


def recipes() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def read_recipe(name: str, changes: Iterable[str] = ()) -> Recipe:
    """A recipe by its name or path, with keys changed: `training.steps=120`."""
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        if name not in recipes():
            raise ValueError(f"unknown recipe {name!r}{did_you_mean(name, recipes())}")
        path = FOLDER / f"{name}.yaml"
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except FileNotFoundError:
        raise ValueError(f"there is no recipe {path}") from None
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {str(error).splitlines()[0]}") from None
    for change in changes:
        key, equals, text = change.partition("=")
        if not equals:
            raise ValueError(f"{change!r} is not of the form key=value, such as training.steps=1000")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            raise ValueError(f"{change!r}: {text!r} is not a value that YAML can read") from None
        data = merge(data, _nested(key.split("."), value))
    return parse_recipe(data)


def parse_recipe(data: dict[str, Any]) -> Recipe:
    if not isinstance(data, dict):
        raise ValueError("a recipe is a set of keys, such as `training: {steps: 1000}`")
    data = dict(data)
    model = data.get("model") or {"preset": "vaswani-tiny"}
    if not isinstance(model, dict):
        raise ValueError(f"model is a set of keys, not {model!r}; to name a preset, write model.preset={model}")
    model = dict(model)
    if "preset" in model:
        model = merge(preset(model.pop("preset")).model_dump(), model)
    data["model"] = model
    try:
        return Recipe.model_validate(data)
    except ValidationError as error:
        raise ValueError(explain(error)) from None


def merge(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """`change` laid over `base`, key by key. A part of another kind replaces the old one: their keys differ."""
    merged = dict(base)
    for key, value in change.items():
        old = merged.get(key)
        if isinstance(old, str) and isinstance(value, dict):  # `rotary` is short for {kind: rotary}
            old = {"kind": old}
        if isinstance(old, dict) and isinstance(value, dict) and value.get("kind", old.get("kind")) == old.get("kind"):
            merged[key] = merge(old, value)
        else:
            merged[key] = value
    return merged


def differences(old: dict[str, Any], new: dict[str, Any], path: str = "") -> list[str]:
    """What differs between two recipes, a line each: `training.steps: 100 -> 200`."""
    found = []
    for key in sorted({*old, *new}):
        first, second, name = old.get(key), new.get(key), f"{path}{key}"
        if isinstance(first, dict) and isinstance(second, dict):
            found += differences(first, second, f"{name}.")
        elif first != second:
            found.append(f"{name}: {first} -> {second}")
    return found


def _nested(path: list[str], value: Any) -> dict[str, Any]:
    for key in reversed(path):
        value = {key: value}
    nested: dict[str, Any] = value
    return nested
