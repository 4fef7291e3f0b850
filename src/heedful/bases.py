"""The base of an adapter: where it is, and that it is the one that the adapter was trained for.

An adapter's folder holds its own weights alone. `base.json` beside them names the base's folder and the digest of its
weights; another base is refused, since an adapter is meaningless anywhere else.
"""

import json
import os
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from heedful.adapters import AdapterConfig, install
from heedful.bounded import Held, header, opening, read_object, refuse_infinite, regular
from heedful.data.digest import file_digest
from heedful.files import write_text
from heedful.model.architecture import ArchitectureConfig, Model
from heedful.model.create import layout, layout_within

BASE = "base.json"


@dataclass(frozen=True)
class Base:
    folder: Path
    digest: str

    def write(self, adapter: Path) -> None:
        """Beside an adapter's weights: the absolute place, and that relative to the adapter, for folders that are moved
        together."""
        place = self.folder.resolve()
        facts = {"folder": str(place), "beside": os.path.relpath(place, adapter.resolve()), "digest": self.digest}
        write_text(adapter / BASE, json.dumps(facts, indent=2))


def is_adapter(folder: Path) -> bool:
    return (folder / BASE).is_file()


def base_of(adapter: Path) -> Base:
    """The base that an adapter's folder names, which must be unchanged."""
    facts = read_object(adapter / BASE)
    places = [facts.get("folder"), facts.get("beside")]
    digest = facts.get("digest")
    if not all(isinstance(one, str) and one for one in (*places, digest)):
        raise ValueError(f"{adapter / BASE} must name the base: folder, beside and digest")
    for place in (Path(str(places[0])), adapter / str(places[1])):
        if place.exists():
            found = digest_of(place)
            if found != digest:
                raise ValueError(f"{adapter} is an adapter for another model than {place}: its weights are not those "
                                 f"that it was trained for (digest {found[:12]}, not {str(digest)[:12]})")  # fmt: skip
            return Base(place, found)
    raise ValueError(
        f"{adapter} is an adapter, and its base {places[0]} is not there; put the base back, or write its place into "
        f"{adapter / BASE}"
    )


def is_ours(place: Path) -> bool:
    """Whether it is a Heedful folder, rather than one of another tool; ValueError if it is neither."""
    if not place.exists():
        raise ValueError(f"start_from: there is no folder {place}")
    if (place / "config.yaml").is_file():
        return True
    from heedful.exchange import published

    if not published.is_published(place):
        raise ValueError(f"start_from: {place} is neither a Heedful folder (config.yaml) nor {published.LAYOUTS}")
    return False


def digest_of(place: Path) -> str:
    """A digest of the weights of a folder or file; of an adapter's, with that of its base."""
    from heedful.exchange import published  # imported where it is used: most folders are ours

    files = sorted(place.glob("*.safetensors")) if is_ours(place) else published.weight_files(place)
    found = [file_digest(regular(file)) for file in files if not file.name.startswith("shortlist")]
    return " ".join([*found, *([base_of(place).digest] if is_adapter(place) else [])])


def weights_of(
    place: Path, wanted: Collection[str], config: ArchitectureConfig, load: Callable[[Path], Model]
) -> tuple[dict[str, Tensor], list[str]]:
    """The weights under our names, and the names of those that have none here. A published file may contain heads that
    its config.json does not name, such as BERT's pooler beside the head for masked words: these are found too. `load`:
    opens a Heedful folder."""
    from heedful.exchange import hugging_face, published
    from heedful.exchange.gguf import is_gguf
    from heedful.exchange.sentence_transformers import body

    if is_ours(place):
        return load(place).state_dict(), []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*skipped tensors that the model does not use")
        opened = published.load(place)
    weights = opened.model.state_dict()
    if is_gguf(place) or not opened.left_out:
        return weights, opened.left_out
    more, used = hugging_face.read_heads(body(place), config, set(wanted) - set(weights))
    return {**weights, **more}, [name for name in opened.left_out if name not in used]


def parse_adapter(recipe: Mapping[str, Any]) -> AdapterConfig | None:
    """The adapter of a recipe, given as plain data."""
    return None if recipe.get("adapter") is None else AdapterConfig.model_validate(recipe["adapter"])


@torch.no_grad()
def beside_base(
    folder: Path, config: ArchitectureConfig, adapter: AdapterConfig, load: Callable[[Path], Model]
) -> Model:
    """The base of an adapter's folder, with the adapter. `config`: the whole model's; `load`: see `weights_of`."""
    base, path = base_of(folder), folder / "model.safetensors"
    weights, _ = weights_of(base.folder, (), config, load)
    held = {**{name: Held(tuple(tensor.shape), "F32") for name, tensor in weights.items()}, **header(path)}
    model = layout_within(config, held, path)
    own = adapter_weights(folder, config, adapter)
    state = model.state_dict()
    for name, tensor in state.items():
        if name not in own and (name not in weights or weights[name].shape != tensor.shape):
            raise ValueError(f"{base.folder} does not fit {folder / 'config.yaml'}: {name} is missing or of other size")
    model.load_state_dict({name: own.get(name, weights.get(name)) for name in state}, assign=True)
    with torch.random.fork_rng(devices=[]):  # what it draws is replaced by what was trained
        install(adapter, model, state.keys() & own.keys())
    model.load_state_dict(own, strict=False)
    return model.requires_grad_(False)


def adapter_weights(folder: Path, config: ArchitectureConfig, adapter: AdapterConfig) -> dict[str, Tensor]:
    """The weights of an adapter's folder, if they are those of its config, which is seen on the meta device before
    anything is built. `config`: that of the whole model, known to fit its base."""
    path = folder / "model.safetensors"
    held = header(path)
    with opening(folder / "config.yaml"):
        probe = layout(config)
        names = probe.state_dict().keys() & held.keys()
        trained = install(adapter, probe, names)
    expected = {name: tuple(tensor.shape) for name, tensor in probe.state_dict().items() if name in trained}
    for name in sorted({*expected, *held}):
        if name not in held or expected.get(name) != held[name].shape or held[name].dtype != "F32":
            raise ValueError(
                f"{path} does not fit the adapter in config.yaml: {name} is missing, unknown or of other size"
            )
    own = load_file(path)
    refuse_infinite(own.items(), path)
    return own
