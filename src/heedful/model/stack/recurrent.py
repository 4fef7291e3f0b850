"""Gated recurrent networks with attention to the source: what the Transformer replaced.

Bahdanau, Cho and Bengio 2015; Luong, Pham and Manning 2015
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from heedful.config import Layers, Probability
from heedful.model.attention import MixConfig
from heedful.model.attention.additive import AdditiveConfig
from heedful.model.attention.softmax import SoftmaxConfig
from heedful.model.dropout import Dropout
from heedful.model.linear import Linear, linear_parameters
from heedful.model.mask import Mask
from heedful.model.multihead import KeyValue
from heedful.model.one_head import OneHead, one_head
from heedful.model.sight import Sight
from heedful.model.stack import Cache, Memory, Stack, StackConfig, StackShape
from heedful.model.stack._front import Front, refuse_facts

GATES = {"gru": 3, "lstm": 4}
# The attentions: how scores are computed, and which of query and key are projected.
MIXES: dict[str, MixConfig] = {"additive": AdditiveConfig(), "multiplicative": SoftmaxConfig(), "dot": SoftmaxConfig()}
PROJECTED = {"additive": ("query", "key"), "multiplicative": ("key",), "dot": (), "none": ()}


class RecurrentConfig(StackConfig):
    """`bidirectional`: half of the width reads forwards, half backwards; None = in an encoder, where the future is
    known. The other keys are a decoder's that has a source:

    attention        additive         v . tanh(W s + U h)      Bahdanau et al. 2015
                     multiplicative   s . W h                  Luong et al. 2015, "general"
                     dot              s . h                    Luong et al. 2015, "dot"
                     none             one context for all steps, from both ends of the source (Cho et al. 2014)
    input_feeding    each step also reads the output of the step before, so that it knows what was attended to. Training
                     is then a loop over target tokens in Python; without it, the network runs over the whole target in
                     one call and attends in another: a step of training takes about half the time.
    """

    recomputes: ClassVar[bool] = False
    cell: Literal["gru", "lstm"] = "gru"
    layers: Layers = 2
    bidirectional: bool | None = None
    attention: Literal["additive", "multiplicative", "dot", "none"] = "additive"
    input_feeding: bool = False
    dropout: Probability = 0.1

    @property
    def supports(self) -> frozenset[str]:
        return frozenset({"causal"})

    def check(self, shape: StackShape) -> None:
        if self.bidirectional and shape.causal:
            raise ValueError("bidirectional would see the next token; leave it out of a decoder")
        if self.directions(shape) == 2 and shape.width % 2:
            raise ValueError(
                f"width {shape.width} does not split into two directions; choose an even one, or bidirectional=false"
            )
        if not shape.cross and (self.input_feeding or self.attention != "additive"):
            given = "input_feeding" if self.input_feeding else f"attention {self.attention}"
            raise ValueError(f"{given} needs an encoder to look at; leave it out of this stack")

    def directions(self, shape: StackShape) -> int:
        return 2 if (not shape.causal if self.bidirectional is None else self.bidirectional) else 1

    def inputs(self, shape: StackShape) -> list[int]:
        """What each layer reads, besides its own last state."""
        return [shape.input_width + (shape.width if self.input_feeding else 0)] + [shape.width] * (self.layers - 1)

    def build(self, shape: StackShape) -> "Recurrent":
        return Recurrent(self, shape)

    def parameters(self, shape: StackShape) -> dict[str, int]:
        width, gates = shape.width, GATES[self.cell]
        hidden = width // self.directions(shape)
        counts = {"cells": sum(gates * width * (inputs + hidden + 2) for inputs in self.inputs(shape))}
        if shape.cross:
            own = 0 if self.attention == "none" else MIXES[self.attention].parameters(one_head(width))
            counts["attention"] = len(PROJECTED[self.attention]) * width * width + own
            counts["first"] = linear_parameters(2 * width, self.layers * width, bias=True)
            counts["context"] = linear_parameters(2 * width, width, bias=True) if self.attention == "none" else 0
            counts["readout"] = linear_parameters(2 * width, width, bias=True)
        return counts

    def flops(self, shape: StackShape, length: int) -> int:
        """Without what is done once per source: the decoder's first state."""
        width, gates = shape.width, GATES[self.cell]
        hidden = width // self.directions(shape)
        count = sum(2 * gates * width * (inputs + hidden) for inputs in self.inputs(shape))
        if shape.cross:
            count += 2 * 2 * width * width + 2 * width * width * ("query" in PROJECTED[self.attention])
            count += 0 if self.attention == "none" else MIXES[self.attention].flops(one_head(width), length)
        return count

    def reading(self, shape: StackShape) -> tuple[int, int]:
        projected = "key" in PROJECTED[self.attention]
        kept = {"none": 0, "dot": shape.width}.get(self.attention, 2 * shape.width)
        return 2 * shape.width * shape.width * projected, kept


