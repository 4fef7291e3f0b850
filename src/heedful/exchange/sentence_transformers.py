"""The layout of sentence-transformers: a Hugging Face folder, and files that say how a text becomes one vector.

modules.json                        the steps: Transformer, Pooling, and perhaps Normalize
1_Pooling/config.json               which states are pooled, and how
sentence_bert_config.json           how many tokens of a text are read

Folders of all versions can be read. What is written is the layout of version 2, which later versions open too.
"""

import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from heedful import bounded
from heedful.bounded import whole_number
from heedful.exchange import tokenizers
from heedful.exchange.tokenizers import read_json
from heedful.files import write_text

Kind = Literal["mean", "first", "last"]
MODULES = "modules.json"
SETTINGS = ("sentence_bert_config.json", "sentence_roberta_config.json", "sentence_albert_config.json")
# Their names: today's, and the older flags.
TODAY: dict[str, Kind] = {"mean": "mean", "cls": "first", "lasttoken": "last"}
FLAGS: dict[str, Kind] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "first",
    "pooling_mode_lasttoken": "last",
}


@dataclass(frozen=True)
class Pooling:
    """How states become one vector: the mean of all tokens, special ones included, or the first or last one's state;
    `normalise`: to length 1. Texts are read up to `max_length` tokens, special ones included."""

    kind: Kind = "mean"
    normalise: bool = True
    max_length: int = 256


def has_pooling(folder: str | Path) -> bool:
    """Whether a folder has this layout."""
    return (Path(folder) / MODULES).is_file()


def body(folder: str | Path) -> Path:
    """The Hugging Face folder inside a folder of any layout: the folder itself, or the first module's."""
    folder = Path(folder)
    return folder / _modules(folder)[0][1] if has_pooling(folder) else folder


def read(folder: str | Path) -> Pooling:
    """The pooling of a folder. Steps that cannot be reproduced are errors."""
    with bounded.opening(folder):
        return _read(Path(folder))


def _read(folder: Path) -> Pooling:
    modules = _modules(folder)
    kinds = [kind for kind, _ in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise ValueError(
            f"{folder} computes its vectors by {', '.join(kinds)}; only Transformer, Pooling, Normalize can be read"
        )
    _note_prompt(folder)
    settings = next((found for name in SETTINGS if (found := read_json(body(folder) / name)) is not None), {})
    if settings.get("do_lower_case"):
        _check_case(folder)
    pooled = read_json(folder / modules[1][1] / "config.json")
    if pooled is None:
        raise ValueError(f"there is no {folder / modules[1][1] / 'config.json'}, which says how states are pooled")
    return Pooling(_kind(pooled, folder), kinds[-1] == "Normalize", _max_length(settings, body(folder)))


def write(folder: str | Path, pooling: Pooling, *, width: int) -> None:
    """Add the layout to a Hugging Face folder. `width`: of the model's states."""
    folder = Path(folder)
    steps = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    listed = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (path, kind) in enumerate(steps if pooling.normalise else steps[:2])
    ]
    flags = {name: kind == pooling.kind for name, kind in FLAGS.items()}
    flags |= {"pooling_mode_max_tokens": False, "pooling_mode_mean_sqrt_len_tokens": False}
    (folder / "1_Pooling").mkdir(parents=True, exist_ok=True)
    if pooling.normalise:
        (folder / "2_Normalize").mkdir(exist_ok=True)
    _write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": width, **flags})
    _write(folder / "sentence_bert_config.json", {"max_seq_length": pooling.max_length, "do_lower_case": False})
    _write(folder / MODULES, listed)


def _modules(folder: Path) -> list[tuple[str, str]]:
    """The steps of a folder: (kind, path)."""
    try:
        data = bounded.read_json(folder / MODULES)
        found = [(str(step["type"]).rpartition(".")[2], str(step["path"])) for step in data]
    except FileNotFoundError:
        raise ValueError(f"there is no {folder / MODULES}: {folder} is not a sentence-transformers folder") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder / MODULES} is not a list of modules: {error}") from None
    if not found or any(Path(path).is_absolute() or ".." in Path(path).parts for _, path in found):
        raise ValueError(f"{folder / MODULES} names no modules inside the folder")
    return found


def _kind(pooled: dict[str, Any], folder: Path) -> Kind:
    if "pooling_mode" in pooled:
        said = pooled["pooling_mode"]
        chosen = [said] if isinstance(said, str) else list(said)
        kinds = [TODAY.get(name, name) for name in chosen]
    else:
        kinds = [FLAGS.get(name, name) for name, on in pooled.items() if name.startswith("pooling_mode") and on is True]
    if len(kinds) != 1 or kinds[0] not in TODAY.values():
        raise ValueError(f"{folder} pools by {' and '.join(kinds) or 'nothing'}; only one of mean, cls and lasttoken "
                         "is supported")  # fmt: skip
    return cast(Kind, kinds[0])


def _max_length(settings: dict[str, Any], folder: Path) -> int:
    """What the folder says, but no more than its model has positions for."""
    said = settings.get("max_seq_length") or (read_json(folder / "tokenizer_config.json") or {}).get("model_max_length")
    config = read_json(folder / "config.json") or {}
    positions = whole_number({"max_position_embeddings": 512, **config}, "max_position_embeddings", least=3,
                             most=bounded.LARGEST_NUMBER, place=folder / "config.json")  # fmt: skip
    if config.get("model_type") in ("roberta", "xlm-roberta", "longformer"):
        positions -= 2  # they count from 2
    if not isinstance(said or 1, int | float) or (said or 1) < 1:
        raise ValueError(f"{folder}: the longest text must be a number of tokens, not {said!r:.100}")
    return int(min(said or positions, positions))


def _note_prompt(folder: Path) -> None:
    found = read_json(folder / "config_sentence_transformers.json") or {}
    name = found.get("default_prompt_name")
    prompt = (found.get("prompts") or {}).get(name)
    if prompt:
        warnings.warn(f"{folder}: sentence-transformers puts {prompt!r} before each text; here, do it yourself",
                      stacklevel=3)  # fmt: skip


def _check_case(folder: Path) -> None:
    """sentence-transformers lowers the case itself if asked; here only tokenizers do."""
    text = "AN EXAMPLE"
    upper, lower = tokenizers.load(body(folder)).encode([text, text.lower()])
    if upper != lower:
        raise ValueError(f"{folder} asks for do_lower_case, but its tokenizer keeps upper case; that is not supported")


def _write(path: Path, data: Any) -> None:
    write_text(path, json.dumps(data, indent=2) + "\n")
