"""A model is a folder, and so is a training checkpoint. Only safetensors and JSON, with checksums, written atomically.

model folder                               checkpoints/<step>/
  config.yaml       the resolved recipe      model.safetensors
  model.safetensors the weights              optimizer.safetensors
  tokenizer.json    the text pipeline        state.json         step, place in the data, best score ...
  README.md         the model card           checksums.json     written last
"""

import json
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from heedful import parts
from heedful.bank import install_bank
from heedful.bases import adapter_weights, base_of, beside_base, digest_of, parse_adapter
from heedful.bounded import header, one_line, opening, read_object, read_yaml, refuse_infinite
from heedful.config import Config
from heedful.data.inputs import DataConfig
from heedful.data.prepare import load_tokenizers
from heedful.files import in_place, sync_folder, write_text
from heedful.model.architecture import ArchitectureConfig, Model
from heedful.model.create import layout_within, refuse_misfits
from heedful.text.tokenizer import Tokenizer, TokenizerConfig

Tensors = dict[str, Tensor]
CHECKSUMS = "checksums.json"


@dataclass(frozen=True)
class Checkpoint:
    step: int
    folder: Path
    state: dict[str, Any]

    def has(self, name: str) -> bool:
        return (self.folder / f"{name}.safetensors").is_file()

    def tensors(self, name: str) -> Tensors:
        return load_file(self.folder / f"{name}.safetensors")


