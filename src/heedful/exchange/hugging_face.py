"""Import and export of Hugging Face model folders: config.json and model.safetensors, in one file or in shards.

    opened = load("opus-mt-en-de")              # opened.model, opened.family, opened.details
    save(opened.model, "copy", opened.family, details=opened.details)

What config.json contains beyond the architecture (token ids, for example) is returned as `details`, and written again.
"""

import json
import re
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from heedful.bounded import Held, header, opening, read_object, refuse_infinite
from heedful.config import did_you_mean, kinds
from heedful.families import Family, Names, State, family, their_names
from heedful.files import in_place, write_text
from heedful.model.architecture import ArchitectureConfig, Model
from heedful.model.create import FLOATING, layout_within
from heedful.model.heads import PoolerConfig
from heedful.model.linear import FusedLinear
from heedful.text.tokenizer import ROLES, Tokenizer

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
LABELS = ("id2label", "label2id")  # the names of classes


@dataclass(frozen=True)
class Opened:
    """A model, the name of its family, and what its config.json contains besides the architecture. `left_out`: tensors
    of the file that the model does not use, such as another task's head."""

    model: Model
    family: str
    details: dict[str, Any]
    left_out: list[str]


def load(folder: str | Path, *, dtype: torch.dtype | None = torch.float32) -> Opened:
    """Load a folder. `dtype` None keeps that of the file. Tensors are read one by one, so memory holds the model once.

    Missing tensors and contradictions of config.json are errors; tensors that the model does not use are skipped with a
    warning.
    """
    folder = Path(folder)
    theirs = _read_json(folder / "config.json")
    name, known = _family_of(theirs, folder)
    tensors = _Tensors(folder, known)
    config = _config_of(known, name, theirs, tensors.names, folder)
    model = layout_within(config, tensors.held, folder)
    names = known.names(config)
    with opening(folder):
        weights = {ours: tensors.ours(ours, names, parameter) for ours, parameter in model.named_parameters()}
        left_out = tensors.left_out(names)
        architecture = str((theirs.get("architectures") or ["Model"])[0])
    if known.architectures and not architecture.endswith(known.architectures):
        heads = ", ".join(head.kind for head in getattr(config, "heads", ())) or "none"
        warnings.warn(f"{folder}: unknown architecture {architecture!r}; heads inferred from the tensors: {heads}",
                      stacklevel=2)  # fmt: skip
    if left_out:
        warnings.warn(f"{folder}: skipped tensors that the model does not use: {_some(left_out)}", stacklevel=2)
    with opening(folder):
        drawn = {**_drawn(model), **tensors.own(name for name, _ in model.named_buffers())}
        refuse_infinite({**weights, **drawn}.items(), folder)
        model.load_state_dict({**weights, **drawn}, assign=True)
    beyond = set(theirs) - {"model_type"} - set(known.write_config(config))
    return Opened(
        model=model.to(dtype) if dtype else model,
        family=name,
        details={key: theirs[key] for key in sorted(beyond)},
        left_out=left_out,
    )


def _drawn(model: Model) -> State:
    """The buffers of parts that draw them, such as random directions, which their files do not hold: the same whenever
    a folder is opened."""
    found: State = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for place, module in model.named_modules():
            own = dict(module.named_buffers(recurse=False))
            if own and hasattr(module, "first_weights"):
                for name, buffer in own.items():
                    setattr(module, name, torch.empty_like(buffer, device="cpu"))
                module.first_weights()
                found |= {f"{place}.{name}": getattr(module, name) for name in own}
    return found


def read_config(folder: str | Path) -> ArchitectureConfig:
    """The config of the model in a folder, without its weights."""
    folder = Path(folder)
    theirs = _read_json(folder / "config.json")
    name, known = _family_of(theirs, folder)
    return _config_of(known, name, theirs, _Tensors(folder, known).names, folder)