@dataclass(frozen=True)
class RecurrentMemory:
    """What a decoder reads of a source: keys and values, or without attention the one context; and the state to start
    from."""

    first: Tensor  # layers batch width
    attended: KeyValue | None  # batch 1 source width
    context: Tensor | None  # batch width
    mask: Mask

    def select(self, sentences: Tensor) -> "RecurrentMemory":
        valid = self.mask.key_valid
        key, value = self.attended or (None, None)
        same = value is key
        key = None if key is None else key.index_select(0, sentences)
        value = key if same or value is None else value.index_select(0, sentences)
        return RecurrentMemory(
            first=self.first.index_select(1, sentences),
            attended=None if key is None or value is None else (key, value),
            context=None if self.context is None else self.context.index_select(0, sentences),
            mask=Mask(key_valid=None if valid is None else valid.index_select(0, sentences)),
        )


class RecurrentCache:
    """The last states, and the last output where it is fed back: of a size that does not grow."""

    def __init__(self) -> None:
        self.length = 0
        self.state: Tensor | None = None  # (1 or 2: an LSTM's cell) layers rows width
        self.output: Tensor | None = None  # rows width

    def select(self, rows: Tensor) -> None:
        self.state = None if self.state is None else self.state.index_select(2, rows)
        self.output = None if self.output is None else self.output.index_select(0, rows)


