"""The encoder, and the decoder one token at a time, on a CPU: the same functions as the modules, by our own kernels.

A step of a small model takes less time than Python needs to walk through its modules. So the weights of all layers are
packed once, and native/ runs them. Keys and values stay where they were written: reordering beams only moves indices
that point to them.
"""

from typing import Any

import torch
from torch import Tensor, nn

from heedful.model.cpu import door, kernels
from heedful.model.cpu.door import KINDS
from heedful.model.cpu.kernels import Panels, floats
from heedful.model.cpu.layers import Layers, Texts
from heedful.model.cpu.plan import EncoderDecoderPlan, LayerPlan, NormPlan, Reason, StackPlan, TablePlan

LONG = 128  # from this many source tokens, torch's products of whole sentences are faster


def lower(model: nn.Module) -> "Lowered | Reason":
    """For a model that is not being trained: its weights are copied, and copied again when torch reports that they
    have changed, which a fused optimizer does not do (the training loop compensates). If a part has no kernel, or none
    were compiled, returns the reason: then the modules decode."""
    plan = _plan(model)
    return plan if isinstance(plan, Reason) else Lowered(model, plan)


def _plan(model: nn.Module) -> EncoderDecoderPlan | Reason:
    missing = door.no_kernels()
    if missing is not None:
        return missing
    plan = door.plan_of(model)
    return plan if isinstance(plan, EncoderDecoderPlan | Reason) else Reason(f"{type(model).__name__}: no kernel yet")


Owners = list[tuple[dict[str, nn.Parameter | None], str]]


def owners_of(model: nn.Module) -> Owners:
    """Where each parameter of a model is found."""
    return [(module._parameters, name) for module in model.modules() for name in module._parameters]


def versions_of(owners: Owners) -> list[tuple[int, int]]:
    """Changes when a parameter is replaced or written to."""
    held = [parameter for owner, name in owners if (parameter := owner[name]) is not None]
    return [(one.data_ptr(), 0 if one.is_inference() else one._version) for one in held]


class Lowered:
    """A model packed for the kernels. A text keeps using the weights it was started with.

    `encoder_reason`, `head_reason`: why these run as modules; None = they do not.
    """

    def __init__(self, model: nn.Module, plan: EncoderDecoderPlan) -> None:
        self.model = model
        self.owners = owners_of(model)
        self.version = versions_of(self.owners)
        self._pack(plan)

    def refresh(self) -> None:
        """Pack the weights again if they have changed. Processes forked afterwards share them."""
        version = versions_of(self.owners)
        if version != self.version:
            plan = _plan(self.model)
            if not plan:
                raise ValueError(f"the model has changed since it was lowered: {plan}; lower it again")
            self._pack(plan)
            self.version = version

    def _pack(self, plan: EncoderDecoderPlan) -> None:
        self.plan = plan
        self.encoder_reason = plan.encoder if isinstance(plan.encoder, Reason) else None
        self.head_reason = plan.head if isinstance(plan.head, Reason) else None
        self.encoder: Stack | None = None
        self.last: Panels | None = None
        if plan.encoder and plan.source_table:
            self.encoder = Stack(plan.encoder, plan.source_table)
        self.decoder = Stack(plan.decoder, plan.target_table)
        if plan.head:
            self.last = (plan.head.table or plan.target_table).panels(plan.head.bias)

    @torch.no_grad()
    def begin(self, source: Tensor, valid: Tensor | None, length: int) -> "KernelSteps":
        """Encode these sentences (sentences source) and start decoding, with room for `length` tokens."""
        self.refresh()
        if self.encoder is None or source.shape[1] > LONG:
            states, valid = self.plan.read(source, valid)
            additive = key_mask(states.shape[0], states.shape[1], valid)
            return KernelSteps(self, states.flatten(0, 1).contiguous(), additive, length)
        additive = key_mask(source.shape[0], source.shape[1], valid)
        return KernelSteps(self, self.encoder.encode(source, additive), additive, length)


