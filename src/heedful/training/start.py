"""Starting a training from an existing model folder, Heedful's or Hugging Face's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heedful.checkpoint import load_model, read_config
from heedful.data.digest import file_digest
from heedful.data.prepare import load_tokenizers
from heedful.exchange import hugging_face
from heedful.model.architecture import Model
from heedful.text.tokenizer import Tokenizer


def is_ours(folder: Path) -> bool:
    if not folder.is_dir():
        raise ValueError(f"start_from: there is no folder {folder}")
    if not (folder / "config.yaml").is_file() and not (folder / "config.json").is_file():
        raise ValueError(
            f"start_from: {folder} holds neither a Heedful model (config.yaml) nor a Hugging Face model (config.json)"
        )
    return (folder / "config.yaml").is_file()


def model_of(folder: Path) -> dict[str, Any]:
    """The model keys of a folder."""
    if is_ours(folder):
        found: dict[str, Any] = read_config(folder)["model"]
        return found
    return hugging_face.read_config(folder).model_dump()


def tokenizers_of(folder: Path, columns: int) -> list[Tokenizer]:
    if not (folder / "tokenizer.json").is_file():
        raise ValueError(f"start_from: {folder} has no tokenizer.json; name one with tokenizer.file=PATH")
    return load_tokenizers(folder, columns=columns)


def digest_of(folder: Path) -> str:
    """A digest of the weights of a folder."""
    files = sorted(folder.glob("*.safetensors"))
    return " ".join(file_digest(file) for file in files if not file.name.startswith("shortlist"))


@torch.no_grad()
def take_weights(model: Model, folder: Path, say: Callable[[str], None]) -> None:
    """Load the weights of a folder into a new model. Heads that are missing or do not fit keep their initial weights,
    which is reported; a body that does not fit is an error."""
    base = load_model(folder) if is_ours(folder) else hugging_face.load(folder).model
    theirs = base.state_dict()
    ours = model.state_dict()
    new = [name for name, tensor in ours.items() if name not in theirs or theirs[name].shape != tensor.shape]
    wrong = [name for name in new if name.split(".")[0] not in model.heads_named]
    if wrong:
        raise ValueError(f"start_from: {folder} does not fit the model: {_why(wrong[0], ours, theirs)}")
    for name, tensor in ours.items():
        if name not in new:
            tensor.copy_(theirs[name])
    said = ["starting from the weights of " + str(folder)]
    if new:
        said.append("new: " + ", ".join(sorted({_part(name) for name in new})))
    left = sorted({_part(name) for name in theirs if name not in ours})
    if left:
        said.append("not used: " + ", ".join(left))
    say("; ".join(said))


def _why(name: str, ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> str:
    if name not in theirs:
        return f"it has no {name}"
    return f"{name} is {[*theirs[name].shape]} there and {[*ours[name].shape]} here"


def _part(name: str) -> str:
    """heads.pooler.dense.weight -> heads.pooler; encoder.layers.5.norm.weight -> encoder.layers.5"""
    words = name.split(".")
    return ".".join(words[: 3 if "layers" in words[:2] else 2 if words[0] == "heads" else 1])
