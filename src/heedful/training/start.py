"""Starting a training from an existing model: a Heedful folder, or one that other people published."""

from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heedful.bases import is_ours, weights_of
from heedful.checkpoint import load_whole, read_config
from heedful.data.prepare import load_tokenizers
from heedful.exchange import published
from heedful.model.architecture import Model
from heedful.text.tokenizer import Tokenizer

POOLER = ".pooler."


def model_of(place: Path) -> dict[str, Any]:
    """The model keys of a folder or file."""
    if is_ours(place):
        found: dict[str, Any] = read_config(place)["model"]
        return found
    return published.read_config(place).model_dump()


def tokenizers_of(place: Path, columns: int) -> list[Tokenizer]:
    if is_ours(place):
        return load_tokenizers(place, columns=columns)
    return published.load_tokenizers(place, columns=columns)


def layout_of(place: Path) -> str:
    """Where a model expects the tokens of languages; empty if it has none."""
    return str(read_config(place).get("data", {}).get("language_tokens") or "") if is_ours(place) else ""


@torch.no_grad()
def take_weights(model: Model, place: Path, say: Callable[[str], None]) -> set[str]:
    """Load the weights of a folder or file into a new model. Heads that are missing or do not fit keep their initial
    weights, which is reported; a body that does not fit is an error. A pooler is taken from whichever head has one.
    Returns the names of the weights that are not there under the same name."""
    ours = model.state_dict()
    theirs, unread = weights_of(place, ours, model.config, load_whole)
    shared = _pooler(ours, theirs)
    found = {name: theirs[shared.get(name, name)] for name in ours if shared.get(name, name) in theirs}
    new = [name for name, tensor in ours.items() if name not in found or found[name].shape != tensor.shape]
    wrong = [name for name in new if name.split(".")[0] not in model.heads_named]
    if wrong:
        raise ValueError(f"start_from: {place} does not fit the model: {_why(wrong[0], ours, theirs)}")
    for name, tensor in ours.items():
        if name not in new:
            tensor.copy_(found[name])
    said = ["starting from the weights of " + str(place)]
    if new:
        said.append("new: " + ", ".join(_parts(new, ours)))
    kept = {shared.get(name, name) for name in ours if name not in new}
    left = [name for name in theirs if name not in kept and name not in new]
    if left or unread:
        said.append("not used: " + ", ".join(_parts(left, theirs) + unread))
    say("; ".join(said))
    if not is_ours(place) and (remark := published.remark(place)):
        say(remark)
    return {*new, *(name for name in ours if name in shared)}


def _pooler(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> dict[str, str]:
    """{our name: the name of the same weight in another head}, for poolers that their model has in another head."""
    poolers = [name for name in sorted(theirs, reverse=True) if name.startswith("heads.") and POOLER in name]
    has = {_inside_pooler(name): name for name in poolers}
    missing = [name for name in ours if name not in theirs and name.startswith("heads.") and POOLER in name]
    return {name: has[inside] for name in missing if (inside := _inside_pooler(name)) in has}


def _inside_pooler(name: str) -> str:
    """heads.next_sentence.pooler.dense.weight -> dense.weight"""
    return name.partition(POOLER)[2]


def _why(name: str, ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> str:
    if name not in theirs:
        return f"it has no {name}"
    return f"{name} is {[*theirs[name].shape]} there and {[*ours[name].shape]} here"


def _parts(names: Collection[str], of: Iterable[str]) -> list[str]:
    """The parts that these names belong to: a whole head, or what of it is meant."""
    rest = {_part(name) for name in of if name not in names}
    return sorted({name.rpartition(".")[0] if _part(name) in rest else _part(name) for name in names})


def _part(name: str) -> str:
    """heads.pooler.dense.weight -> heads.pooler; encoder.layers.5.norm.weight -> encoder.layers.5"""
    words = name.split(".")
    return ".".join(words[: 3 if "layers" in words[:2] else 2 if words[0] == "heads" else 1])
