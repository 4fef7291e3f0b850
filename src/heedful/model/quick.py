"""The encoder, and the decoder one token at a time, on a CPU: the same functions as their modules, by our own kernels.

A step of a small model is over in less time than Python takes to walk through its modules. So here all that layers hold
is laid out once, and native.c goes through it. Keys and values stay where they were written: a beam moves only the
numbers that say where. `quick` gives None for a model with a part that native.c does not have, or where it could not be
compiled; then the modules do it.
"""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.model import kernels
from heedful.model.attention.softmax import Softmax
from heedful.model.embedding import Embedding
from heedful.model.encoder_decoder import EncoderDecoder
from heedful.model.feedforward import gelu_tanh
from heedful.model.int8 import Int8Embedding, Int8Linear
from heedful.model.kernels import Panels
from heedful.model.layer import Layer
from heedful.model.linear import FusedLinear
from heedful.model.position import Position
from heedful.model.stack import Stack, StackConfig

LINEAR = (nn.Linear, FusedLinear, Int8Linear)  # and nothing that only derives from them
FUNCTIONS = [F.relu, F.gelu, gelu_tanh, F.silu]  # in native.c's order
LONG = 128  # source tokens from which on torch's products of whole sentences are faster than rows one by one


def quick(model: EncoderDecoder) -> "Quick | None":
    """For a model that is not being trained: its weights are copied, and copied anew when torch says that they have
    changed, which a fused optimizer does not (the training loop makes up for it)."""
    known = kernels.NATIVE is not None and _is_known(model.decoder, model.config.decoder, model.config.width)
    return Quick(model) if known else None


def _is_known(stack: Stack, config: StackConfig, width: int) -> bool:
    layers, attentions = stack.each_layer(), (config.attention, config.cross_attention)
    parts = [part for layer in layers for part in (layer.attention, layer.cross) if part is not None]
    return all(
        (
            all(one.device.type == "cpu" and one.dtype == torch.float32 for one in stack.parameters()),
            type(stack.position).rotation is Position.rotation and type(stack.position).bias is Position.bias,
            all(type(part.mix) is Softmax for part in parts) and stack.window is None,
            all(one.kv_head_count == one.heads for one in attentions),
            all(one.head_width_in(width) * one.heads == width for one in attentions),
            all(part.head % 8 == 0 for part in parts),
            isinstance(stack.lift, nn.Identity),
            all(layer.feedforward.kernel == 1 and layer.feedforward.function in FUNCTIONS for layer in layers),
            all(type(norm) in (nn.LayerNorm, nn.RMSNorm) for layer in layers for norm in _norms(layer)),
            all(type(module) in LINEAR for layer in layers for module in _linears(layer)),
        )
    )


def _linears(layer: Layer) -> list[nn.Module]:
    """In the order of native.c; then what makes keys and values of the source."""
    attention, cross, feedforward = layer.attention, layer.cross, layer.feedforward
    own: list[nn.Module] = [attention.query_key_value, attention.output, feedforward.input, feedforward.output]
    return own if cross is None else [*own, cross.query, cross.output, cross.key_value]


def _norms(layer: Layer) -> list[nn.Module]:
    residuals = (layer.attention_residual, layer.cross_residual, layer.feedforward_residual)
    return [residual.norm for residual in residuals if residual is not None]


def _weights(norm: nn.Module) -> tuple[Tensor, Tensor | None]:
    return cast(Tensor, norm.weight), cast(Tensor | None, getattr(norm, "bias", None))


