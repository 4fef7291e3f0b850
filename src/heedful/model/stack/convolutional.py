"""Convolutional sequence to sequence: what is near is combined first, layer by layer.      Gehring et al. 2017"""

import math
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from pydantic import Field, SerializeAsAny
from torch import Tensor, nn

from heedful.config import Layers, Probability, Size
from heedful.model.attention.softmax import SoftmaxConfig
from heedful.model.dropout import Dropout
from heedful.model.linear import Linear, linear_parameters
from heedful.model.mask import Mask
from heedful.model.multihead import KeyValue
from heedful.model.one_head import OneHead, one_head
from heedful.model.position import Position, PositionConfig
from heedful.model.position.learned import LearnedConfig
from heedful.model.sight import Sight
from heedful.model.stack import Cache, Memory, Stack, StackConfig, StackShape
from heedful.model.stack._front import Front, refuse_facts

HALF = math.sqrt(0.5)  # what a sum of two is multiplied by, so that its variance is that of each


class ConvolutionalConfig(StackConfig):
    """`kernel` is how many neighbours a layer sees, itself included: after all layers, layers (kernel - 1) + 1 tokens.
    `position` is one that is added to the embeddings. `scaled` divides the scores of a decoder's attention by
    sqrt(width), as in a Transformer; the paper does not, and begins with embeddings a tenth as large (set
    embedding.scale=false for that).
    """

    layers: Layers = 4
    kernel: Size = 3
    position: SerializeAsAny[PositionConfig] = Field(default_factory=LearnedConfig)
    scaled: bool = True
    dropout: Probability = 0.1

    @property
    def supports(self) -> frozenset[str]:
        return frozenset({"causal"})

    @property
    def limit(self) -> int | None:
        return self.position.limit

    def check(self, shape: StackShape) -> None:
        if not shape.causal and self.kernel % 2 == 0:
            raise ValueError(f"kernel {self.kernel} has no middle; choose an odd one in an encoder")
        self.position.check(width=shape.input_width, head_width=shape.width)
        with torch.device("meta"):
            position = type(self._position(shape))
        for place in ("rotation", "bias", "score"):
            if getattr(position, place) is not getattr(Position, place):
                raise ValueError(
                    f"position {self.position.kind} acts inside self-attention, which a convolutional stack does not "
                    "have; choose learned, sinusoidal or none"
                )

    def _position(self, shape: StackShape) -> Position:
        return self.position.build(width=shape.input_width, heads=1, head_width=shape.width, causal=shape.causal)

    def build(self, shape: StackShape) -> "Convolutional":
        return Convolutional(self, shape, self._position(shape))

    def parameters(self, shape: StackShape) -> dict[str, int]:
        width, input_width, source_width = shape.width, shape.input_width, shape.source_width or shape.width
        counts = {
            "position": self.position.parameters(width=input_width, heads=1, head_width=width),
            "convolution": self.layers * linear_parameters(self.kernel * width, 2 * width, bias=True),
            "attention": self.layers * linear_parameters(width, width, bias=True) if shape.cross else 0,
        }
        if input_width != width:
            counts["lift"] = linear_parameters(input_width, width, bias=True)
        if shape.cross and source_width != width:
            counts["source_lift"] = linear_parameters(source_width, width, bias=True)
        return counts

    def flops(self, shape: StackShape, length: int) -> int:
        width = shape.width
        layer = 2 * self.kernel * width * 2 * width
        if shape.cross:
            layer += 2 * width * width + SoftmaxConfig().flops(one_head(width), length)
        lift = 2 * shape.input_width * width if shape.input_width != width else 0
        return self.layers * layer + lift

    def reading(self, shape: StackShape) -> tuple[int, int]:
        """All layers share the keys and values."""
        source_width = shape.source_width or shape.width
        return 2 * source_width * shape.width if source_width != shape.width else 0, 2 * shape.width


