"""The encoder, and the decoder one token at a time, on a CPU: the same functions as their modules, by our own kernels.

A step of a small model is over in less time than Python takes to walk through its modules. So here all that layers hold
is laid out once, and native/ goes through it. Keys and values stay where they were written: a beam moves only the
numbers that say where. `quick` gives None for a model with a part that native/ does not have, or where it could not be
compiled; then the modules do it.
"""

from typing import cast

import torch
from torch import Tensor, nn

from heedful.model.architecture import Model
from heedful.model.architecture.encoder_decoder import EncoderDecoder
from heedful.model.attention.softmax import Softmax
from heedful.model.cpu import kernels
from heedful.model.cpu.kernels import Panels, floats
from heedful.model.cpu.training import KINDS, is_watched
from heedful.model.dropout import Dropout
from heedful.model.feedforward import FUNCTIONS, FeedForward
from heedful.model.heads import Vocabulary
from heedful.model.input.tokens import Tokens
from heedful.model.int8 import Int8Embedding, Int8Linear
from heedful.model.layer import Layer
from heedful.model.linear import FusedLinear, Linear
from heedful.model.multihead import CrossAttention, SelfAttention
from heedful.model.position import Position
from heedful.model.position.learned import Learned
from heedful.model.position.sinusoidal import Sinusoidal
from heedful.model.residual import Residual
from heedful.model.stack.transformer import Transformer, TransformerConfig

# What native/ can do, and nothing that only derives from it.
PARTS = {
    Transformer,
    Layer,
    SelfAttention,
    CrossAttention,
    Softmax,
    FeedForward,
    Residual,
    Dropout,
    Position,
    Sinusoidal,
}
PARTS |= {Learned, nn.Linear, Linear, FusedLinear, Int8Linear, nn.LayerNorm, nn.RMSNorm, nn.Identity, nn.ModuleList}
PARTS |= {Tokens, Int8Embedding, Vocabulary, EncoderDecoder}
NUMBERS = {FUNCTIONS[name]: number for number, name in enumerate(KINDS)}  # of the functions, as C has them
LONG = 128  # source tokens from which on torch's products of whole sentences are faster than rows one by one


def quick(model: Model) -> "Quick | None":
    """For a model that is not being trained: its weights are copied, and copied anew when torch says that they have
    changed, which a fused optimizer does not (the training loop makes up for it)."""
    if not isinstance(model, EncoderDecoder) or kernels.NATIVE is None or not _has_known_parts(model):
        return None
    known = _has_known_sizes(model.decoder, model.config.decoder, model.config.width)
    return Quick(model) if known else None


def _has_known_parts(model: EncoderDecoder) -> bool:
    """But for the encoder, which may be left to its modules."""
    others = [module for name, module in model.named_modules() if not name.startswith("encoder.")]
    return _are_known(others) and all(
        tensor.device.type == "cpu" and tensor.dtype == torch.float32 and tensor.is_contiguous()
        for tensor in model.parameters()
    )


def _are_known(modules: list[nn.Module]) -> bool:
    return all(type(one) in PARTS and not is_watched(one) for one in modules)


def _has_known_sizes(stack: Transformer, config: TransformerConfig, width: int) -> bool:
    """Of a stack with known parts. One style for all its layers, and that of its config."""
    layers = stack.each_layer()
    attentions = [part for layer in layers for part in (layer.attention, layer.cross) if part is not None]
    feedforwards = [layer.feedforward for layer in layers]
    if not all(isinstance(part, FeedForward | SelfAttention | CrossAttention) for part in attentions + feedforwards):
        return False
    norms = [norm for layer in layers for norm in _norms(layer)] + [stack.norm, stack.embedding_norm]
    kind = nn.RMSNorm if config.norm.kind == "rms" else nn.LayerNorm
    return all(
        (
            not any(stack.windows) and isinstance(stack.lift, nn.Identity),
            all(one.kv_head_count == one.heads for one in (config.attention, config.cross_attention)),
            all(part.output.in_features == width and part.head % 8 == 0 for part in attentions),
            len({cast(Softmax, layer.attention.mix).scale for layer in layers}) == 1,
            len({cast(Softmax, layer.cross.mix).scale for layer in layers if layer.cross is not None}) < 2,
            all(one.kernel == 1 and one.function in NUMBERS for one in feedforwards),
            len({(one.function, one.gated, one.output.in_features) for one in feedforwards}) == 1,
            all(residual.placement == config.placement for layer in layers for residual in _residuals(layer)),
            all(
                type(norm) is kind and norm.weight is not None and norm.eps == config.norm.eps
                for norm in norms
                if not isinstance(norm, nn.Identity)
            ),
        )
    )


def _residuals(layer: Layer) -> list[Residual]:
    residuals = (layer.attention_residual, layer.cross_residual, layer.feedforward_residual)
    return [residual for residual in residuals if residual is not None]


def _norms(layer: Layer) -> list[nn.Module]:
    return [residual.norm for residual in _residuals(layer)]


