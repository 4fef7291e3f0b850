"""Low-rank updates of linear maps.      Hu et al. 2022

    W x + b + (alpha / rank) B A x,      A: rank x inputs, B: outputs x rank, B = 0 before training

`root`: alpha / sqrt(rank) instead (Kalajdzievski 2023, rsLoRA). `magnitude`: the rows of the updated matrix keep a
length of their own, which is trained, and only their direction is updated (Liu et al. 2024, DoRA):

    m_i V_i x / |V_i| + b_i,      V = W + (alpha / rank) B A, m_i = |W_i| before training; no gradient through |V_i|
"""

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from heedful.adapters import Adapted, AdapterConfig
from heedful.adapters._targets import Target, targets_of
from heedful.config import Probability, Size
from heedful.model.architecture import Model
from heedful.model.dropout import Dropout
from heedful.model.input.tokens import Tokens
from heedful.model.int8 import Int8Linear, quantize_int8
from heedful.model.linear import FusedLinear, Linear
from heedful.model.surgery import adopted

TABLES = ("embedding", "target_embedding")


class LoraConfig(AdapterConfig):
    """`targets`: the linear maps, by the last words of their names: query, key, value, output, input (or gate and up),
    cross.query, decoder.layers.3.attention.value; all; or embedding. `int8`: the base's linear maps are rounded to 8
    bits, for a quarter of their memory while training."""

    rank: Size = 8
    alpha: float = Field(16.0, gt=0)
    root: bool = False
    magnitude: bool = False
    dropout: Probability = 0.0
    targets: tuple[str, ...] = ("query", "value")
    int8: bool = False

    @model_validator(mode="after")
    def _fits_together(self) -> "LoraConfig":
        if not self.targets:
            raise ValueError("adapter.targets is empty; name some linear maps, such as query and value, or all")
        if self.magnitude and self.int8:
            raise ValueError("adapter.magnitude needs the lengths of rows in float32; set adapter.int8=false")
        return self

    @property
    def merges(self) -> bool:
        return not self.int8  # rounding the sum again would change it

    @property
    def scale(self) -> float:
        return self.alpha / (math.sqrt(self.rank) if self.root else self.rank)

    def install(self, model: Model) -> set[str]:
        if self.int8:
            spared = {*model.heads_named, *TABLES}
            quantize_int8(model, only=lambda name: name.partition(".")[0] not in spared)
        tables = [name for name in self.targets if name in TABLES]
        found = targets_of(model, [name for name in self.targets if name not in tables])
        for name, targets in found.items():
            _replace(model, name, _updated(model.get_submodule(name), targets, self))
        for name in tables:
            table = getattr(model, name, None)
            if type(table) is not Tokens:
                raise ValueError(f"adapter.targets: this model has no float32 table {name} of its own; leave it out")
            _replace(model, name, _updated_table(table, self))
        return {name for name, _ in model.named_parameters() if ".lora." in f".{name}"}

    @torch.no_grad()
    def merge(self, model: Model) -> None:
        for name, module in list(model.named_modules()):
            if isinstance(module, LoraInt8):
                raise ValueError("an adapter of int8 weights cannot be merged: rounding the sum again would change it")
            if isinstance(module, LoraLinear | LoraFused | LoraTokens):
                module.fold()
                plain = adopted(module, PLAIN[type(module)])
                del plain._modules["lora"]
                _replace(model, name, plain)


def _replace(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, module)


class Update(nn.Module):
    """scale B A x, for one linear map or one part of a fused one."""

    def __init__(self, weight: Tensor | None, inputs: int, outputs: int, config: LoraConfig, like: Tensor) -> None:
        super().__init__()
        self.scale = config.scale
        self.a = nn.Parameter(like.new_empty(config.rank, inputs).uniform_(-(inputs**-0.5), inputs**-0.5))
        self.b = nn.Parameter(like.new_zeros(outputs, config.rank))
        self.m = None if weight is None else nn.Parameter(weight.detach().norm(dim=1))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.linear(x, self.a), self.scale * self.b)

    def matrix(self) -> Tensor:
        return self.scale * self.b @ self.a

    def lengthened(self, plain: Tensor, bias: Tensor | None, update: Tensor, weight: Tensor) -> Tensor:
        """With the trained lengths. plain: W x + b; update: scale B A x"""
        factor = self.factor(weight)
        return (plain + update) * factor if bias is None else (plain - bias + update) * factor + bias

    def factor(self, weight: Tensor) -> Tensor:
        assert self.m is not None
        return self.m / (weight + self.matrix()).norm(dim=1).detach()


