"""Models that other people published, whatever their layout: Hugging Face, sentence-transformers, GGUF."""

from pathlib import Path

from heedful.exchange import gguf, hugging_face, sentence_transformers, tokenizers
from heedful.exchange.hugging_face import Opened
from heedful.exchange.tokenizers import read_json
from heedful.model.architecture import ArchitectureConfig
from heedful.text.tokenizer import Tokenizer

LAYOUTS = "a Hugging Face folder (config.json), a sentence-transformers folder (modules.json) or a GGUF file"


def is_published(path: str | Path) -> bool:
    path = Path(path)
    return gguf.is_gguf(path) or sentence_transformers.has_pooling(path) or (path / "config.json").is_file()


def read_config(path: str | Path) -> ArchitectureConfig:
    """The config of a model, without its weights."""
    return gguf.read_config(path) if gguf.is_gguf(path) else hugging_face.read_config(sentence_transformers.body(path))


def load(path: str | Path) -> Opened:
    return gguf.load(path) if gguf.is_gguf(path) else hugging_face.load(sentence_transformers.body(path))


def load_tokenizers(path: str | Path, *, columns: int) -> list[Tokenizer]:
    """One tokenizer per text column, as `data.prepare.load_tokenizers`."""
    if gguf.is_gguf(path):
        return [gguf.tokenizer(path)] * columns if columns else []
    return tokenizers.load_columns(sentence_transformers.body(path), columns=columns)


def weight_files(path: str | Path) -> list[Path]:
    return [Path(path)] if Path(path).is_file() else sorted(sentence_transformers.body(path).glob("*.safetensors"))


def labels(path: str | Path) -> list[str]:
    """The names of the classes, in order; empty if the folder has none but LABEL_0, LABEL_1 ..."""
    found = {} if Path(path).is_file() else read_json(sentence_transformers.body(path) / "config.json") or {}
    named = found.get("id2label") or {}
    if not isinstance(named, dict):
        raise ValueError(f"{path}: id2label in config.json must be an object, not {named!r:.100}")
    names = [str(named.get(str(index), "")) for index in range(len(named))]
    return [] if names == [f"LABEL_{index}" for index in range(len(names))] or not all(names) else names


def remark(path: str | Path) -> str:
    """What a person should know about a model that is used here otherwise than by its owners; usually nothing."""
    kind, _ = family(path)
    if kind in ("bart", "led"):
        return f"{kind} models begin texts with <s> at home, and here only the target; fine-tuning adapts to it"
    return ""


def family(path: str | Path) -> tuple[str, str]:
    """The model_type of a folder, and the class of its tokenizer, as it states them."""
    if Path(path).is_file():
        return "", ""
    body = sentence_transformers.body(path)
    stated = [(read_json(body / file) or {}).get(key) for file, key in (
        ("config.json", "model_type"), ("tokenizer_config.json", "tokenizer_class"))]  # fmt: skip
    kind, class_name = (one if isinstance(one, str) else "" for one in stated)
    return kind, class_name
