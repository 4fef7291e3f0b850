"""Many LoRA adapters beside one base: each row of a batch has its own.

    y_i = W x_i + b + scale_c B_c A_c x_i,      c: the adapter chosen for row i, or none

The base is in memory once. Which adapter a row has is said around a pass, `with choosing(rows)`, by what feeds the
model (`ChosenStepper`), since the modules between it and the linear maps need not know of it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.adapters import AdapterConfig
from heedful.adapters.lora import LoraConfig
from heedful.config import did_you_mean
from heedful.model.architecture import Model
from heedful.model.linear import FusedLinear, Linear
from heedful.model.surgery import adopted, replace_modules

State = Mapping[str, Tensor]
_chosen: ContextVar[Tensor | None] = ContextVar(
    "chosen", default=None
)  # of each row: 0 = none, or the adapter's number


@contextmanager
def choosing(rows: Tensor | None) -> Iterator[None]:
    """Within it, the rows of a batch have these adapters. Where the model is given fewer or more rows, as for the
    sentences of beams, neighbours share one."""
    token = _chosen.set(rows if rows is not None and bool(rows.any()) else None)
    try:
        yield
    finally:
        _chosen.reset(token)


def numbers(names: Sequence[str], known: Sequence[str]) -> Tensor | None:
    """The adapters of rows, given by name ("" = none); None if there are none to choose from."""
    for name in names:
        if name and name not in known:
            listed = did_you_mean(name, known) if known else "; this model has none"
            raise ValueError(f"unknown adapter {name!r}{listed}")
    return torch.tensor([known.index(name) + 1 if name else 0 for name in names]) if known else None


def install_bank(model: Model, adapters: Mapping[str, tuple[AdapterConfig, State]]) -> None:
    """Put the adapters beside the weights of a base, in place."""
    for name, (config, state) in adapters.items():
        _refuse(name, config, state, model)
    modules = {key.partition(".lora.")[0] for _, state in adapters.values() for key in state}

    def change(name: str, module: nn.Module) -> nn.Module | None:
        if name not in modules:
            return None
        found = adopted(module, BankedFused if isinstance(module, FusedLinear) else BankedLinear)
        found.bank = Bank(name, cast(Linear, module), list(adapters.values()))
        return found

    replace_modules(model, change)


def _refuse(name: str, config: AdapterConfig, state: State, model: Model) -> None:
    what = ""
    if not isinstance(config, LoraConfig):
        what = config.kind
    elif config.magnitude or config.int8:
        what = "lora with magnitude" if config.magnitude else "lora beside int8 weights"
    for key in state if not what else ():
        module = key.partition(".lora.")[0]
        if ".lora." not in key or not isinstance(model.get_submodule(module), Linear | FusedLinear):
            what = f"lora with {key}"
            break
    if what:
        raise ValueError(f"adapter {name} ({what}) cannot share its base with others; serve its folder by itself")


class Bank(nn.Module):
    """The adapters of one linear map, as one tensor for each part: number 0 changes nothing."""

    def __init__(self, name: str, linear: Linear, adapters: Sequence[tuple[AdapterConfig, State]]) -> None:
        super().__init__()
        words: tuple[str, ...] = getattr(linear, "names", None) or (name.rpartition(".")[2],)
        sizes: tuple[int, ...] = getattr(linear, "parts", None) or (linear.out_features,)
        self.places: list[int] = []
        for place, (word, size) in enumerate(zip(words, sizes, strict=True)):
            found = [(cast(LoraConfig, config), state, f"{name}.lora.{word}") for config, state in adapters]
            rank = max((len(state[f"{key}.a"]) for _, state, key in found if f"{key}.a" in state), default=0)
            if not rank:
                continue
            a = linear.weight.new_zeros(1 + len(adapters), rank, linear.in_features)
            b = linear.weight.new_zeros(1 + len(adapters), size, rank)
            for number, (config, state, key) in enumerate(found, 1):
                if f"{key}.a" in state:
                    own = len(state[f"{key}.a"])
                    a[number, :own], b[number, :, :own] = state[f"{key}.a"], config.scale * state[f"{key}.b"]
            self.places.append(place)
            self.register_buffer(f"a{place}", a)
            self.register_buffer(f"b{place}", b)

    def change(self, x: Tensor, parts: list[Tensor], *, skipped: int = 0) -> list[Tensor]:
        """What the base gives, changed by the adapters of the rows. x: rows ... inputs"""
        rows = _chosen.get()
        if rows is None:
            return parts
        rows = rows[:: len(rows) // len(x)] if len(x) < len(rows) else rows.repeat_interleave(len(x) // len(rows))
        first = int(rows[0])
        alike = bool((rows == first).all())
        for place in self.places:
            if place >= skipped:
                a, b = self.get_buffer(f"a{place}"), self.get_buffer(f"b{place}")
                if alike:
                    parts[place - skipped] = parts[place - skipped] + F.linear(F.linear(x, a[first]), b[first])
                else:
                    flat = x.reshape(len(x), -1, x.shape[-1])  # rows others inputs
                    added = flat @ a[rows].transpose(1, 2) @ b[rows].transpose(1, 2)
                    parts[place - skipped] = parts[place - skipped] + added.reshape_as(parts[place - skipped])
        return parts


class BankedLinear(Linear):
    bank: Bank

    def forward(self, x: Tensor) -> Tensor:
        return self.bank.change(x, [super().forward(x)])[0]


class BankedFused(FusedLinear):
    bank: Bank

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        return tuple(self.bank.change(x, list(super().forward(x))))

    def last(self, x: Tensor, skipped: int) -> tuple[Tensor, ...]:
        return tuple(self.bank.change(x, list(super().last(x, skipped)), skipped=skipped))


class Steps(Protocol):
    def advance(self, tokens: Tensor) -> Tensor: ...

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> None: ...


class ChosenStepper:
    """A stepper whose rows have adapters. `make` begins it, and reads the source or the prompts in doing so."""

    def __init__(self, make: Callable[[], Steps], rows: Tensor | None) -> None:
        self.rows = rows
        with choosing(rows):
            self.stepper = make()

    def advance(self, tokens: Tensor) -> Tensor:
        if self.rows is not None and len(tokens) > len(self.rows):
            self.rows = self.rows.repeat_interleave(len(tokens) // len(self.rows))
        with choosing(self.rows):
            return self.stepper.advance(tokens)

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        self.stepper.select(rows, sentences)
        if self.rows is not None:
            self.rows = self.rows[rows.to(self.rows.device)]