class _Panels(Panels):
    """Of weights that may change: laid out anew when they have."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        self.given, self.version = (weight, bias), _version(weight, bias)

    def refresh(self) -> bool:
        """Whether they had changed."""
        changed = self.version != _version(*self.given)
        if changed:
            self.__init__(*self.given)  # type: ignore[misc]
        return changed


def _version(*tensors: Tensor | None) -> list[int]:
    """Tensors made for use alone cannot change, nor say so."""
    return [0 if one is None or one.is_inference() else one._version for one in tensors]


def _panels(module: nn.Module) -> Panels:
    if isinstance(module, Int8Linear):
        return module.panels
    linear = cast(nn.Linear, module)
    return _Panels(linear.weight, linear.bias)


def _at(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


class _Layout:
    """A stack, as native.c goes through it."""

    def __init__(self, stack: Stack, config: StackConfig, width: int, table: Embedding | Int8Embedding) -> None:
        self.stack, self.width, self.table = stack, width, table
        self.panels = {id(layer): [_panels(module) for module in _linears(layer)] for layer in stack.each_layer()}
        first = stack.each_layer()[0]
        self.rms, self.eps = config.norm.kind == "rms", config.norm.eps
        attention, cross = first.attention, first.cross or first.attention
        self.head, self.cross_head = attention.head, cross.head
        self.style = (  # native.c's `Style`, but for the threads
            *(stack.depth, width, width // self.head, width // self.cross_head, config.placement == "pre", self.rms),
            *(FUNCTIONS.index(first.feedforward.function), first.feedforward.gated, self.eps),
            *(cast(Softmax, attention.mix).scale, cast(Softmax, cross.mix).scale),
        )
        inner, outer = self.panels[id(first)][2:4]
        self.known_places = torch.empty(0, width)
        self.row = 5 * width + inner.columns + max(width, outer.depth) // 2 + 2  # scratch that a row takes

    def refresh(self) -> None:
        for panels in self.panels.values():
            for one in panels:
                if isinstance(one, _Panels):
                    one.refresh()

    def layers(self) -> Tensor:
        """Each as native.c's `Layer`, with nothing yet of the texts at hand: layers numbers."""
        rows = []
        for layer in self.stack.each_layer():
            maps = [number for panels in self.panels[id(layer)][:6] for number in panels.map]
            norms = [number for norm in _norms(layer) for number in map(_at, _weights(norm))]
            rows.append([*maps, *[0] * (30 - len(maps)), *norms, *[0] * (9 - len(norms))])
        return torch.tensor(rows)

    def places(self, count: int) -> Tensor:
        """What says where a token stands: for so many tokens, or as many as the model has learned."""
        position = self.stack.position
        count = count if position.limit is None else min(count, position.limit)
        if count > len(self.known_places) or next(position.parameters(), None) is not None:  # those may change
            zeros, numbers = torch.zeros(1, count, self.width), torch.arange(count)
            self.known_places = position.embed(zeros, numbers[None])[0].contiguous()
        return self.known_places[:count]

    def embed(self, tokens: Tensor, places: Tensor) -> Tensor:
        """The vectors of tokens, which stand at these places again and again: rows width."""
        x = torch.empty(tokens.numel(), self.width)
        kernels.embed(
            x,
            tokens,
            self.table.panels if isinstance(self.table, Int8Embedding) else self.table.weight,
            self.table.factor,
            places,
        )
        return self.normed(x, self.stack.embedding_norm)

    def normed(self, x: Tensor, norm: nn.Module) -> Tensor:
        """In place."""
        if not isinstance(norm, nn.Identity):
            kernels.norm(x, *_weights(norm), rms=self.rms, eps=self.eps)
        return x


class Quick:
    """A model, laid out for use."""

    def __init__(self, model: EncoderDecoder) -> None:
        self.model, config, width = model, model.config, model.config.width
        self.decoder, self.encoder = _Layout(model.decoder, config.decoder, width, model.target_table), None
        if _is_known(model.encoder, config.encoder, width):
            self.encoder = _Layout(model.encoder, config.encoder, width, model.embedding)
        table, head = model.head.table or model.target_table, model.head
        self.last: Panels | None = None
        if isinstance(head.lower, nn.Identity) and head.factor == 1.0:
            if isinstance(table, Embedding):
                self.last = _Panels(table.weight, head.bias)
            else:
                self.last = table.panels if head.bias is None else table.panels.with_bias(head.bias)

    def refresh(self) -> None:
        """Lay out weights that have changed. Copies of this process then share them."""
        for layout in (self.encoder, self.decoder):
            if layout is not None:
                layout.refresh()
        if isinstance(self.last, _Panels):
            self.last.refresh()

    def begin(self, source: Tensor, valid: Tensor | None, length: int) -> "Writing":
        """Read these sentences (sentences source), then start to write, with room for so many tokens."""
        self.refresh()
        sentences, read = source.shape
        hidden = torch.full((sentences, read + -read % 8), -torch.inf)
        hidden[:, :read] = 0.0 if valid is None else torch.zeros(valid.shape).masked_fill_(~valid, -torch.inf)
        if self.encoder is None or read > LONG:
            states = self.model.encoder(self.model.embedding(source), valid=valid).flatten(0, 1).contiguous()
        else:
            states = self._encode(self.encoder, source, hidden)
        return Writing(self, states, hidden, length)

    def _encode(self, layout: _Layout, source: Tensor, hidden: Tensor) -> Tensor:
        """The encoder's states: (sentences source) width."""
        read = source.shape[1]
        places = layout.places(read)
        if len(places) < read:
            raise ValueError(f"{read} tokens, but this model learned {len(places)} positions; shorten the input")
        x, layers = layout.embed(source.contiguous(), places), layout.layers()
        scratch = torch.empty(len(x) * layout.row + 2 * hidden.numel() * layout.width)
        kernels.encode(layout.style, layers, x, scratch, hidden)
        return layout.normed(x, layout.stack.norm)


