"""The decoder one token at a time on a CPU: the same function as `Stack`, with nothing in its way.

A step of a small model is over in less time than Python takes to walk through its modules, and a step of a large one
waits for its weights. So here the layers are one flat loop over what they hold, all keys and values live in one tensor
(of which a beam moves only what is not yet where it should be), and products with few rows use weights packed for that.
`quick` gives None for a model with a part that is not written out here; then the modules do it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.model.attention.softmax import Softmax
from heedful.model.embedding import Embedding
from heedful.model.encoder_decoder import EncoderDecoder
from heedful.model.int8 import Int8Linear
from heedful.model.layer import Layer
from heedful.model.linear import FusedLinear
from heedful.model.multihead import CrossAttention
from heedful.model.position import Position
from heedful.model.residual import Residual
from heedful.model.stack import Memory

Function = Callable[[Tensor], Tensor]
FEW, MANY = 2, 64  # rows between which packed weights are worth it: up to twice as fast (one core, AVX2)
LARGE = 1 << 18  # and weights from which on
MUCH = 512  # tokens of all rows from which on they are not copied as a whole
LONG = 64  # tokens from which on what a row has written stands together, not what was written at one time
PACKS = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
LINEAR = (nn.Linear, FusedLinear, Int8Linear)  # and nothing that only derives from them


def quick(model: EncoderDecoder) -> "QuickDecoder | None":
    """For a model that is not being trained: its weights are copied, and copied anew when torch says that they have
    changed, which a fused optimizer does not (the training loop makes up for it)."""
    stack, config = model.decoder, model.config.decoder
    parts = [part for layer in stack.each_layer() for part in (layer.attention, layer.cross) if part is not None]
    known = (
        torch.backends.mkl.is_available(),
        all(parameter.device.type == "cpu" and parameter.dtype == torch.float32 for parameter in model.parameters()),
        type(stack.position).rotation is Position.rotation and type(stack.position).bias is Position.bias,
        all(type(part.mix) is Softmax for part in parts) and stack.window is None,
        config.attention.heads == config.cross_attention.heads,
        all(one.kv_head_count == one.heads for one in (config.attention, config.cross_attention)),
        isinstance(stack.lift, nn.Identity),
        all(type(module) in LINEAR for layer in stack.each_layer() for module in _linears(layer)),
    )
    return QuickDecoder(model) if all(known) else None


def _linears(layer: Layer) -> list[nn.Module]:
    cross, feedforward = cast(CrossAttention, layer.cross), layer.feedforward
    own = [layer.attention.query_key_value, layer.attention.output]
    return [*own, cross.query, cross.output, feedforward.input, feedforward.output]


class Product:
    """W x + b, with the weights laid out anew when that first comes up: turned, so that a row of x runs along what is
    next in memory; packed in blocks for few rows."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.given = weight.detach(), None if bias is None else bias.detach()
        self.large, self.widens = PACKS and weight.numel() >= LARGE, weight.shape[0] >= weight.shape[1]
        self.changes = not weight.is_inference()  # one made for use alone cannot be changed, nor say so
        self.version = (-1, -1)  # of the weights that were laid out
        self.bias: Tensor | None = None
        self.turned: Tensor | None = None
        self.packed: Tensor | None = None
        self.refresh()

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.size(0)
        if self.changes:
            self.refresh()
        if self.large and FEW <= rows <= MANY:
            packed: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.pack(), self.bias, "none", [], "")
            return packed
        if self.large and rows == 1 and not self.widens:
            return F.linear(x, self.weight, self.bias)
        turned = self.turn()
        return torch.mm(x, turned) if self.bias is None else torch.addmm(self.bias, x, turned)

    def refresh(self) -> None:
        """Forget what was laid out of weights that have changed since. A bias of zeros is none."""
        tensors = (self.weight, self.weight if self.given is None else self.given)
        version = (tensors[0]._version, tensors[1]._version) if self.changes else (0, 0)
        if version != self.version:
            self.bias = self.given if self.given is not None and bool(self.given.any()) else None
            self.turned, self.packed, self.version = None, None, version

    def turn(self) -> Tensor:
        if self.turned is None:
            self.turned = self.weight.t().contiguous()
        return self.turned

    def pack(self) -> Tensor:
        if self.packed is None:
            self.packed = torch.ops.mkldnn._reorder_linear_weight(self.weight, MANY)
        return self.packed