class Updates(nn.ModuleDict):
    """The updates of one module, by the names of its parts. `places`: where these are among its parts."""

    def __init__(self, module: nn.Module, targets: Sequence[Target], config: LoraConfig) -> None:
        super().__init__()
        linear = cast(Linear, module)
        sizes: tuple[int, ...] = getattr(module, "parts", None) or (linear.out_features,)
        self.places = tuple(one.part for one in targets)
        self.dropout = Dropout(config.dropout)
        self.rows = [slice(sum(sizes[:place]), sum(sizes[: place + 1])) for place in self.places]
        held = getattr(module, "weight", None)
        like = torch.empty(0) if held is None else held.detach()
        for one, rows in zip(targets, self.rows, strict=True):
            weight = held[rows] if held is not None and config.magnitude else None
            name = one.address.rpartition(".")[2]
            self[name] = Update(weight, linear.in_features, sizes[one.part], config, like)

    def each(self) -> list[tuple[int, slice, Update]]:
        """Place, rows of the whole matrix, update."""
        updates = [cast(Update, self[name]) for name in self if name != "dropout"]
        return list(zip(self.places, self.rows, updates, strict=True))


class _Updated(Adapted):
    """What a linear map with updates beside it has more than others."""

    lora: Updates
    weight: Any
    bias: Any

    def changed(
        self, x: Tensor, found: Tensor | tuple[Tensor, ...], *, skipped: int = 0
    ) -> Tensor | tuple[Tensor, ...]:
        """`found`: what the base gives, without the first `skipped` parts."""
        parts = list(found) if isinstance(found, tuple) else [found]
        dropped = self.lora.dropout(x)
        for place, rows, update in self.lora.each():
            if place >= skipped:
                parts[place - skipped] = self._one(parts[place - skipped], dropped, rows, update)
        return tuple(parts) if isinstance(found, tuple) else parts[0]

    def _one(self, plain: Tensor, x: Tensor, rows: slice, update: Update) -> Tensor:
        if update.m is None:
            return plain + update(x)
        bias = None if self.bias is None else self.bias[rows]
        return update.lengthened(plain, bias, update(x), self.weight[rows])

    def fold(self) -> None:
        whole = self.weight.detach().clone()
        for _, rows, update in self.lora.each():
            factor = 1.0 if update.m is None else update.factor(self.weight[rows])[:, None]
            whole[rows] = (self.weight[rows] + update.matrix()) * factor
        self.weight = nn.Parameter(whole, requires_grad=self.weight.requires_grad)


class LoraLinear(_Updated, Linear):
    def forward(self, x: Tensor) -> Tensor:
        found = super().forward(x)
        return cast(Tensor, self.changed(x, found)) if self.active else found


class LoraFused(_Updated, FusedLinear):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        found = super().forward(x)
        return cast(tuple[Tensor, ...], self.changed(x, found)) if self.active else found

    def last(self, x: Tensor, skipped: int) -> tuple[Tensor, ...]:
        found = super().last(x, skipped)
        return cast(tuple[Tensor, ...], self.changed(x, found, skipped=skipped)) if self.active else found


class LoraInt8(_Updated, Int8Linear):
    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        found = super().forward(x)
        return self.changed(x, found) if self.active else found


class LoraTokens(Adapted, Tokens):
    """(W + scale (B A)') for every use of the table, also as the output matrix where it is tied."""

    lora: Update

    def matrix(self) -> Tensor:
        return self.weight + self.lora.matrix() if self.active else self.weight

    def embed(self, tokens: Tensor) -> Tensor:
        if not self.active:
            return super().embed(tokens)
        return (F.embedding(tokens, self.weight) + self._rows(tokens)) * self.factor

    def project(self, states: Tensor) -> Tensor:
        found = super().project(states)
        if not self.active:
            return found
        return found + F.linear(F.linear(states, self.lora.a), self.lora.scale * self.lora.b)

    def rows(self, tokens: Tensor) -> Tensor:
        return super().rows(tokens) + self._rows(tokens) if self.active else super().rows(tokens)

    def _rows(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.lora.b) @ (self.lora.scale * self.lora.a)

    def fold(self) -> None:
        self.weight = nn.Parameter(self.matrix().detach(), requires_grad=self.weight.requires_grad)


PLAIN: dict[type[nn.Module], type[nn.Module]] = {
    LoraLinear: Linear, LoraFused: FusedLinear, LoraInt8: Int8Linear, LoraTokens: Tokens
}  # fmt: skip


def _updated(module: nn.Module, targets: Sequence[Target], config: LoraConfig) -> nn.Module:
    kind = next((kind for kind, plain in PLAIN.items() if plain is type(module)), None)
    if kind is None:
        raise ValueError(f"adapter.targets: {targets[0].address} is a {type(module).__name__}, which has no adapter")
    found = adopted(module, kind)
    found.lora = Updates(module, targets, config)
    return found


def _updated_table(table: Tokens, config: LoraConfig) -> LoraTokens:
    if config.magnitude:
        raise ValueError("adapter.magnitude is for linear maps, not for tables; leave embedding out of adapter.targets")
    found = adopted(table, LoraTokens)
    rows, width = table.weight.shape
    found.lora = Update(None, width, rows, config, table.weight.detach())
    return found
