"""Bounds for files that strangers made: how large, deep and branched they may be, checked before anything is built.

Everything that opens a model folder, or a file of another tool, reads through these functions. Whatever is wrong is a
`ValueError` of one line, found without much time or memory.
"""

import json
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

LARGEST_TEXT = 64 << 20  # bytes of a JSON file; the largest published tokenizers have about 35 MB
MOST_CONTAINERS = 2_000_000  # lists and objects of a JSON file; a Unigram tokenizer has one for each piece
LARGEST_YAML = 100 << 10  # bytes; our recipes have about 3 kB
DEEPEST = 64  # lists within lists of YAML
NODES = 10_000  # values of a YAML file, each alias counted as often as it is used
LARGEST_HEADER = 16 << 20  # bytes of the table of contents of a safetensors file
LARGEST_NUMBER = (1 << 31) - 1
SAID = 400  # characters of a message


def regular(path: Path, most: int | None = None) -> Path:
    """The path, if it is a regular file of at most so many bytes: a pipe or a device would be read for ever."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(f"{path} is not a regular file")
    if most is not None and found.st_size > most:
        raise ValueError(f"{path} has {found.st_size:,} bytes; at most {most:,} are read")
    return path


def read_text(path: Path, *, most: int = LARGEST_TEXT) -> str:
    try:
        return regular(path, most).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error}") from None


def read_json(path: Path, *, most: int = LARGEST_TEXT) -> Any:
    """What a JSON file holds. NaN and infinity, which are not JSON, are refused."""
    try:
        text = read_text(path, most=most)
        if text.count("[") + text.count("{") > MOST_CONTAINERS:
            raise ValueError(f"{path} holds more than {MOST_CONTAINERS:,} lists and objects")
        return json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply") from None
    except ValueError as error:
        raise ValueError(one_line(error) if str(path) in str(error) else f"{path}: {one_line(error)}") from None


def read_object(path: Path) -> dict[str, Any]:
    data = read_json(path)
    if not isinstance(data, dict):
        raise ValueError(f"{path} is not a JSON object")
    return data


def _no_constant(name: str) -> Any:
    raise ValueError(f"it contains {name}, which is not JSON")


def read_yaml(path: Path) -> Any:
    """What a YAML file holds. Aliases may be used, but not to unfold into more than `NODES` values."""
    text = read_text(path, most=LARGEST_YAML)
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if _unfolded(node, {}) > NODES:
            raise yaml.YAMLError(f"it unfolds to more than {NODES:,} values")
        return loader.construct_document(node)
    except (yaml.YAMLError, RecursionError, ValueError) as error:  # the last for dates that do not exist
        raise ValueError(f"{path} is not YAML, or too much of it: {str(error).splitlines()[0]}") from None


class _Loader(yaml.SafeLoader):
    """Stops at `DEEPEST`."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.depth += 1
        if self.depth > DEEPEST:
            raise yaml.YAMLError(f"nested deeper than {DEEPEST}")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _unfolded(node: yaml.Node, known: dict[int, int]) -> int:
    """How many values a node holds, aliases unfolded; each node is visited once. A node within itself is endless."""
    if id(node) not in known:
        known[id(node)] = NODES + 1  # what it is while it is being counted: reached again, it holds itself
        held: Iterable[yaml.Node] = ()
        if isinstance(node, yaml.SequenceNode):
            held = node.value
        elif isinstance(node, yaml.MappingNode):
            held = (one for pair in node.value for one in pair)
        known[id(node)] = 1 + sum(_unfolded(one, known) for one in held)
    return known[id(node)]


@dataclass(frozen=True)
class Held:
    """A tensor in a file, not yet read. `dtype`: safetensors' name for it, such as F32."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def count(self) -> int:
        return prod(self.shape)


def header(path: Path) -> dict[str, Held]:
    """The tensors of a safetensors file by name. The library checks that they lie within the file."""
    from safetensors import SafetensorError, safe_open

    try:
        with regular(path).open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
        if size > LARGEST_HEADER:
            raise ValueError(f"{path} is damaged: its header claims {size:,} bytes")
        with safe_open(path, framework="np") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118
            return {name: Held(tuple(one.get_shape()), str(one.get_dtype())) for name, one in slices.items()}
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged: {one_line(error)}") from None


def refuse_infinite(tensors: Iterable[tuple[str, Any]], place: Path | str) -> None:
    """Weights that are not numbers make every result meaningless. A sum, which is fast, is finite only if all are; as
    it may overflow, the exact check decides."""
    for name, tensor in tensors:
        if tensor.is_floating_point() and tensor.itemsize == 1:  # float8, which torch does not add
            tensor = tensor.float()
        if tensor.is_floating_point() and not tensor.sum().isfinite() and not tensor.isfinite().all():
            bad = int((~tensor.isfinite()).sum())
            raise ValueError(
                f"{place}: {name} holds {bad:,} values that are NaN or infinite (of {tensor.numel():,}), so the model "
                "is unusable; its training diverged, or the file is damaged"
            )


@contextmanager
def opening(place: Path | str) -> Iterator[None]:
    """While a stranger's file is opened, whatever goes wrong is a ValueError of one line that names it."""
    try:
        yield
    except OSError:
        raise
    except ValidationError as error:
        raise ValueError(f"{place}: {one_line(explain(error))}") from error
    except ValueError as error:
        said = one_line(error)
        if type(error) is ValueError and said == str(error):
            raise
        raise ValueError(said if str(place) in said else f"{place}: {said}") from error
    except MemoryError as error:
        raise ValueError(f"{place} needs more memory than there is") from error
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # of the tokenizers library
            raise
        raise ValueError(f"{place} is damaged or contradicts itself ({type(error).__name__}: {one_line(error)})") from (
            error
        )


def explain(error: ValidationError) -> str:
    """Pydantic's errors, one line per problem: where, what is wrong, what was given."""
    lines = []
    for problem in error.errors():
        where = ".".join(str(step) for step in problem["loc"])
        message = problem["msg"].removeprefix("Value error, ")
        if problem["type"] != "value_error":
            message = f"{message[0].lower()}{message[1:]}, not {problem['input']!r:.200}"
        lines.append(f"{where}: {message}" if where else message)
    return "\n".join(lines)


def one_line(error: object) -> str:
    """A message without line breaks, shortened."""
    said = "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
    return said if len(said) <= SAID else said[:SAID] + "..."


def whole_number(data: Mapping[str, Any], key: str, *, least: int, most: int, place: Path) -> int:
    """A number of a JSON object, within these bounds."""
    value = data.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{place}: {key} must be a whole number from {least} to {most}, not {value!r:.100}")
    return value
