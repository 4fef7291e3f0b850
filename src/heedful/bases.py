"""The base of an adapter: where it is, and that it is the one that the adapter was trained for.

An adapter's folder holds its own weights alone. `base.json` beside them names the base's folder and the digest of its
weights; another base is refused, since an adapter is meaningless anywhere else.
"""

import json
import os
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from heedful.bounded import read_object, regular
from heedful.data.digest import file_digest
from heedful.exchange import hugging_face, published
from heedful.exchange.gguf import is_gguf
from heedful.exchange.sentence_transformers import body
from heedful.files import write_text
from heedful.model.architecture import ArchitectureConfig, Model

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
    if not published.is_published(place):
        raise ValueError(f"start_from: {place} is neither a Heedful folder (config.yaml) nor {published.LAYOUTS}")
    return False


def digest_of(place: Path) -> str:
    """A digest of the weights of a folder or file; of an adapter's, with that of its base."""
    files = sorted(place.glob("*.safetensors")) if is_ours(place) else published.weight_files(place)
    found = [file_digest(regular(file)) for file in files if not file.name.startswith("shortlist")]
    return " ".join([*found, *([base_of(place).digest] if is_adapter(place) else [])])


def weights_of(
    place: Path, wanted: Collection[str], config: ArchitectureConfig, load: Callable[[Path], Model]
) -> tuple[dict[str, Tensor], list[str]]:
    """The weights under our names, and the names of those that have none here. A published file may contain heads that
    its config.json does not name, such as BERT's pooler beside the head for masked words: these are found too. `load`:
    opens a Heedful folder."""
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
