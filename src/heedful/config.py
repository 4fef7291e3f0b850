"""Typed configuration: validated when created, changed by dotted keys, and able to find a part by its file's name.

Every part of the toolkit has a frozen config beside it, and the config builds the part. Where a folder holds
interchangeable parts (`model/position`, `model/attention`, ...), the name used in a recipe is the name of the file:

    position: rotary                         ->  model/position/rotary.py, with its defaults
    position: {kind: rotary, base: 500000}   ->  the same file, with a key changed

A file whose name begins with `_` is a helper, not a kind. Custom parts are found in the folders and packages that the
user has named: see `parts.py`.
"""

import difflib
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Self, TypeVar

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from heedful import parts
from heedful.bounded import LARGEST_NUMBER, explain

Size = Annotated[int, Field(ge=1)]
Layers = Annotated[int, Field(ge=1, le=1024)]
Probability = Annotated[float, Field(ge=0, lt=1)]
ConfigT = TypeVar("ConfigT", bound="Config")


class Config(BaseModel):
    """A frozen, self-validating set of keys. For an unknown key, the error suggests the nearest known one."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, data: Any) -> Any:
        if isinstance(data, Mapping):
            for key, value in data.items():
                if key not in cls.model_fields and not (key == "kind" and issubclass(cls, PartConfig)):
                    raise ValueError(f"unknown key {key!r:.100}{did_you_mean(key, cls.model_fields)}")
                if type(value) is int and abs(value) > (LARGEST_NUMBER if key != "seed" else (1 << 63) - 1):
                    raise ValueError(f"{key} is too large; give a number of at most {LARGEST_NUMBER:,}")
        return data


class PartConfig(Config):
    """The config of a part that lives in a folder of interchangeable parts.

    The folder's `__init__.py` derives the contract from this class and names itself in `folder`; each file of the
    folder derives one final config from that contract. `default`: the kind if none is named.
    """

    folder: ClassVar[str]
    default: ClassVar[str] = ""

    @property
    def kind(self) -> str:
        return type(self).__module__.rpartition(".")[2]

    @model_validator(mode="wrap")
    @classmethod
    def _find_the_file(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        is_contract = "folder" in cls.__dict__
        if isinstance(data, str):
            data = {"kind": data}
        if not isinstance(data, Mapping):
            return handler(data)
        if is_contract:
            return part_config(cls, str(data.get("kind", cls.default))).model_validate(data)
        own = cls.__module__.rpartition(".")[2]
        if data.get("kind", own) != own:
            raise ValueError(f"this must be {own}, not {data['kind']!r}")
        return handler({key: value for key, value in data.items() if key != "kind"})

    @model_serializer(mode="wrap")
    def _write_the_kind(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {"kind": self.kind, **handler(self)}


def kinds(folder: str) -> list[str]:
    """The names of the parts of a folder in a recipe: those of its files."""
    return sorted(parts.modules(folder))


def part_config(contract: type[ConfigT], kind: str) -> type[ConfigT]:
    """The config class in the file called `kind` in the contract's folder."""
    folder: str = contract.folder  # type: ignore[attr-defined]
    known = parts.modules(folder)
    if kind not in known:
        what = folder.rpartition("/")[2].removesuffix("s")
        raise ValueError(f"unknown {what} {kind!r}{did_you_mean(kind, sorted(known))}")
    module = parts.load(known[kind])
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, contract) and value.__module__ == module.__name__
    ]
    if len(found) != 1:
        raise ValueError(f"{module.__file__} must define exactly one {contract.__name__}, it has {len(found)}")
    return found[0]


def override(config: ConfigT, assignments: Iterable[str]) -> ConfigT:
    """A copy with keys changed, each given as `path.to.key=value`; the value is read as YAML.

    Naming another kind of part (`encoder.position=rotary`) starts from that part's defaults; keys of the new part may
    follow (`encoder.position.base=500`).
    """
    data = config.model_dump()
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals:
            raise ValueError(f"{assignment!r} is not of the form key=value, such as width=256 or encoder.layers=3")
        *parents, last = path.split(".")
        place = data
        for depth, parent in enumerate(parents):
            if parent not in place:
                raise ValueError(f"unknown key {'.'.join(parents[: depth + 1])!r}{did_you_mean(parent, place)}")
            old = _at(config, parents[: depth + 1])
            if isinstance(place[parent], str) and isinstance(old, PartConfig):
                place[parent] = _defaults(old, place[parent])
            if not isinstance(place[parent], dict):
                raise ValueError(f"{path!r}: {parent!r} holds {place[parent]!r}, which has no keys of its own")
            place = place[parent]
        place[last] = yaml.safe_load(text)
    return parse(type(config), data)


def _defaults(old: PartConfig, kind: str) -> dict[str, Any]:
    """What another kind of part has in the place of this one, so that keys deep inside it may be changed."""
    if kind not in kinds(old.folder):
        return {"kind": kind}
    contract: type[PartConfig] = next(one for one in type(old).__mro__ if "folder" in vars(one))
    return part_config(contract, kind)().model_dump()


def _at(config: Config, path: list[str]) -> Any:
    """What a config holds under a path of keys, or None."""
    found: Any = config
    for key in path:
        found = getattr(found, key, None)
    return found


def parse(kind: type[ConfigT], data: Any) -> ConfigT:
    """The config from plain data; the error has one line per problem."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise ValueError(explain(error)) from None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'layers'?`, or the list of known words if none is close."""
    known = list(known)
    near = difflib.get_close_matches(str(word)[:100], known, n=1)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; known: {', '.join(known)}" if known else ""