def key_mask(sentences: int, source: int, valid: Tensor | None) -> Tensor:
    """What is added to the scores: sentences source, padded with -inf to a multiple of eight."""
    additive = floats(sentences, source + -source % 8).fill_(-torch.inf)
    additive[:, :source] = 0.0 if valid is None else floats(*valid.shape).zero_().masked_fill_(~valid, -torch.inf)
    return additive


class Stack:
    """A packed encoder or decoder. It keeps alive everything it points to, and never changes it."""

    def __init__(self, plan: StackPlan, table: TablePlan) -> None:
        self.plan, self.width, self.factor, self.table = plan, plan.width, table.factor, table.rows
        unique = {id(layer): _maps(layer) for layer in plan.layers}
        reads = {id(layer): layer.cross.read.panels() for layer in plan.layers if layer.cross and layer.cross.read}
        self.read = [reads[id(layer)] for layer in plan.layers if id(layer) in reads]
        self.layers = Layers(
            _style(plan), [unique[id(layer)] for layer in plan.layers], [_norms(layer) for layer in plan.layers]
        )
        self.known_positions = floats(0, self.width)

    def positions(self, count: int) -> Tensor:
        """What is added at each position: for `count` positions, or as many as the model has."""
        position, known = self.plan.position, self.known_positions
        count = count if position.limit is None else min(count, position.limit)
        if count > len(known):
            known = position.embed(floats(1, count, self.width).zero_(), torch.arange(count)[None])[0].contiguous()
            self.known_positions = known
        return known[:count]

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """The vectors of tokens at these positions, which repeat for each sentence: rows width."""
        return _normed(kernels.embed(tokens, self.table, self.factor, positions), self.plan.embedding_norm)

    def finished(self, x: Tensor) -> Tensor:
        """The states after the last layer, normalised in place if the stack ends with a norm."""
        return _normed(x, self.plan.norm)

    def encode(self, source: Tensor, additive: Tensor) -> Tensor:
        """(sentences source) width"""
        length = source.shape[1]
        positions = self.positions(length)
        if len(positions) < length:
            raise ValueError(f"{length} tokens, but this model learned {len(positions)} positions; shorten the input")
        x = self.embed(source, positions)
        self.layers.encode(x, additive)
        return _normed(x, self.plan.norm)

    def step(self, texts: Texts, x: Tensor, additive: Tensor, origin: Tensor, length: int) -> Tensor:
        """rows width"""
        self.layers.step(texts, x, additive, origin, length)
        return _normed(x, self.plan.norm)


def _style(plan: StackPlan) -> dict[str, float]:
    """`Style` of native/fields.h, from the first layer, since all are alike."""
    first = plan.layers[0]
    attention, cross, norm = first.attention, first.cross or first.attention, first.attention_residual.norm
    return {
        "width": plan.width,
        "heads": attention.heads,
        "cross_heads": cross.heads,
        "scale": attention.scale,
        "cross_scale": cross.scale,
        "pre": first.attention_residual.pre,
        "rms": norm.rms,
        "eps": norm.eps,
        "kind": KINDS.index(first.feedforward.kind),
        "gated": first.feedforward.gated,
    }


def _maps(layer: LayerPlan) -> dict[str, Panels]:
    """Linear maps by their names in `Layer` of native/fields.h."""
    attention, cross, feedforward = layer.attention, layer.cross, layer.feedforward
    found = {"query_key_value": attention.project, "output": attention.output}
    found |= {} if cross is None else {"cross_query": cross.project, "cross_output": cross.output}
    found |= {"inner": feedforward.input, "outer": feedforward.output}
    return {name: linear.panels() for name, linear in found.items()}


def _norms(layer: LayerPlan) -> dict[str, tuple[Tensor, Tensor | None]]:
    residuals = {
        "attention_norm": layer.attention_residual,
        "cross_norm": layer.cross_residual,
        "feedforward_norm": layer.feedforward_residual,
    }
    return {name: (one.norm.weight, one.norm.bias) for name, one in residuals.items() if one is not None}