def _product(module: nn.Linear | Int8Linear) -> Function:
    return module.whole if isinstance(module, Int8Linear) else Product(module.weight, module.bias)


def _norm(module: nn.Module) -> Function:
    if not isinstance(module, nn.LayerNorm):
        return module
    shape, weight, bias, eps = module.normalized_shape, module.weight, module.bias, module.eps
    return lambda x: torch.layer_norm(x, shape, weight, bias, eps)


class _QuickLayer:
    """What a layer holds, taken out of its modules."""

    def __init__(self, layer: Layer) -> None:
        attention, cross, feedforward = layer.attention, cast(CrossAttention, layer.cross), layer.feedforward
        products = [_product(cast(nn.Linear, module)) for module in _linears(layer)]
        self.query_key_value, self.output, self.cross_query, self.cross_output, self.inner, self.outer = products
        self.function: Function = torch.relu_ if feedforward.function is F.relu else feedforward.function
        self.gated = feedforward.gated
        self.scale, self.cross_scale = cast(Softmax, attention.mix).scale, cast(Softmax, cross.mix).scale
        residuals = (layer.attention_residual, cast(Residual, layer.cross_residual), layer.feedforward_residual)
        self.norms = tuple(_norm(residual.norm) for residual in residuals)


class QuickDecoder:
    def __init__(self, model: EncoderDecoder) -> None:
        self.model, self.stack = model, model.decoder
        self.heads = model.config.decoder.attention.heads
        self.pre = model.config.decoder.placement == "pre"
        self.layers = [_QuickLayer(layer) for layer in self.stack.each_layer()]
        self.norm = _norm(self.stack.norm)
        self.embedding_norm = _norm(self.stack.embedding_norm)
        self.logits: Function = model.logits
        table = model.head.table or model.target_table
        if isinstance(table, Embedding) and isinstance(model.head.lower, nn.Identity) and model.head.factor == 1.0:
            self.logits = Product(table.weight, model.head.bias)

    def prepare(self) -> None:
        """Lay out all weights now, so that copies of this process share them."""
        layers = [part for layer in self.layers for part in vars(layer).values()]
        for product in (*layers, self.logits):
            if isinstance(product, Product):
                product.refresh()
                product.turn()
                if product.large:
                    product.pack()

    def begin(self, memory: Memory, length: int) -> "QuickSteps":
        """Start to write, with room for so many tokens."""
        return QuickSteps(self, memory, length)


@dataclass
class _Reading:
    """A layer's keys and values of the source, shared by all rows of a sentence."""

    key: Tensor  # (sentences heads) head source, scaled
    value: Tensor  # (sentences heads) source head

    def select(self, places: Tensor) -> "_Reading":
        return _Reading(self.key.index_select(0, places), self.value.index_select(0, places))