@dataclass(frozen=True)
class ConvolutionalMemory:
    """The encoder's states as keys; with the embeddings added, and times sqrt(m) of m tokens, as values."""

    attended: KeyValue  # batch 1 source width
    mask: Mask

    def select(self, sentences: Tensor) -> "ConvolutionalMemory":
        key, value = self.attended
        valid = self.mask.key_valid
        return ConvolutionalMemory(
            attended=(key.index_select(0, sentences), value.index_select(0, sentences)),
            mask=Mask(key_valid=None if valid is None else valid.index_select(0, sentences)),
        )


class ConvolutionalCache:
    """The last kernel - 1 inputs of each layer, zeros before the first, and how many tokens each row has: of a size
    that does not grow."""

    def __init__(self, layers: int) -> None:
        self.length = 0
        self.counted: Tensor | None = None  # rows: the real tokens so far
        self.inputs: list[Tensor | None] = [None] * layers  # rows kernel-1 width

    def select(self, rows: Tensor) -> None:
        self.counted = None if self.counted is None else self.counted.index_select(0, rows)
        self.inputs = [None if held is None else held.index_select(0, rows) for held in self.inputs]


class Convolutional(Stack):
    """Position, then layer after layer of gated convolutions, each with an attention of its own in a decoder.

    Differs: the weights are not normalised (the paper uses weight normalisation). Embeddings and layers are equally
    wide, so that nothing is projected between them but embeddings of another width. The values are the encoder's states
    plus the embeddings without their positions. What is padding is skipped, as if the tokens beside it were neighbours.
    """

    def __init__(self, config: ConvolutionalConfig, shape: StackShape, position: Position) -> None:
        super().__init__()
        width, source_width = shape.width, shape.source_width or shape.width
        self.causal = shape.causal
        self.position = position
        self.limit = config.limit
        self.dropout = Dropout(config.dropout)
        self.lift = Linear(shape.input_width, width) if shape.input_width != width else nn.Identity()
        lifts = shape.cross and source_width != width
        self.source_lift = Linear(source_width, width) if lifts else nn.Identity()
        self.layers = nn.ModuleList(ConvolutionalLayer(config, shape) for _ in range(config.layers))

    def forward(
        self,
        x: Tensor,
        *,
        valid: Tensor | None = None,
        segments: Tensor | None = None,
        prefix: Tensor | None = None,
        global_tokens: Tensor | None = None,
        positions: Tensor | None = None,
        memory: Memory | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """`positions` ((rows or 1) query), unless given, count the real tokens, on from the cache."""
        refuse_facts("convolutional", segments=segments, prefix=prefix, global_tokens=global_tokens)
        assert cache is None or isinstance(cache, ConvolutionalCache)
        assert memory is None or isinstance(memory, ConvolutionalMemory)
        front = None if valid is None else Front(valid[:, -x.shape[1] :])
        if front is not None:
            x = front.gather(x)
            positions = None if positions is None else front.gather(positions.expand(x.shape[:2])[..., None])[..., 0]
        x = self.lift(self.dropout(self.position.embed(x, self._positions(x, positions, front, cache))))
        embedded, sight = x, None if memory is None else Sight(memory.mask)
        for index, layer in enumerate(cast(list[ConvolutionalLayer], list(self.layers))):
            before = None if cache is None else cache.inputs[index]
            y = layer.inputs(x, before, front)
            if cache is not None:
                cache.inputs[index] = layer.last_inputs(y, x.shape[1], front)
            attended = None if memory is None else memory.attended
            x = layer(x, y, embedded=embedded, memory=attended, memory_sight=sight)
        return x if front is None else front.back(x)

    def read(self, states: Tensor, valid: Tensor | None = None, *, inputs: Tensor | None = None) -> ConvolutionalMemory:
        """Values are (z_j + e_j) sqrt(1/2), and what is gathered of them grows by m sqrt(1/m), as if an average of m
        became a sum (section 3.5)."""
        values = states if inputs is None else (states + self.source_lift(inputs)) * HALF
        count = states.shape[1] if valid is None else valid.sum(1)[:, None, None]
        values = values * (math.sqrt(count) if isinstance(count, int) else count.to(states.dtype).sqrt())
        return ConvolutionalMemory(attended=(states[:, None], values[:, None]), mask=Mask(key_valid=valid))

    def new_cache(self, length: int) -> ConvolutionalCache:
        return ConvolutionalCache(len(self.layers))

    def recomputable(self) -> list[nn.Module]:
        return list(self.layers)

    def _positions(
        self, x: Tensor, positions: Tensor | None, front: Front | None, cache: ConvolutionalCache | None
    ) -> Tensor:
        """(rows or 1) query; what stands at padding does not matter."""
        counted = None if cache is None else cache.counted
        found = torch.arange(x.shape[1], device=x.device)[None] + (0 if counted is None else counted[:, None])
        if cache is not None:
            new = torch.full((len(x),), x.shape[1], device=x.device) if front is None else front.lengths
            cache.counted, cache.length = new if counted is None else counted + new, cache.length + x.shape[1]
        found = found if positions is None else positions
        if front is not None:
            found = found.expand(x.shape[:2]).masked_fill(~front.valid, 0)
        at_most = x.shape[1] if cache is None else cache.length  # without looking at the numbers
        if self.limit is not None and (positions is not None or at_most > self.limit):
            end = int(found.max()) + 1
            if end > self.limit:
                raise ValueError(f"{end} tokens, but this model learned {self.limit} positions; shorten the input")
        return found


class ConvolutionalLayer(nn.Module):
    """y = GLU(convolution(dropout(x))), in a decoder (y + c) sqrt(1/2) with the context c; gives (x + y) sqrt(1/2).

        GLU([a; b]) = a * sigmoid(b),   d_i = W y_i + b + g_i,   c_i = sum_j softmax_j(d_i . z_j) (z_j + e_j)

    g is the embedded target, z the encoder's states, e the embedded source.      Gehring et al. 2017, sections 3.2, 3.3
    """

    def __init__(self, config: ConvolutionalConfig, shape: StackShape) -> None:
        super().__init__()
        width = shape.width
        self.kernel, self.causal = config.kernel, shape.causal
        self.dropout = Dropout(config.dropout)
        self.convolution = Linear(config.kernel * width, 2 * width)  # a convolution, written as the linear map it is
        self.attention = None
        if shape.cross:
            head = one_head(width, scale=width**-0.5 if config.scaled else 1.0)
            self.attention = OneHead(SoftmaxConfig(), head, query=Linear(width, width), key=nn.Identity())

    def first_weights(self) -> None:
        """A variance of 4 (1 - dropout) / inputs makes up for what gate and dropout take away (section 3.5)."""
        inputs = self.convolution.in_features
        nn.init.normal_(self.convolution.weight, std=math.sqrt(4 * (1 - self.dropout.p) / inputs))

    def inputs(self, x: Tensor, before: Tensor | None, front: Front | None) -> Tensor:
        """What is convolved: x, zeros at padding, and at each end what a kernel reaches beyond it."""
        y = self.dropout(x)
        if front is not None:
            y = y.masked_fill(~front.valid[..., None], 0)
        if not self.causal:
            return F.pad(y, (0, 0, self.kernel // 2, self.kernel // 2))
        return F.pad(y, (0, 0, self.kernel - 1, 0)) if before is None else torch.cat([before.to(y.dtype), y], dim=1)

    def last_inputs(self, inputs: Tensor, query: int, front: Front | None) -> Tensor:
        """The last kernel - 1 real ones."""
        if front is None:
            return inputs[:, query:]
        places = front.lengths[:, None] + torch.arange(self.kernel - 1, device=inputs.device)
        return inputs.gather(1, places[..., None].expand(-1, -1, inputs.shape[-1]))

    def forward(
        self,
        x: Tensor,
        inputs: Tensor,
        *,
        embedded: Tensor,
        memory: KeyValue | None = None,
        memory_sight: Sight | None = None,
    ) -> Tensor:
        windows = inputs.unfold(1, self.kernel, 1).transpose(2, 3).flatten(2)  # rows query (kernel width)
        y = F.glu(self.convolution(windows), dim=-1)
        if self.attention is not None and memory is not None and memory_sight is not None:
            context = self.attention(y, memory=memory, sight=memory_sight, plus=embedded)
            y = (y + context) * HALF
        return (x + y) * HALF
