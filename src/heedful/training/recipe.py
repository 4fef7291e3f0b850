"""A recipe: all settings of a training. YAML, by name or path; any key can be changed.

model:
  preset: vaswani-tiny        # the starting point
  decoder: {layers: 2}        # the differences
training: {steps: 5000}
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, SerializeAsAny, ValidationError, model_validator

from heedful import parts
from heedful.adapters import AdapterConfig
from heedful.bounded import explain, read_yaml
from heedful.config import Config, Probability, Size, did_you_mean, parse, part_config
from heedful.data.inputs import DataConfig
from heedful.data.prepare import Prepared
from heedful.families import preset
from heedful.model.architecture import ArchitectureConfig
from heedful.model.stack import StackConfig
from heedful.tasks import TaskConfig
from heedful.tasks.translation import TranslationConfig
from heedful.text.tokenizer import TokenizerConfig
from heedful.training.start import model_of

FOLDER = Path(__file__).parents[1] / "recipes"
REMEDIES = {
    "recurrence": "choose mix transformer_xl with position none, or mix softmax with position rotary, in a transformer "
    "stack, or set task.memory=0",
    "segments": "set task.pack=false (of plain text: task.windows=random), or choose another mix, such as softmax",
}


class TrainingConfig(Config):
    """How a model is trained.

    batch_tokens    tokens on the longer side of a batch, padding included; auto = as many as fit in memory and help
    accumulate      split each batch into this many micro-batches: the same result with less memory
    learning_rate   the peak; 0 = the paper's, 1 / sqrt(width * warmup)
    schedule        decay after the warm-up: inverse_sqrt (the paper), linear and cosine (to a fiftieth of the peak at
                    the last step), constant
    metric          selects the best model, and stops training after `patience` validations without improvement; one of
                    the task's metrics
    freeze          weights that are not trained: names of components, such as embedding or encoder.layers.0
    ema             decay of a moving average of the weights, used for validation and as the result; 0 = off
    average         at the end, also try the average of the last `keep` checkpoints, and use it if it is better
    recompute       gradient checkpointing: a third more computation, much less memory
    bad_steps       stop after this many steps in a row with a NaN, infinite or exploding loss
    toward_start    pull weights toward those of start_from: add this times half the squared distance to the loss
    elastic         the same, each weight as strongly as it matters for the corpora with replay (elastic weight
                    consolidation)
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
    metric: str = "loss"
    patience: int = Field(0, ge=0)
    samples: int = Field(3, ge=0)
    bad_steps: Size = 10
    freeze: tuple[str, ...] = ()
    toward_start: float = Field(0.0, ge=0, allow_inf_nan=False)
    elastic: float = Field(0.0, ge=0, allow_inf_nan=False)