class Recurrent(Stack):
    """s_i = cell(x_i, s_{i-1}), layer upon layer. In a decoder with a source h_1 ... h_n:

        s_0 = tanh(W [h_1; h_n]),   c_i = sum_j softmax_j(score(s_i, h_j)) h_j,   y_i = tanh(W [s_i; c_i])

    and with input feeding the first layer reads [x_i; y_{i-1}] (Luong et al. 2015, section 3.3).

    Differs: this is Luong's order, which is JoeyNMT's too: step, then attend with the new state. Bahdanau et al. attend
    with s_{i-1}, give c_i to the step, and read off a maxout of s_{i-1}, c_i and the last word. Their s_0 sees the
    backward state of h_1 only; ours sees both ends, so that it serves any encoder. The GRU is torch's, which resets
    after the product with the last state; Cho et al. 2014 reset before. An LSTM's first cell is its first state.
    Without attention the one context takes the place of c_i.
    """

    def __init__(self, config: RecurrentConfig, shape: StackShape) -> None:
        super().__init__()
        width = shape.width
        self.layers, self.feeds, self.cross = config.layers, config.input_feeding, shape.cross
        self.dropout = Dropout(config.dropout)
        directions = config.directions(shape)
        self.cells = (nn.GRU if config.cell == "gru" else nn.LSTM)(
            config.inputs(shape)[0],
            width // directions,
            config.layers,
            batch_first=True,
            dropout=config.dropout if config.layers > 1 else 0.0,
            bidirectional=directions == 2,
        )
        self.attention, self.context = None, None
        if not shape.cross:
            return
        if config.attention == "none":
            self.context = Linear(2 * width, width)
        else:
            self.attention = OneHead(
                MIXES[config.attention],
                one_head(width),
                query=_projection("query" in PROJECTED[config.attention], width),
                key=_projection("key" in PROJECTED[config.attention], width),
                stepwise=config.input_feeding,
            )
        self.first = Linear(2 * width, config.layers * width)
        self.readout = Linear(2 * width, width)

    def first_weights(self) -> None:
        """Gates one by one: inputs by Glorot and Bengio's rule, states orthogonal. An LSTM begins by not forgetting."""
        gates = GATES["lstm"] if isinstance(self.cells, nn.LSTM) else GATES["gru"]
        for name, parameter in self.cells.named_parameters():
            for number, gate in enumerate(parameter.detach().chunk(gates)):
                if "weight" in name:
                    (nn.init.xavier_uniform_ if "_ih_" in name else nn.init.orthogonal_)(gate)
                else:
                    nn.init.constant_(gate, float(gates == GATES["lstm"] and number == 1 and "_ih_" in name))

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
        """`positions` are not needed: the order of the real tokens says it all."""
        refuse_facts("recurrent", segments=segments, prefix=prefix, global_tokens=global_tokens)
        assert cache is None or isinstance(cache, RecurrentCache)
        assert memory is None or isinstance(memory, RecurrentMemory)
        front = None if valid is None else Front(valid[:, -x.shape[1] :])
        lengths = None if front is None else front.lengths
        x = self.dropout(x if front is None else front.gather(x))
        state = self._first_state(len(x), memory) if cache is None or cache.state is None else cache.state
        if self.feeds:
            last = x.new_zeros(len(x), self.readout.out_features)
            if cache is not None and cache.output is not None:
                last = cache.output
            y, state, last = self._step_by_step(x, lengths, state, last, memory)
        else:
            y, state = self._run(x, lengths, state)
            y, last = self._read_out(y, memory), None
        if cache is not None:
            cache.state, cache.output, cache.length = state, last, cache.length + x.shape[1]
        return self.dropout(y if front is None else front.back(y))

    def read(self, states: Tensor, valid: Tensor | None = None, *, inputs: Tensor | None = None) -> RecurrentMemory:
        ends = _ends(states, valid)
        first = self.first(ends).tanh().unflatten(-1, (self.layers, -1)).transpose(0, 1).contiguous()
        return RecurrentMemory(
            first=first,
            attended=None if self.attention is None else self.attention.read(states),
            context=None if self.context is None else self.context(ends).tanh(),
            mask=Mask(key_valid=valid),
        )

    def new_cache(self, length: int) -> RecurrentCache:
        return RecurrentCache()

    def _first_state(self, rows: int, memory: RecurrentMemory | None) -> Tensor | None:
        """(1 or 2) layers rows width; None = zeros"""
        if memory is None:
            return None
        first = memory.first.repeat_interleave(rows // memory.first.shape[1], dim=1)
        return torch.stack([first, first] if isinstance(self.cells, nn.LSTM) else [first])

    def _run(self, x: Tensor, lengths: Tensor | None, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """The states of the last layer (rows query width), and those of all layers after the last real token."""
        dtype = next(self.cells.parameters()).dtype
        x, state = x.to(dtype), None if state is None else state.to(dtype)
        before = None if state is None else tuple(state) if len(state) == 2 else state[0]
        with _without_autocast(x):
            if lengths is None:
                y, after = self.cells(x, before)
            else:
                # A row of padding only counts as one token, whose results are thrown away.
                packed = pack_padded_sequence(x, lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False)
                y, after = self.cells(packed, before)
                y, _ = pad_packed_sequence(y, batch_first=True, total_length=x.shape[1])
        now = torch.stack(after) if isinstance(after, tuple) else after[None]
        if lengths is not None:
            now = now.where((lengths > 0)[:, None], torch.zeros_like(now) if state is None else state)
        return y, now

    def _step_by_step(
        self, x: Tensor, lengths: Tensor | None, state: Tensor | None, last: Tensor, memory: RecurrentMemory | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The outputs, the last states, the last output."""
        outputs = []
        for step, now in enumerate(x.unbind(1)):
            here = None if lengths is None else (lengths > step).long()
            y, state = self._run(torch.cat([now, last.to(now.dtype)], dim=-1)[:, None], here, state)
            y = self._read_out(y, memory)[:, 0]
            last = y if here is None else y.where(here.bool()[:, None], last)
            outputs.append(y)
        assert state is not None
        return torch.stack(outputs, dim=1), state, last

    def _read_out(self, states: Tensor, memory: RecurrentMemory | None) -> Tensor:
        if memory is None:
            return states
        if self.attention is not None and memory.attended is not None:
            context = self.attention(states, memory=memory.attended, sight=Sight(memory.mask))
        else:
            assert memory.context is not None
            beams = len(states) // len(memory.context)
            context = memory.context.repeat_interleave(beams, dim=0)[:, None].expand_as(states)
        y: Tensor = self.readout(torch.cat([states, context.to(states.dtype)], dim=-1)).tanh()
        return y


def _projection(wanted: bool, width: int) -> nn.Module:
    return Linear(width, width, bias=False) if wanted else nn.Identity()


def _ends(states: Tensor, valid: Tensor | None) -> Tensor:
    """The states of the first and the last real token: batch (2 width); zeros where there is none."""
    if valid is None:
        return torch.cat([states[:, 0], states[:, -1]], dim=-1)
    places = torch.arange(valid.shape[1], device=valid.device)
    last = places.where(valid, -1).amax(1).clamp(min=0)
    first = places.where(valid, valid.shape[1] - 1).amin(1)
    rows = torch.arange(len(states), device=states.device)
    ends = torch.cat([states[rows, first], states[rows, last]], dim=-1)
    return ends.masked_fill(~valid.any(1)[:, None], 0)


def _without_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Of torch's recurrent networks on a CPU, autocast would convert only some of the tensors."""
    return torch.autocast("cpu", enabled=False) if x.device.type == "cpu" else nullcontext()
