"""Many heads around one mix: project, split, rotate, mix, merge, project.      Vaswani et al. 2017, section 3.2.2"""

from pydantic import Field, SerializeAsAny, model_validator
from torch import Tensor, nn

from heedful.config import Config, Probability, Size
from heedful.model.attention import MixConfig
from heedful.model.attention.softmax import SoftmaxConfig
from heedful.model.cache import LayerCache
from heedful.model.linear import FusedLinear, Linear, linear_parameters
from heedful.model.mask import Mask
from heedful.model.position import Where
from heedful.model.position.rotary import rotate

KeyValue = tuple[Tensor, Tensor]  # batch kv_heads source head


class MultiHeadConfig(Config):
    """`kv_heads` below `heads` shares keys and values: 1 is multi-query (Shazeer 2019), between is grouped-query
    (Ainslie et al. 2023). `window` lets a token see only those fewer than that many places away. `scaled` off is T5's:
    the factor 1/sqrt(head_width) is left out.
    """

    heads: Size = 8
    kv_heads: Size | None = None
    head_width: Size | None = None
    bias: bool = True
    output_bias: bool = True
    dropout: Probability = 0.0
    window: Size | None = None
    scaled: bool = True
    mix: SerializeAsAny[MixConfig] = Field(default_factory=SoftmaxConfig)

    @model_validator(mode="after")
    def _groups_are_whole(self) -> "MultiHeadConfig":
        if self.heads % self.kv_head_count:
            raise ValueError(
                f"heads {self.heads} do not split into {self.kv_heads} kv_heads; "
                f"choose kv_heads from {divisors(self.heads)}"
            )
        return self

    @property
    def kv_head_count(self) -> int:
        return self.kv_heads or self.heads

    def head_width_in(self, width: int) -> int:
        """The width of one head in a model of this width."""
        if self.head_width is None and width % self.heads:
            raise ValueError(
                f"width {width} does not split into {self.heads} heads; choose heads from {divisors(width)}"
            )
        return self.head_width or width // self.heads

    def parts(self, width: int) -> tuple[int, int, int]:
        """How many numbers the queries, the keys and the values of a token have."""
        head = self.head_width_in(width)
        return self.heads * head, self.kv_head_count * head, self.kv_head_count * head

    def parameters(self, width: int) -> int:
        parts = self.parts(width)
        return linear_parameters(width, sum(parts), self.bias) + linear_parameters(parts[0], width, self.output_bias)


class SelfAttention(nn.Module):
    """Queries, keys and values from one input, so one product makes all three."""

    def __init__(self, config: MultiHeadConfig, width: int) -> None:
        super().__init__()
        self.head = config.head_width_in(width)
        self.query_key_value = FusedLinear(width, config.parts(width), bias=config.bias)
        self.mix = config.mix.build(scale=_scale(config, self.head), dropout=config.dropout)
        self.output = Linear(config.heads * self.head, width, bias=config.output_bias)

    def forward(self, x: Tensor, *, mask: Mask, where: Where, cache: LayerCache | None = None) -> Tensor:
        query, key, value = (split_heads(part, self.head) for part in self.query_key_value(x))
        if where.rotation is not None:
            query, key = rotate(query, where.rotation), rotate(key, where.rotation)
        mixed = self.mix(query, key, value, mask=mask, bias=where.bias, cache=cache)
        return self.output(merge_heads(mixed))


class CrossAttention(nn.Module):
    """Queries from the decoder, keys and values from the encoder's output: those are made once per source."""

    def __init__(self, config: MultiHeadConfig, width: int) -> None:
        super().__init__()
        queries, keys, values = config.parts(width)
        self.head = config.head_width_in(width)
        self.query = Linear(width, queries, bias=config.bias)
        self.key_value = FusedLinear(width, (keys, values), bias=config.bias)
        self.mix = config.mix.build(scale=_scale(config, self.head), dropout=config.dropout)
        self.output = Linear(config.heads * self.head, width, bias=config.output_bias)

    def read(self, states: Tensor) -> KeyValue:
        """The keys and values of the encoder's output (batch source width)."""
        key, value = (split_heads(part, self.head) for part in self.key_value(states))
        return key, value

    def forward(self, x: Tensor, *, memory: KeyValue, mask: Mask) -> Tensor:
        """x: rows query width, where rows = batch x beam. The beams of a sentence share its keys and values without a
        copy: to an attention that is not causal, they are just more queries."""
        rows, query, width = x.shape
        key, value = memory
        x = x.reshape(len(key), -1, width)  # batch beam*query width
        mixed = self.mix(split_heads(self.query(x), self.head), key, value, mask=mask)
        return self.output(merge_heads(mixed)).reshape(rows, query, width)


def split_heads(x: Tensor, head: int) -> Tensor:
    """batch query (heads head) -> batch heads query head"""
    return x.unflatten(-1, (-1, head)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """batch heads query head -> batch query (heads head)"""
    return x.transpose(1, 2).flatten(2)


def divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def _scale(config: MultiHeadConfig, head: int) -> float:
    return head**-0.5 if config.scaled else 1.0