class Recipe(Config):
    """`initialise` is the weight initialisation scheme. `start_from` names a Heedful or Hugging Face folder whose
    model, tokenizer and weights training starts from. `adapter`: what is trained beside that model's weights, which are
    frozen then (lora, bottleneck, prefix, prompt, bias, layers). `parts` names folders or packages with custom
    components.
    """

    seed: int = Field(1, ge=0)
    parts: tuple[str, ...] = ()
    start_from: str = ""
    task: SerializeAsAny[TaskConfig] = Field(default_factory=TranslationConfig)
    model: SerializeAsAny[ArchitectureConfig]
    adapter: SerializeAsAny[AdapterConfig] | None = None
    initialise: Literal["xavier", "gpt2", "bert", "t5"] = "xavier"
    tokenizer: TokenizerConfig = Field(default_factory=TokenizerConfig)
    data: DataConfig = Field(default_factory=DataConfig)
    training: TrainingConfig = Field(default_factory=TrainingConfig)

    @model_validator(mode="after")
    def _fits_together(self) -> "Recipe":
        if not issubclass(self.model.gives, self.task.trains):
            wanted = _spaced(self.task.trains.__name__)
            raise ValueError(f"task {self.task.kind} trains {wanted} models, and {self.model.kind} is not one")
        if self.adapter is not None and not self.start_from:
            raise ValueError("an adapter is trained beside a model that exists; name it: --start-from MODEL")
        if self.adapter is not None and self.training.freeze:
            raise ValueError("an adapter freezes its base; leave training.freeze out")
        if self.adapter is not None and (self.training.toward_start or self.training.elastic):
            raise ValueError("an adapter leaves its base as it is; leave training.toward_start and elastic out")
        if self.data.context and not self.task.in_context:
            raise ValueError(f"data.context is for translation; task {self.task.kind} has no sentences before: set "
                             "data.context=0")  # fmt: skip
        self._keeps_what_was_learned()
        corpora = [f"{metric}[{name}]" for name, metric in self.data.scored]
        if self.training.metric not in (*self.task.metrics, *corpora):
            known = did_you_mean(self.training.metric, [*self.task.metrics, *corpora])
            raise ValueError(f"task {self.task.kind} has no metric {self.training.metric!r}{known}")
        for fact in sorted(self.task.facts - self.model.supports):
            remedy = REMEDIES.get(fact, "choose another mix, such as softmax")
            raise ValueError(f"task {self.task.kind} needs an attention that supports {fact}, which this model's does "
                             f"not; {remedy}")  # fmt: skip
        stacks = [part for part in vars(self.model).values() if isinstance(part, StackConfig)]
        if self.training.recompute and stacks and not any(stack.recomputes for stack in stacks):
            raise ValueError("this model has no layers that can be recomputed; set training.recompute=false")
        if self.training.accumulate > 1 and not self.task.adds_up:
            raise ValueError(f"task {self.task.kind} compares the rows of a batch with each other, so a batch cannot "
                             "be split into micro-batches; set training.accumulate=1")  # fmt: skip
        needed = self.task.positions(self.data.longest)
        for side, limit in self.model.limits().items():
            if needed.get(side, 0) > limit:
                raise ValueError(
                    f"the model learns {limit} positions, but texts may have {needed[side]} tokens; raise "
                    f"model.{side}.position.length or model.{side}.length, or lower data.max_length or task.context"
                )
        if not self.tokenizer.joint and getattr(self.model, "tie", "") in ("all", "inputs") and len(needed) > 1:
            raise ValueError(
                "two vocabularies cannot share one embedding table; set model.tie=output with tokenizer.joint=false"
            )
        return self

    def _keeps_what_was_learned(self) -> None:
        replayed = any(corpus.replay for corpus in self.data.corpora)
        for key in ("toward_start", "elastic"):
            if getattr(self.training, key) and not self.start_from:
                raise ValueError(f"training.{key} pulls the weights toward those of a model; name it with start_from")
        if replayed and not self.start_from:
            raise ValueError("replay is data that a model has learned; name the model to go on with: start_from")
        if self.training.elastic and not replayed:
            raise ValueError(
                "training.elastic finds out which weights matter from data that the model has learned; give some with "
                "--replay, or a corpus with replay: true"
            )

    @property
    def wants_higher(self) -> bool:
        """Whether a higher value of the metric that selects the model is better, as it is of each corpus's own."""
        return self.task.metrics.get(self.training.metric, "higher") == "higher"

    def fitted(self, prepared: Prepared) -> "Recipe":
        """The recipe with the model fitted to these data."""
        data = self.model_dump()
        data["model"] = self.task.fitted(data["model"], prepared)
        if self.start_from:  # a published embedding table may have more rows than its tokenizer has tokens
            if getattr(self.model, "source_vocab", 0) is None and _same_ids(prepared):
                data["model"]["source_vocab"] = None  # Marian: a tokenizer for each side, one table
            data["model"] |= {
                key: max(data["model"][key], old)
                for key in ("vocab", "source_vocab")
                if (old := getattr(self.model, key, None)) and data["model"].get(key)
            }
        return parse(Recipe, data)


def _same_ids(prepared: Prepared) -> bool:
    """Whether the tokenizers of both sides number the same tokens, though they find them by different rules."""
    return len({tuple(sorted(tokenizer.token_ids().items())) for tokenizer in prepared.tokenizers}) == 1


def _spaced(name: str) -> str:
    """SequenceToSequence -> sequence-to-sequence"""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()


def recipes() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def read_recipe(name: str, changes: Iterable[str] = ()) -> Recipe:
    """A recipe by name or path, with keys changed: `training.steps=120`. Setting `start_from` replaces the model that
    the recipe names, and the keys that it has again under `fine_tuning`."""
    changes = list(changes)
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        if name not in recipes():
            raise ValueError(f"unknown recipe {name!r}{did_you_mean(name, recipes())}")
        path = FOLDER / f"{name}.yaml"
    try:
        data = read_yaml(path) or {}
    except FileNotFoundError:
        raise ValueError(f"there is no recipe {path}") from None
    if isinstance(data, dict) and data.get("parts") and not (path.parent / "model.safetensors").exists():
        beside = [str(path.parent / name) for name in parts.listed(data["parts"])]
        found = [
            near if Path(near).is_dir() else name
            for near, name in zip(beside, parts.listed(data["parts"]), strict=True)
        ]
        data = {**data, "parts": [parts.use(name) for name in found]}
    if isinstance(data, dict):
        data = with_corpora(data, path.parent)
        tuning = data.pop("fine_tuning", None) or {}
        if any(change.startswith("start_from=") for change in changes):
            data = merge({key: value for key, value in data.items() if key != "model"}, tuning)
    for change in changes:
        key, equals, text = change.partition("=")
        if not equals:
            raise ValueError(f"{change!r} is not of the form key=value, such as training.steps=1000")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            raise ValueError(f"{change!r}: {text!r} is not a value that YAML can read") from None
        key = _section_of(key)
        if key == "parts":
            data = {**data, "parts": [parts.use(name) for name in parts.listed(value)]}
        elif isinstance(data, dict):
            data = merge(data, _nested(key.split("."), value))
    return parse_recipe(data)