class QuickSteps:
    """A text, or several, being written: what `Cache` and `Memory` are to the modules."""

    def __init__(self, decoder: QuickDecoder, memory: Memory, length: int) -> None:
        self.decoder = decoder
        self.length = 0
        self.sentences = len(memory.states)
        self.readings = [
            _Reading((key * layer.cross_scale).transpose(-2, -1).flatten(0, 1).contiguous(), value.flatten(0, 1))
            for layer, (key, value) in zip(decoder.layers, memory.layers, strict=True)
        ]
        valid = memory.mask.key_valid
        self.hidden: Tensor | None = None  # sentences 1 source
        if valid is not None and not bool(valid.all()):
            self.hidden = torch.zeros(valid.shape).masked_fill_(~valid, -torch.inf)[:, None]
        self.room = max(1, length)
        self.store: Tensor | None = None  # keys and values: room layers 2 slots heads head
        self.together = False  # once texts are long: layers 2 slots heads room head
        self.writers = torch.empty(0, 0)  # room slots: the slot that wrote what now stands there
        self.slots: Tensor | None = None  # the slot of each row; None = in order
        self.rows: Tensor | None = None  # the row of each slot
        self.places: Tensor | None = None  # room width

    def advance(self, tokens: Tensor) -> Tensor:
        """The next token of each row -> final states: rows width."""
        decoder, rows, heads, pre = self.decoder, tokens.size(0), self.decoder.heads, self.decoder.pre
        x = decoder.model.target_table(tokens if self.rows is None else tokens.index_select(0, self.rows))
        x = decoder.embedding_norm(x + self._place(x.shape[1]))
        cache = self._cache(rows)
        torch.arange(rows, out=self.writers[self.length])
        new = cache[:, :, :, :, self.length].transpose(1, 2).unbind(0)  # rows 2 heads head, of each layer
        seen = cache.flatten(2, 3)[:, :, :, : self.length + 1]  # layers 2 (rows heads) time head
        keys, values = seen[:, 0].transpose(-2, -1).unbind(0), seen[:, 1].unbind(0)
        for index, (layer, reading) in enumerate(zip(decoder.layers, self.readings, strict=True)):
            first, second, third = layer.norms
            y = layer.query_key_value(first(x) if pre else x).view(rows, 3, heads, -1)
            new[index].copy_(y[:, 1:])
            query = (y[:, 0] * layer.scale).view(rows * heads, 1, -1)
            weights = torch.bmm(query, keys[index]).softmax(-1)
            y = layer.output(torch.bmm(weights, values[index]).view(rows, -1)).add_(x)
            x = y if pre else first(y)
            y = layer.cross_output(self._read(layer.cross_query(second(x) if pre else x), reading)).add_(x)
            x = y if pre else second(y)
            y = layer.inner(third(x) if pre else x)
            if layer.gated:
                gate, up = y.chunk(2, dim=-1)
                y = layer.function(gate) * up
            else:
                y = layer.function(y)
            y = layer.outer(y).add_(x)
            x = y if pre else third(y)
        self.length += 1
        return decoder.norm(x if self.slots is None else x.index_select(0, self.slots))

    def _read(self, query: Tensor, reading: _Reading) -> Tensor:
        """What the rows gather from their source. query: rows width"""
        rows, width = query.shape
        heads, beams = self.decoder.heads, rows // self.sentences
        if beams > 1:
            query = query.view(self.sentences, beams, heads, -1).transpose(1, 2).reshape(-1, beams, width // heads)
        else:
            query = query.view(rows * heads, 1, -1)
        scores = torch.bmm(query, reading.key)
        if self.hidden is not None:
            scores.view(self.sentences, heads * beams, -1).add_(self.hidden)
        mixed = torch.bmm(scores.softmax(-1), reading.value)
        if beams > 1:
            return mixed.view(self.sentences, heads, beams, -1).transpose(1, 2).reshape(rows, width)
        return mixed.view(rows, width)

    def _place(self, width: int) -> Tensor:
        """What says where the next token stands."""
        if self.places is None or self.length >= len(self.places):
            position = self.decoder.stack.position
            count = max(self.room, self.length + 1)
            if position.limit is not None:
                count = min(count, position.limit)
            if self.length >= count:
                raise ValueError(f"{self.length + 1} tokens, but this model learned {count} positions; shorten it")
            self.places = position.embed(torch.zeros(1, count, width), torch.arange(count)[None])[0]
        return self.places[self.length]

    def _cache(self, slots: int) -> Tensor:
        """The store, with room for one more token: layers 2 slots heads room head."""
        if self.store is None or self.length >= self.room or (self.length >= LONG and not self.together):
            old = None if self.store is None else self._view(self.store)
            while self.length >= self.room:
                self.room *= 2
            self.together = self.length >= LONG
            self.store, writers = self._empty(slots), torch.empty(self.room, slots, dtype=torch.long)
            if old is not None:
                self._view(self.store)[..., : self.length, :] = old[..., : self.length, :]
                writers[: self.length] = self.writers[: self.length]
            self.writers = writers
        return self._view(self.store)

    def _empty(self, slots: int) -> Tensor:
        config = self.decoder.model.config
        layers, head = len(self.decoder.layers), config.decoder.attention.head_width_in(config.width)
        shape = (layers, 2, slots, self.decoder.heads)
        return torch.empty(*shape, self.room, head) if self.together else torch.empty(self.room, *shape, head)

    def _view(self, store: Tensor) -> Tensor:
        return store if self.together else store.permute(1, 2, 3, 4, 0, 5)

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        """Keep these rows, in this order; of these sentences."""
        if self.store is not None:
            slots = rows if self.slots is None else self.slots.index_select(0, rows)
            if sentences is None and len(rows) == self.writers.shape[1] and len(rows) * self.length >= MUCH:
                self._move(slots.tolist())
            else:
                self._copy(slots)
        if sentences is not None:
            heads = self.decoder.heads
            places = (sentences[:, None] * heads + torch.arange(heads)).flatten()
            self.readings = [reading.select(places) for reading in self.readings]
            self.sentences = len(sentences)
            if self.hidden is not None:
                self.hidden = self.hidden[sentences]

    def _copy(self, slots: Tensor) -> None:
        """Everything, in the order of the rows."""
        assert self.store is not None
        new = self._empty(len(slots))
        if self.together:
            new[..., : self.length, :] = self.store[..., : self.length, :].index_select(2, slots)
        else:
            torch.index_select(self.store[: self.length], 3, slots, out=new[: self.length])
        self.store = new
        self.writers = self.writers.index_select(1, slots)
        self.slots = self.rows = None

    def _move(self, wanted: list[int]) -> None:
        """Only what is not yet where it should be: most texts of a beam begin alike."""
        assert self.store is not None
        slots, sources, targets = settle(wanted, len(wanted) // self.sentences)
        if sources:
            old, new, writers = torch.tensor(sources), torch.tensor(targets), self.writers[: self.length]
            written = writers.index_select(1, old)
            time, mover = (written != writers.index_select(1, new)).nonzero(as_tuple=True)
            writers.index_copy_(1, new, written)
            lanes, heads, count = torch.arange(2 * len(self.decoder.layers)), self.decoder.heads, len(wanted)
            if self.together:  # a vector is what one head has of one token
                lanes = ((lanes[:, None] * count * heads + torch.arange(heads)) * self.room).flatten()
                vectors, of_time, of_slot = self.store.view(-1, self.store.shape[-1]), 1, heads * self.room
            else:  # what all heads have
                lanes, of_time, of_slot = lanes * count, len(lanes) * count, 1
                vectors = self.store.view(self.room * of_time, -1)
            first = lanes[:, None] + time * of_time
            moved = vectors.index_select(0, (first + old[mover] * of_slot).flatten())
            vectors.index_copy_(0, (first + new[mover] * of_slot).flatten(), moved)
        self.slots = torch.tensor(slots)
        self.rows = self.slots.argsort()


def settle(wanted: list[int], beams: int) -> tuple[list[int], list[int], list[int]]:
    """A slot for each row, given the slot it comes from: of the rows that come from one the first stays, and the
    others go where nobody wants to stay. Then what has to be copied, from and to."""
    slots, sources, targets = [], [], []
    for start in range(0, len(wanted), beams):
        mine = wanted[start : start + beams]
        free, taken = set(range(start, start + beams)).difference(mine), set[int]()
        for slot in mine:
            if slot in taken:
                sources.append(slot)
                slot = free.pop()
                targets.append(slot)
            taken.add(slot)
            slots.append(slot)
    return slots, sources, targets