def save_checkpoint(folder: Path, step: int, tensors: Mapping[str, Tensors], state: dict[str, Any]) -> None:
    """Write checkpoints/<step>. It is renamed to that only at the very end, so a partial one is never used."""
    folder.mkdir(parents=True, exist_ok=True)
    place, temporary = folder / str(step), folder / f".{step}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        for name, group in tensors.items():
            with in_place(temporary / f"{name}.safetensors") as path:
                _write(group, path)
        write_text(temporary / "state.json", json.dumps(state, indent=2))
        sums = {path.name: _checksum(path) for path in sorted(temporary.iterdir())}
        write_text(temporary / CHECKSUMS, json.dumps(sums, indent=2))
        if place.exists():
            shutil.rmtree(place)
        temporary.rename(place)
        sync_folder(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def newest(folder: Path, warn: Callable[[str], None]) -> Checkpoint | None:
    """The newest intact checkpoint; damaged ones are skipped with a warning."""
    for step in reversed(steps(folder)):
        found = folder / str(step)
        problem = _problem(found)
        if problem is None:
            return Checkpoint(step, found, read_object(found / "state.json"))
        warn(f"checkpoint {step} is damaged ({problem}); falling back to the previous one")
    if steps(folder):
        raise ValueError(f"every checkpoint in {folder} is damaged; move that folder away to start over")
    return None


def set_aside(folder: Path, *, after: int) -> None:
    """Rename the checkpoints after this step: they are damaged, and their names are needed."""
    for step in steps(folder):
        if step > after:
            shutil.rmtree(folder / f"damaged-{step}", ignore_errors=True)
            (folder / str(step)).rename(folder / f"damaged-{step}")


def steps(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in folder.glob("*") if path.name.isdigit()) if folder.is_dir() else []


def prune(folder: Path, *, keep: int, every: int, spare: Sequence[int] = ()) -> None:
    """Remove all but the last `keep` regular checkpoints, the very last one, and those in `spare`."""
    found = steps(folder)
    kept = {*regular(folder, every)[-keep:], *found[-1:], *spare}
    for step in found:
        if step not in kept:
            shutil.rmtree(folder / str(step))


def regular(folder: Path, every: int) -> list[int]:
    """The checkpoints that an uninterrupted training would have: not those saved on an interruption."""
    return [step for step in steps(folder) if step % every == 0]


def save_weights(folder: Path, weights: Tensors) -> None:
    with in_place(folder / "model.safetensors") as path:
        _write(weights, path)


class FolderConfig(Config):
    """The sections of config.yaml. The task's own file checks `task` when the folder is opened, and the recipe checks
    `training` when a training is resumed."""

    seed: int = Field(1, ge=0)
    parts: tuple[str, ...] | str | None = None
    start_from: str = ""
    task: dict[str, Any] | str | None = None
    model: dict[str, Any]
    adapter: dict[str, Any] | str | None = None
    initialise: str = ""
    tokenizer: TokenizerConfig = Field(default_factory=TokenizerConfig)
    data: DataConfig = Field(default_factory=DataConfig)
    training: dict[str, Any] = Field(default_factory=dict)


def read_config(folder: Path) -> dict[str, Any]:
    """The recipe of a model folder, as plain data, checked section by section."""
    path = folder / "config.yaml"
    if not path.is_file():
        raise ValueError(f"{folder} is not a model folder: there is no config.yaml in it")
    data = read_yaml(path)
    if not isinstance(data, dict) or "model" not in data:
        raise ValueError(f"{path} has no model section")
    parts.require(parts.listed(data.get("parts")), place=str(folder))
    with opening(path):
        FolderConfig.model_validate(data)
    return data


def load_model(folder: Path, *, beside: bool = False) -> Model:
    """The model of a folder, ready to use. Nothing is built before the header of the weights shows that they fit. An
    adapter's folder: with its base, which it is merged into, unless it must stay `beside` it."""
    data, path = read_config(folder), folder / "model.safetensors"
    with opening(folder / "config.yaml"):
        config = ArchitectureConfig.model_validate(data["model"])
        adapter = parse_adapter(data)
    if not path.is_file():
        raise ValueError(f"{folder} has no weights yet: there is no model.safetensors in it")
    if adapter is not None:
        model = beside_base(folder, config, adapter, load_whole)
        if adapter.merges and not beside:
            adapter.merge(model)
        return model.eval()
    held = header(path)
    model = layout_within(config, held, path)
    refuse_misfits(model, held, path)
    try:
        with opening(path):
            model.load_state_dict(load_file(path), assign=True)
    except (SafetensorError, RuntimeError) as error:
        raise ValueError(f"{path} does not fit config.yaml: {one_line(error)}") from None
    refuse_infinite(model.state_dict().items(), path)
    return model.eval()


def load_whole(folder: Path) -> Model:
    """The model of a folder, as weights alone: an adapter that cannot be merged is refused."""
    adapter = parse_adapter(read_config(folder))
    if adapter is not None and not adapter.merges:
        raise ValueError(
            f"{folder} holds an adapter ({adapter.kind}) that cannot be merged into its base; use the base itself: "
            f"{base_of(folder).folder}"
        )
    return load_model(folder)


def open_adapters(folder: Path, model: Model, adapters: Mapping[str, str | Path]) -> None:
    """Put adapters of a folder's model beside it, so that each row of a batch may have its own: see `bank.py`."""
    found = {}
    for name, place in ((name, Path(place)) for name, place in adapters.items()):
        data = read_config(place)
        with opening(place / "config.yaml"):
            adapter = parse_adapter(data)
        if adapter is None:
            raise ValueError(
                f"{place} holds a whole model, not an adapter; serve it beside {folder}: name both folders"
            )
        if base_of(place).digest != digest_of(folder):
            raise ValueError(f"{place} is an adapter for {base_of(place).folder}, not for {folder}")
        found[name] = adapter, adapter_weights(place, model.config, adapter)
    if found:
        install_bank(model, found)
        model.requires_grad_(False)


def open_tokenizers(folder: Path, model: Model, *, columns: int) -> list[Tokenizer]:
    """The tokenizers of a folder, one per text column, which must have no more tokens than the model's tables rows."""
    found = load_tokenizers(folder, columns=columns)
    rows = getattr(model.config, "vocab", None)
    sides = [getattr(model.config, "source_vocab", None) or rows, *[rows] * (columns - 1)] if columns > 1 else [rows]
    for tokenizer, size in zip(found, sides, strict=True):
        if size is not None and tokenizer.vocab > size:
            raise ValueError(
                f"the tokenizer of {folder} has {tokenizer.vocab:,} tokens, but its model knows {size:,}; it belongs "
                "to another model"
            )
    return found


def average(files: Sequence[Path], *, buffers: Collection[str] = ()) -> Tensors:
    """The average of several sets of weights, summed in float64. Buffers are taken from the last one: the mean of two
    draws of random features is no draw."""
    total: Tensors = {}
    for file in files:
        for name, tensor in load_file(file).items():
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    last = load_file(files[-1])
    averaged = {name: (tensor / len(files)).to(last[name].dtype) for name, tensor in total.items()}
    return {**averaged, **{name: last[name] for name in buffers if name in last}}


def _write(tensors: Tensors, path: Path) -> None:
    try:
        save_file(tensors, path, metadata={"format": "pt"})
    except SafetensorError as error:  # raised when the disk is full
        raise OSError(f"{path.name.strip('.')} could not be written: {error}") from None


def _problem(folder: Path) -> str | None:
    try:
        sums = read_object(folder / CHECKSUMS)
    except (OSError, ValueError):
        return "no checksums"
    for name, expected in sums.items():
        if not (folder / name).is_file():
            return f"{name} is missing"
        if _checksum(folder / name) != expected:
            return f"{name} has changed"
    return None


def _checksum(path: Path) -> str:
    digest = blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def state_of(model: torch.nn.Module) -> Tensors:
    return {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