def read_heads(folder: str | Path, config: ArchitectureConfig, wanted: Iterable[str]) -> tuple[State, set[str]]:
    """Those of the parameters `wanted`, of heads of `config`, that a folder has, though its config.json does not name
    their head; and the file's names of what was read. A head's pooler may be the base model's."""
    folder = Path(folder)
    _, known = _family_of(_read_json(folder / "config.json"), folder)
    tensors = _Tensors(folder, known)
    heads = {head.kind: head for head in (*getattr(config, "heads", ()), PoolerConfig())}
    found: State = {}
    for ours in wanted:
        for place in (ours, "heads.pooler." + ours.partition(".pooler.")[2]):
            kind = place.split(".")[1] if place.startswith("heads.") else ""
            if ours in found or kind not in heads:
                continue
            theirs = their_names(place, known.names(config.model_copy(update={"heads": [heads[kind]]})))
            if theirs and all(_today(name, known) in tensors.names for name in theirs):
                pieces = [piece for name in theirs if (piece := tensors.read(name)) is not None]
                found[ours] = (torch.cat(pieces) if len(pieces) > 1 else pieces[0]).float()
    return found, {tensors.files[name][0] for name in tensors.used}


def save(model: Model, folder: str | Path, family_name: str, *, details: dict[str, Any] | None = None) -> None:
    """Write a folder that transformers can load."""
    known = family(family_name)
    config: ArchitectureConfig = model.config
    _refuse_rewards(config)
    weights = {name: parameter.detach().cpu() for name, parameter in model.named_parameters()}
    if known.convert is not None:
        config, weights = known.convert(config, weights)
    names = {ours: their_names(ours, known.names(config)) for ours in weights}
    keys = {"model_type": known.model_type, **known.write_config(config)}
    _check_nothing_is_lost(config, keys, names, family_name)
    parts = {name: module.parts for name, module in model.named_modules() if isinstance(module, FusedLinear)}
    tensors: State = {}
    for ours, tensor in weights.items():
        sizes = parts[ours.rpartition(".")[0]] if len(names[ours]) > 1 else (len(tensor),)
        for name, piece in zip(names[ours], tensor.split(sizes), strict=True):
            tensors[name] = _to_theirs(ours, name, known.writes(config, name, piece), known)
    drawn = {name: buffer.detach().cpu() for name, buffer in model.named_buffers()}
    tensors |= {f"{OWN}{name}": buffer for name, buffer in drawn.items()}  # transformers draws its own
    keys["dtype"] = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with in_place(folder / WEIGHTS) as temporary:
        save_file(tensors, temporary, metadata={"format": "pt"})
    named = {key: value for key, value in (details or {}).items() if key in LABELS}
    classes = next((head.classes for head in getattr(config, "heads", ()) if hasattr(head, "classes")), None)
    if classes is not None and named and len(named.get("id2label", ())) != classes:
        raise ValueError(f"{len(named.get('id2label', ()))} labels are named, but the model has {classes} classes")
    text = json.dumps({**(details or {}), **keys, **named}, indent=2, sort_keys=True, ensure_ascii=False)
    write_text(folder / "config.json", text + "\n")


def _refuse_rewards(config: ArchitectureConfig) -> None:
    if any(head.kind == "reward" for head in getattr(config, "heads", ())):
        raise ValueError("a reward model cannot be exported; use it with heedful predict or heedful serve")


def family_for(model: Model) -> str:
    """The family that can represent a model."""
    _refuse_rewards(model.config)
    if any(getattr(head, "crf", False) for head in getattr(model.config, "heads", ())):
        raise ValueError("no family of Hugging Face has a CRF; train with task.crf=false to export a tagger")
    reasons = []
    for name in sorted(kinds("families"), key=lambda name: (name != family(name).model_type, name)):
        known, config = family(name), model.config
        try:
            weights = {ours: parameter.detach() for ours, parameter in model.named_parameters()}
            if known.convert is not None:
                config, weights = known.convert(config, weights)
            keys = {"model_type": known.model_type, **known.write_config(config)}
            _check_nothing_is_lost(
                config, keys, {ours: their_names(ours, known.names(config)) for ours in weights}, name
            )
        except (ValueError, AttributeError, KeyError) as error:
            reasons.append(f"{name}: {error}")
            continue
        return name
    raise ValueError(f"no family of Hugging Face can represent this model ({reasons[-1]})")