def with_corpora(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The keys of a recipe, with the list that may stand under `data` at its place, and paths relative to `folder`."""
    section = data.get("data")
    section = {"corpora": section} if isinstance(section, list) else section
    if not isinstance(section, dict) or not isinstance(section.get("corpora"), list):
        return data
    corpora = []
    for one in section["corpora"]:
        if not isinstance(one, dict):
            raise ValueError(f"each corpus under data is a set of keys, such as {{file: pairs.tsv}}, not {one!r}")
        found = dict(one)
        for key in {"file", "valid", "test"} & one.keys():
            files = one[key] if isinstance(one[key], list) else [one[key]]
            found[key] = [str(folder / str(file)) for file in files]
        corpora.append(found)
    return {**data, "data": {**section, "corpora": corpora}}


def _section_of(key: str) -> str:
    """`steps` is short for `training.steps`: a bare name that only one section has."""
    sections: dict[str, type[Config]] = {"training": TrainingConfig, "data": DataConfig, "tokenizer": TokenizerConfig}
    if "." in key or key in Recipe.model_fields:
        return key
    found = [name for name, config in sections.items() if key in config.model_fields]
    return f"{found[0]}.{key}" if len(found) == 1 else key


def parse_recipe(data: dict[str, Any]) -> Recipe:
    if not isinstance(data, dict):
        raise ValueError("a recipe is a set of keys, such as `training: {steps: 1000}`")
    data = dict(data)
    named = [Path(name).name for name in parts.listed(data.get("parts"))]
    parts.require(named, place="this recipe")
    data["parts"] = list(dict.fromkeys([*named, *parts.used()]))
    model = data.get("model") or ({} if data.get("start_from") else {"preset": "vaswani-tiny"})
    if not isinstance(model, dict):
        raise ValueError(f"model is a set of keys, not {model!r}; to name a preset, write model.preset={model}")
    model = dict(model)
    if data.get("start_from"):
        if "preset" in model:
            raise ValueError("start_from already defines the model; remove model.preset or start_from")
        begun = model_of(Path(data["start_from"]))
        if model.get("kind", begun.get("kind")) == begun.get("kind"):
            model = merge(begun, model)
    if "preset" in model:
        model = merge(preset(model.pop("preset")).model_dump(), model)
    data["model"] = model
    try:
        return Recipe.model_validate(data)
    except ValidationError as error:
        raise ValueError(explain(error)) from None


# Keys that hold a component, found by its file name. One of another kind has other keys, so it replaces the old one.
PARTS = {"model", "task", "encoder", "decoder", "embedding", "position", "mix", "adapter"}


def merge(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """`change` merged into `base`, key by key. A component of another kind replaces the old one."""
    merged = dict(base)
    for key, value in change.items():
        old = merged.get(key)
        if isinstance(old, str) and isinstance(value, dict):  # `rotary` is short for {kind: rotary}
            old = {"kind": old}
        named = {"kind": value} if isinstance(value, str) else value
        if isinstance(old, dict) and isinstance(value, dict) and not _is_another(key, old, value):
            merged[key] = merge(old, value)
        elif isinstance(old, dict) and isinstance(named, dict) and (kept := _as_kin(key, old, named)):
            merged[key] = merge(kept, named)
        else:
            merged[key] = value
    return merged


def _as_kin(key: str, old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The old keys, where the new kind of stack is a variation of the old one (`reversible` of `transformer`): without
    those whose default it changes. Empty otherwise."""
    if key not in ("encoder", "decoder") or "kind" not in new:
        return {}
    first, second = (part_config(StackConfig, one.get("kind", StackConfig.default)) for one in (old, new))
    if first is second or not issubclass(second, first):
        return {}
    changed = {name for name in first.model_fields if name in vars(second).get("__annotations__", {})}
    return {name: value for name, value in old.items() if name != "kind" and name not in changed}


def _is_another(key: str, old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Whether the new keys belong to another kind of component."""
    if key not in PARTS or "kind" not in new:
        return False
    return "preset" in old or old.get("kind", new["kind"]) != new["kind"]


def differences(old: dict[str, Any], new: dict[str, Any], path: str = "") -> list[str]:
    """The differences between two recipes, one line each: `training.steps: 100 -> 200`."""
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