def _normed(x: Tensor, norm: NormPlan | None) -> Tensor:
    """In place."""
    if norm is not None:
        kernels.norm(x, norm.weight, norm.bias, rms=norm.rms, eps=norm.eps)
    return x


class KernelSteps:
    """The decoding state of one or more texts: what `Cache` and `Memory` are for the modules."""

    def __init__(self, model: Lowered, states: Tensor, additive: Tensor, length: int) -> None:
        self.plan, self.stack, self.last, self.additive = model.plan, model.decoder, model.last, additive
        self.model: Any = model.model
        self.states = states
        self.length, self.room = 0, max(1, length)
        heads, width = self.stack.layers.cross_heads, self.stack.width
        sources = [panels(states) for panels in self.stack.read]  # of each layer
        self.sources = [kernels.lay_out_source(one, len(additive), heads, width // heads) for one in sources]
        self.store = floats(0)  # keys and values: layers room slots 2 width
        self.origin = torch.empty(0, self.room, dtype=torch.int32)  # rows room: the slot of each token of a row
        self.positions = self.stack.positions(self.room)
        self.scores = floats(0, 0)  # rows vocab

    def read(self, tokens: Tensor) -> None:
        """What was written before the first step, in one pass of the modules: sentences target."""
        sentences, length = tokens.shape
        states = self.states.unflatten(0, (sentences, -1))
        memory = self.model.decoder.read(states, self.additive[:, : states.shape[1]] == 0)
        cache = self.model.new_cache(length)
        self.model.decode(tokens, memory, cache=cache)
        self.room = max(self.room, length + 1)
        self._make_room(sentences)
        for store, layer in zip(self.store, cache.layers, strict=True):
            for place, held in enumerate(layer.held):
                store[:length, :, place] = held.permute(2, 0, 1, 3).flatten(2)
        self.origin[:, :length] = torch.arange(sentences, dtype=torch.int32)[:, None]
        self.length = length

    def advance(self, tokens: Tensor) -> Tensor:
        """The next token of each row -> final states: rows width."""
        rows, stack = len(tokens), self.stack
        if rows % len(self.additive) or (self.length and rows != len(self.origin)):
            raise ValueError(f"{rows} tokens for {len(self.origin)} rows of {len(self.additive)} sentences")
        if self.length >= len(self.positions):
            self.positions = stack.positions(2 * self.length)
        if self.length >= len(self.positions):
            learned = len(self.positions)
            raise ValueError(f"{self.length + 1} tokens, but this model learned {learned} positions; shorten it")
        x = stack.embed(tokens, self.positions[self.length : self.length + 1])
        self._make_room(rows)
        self.length += 1
        return stack.step(self.texts, x, self.additive, self.origin, self.length)

    def logits(self, states: Tensor) -> Tensor:
        """A score for each token of the vocabulary; overwritten by the next call."""
        if self.last is None:
            return self.plan.logits(states)
        if len(self.scores) != len(states):
            self.scores = floats(len(states), self.last.columns)
        self.last.into(self.scores, states)
        return self.scores

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        """Keep these rows, and these sentences, in this order."""
        if sentences is not None:
            self.sources = [source.select(sentences) for source in self.sources]
            self.additive = self.additive.index_select(0, sentences)
        if self.length:
            self.origin = self.origin.index_select(0, rows)
            if sentences is not None:
                self.texts = Texts(self.stack.layers, self.store, self.sources)

    def _make_room(self, rows: int) -> None:
        """Make room for one more token, and for as many slots as there are rows."""
        slots = self.store.shape[2] if self.length else 0
        if self.length < self.room and rows <= slots:
            return
        while self.length >= self.room:
            self.room *= 2
        store = floats(len(self.sources), self.room, max(rows, slots), 2, self.stack.width)
        origin = torch.empty(rows, self.room, dtype=torch.int32)
        if self.length:
            store[:, : self.length, :slots] = self.store[:, : self.length]
            origin[:, : self.length] = self.origin[:, : self.length]
        self.store, self.origin = store, origin
        self.texts = Texts(self.stack.layers, store, self.sources)
