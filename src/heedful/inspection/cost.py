"""The cost of a model before it is built: parameters, FLOPs, memory. All from closed formulas over its config."""

from collections import Counter
from dataclasses import dataclass

from heedful.model.architecture import ArchitectureConfig
from heedful.model.create import layout

BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}


@dataclass(frozen=True)
class Cost:
    """`formula` and `counted` are parameters by component; the rest is per token, by kind of token.

    flops        of one forward pass, a multiply-add counts as two; each query attends to `length` keys
    cache        numbers cached per token while decoding; multiply by the bytes per number
    """

    formula: dict[str, int]
    counted: dict[str, int]
    length: int
    flops: dict[str, int]
    cache: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.formula.values())


def cost(config: ArchitectureConfig, *, length: int = 512) -> Cost:
    return Cost(
        formula={name: count for name, count in config.parameters().items() if count},
        counted=count_parameters(config),
        length=length,
        flops=config.flops(length),
        cache=config.remembered(),
    )


def count_parameters(config: ArchitectureConfig) -> dict[str, int]:
    """By component, counted on the model itself, built on the meta device."""
    counts: Counter[str] = Counter()
    for name, parameter in layout(config).named_parameters():
        counts[_component(name)] += parameter.numel()
    return dict(counts)


def _component(name: str) -> str:
    """encoder.layers.3.attention.output.weight -> encoder.attention"""
    side, *rest = name.split(".")
    if side == "heads":
        return f"heads.{rest[0]}"
    if side not in ("encoder", "decoder"):
        return side
    if any("norm" in part for part in rest):
        return f"{side}.norms"
    return f"{side}.{rest[2] if rest[0] == 'layers' else rest[0]}"
