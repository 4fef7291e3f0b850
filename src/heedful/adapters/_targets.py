"""Finding the linear maps of a model that a recipe names: `query`, `cross.query`, `decoder.layers.0.feedforward.up`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from heedful.config import did_you_mean
from heedful.model.int8 import Int8Linear
from heedful.model.linear import FusedLinear


@dataclass(frozen=True)
class Target:
    """A linear map, or one part of a fused one: `part` is its place there. `address`: what it is called in a recipe,
    the module's name with the part's in place of the last word."""

    module: str
    part: int
    address: str


def targets_of(model: nn.Module, names: Sequence[str]) -> dict[str, list[Target]]:
    """{module: its targets} for the names of a recipe: `all`, or the last words of addresses, each of which must fit
    something."""
    known = list(_targets(model))
    found: list[Target] = []
    for name in names:
        fitting = [one for one in known if name == "all" or f".{one.address}".endswith(f".{name}")]
        if not fitting:
            words = sorted({one.address.rpartition(".")[2] for one in known})
            raise ValueError(f"adapter.targets: no linear map is called {name!r}{did_you_mean(name, words)}")
        found += [one for one in fitting if one not in found]
    modules: dict[str, list[Target]] = {}
    for one in known:  # in the order of the model, whatever that of the recipe
        if one in found:
            modules.setdefault(one.module, []).append(one)
    return modules


def _targets(model: nn.Module) -> Iterator[Target]:
    heads = getattr(model, "heads_named", ())
    for name, module in model.named_modules():
        if not isinstance(module, nn.Linear | Int8Linear) or name.partition(".")[0] in heads:
            continue
        parts = module.names if isinstance(module, FusedLinear | Int8Linear) else ()
        parent, _, own = name.rpartition(".")
        for place, part in enumerate(parts or (own,)):
            yield Target(name, place, f"{parent}.{part}" if parent else part)