class Writing:
    """A text, or several, being written: what `Cache` and `Memory` are to the modules."""

    def __init__(self, quick: Quick, states: Tensor, hidden: Tensor, length: int) -> None:
        self.quick, self.layout, self.hidden = quick, quick.decoder, hidden
        self.length, self.room = 0, max(1, length)
        self.layers = self.layout.layers()
        each = [self.layout.panels[id(layer)] for layer in self.layout.stack.each_layer()]
        self.held = [panels.values for some in each for panels in some]  # should they be laid out anew meanwhile
        sentences, head = len(hidden), self.layout.cross_head
        read = [panels[-1](states) for panels in each]
        self.sources = [kernels.lay(one, sentences, self.layout.width // head, head) for one in read]  # of each layer
        self.store = torch.empty(0)  # keys and values: layers room slots 2 width
        self.origin = torch.empty(sentences, self.room, dtype=torch.int32)  # rows room: the slot of what a row wrote
        self.places = self.layout.places(self.room)
        self.scores = torch.empty(0, 0)  # rows vocab

    def advance(self, tokens: Tensor) -> Tensor:
        """The next token of each row -> final states: rows width."""
        rows, layout = len(tokens), self.layout
        if self.length >= len(self.places):
            self.places = layout.places(2 * self.length)
        if self.length >= len(self.places):
            learned = len(self.places)
            raise ValueError(f"{self.length + 1} tokens, but this model learned {learned} positions; shorten it")
        x = layout.embed(tokens.contiguous(), self.places[self.length : self.length + 1])
        self._make_room(rows)
        self.length += 1
        scratch = torch.empty(rows * layout.row)
        kernels.step(layout.style, self.layers, x, scratch, self.hidden, self.origin, self.store.shape[2], self.length)
        return layout.normed(x, layout.stack.norm)

    def logits(self, states: Tensor) -> Tensor:
        """A score for each word; the next call writes over them."""
        if self.quick.last is None:
            return self.quick.model.logits(states)
        if len(self.scores) != len(states):
            self.scores = torch.empty(len(states), self.quick.last.columns)
        self.quick.last.into(self.scores, states)
        return self.scores

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        """Keep these rows, in this order; of these sentences."""
        self.origin = self.origin.index_select(0, rows)
        if sentences is not None:
            self.sources = [source.select(sentences) for source in self.sources]
            self.hidden = self.hidden.index_select(0, sentences)
            self._tell()

    def _tell(self) -> None:
        """native.c where the texts at hand are kept."""
        kept = zip(self.store, self.sources, strict=True)
        self.layers[:, -3:] = torch.tensor([[_at(store), _at(one.keys), _at(one.values)] for store, one in kept])

    def _make_room(self, rows: int) -> None:
        """For one more token, and for as many slots as there are rows."""
        slots = self.store.shape[2] if self.length else 0
        if self.length < self.room and rows <= slots:
            return
        while self.length >= self.room:
            self.room *= 2
        store = torch.empty(len(self.layers), self.room, max(rows, slots), 2, self.layout.width)
        origin = torch.empty(rows, self.room, dtype=torch.int32)
        if self.length:
            store[:, : self.length, :slots] = self.store[:, : self.length]
            origin[:, : self.length] = self.origin[:, : self.length]
        self.store, self.origin = store, origin
        self._tell()