def save_tokenizer(tokenizer: Tokenizer, folder: Path, *, length: int, types: bool) -> None:
    """Write a tokenizer that transformers' AutoTokenizer opens. `length`: the most tokens that its model reads;
    `types`: whether the model takes token types."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(folder / "tokenizer.json")
    names = {role: tokenizer.special(role) for role in ROLES}
    inputs = ["input_ids", "token_type_ids", "attention_mask"] if types else ["input_ids", "attention_mask"]
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": length}
    settings |= {f"{role}_token": tokenizer.token(index) for role, index in names.items() if index is not None}
    text = json.dumps({**settings, "model_input_names": inputs}, indent=2, ensure_ascii=False)
    write_text(folder / "tokenizer_config.json", text + "\n")


def _config_of(known: Family, name: str, theirs: dict[str, Any], tensors: set[str], folder: Path) -> ArchitectureConfig:
    path = folder / "config.json"
    try:
        with opening(path):
            found = known.read_config(theirs, tensors)
            return type(found).model_validate(found.model_dump())  # a family may have changed it without a check
    except ValueError as error:
        if isinstance(error.__cause__, KeyError):
            raise ValueError(f"{path} has no {error.__cause__}, which a {name} model needs") from None
        raise


OWN = "heedful."  # before names of tensors that their models do not have, such as random directions


class _Tensors:
    """The tensors of a folder by name, from one file or several, read on demand."""

    def __init__(self, folder: Path, known: Family) -> None:
        self.folder = folder
        self.family = known
        found = _held(folder)
        prefixed = [name for name in found if name.startswith(known.prefix)][:1]  # one is enough to know
        self.files = {_today(name, known, of=prefixed): (name, file) for name, (file, _) in found.items()}
        self.held = {_today(name, known, of=prefixed): held for name, (_, held) in found.items()}
        self.names = set(self.files)
        self.used: set[str] = set()

    def read(self, name: str) -> Tensor | None:
        """None for an optional tensor that is missing, which means zero."""
        asked, name = name, _today(name, self.family)
        if name not in self.files:
            if name in self.family.rows:
                return None
            raise ValueError(f"{self.folder} has no tensor {asked}, which config.json requires")
        self.used.add(name)
        stored, file = self.files[name]
        with safe_open(file, framework="pt") as opened:
            tensor: Tensor = opened.get_tensor(stored)
        return self.family.reads(name, tensor)

    def ours(self, name: str, table: Names, parameter: Tensor) -> Tensor:
        """One of our parameters. Sizes are compared before anything is read."""
        theirs = their_names(name, table)
        held = [self.held[today] for one in theirs if (today := _today(one, self.family)) in self.held]
        if held and sum(one.count for one in held) < parameter.numel():
            shapes = " and ".join(str(one.shape) for one in held)
            raise ValueError(f"{name} should have the shape {tuple(parameter.shape)}, but has {shapes} in the file")
        if any(one.dtype not in FLOATING for one in held):
            raise ValueError(f"{self.folder}: {theirs[0]} holds no floating-point numbers, but {held[0].dtype}")
        return _to_ours(name, [self.read(one) for one in theirs], parameter.shape, self.family)

    def own(self, wanted: Iterable[str]) -> State:
        """Those of `wanted` that Heedful wrote beside theirs."""
        found = {name: self.read(f"{OWN}{name}") for name in wanted if f"{OWN}{name}" in self.names}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    def left_out(self, table: Names) -> list[str]:
        """The unused tensors, under the file's names, except copies of tied ones and those without learned content. An
        unused tensor that is not part of a head contradicts the config."""
        found = []
        body = [_pattern(_today(name, self.family)) for name in _outside_heads(table)]
        for name in sorted(self.names - self.used):
            if name.startswith(OWN):
                continue
            original = self.family.duplicates.get(name)
            if original in self.used:
                first, second = self.read(name), self.read(original)
                if first is None or second is None or not torch.equal(first, second):
                    raise ValueError(f"{self.folder}: {name} differs from {original}, but config.json ties them")
            elif not any(re.fullmatch(pattern, name) for pattern in self.family.ignored):
                if any(re.match(pattern, name) for pattern in body):
                    raise ValueError(f"{self.folder} contains {name}, but the model in config.json has no such tensor")
                found.append(self.files[name][0])
        return found


def _today(stored: str, known: Family, *, of: Iterable[str] = ()) -> str:
    """A tensor's current name: old files use gamma and beta, and some omit the prefix of the leading module. If other
    names `of` the file have the prefix, a name without it belongs to something else."""
    name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", stored)
    name = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)
    is_bare = name.startswith(known.bare) and not any(other.startswith(known.prefix) for other in of)
    return known.prefix + name if is_bare else name


def _outside_heads(table: Names) -> set[str]:
    every = {ours: (theirs,) if isinstance(theirs, str) else theirs for ours, theirs in table.items()}
    return {name for ours, theirs in every.items() if not ours.startswith("heads.") for name in theirs}


def _pattern(name: str) -> str:
    """Matches everything in the place of a name: for a name in a layer, everything in any layer of that stack."""
    stack, layered, _ = name.partition("{}")
    return re.escape(stack) + (r"\d+\." if layered else r"(\.[^.]+)?$")


def _some(names: list[str], most: int = 5) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def _held(folder: Path) -> dict[str, tuple[Path, Held]]:
    """The file of each tensor, and its size there."""
    if (folder / INDEX).exists():
        shards = _read_json(folder / INDEX).get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(file, str) for file in shards.values()):
            raise ValueError(f"{folder / INDEX} has no weight_map that names a file for each tensor")
        files = {name: folder / Path(file).name for name, file in shards.items()}
        held = {file: _header(file) for file in set(files.values())}
        for name, file in files.items():
            if name not in held[file]:
                raise ValueError(f"{file} has no tensor {name}, which {INDEX} says it has")
        return {name: (file, held[file][name]) for name, file in files.items()}
    path = folder / WEIGHTS
    if not path.exists():
        if (folder / "pytorch_model.bin").exists():
            raise ValueError(
                f"{folder} has only pytorch_model.bin, a pickle, which can run code; convert it to safetensors"
            )
        raise ValueError(f"{folder} has no {WEIGHTS}")
    return {name: (path, held) for name, held in _header(path).items()}


def _header(file: Path) -> dict[str, Held]:
    if not file.is_file():
        raise ValueError(f"there is no {file}, which {INDEX} names")
    return header(file)


def _to_ours(ours: str, pieces: list[Tensor | None], shape: torch.Size, known: Family) -> Tensor:
    found = [piece for piece in pieces if piece is not None]
    if not found:
        return torch.zeros(shape)
    tensor = torch.cat(found) if len(found) > 1 else found[0]
    tensor = tensor.T if _is_transposed(ours, tensor, known) else tensor
    if tensor.numel() != shape.numel():
        raise ValueError(f"{ours} should have the shape {tuple(shape)}, but has {tuple(tensor.shape)} in the file")
    return tensor.reshape(shape).contiguous()


def _to_theirs(ours: str, name: str, tensor: Tensor, known: Family) -> Tensor:
    if name in known.rows:
        tensor = tensor[None]
    # Always copy: a slice of a fused matrix would otherwise write the whole matrix to the file.
    return (tensor.T if _is_transposed(ours, tensor, known) else tensor).clone(memory_format=torch.contiguous_format)


def _is_transposed(ours: str, tensor: Tensor, known: Family) -> bool:
    return known.transposed and ".layers." in ours and tensor.ndim == 2


def _check_nothing_is_lost(
    config: ArchitectureConfig, keys: dict[str, Any], names: dict[str, tuple[str, ...]], name: str
) -> None:
    """What is written must describe exactly this model, except for dropout, which does not affect inference."""
    written = {_today(their, family(name)) for theirs in names.values() for their in theirs}
    again = _without_dropout(family(name).read_config(keys, written).model_dump())
    lost = [key for key, value in _without_dropout(config.model_dump()).items() if again.get(key, value) != value]
    lost += [ours for ours, theirs in names.items() if not theirs and not lost]
    if lost:
        raise ValueError(f"a Hugging Face {name} cannot represent this model: it would lose {', '.join(lost)}")


def _without_dropout(data: Any, path: str = "") -> dict[str, Any]:
    """Nested keys as one flat dictionary, without dropout."""
    if isinstance(data, list):
        data = {str(index): value for index, value in enumerate(data)}
    if not isinstance(data, dict):
        return {path: data}
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if key != "dropout":
            flat |= _without_dropout(value, f"{path}.{key}" if path else key)
    return flat


def _family_of(theirs: dict[str, Any], folder: Path) -> tuple[str, Family]:
    name = str(theirs.get("model_type", ""))
    if name not in kinds("families") or family(name).model_type != name:
        known = [kind for kind in kinds("families") if family(kind).model_type == kind]
        raise ValueError(f"{folder}: unknown model_type {name!r}{did_you_mean(name, known)}")
    return name, family(name)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return read_object(path)
    except FileNotFoundError:
        raise ValueError(f"there is no {path}") from None
