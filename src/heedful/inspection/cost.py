"""What a model costs before it is built: parameters, arithmetic, memory. All from closed formulas over its config."""

from collections import Counter
from dataclasses import dataclass

from heedful.model.decoder_only import DecoderOnlyConfig
from heedful.model.encoder_decoder import EncoderDecoderConfig
from heedful.model.encoder_only import EncoderOnlyConfig
from heedful.model.feedforward import GATED
from heedful.model.models import ModelConfig, layout
from heedful.model.multihead import MultiHeadConfig
from heedful.model.stack import StackConfig

BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}


@dataclass(frozen=True)
class Cost:
    """`formula` and `counted` are parameters by component; the rest is for one token, by the kind of token.

    flops        multiply-adds as two operations, of one forward pass; each query looks at `length` keys
    cache        numbers kept per token while decoding: multiply by the bytes of the format
    """

    formula: dict[str, int]
    counted: dict[str, int]
    length: int
    flops: dict[str, int]
    cache: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.formula.values())


def cost(config: ModelConfig, *, length: int = 512) -> Cost:
    return Cost(
        formula={name: count for name, count in config.parameters().items() if count},
        counted=count_parameters(config),
        length=length,
        flops=flops_per_token(config, length),
        cache=cache_per_token(config),
    )


def count_parameters(config: ModelConfig) -> dict[str, int]:
    """By component, counted on the model itself, laid out without memory."""
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


def flops_per_token(config: ModelConfig, length: int) -> dict[str, int]:
    """Matrix products only; all else is small beside them."""
    width, lift = config.width, config.input_width
    if isinstance(config, DecoderOnlyConfig):
        return {"token": _stack(config.decoder, width, lift, length) + _vocabulary(config)}
    if isinstance(config, EncoderOnlyConfig):
        return {"token": _stack(config.encoder, width, lift, length)}
    cross = config.decoder.cross_attention
    queries, keys, values = cross.parts(width)
    read = 2 * width * (keys + values)  # done once per source token
    look = 2 * width * queries + 2 * queries * width + _mix(cross, width, length)
    return {
        "source token": _stack(config.encoder, width, lift, length) + config.decoder.layers * read,
        "target token": _stack(config.decoder, width, lift, length)
        + config.decoder.layers * look
        + _vocabulary(config),
    }


def _stack(stack: StackConfig, width: int, input_width: int, length: int) -> int:
    """Self-attention and feed-forward of all layers, shared weights or not."""
    parts = stack.attention.parts(width)
    attention = 2 * width * sum(parts) + 2 * parts[0] * width + _mix(stack.attention, width, length)
    feedforward = stack.feedforward
    gates = 2 if feedforward.activation in GATED else 1
    products = 2 * feedforward.kernel * width * feedforward.hidden * (gates + 1)
    lift = 2 * input_width * width if input_width != width else 0
    return stack.layers * (attention + products) + lift


def _mix(attention: MultiHeadConfig, width: int, length: int) -> int:
    """Scores and weighted sum over `length` keys."""
    return 2 * 2 * length * attention.heads * attention.head_width_in(width)


def _vocabulary(config: EncoderDecoderConfig | DecoderOnlyConfig) -> int:
    lower = 2 * config.width * config.input_width if config.input_width != config.width else 0
    return lower + 2 * config.input_width * config.vocab


def cache_per_token(config: ModelConfig) -> dict[str, int]:
    """How many numbers a decoder keeps for each token it has seen; an encoder keeps none."""
    if isinstance(config, EncoderOnlyConfig):
        return {}
    keep = config.decoder.layers * sum(config.decoder.attention.parts(config.width)[1:])
    if isinstance(config, DecoderOnlyConfig):
        return {"token": keep}
    read = config.decoder.layers * sum(config.decoder.cross_attention.parts(config.width)[1:])
    return {"source token": read, "target token": keep}