def _linears(layer: Layer) -> list[nn.Module]:
    """In the order of native/layers.h; then what makes keys and values of the source."""
    attention, cross, feedforward = layer.attention, layer.cross, layer.feedforward
    own: list[nn.Module] = [attention.query_key_value, attention.output, feedforward.input, feedforward.output]
    return own if cross is None else [*own, cross.query, cross.output, cross.key_value]


def _panels(module: nn.Module) -> Panels:
    if isinstance(module, Int8Linear):
        return module.panels
    linear = cast(nn.Linear, module)
    return Panels(linear.weight, linear.bias)


def _weights(norm: nn.Module) -> tuple[Tensor, Tensor | None]:
    return cast(Tensor, norm.weight), cast(Tensor | None, getattr(norm, "bias", None))


def _at(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


class _Layout:
    """A stack, as native/ goes through it. What it points to is held here, and never changed."""

    def __init__(
        self, stack: Transformer, config: TransformerConfig, width: int, table: Tokens | Int8Embedding
    ) -> None:
        self.stack, self.width, self.factor = stack, width, table.factor
        self.table = table.panels if isinstance(table, Int8Embedding) else table.weight.detach()
        layers = stack.each_layer()
        unique = {id(layer): [_panels(module) for module in _linears(layer)] for layer in layers}
        self.panels = [unique[id(layer)] for layer in layers]
        self.norms = [[_weights(norm) for norm in _norms(layer)] for layer in layers]
        self.rms, self.eps = config.norm.kind == "rms", config.norm.eps
        attention, feedforward = layers[0].attention, layers[0].feedforward
        cross = layers[0].cross or attention
        self.head, self.cross_head = attention.head, cross.head
        self.style = (  # `Style` of native/layers.h, but for the threads
            *(len(layers), width, width // attention.head, width // cross.head, config.placement == "pre", self.rms),
            *(NUMBERS[feedforward.function], feedforward.gated, self.eps),
            *(cast(Softmax, attention.mix).scale, cast(Softmax, cross.mix).scale),
        )
        self.layers = self._layers()
        inner, outer = self.panels[0][2:4]
        self.row = 5 * width + inner.columns + max(width, outer.depth) // 2 + 2  # scratch that a row takes
        self.known_places = floats(0, width)

    def _layers(self) -> Tensor:
        """Each as `Layer` of native/layers.h, with nothing yet of the texts at hand: layers numbers."""
        rows = []
        for panels, norms in zip(self.panels, self.norms, strict=True):
            maps = [number for one in panels[:6] for number in one.map]
            addresses = [_at(tensor) for pair in norms for tensor in pair]
            rows.append([*maps, *[0] * (30 - len(maps)), *addresses, *[0] * (9 - len(addresses))])
        return torch.tensor(rows, device="cpu")

    def places(self, count: int) -> Tensor:
        """What says where a token stands: for so many tokens, or as many as the model has learned."""
        position, known = self.stack.position, self.known_places
        count = count if position.limit is None else min(count, position.limit)
        if count > len(known):
            known = position.embed(floats(1, count, self.width).zero_(), torch.arange(count)[None])[0].contiguous()
            self.known_places = known
        return known[:count]

    def embed(self, tokens: Tensor, places: Tensor) -> Tensor:
        """The vectors of tokens, which stand at these places again and again: rows width."""
        return self.normed(kernels.embed(tokens, self.table, self.factor, places), self.stack.embedding_norm)

    def normed(self, x: Tensor, norm: nn.Module) -> Tensor:
        """In place."""
        if not isinstance(norm, nn.Identity):
            kernels.norm(x, *_weights(norm), rms=self.rms, eps=self.eps)
        return x


class Quick:
    """A model, laid out for use. A text goes on with the weights it was begun with."""

    def __init__(self, model: EncoderDecoder) -> None:
        self.model = model
        self.owners = [(module._parameters, name) for module in model.modules() for name in module._parameters]
        self.version: list[tuple[int, int]] = []
        self.refresh()

    def refresh(self) -> None:
        """Lay out the weights if they have changed. Copies of this process then share them."""
        held = [parameter for owner, name in self.owners if (parameter := owner[name]) is not None]
        version = [(one.data_ptr(), 0 if one.is_inference() else one._version) for one in held]
        if version != self.version:
            self._lay_out()
            self.version = version

    def _lay_out(self) -> None:
        model, config, width = self.model, self.model.config, self.model.config.width
        self.encoder: _Layout | None = None
        if _are_known(list(model.encoder.modules())) and _has_known_sizes(model.encoder, config.encoder, width):
            self.encoder = _Layout(model.encoder, config.encoder, width, model.embedding)
        self.decoder = _Layout(model.decoder, config.decoder, width, model.target_table)
        head, table = model.head, cast(Tokens | Int8Embedding, model.head.table or model.target_table)
        self.last: Panels | None = None
        if isinstance(head.lower, nn.Identity) and head.factor == 1.0:
            if isinstance(table, Int8Embedding):
                self.last = table.panels if head.bias is None else table.panels.with_bias(head.bias)
            else:
                self.last = Panels(table.weight, head.bias)

    @torch.no_grad()
    def begin(self, source: Tensor, valid: Tensor | None, length: int) -> "Writing":
        """Read these sentences (sentences source), then start to write, with room for so many tokens."""
        self.refresh()
        sentences, read = source.shape
        hiding = floats(sentences, read + -read % 8).fill_(-torch.inf)
        hiding[:, :read] = 0.0 if valid is None else floats(*valid.shape).zero_().masked_fill_(~valid, -torch.inf)
        if self.encoder is None or read > LONG:
            states = self.model.encoder(self.model.embedding.embed(source), valid=valid).flatten(0, 1).contiguous()
        else:
            states = _encode(self.encoder, source, hiding)
        return Writing(self, states, hiding, length)


def _encode(layout: _Layout, source: Tensor, hiding: Tensor) -> Tensor:
    """The encoder's states: (sentences source) width."""
    read = source.shape[1]
    places = layout.places(read)
    if len(places) < read:
        raise ValueError(f"{read} tokens, but this model learned {len(places)} positions; shorten the input")
    x = layout.embed(source, places)
    around = max(2 * hiding.numel() * layout.width, kernels.attention_room(read, layout.head))
    scratch = floats(len(x) * layout.row + around)
    kernels.encode(layout.style, layout.layers, x, scratch, hiding)
    return layout.normed(x, layout.stack.norm)


class Writing:
    """A text, or several, being written: what `Cache` and `Memory` are to the modules."""

    def __init__(self, quick: Quick, states: Tensor, hiding: Tensor, length: int) -> None:
        self.model, self.layout, self.last, self.hiding = quick.model, quick.decoder, quick.last, hiding
        self.length, self.room = 0, max(1, length)
        self.layers = self.layout.layers.clone()
        heads, head = self.layout.width // self.layout.cross_head, self.layout.cross_head
        read = [panels[-1](states) for panels in self.layout.panels]
        self.sources = [kernels.lay(one, len(hiding), heads, head) for one in read]  # of each layer
        self.store = floats(0)  # keys and values: layers room slots 2 width
        self.origin = torch.empty(0, self.room, dtype=torch.int32)  # rows room: the slot of what a row wrote
        self.places = self.layout.places(self.room)
        self.scores = floats(0, 0)  # rows vocab

    def advance(self, tokens: Tensor) -> Tensor:
        """The next token of each row -> final states: rows width."""
        rows, layout = len(tokens), self.layout
        if rows % len(self.hiding) or (self.length and rows != len(self.origin)):
            raise ValueError(f"{rows} tokens for {len(self.origin)} rows of {len(self.hiding)} sentences")
        if self.length >= len(self.places):
            self.places = layout.places(2 * self.length)
        if self.length >= len(self.places):
            learned = len(self.places)
            raise ValueError(f"{self.length + 1} tokens, but this model learned {learned} positions; shorten it")
        x = layout.embed(tokens, self.places[self.length : self.length + 1])
        self._make_room(rows)
        self.length += 1
        scratch = floats(rows * layout.row)
        kernels.step(layout.style, self.layers, x, scratch, self.hiding, self.origin, self.store.shape[2], self.length)
        return layout.normed(x, layout.stack.norm)

    def logits(self, states: Tensor) -> Tensor:
        """A score for each word; the next call writes over them."""
        if self.last is None:
            return self.model.logits(states)
        if len(self.scores) != len(states):
            self.scores = floats(len(states), self.last.columns)
        self.last.into(self.scores, states)
        return self.scores

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        """Keep these rows, in this order; of these sentences."""
        if sentences is not None:
            self.sources = [source.select(sentences) for source in self.sources]
            self.hiding = self.hiding.index_select(0, sentences)
        if self.length:
            self.origin = self.origin.index_select(0, rows)
            if sentences is not None:
                self._tell()

    def _tell(self) -> None:
        """native/ where the texts at hand are kept."""
        kept = zip(self.store, self.sources, strict=True)
        self.layers[:, -3:] = torch.tensor([[_at(store), _at(one.keys), _at(one.values)] for store, one in kept])

    def _make_room(self, rows: int) -> None:
        """For one more token, and for as many slots as there are rows."""
        slots = self.store.shape[2] if self.length else 0
        if self.length < self.room and rows <= slots:
            return
        while self.length >= self.room:
            self.room *= 2
        store = floats(len(self.layers), self.room, max(rows, slots), 2, self.layout.width)
        origin = torch.empty(rows, self.room, dtype=torch.int32)
        if self.length:
            store[:, : self.length, :slots] = self.store[:, : self.length]
            origin[:, : self.length] = self.origin[:, : self.length]
        self.store, self.origin = store, origin
        self._tell()
