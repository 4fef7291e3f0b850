"""Model families: presets of published sizes, and the mapping to Hugging Face's weight names. One file each.

A file ends with `FAMILY = Family(...)`; `presets()` and `exchange/hugging_face.py` find it by the file's name.
"""

import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from heedful.config import did_you_mean, kinds
from heedful.model.architecture import ArchitectureConfig
from heedful.model.stack import StackConfig
from heedful.model.stack.transformer import TransformerConfig

Names = Mapping[str, str | tuple[str, ...]]
State = dict[str, Tensor]


@dataclass(frozen=True)
class Family:
    """Everything specific to one published kind of model.

    presets         name -> config
    model_type      what `config.json` calls it
    read_config     (config.json, names of the tensors in the file) -> our config
    write_config    our config -> the corresponding keys of config.json
    names           our config -> {our module or parameter: theirs}, with `{}` for a layer's number. A tuple means
                    that ours is the concatenation of theirs (query, key and value in one matrix).
    duplicates      their names of tied weights that a file may repeat -> the name they repeat
    architectures   suffixes of the class names that imply a model's heads; empty if all models have the same heads
    ignored         patterns of tensors without learned content
    prefix, bare    files of the base model may omit `prefix` before names that start with one of `bare`
    transposed      whether their layers' matrices are stored inputs x outputs (GPT-2)
    rows            their tensors that have one more axis of size one in front
    reads, writes   (their name, their tensor) -> outputs x inputs, and (our config, their name, our tensor) -> theirs,
                    where a tensor of theirs is laid out otherwise
    convert         done to (config, weights) before writing, where their model states the same function differently
    """

    presets: dict[str, ArchitectureConfig]
    model_type: str
    read_config: Callable[[dict[str, Any], set[str]], ArchitectureConfig]
    write_config: Callable[[Any], dict[str, Any]]
    names: Callable[[Any], Names]
    duplicates: Mapping[str, str] = field(default_factory=dict)
    architectures: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    prefix: str = ""
    bare: tuple[str, ...] = ()
    transposed: bool = False
    rows: frozenset[str] = frozenset()
    reads: Callable[[str, Tensor], Tensor] = lambda name, tensor: tensor
    writes: Callable[[Any, str, Tensor], Tensor] = lambda config, name, tensor: tensor
    convert: Callable[[Any, State], tuple[ArchitectureConfig, State]] | None = None


def family(name: str) -> Family:
    known = kinds("families")
    if name not in known:
        raise ValueError(f"unknown family {name!r}{did_you_mean(name, known)}")
    found: Family = importlib.import_module(f"heedful.families.{name}").FAMILY
    return found


def presets() -> dict[str, ArchitectureConfig]:
    """Every preset of every family, by name."""
    return {name: config for kind in kinds("families") for name, config in family(kind).presets.items()}


def preset(name: str) -> ArchitectureConfig:
    known = presets()
    if name not in known:
        raise ValueError(f"unknown preset {name!r}{did_you_mean(name, known)}")
    return known[name]


def their_names(ours: str, names: Names) -> tuple[str, ...]:
    """Their names for one of our parameters: several if ours is a concatenation of theirs, none if they have no
    equivalent."""
    layers = re.findall(r"\.layers\.(\d+)\.", ours)
    template = re.sub(r"\.layers\.\d+\.", ".layers.{}.", ours)
    if template in names:
        found, leaf = names[template], ""
    else:
        module, _, leaf = template.rpartition(".")
        found, leaf = names.get(module, ()), "." + leaf
    theirs = (found,) if isinstance(found, str) else found
    return tuple(name.format(*layers) + leaf for name in theirs)


def transformer(stack: StackConfig) -> TransformerConfig:
    """The stack as that of a published family, which are all made of Transformer layers."""
    if not isinstance(stack, TransformerConfig) or stack.kind != TransformerConfig.default:
        raise ValueError(f"Hugging Face's families have no {stack.kind} stack; only a transformer can be written")
    return stack


def activation_from(theirs: str, *, gated: bool = False) -> str:
    """Our name for their activation."""
    plain = {"relu": "relu", "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}
    plain |= {"silu": "silu", "swish": "silu"}
    if theirs not in plain:
        raise ValueError(f"unknown activation {theirs!r}{did_you_mean(theirs, plain)}")
    gates = {"relu": "reglu", "gelu": "geglu", "gelu_tanh": "geglu_tanh", "silu": "swiglu"}
    return gates[plain[theirs]] if gated else plain[theirs]


def activation_to(ours: str) -> str:
    """Their name for our activation, gated or not."""
    theirs = {"relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu_new", "silu": "silu"}
    gates = {"reglu": "relu", "geglu": "gelu", "geglu_tanh": "gelu_tanh", "swiglu": "silu"}
    return theirs[gates.get(ours, ours)]
