"""The encoder, and the decoder one token at a time, on a CPU: the same functions as the modules, by our own kernels.

A step of a small model takes less time than Python needs to walk through its modules. So the weights of all layers are
packed once, and native/ runs them. Keys and values stay where they were written: reordering beams only moves indices
that point to them.
"""

from typing import Any

import torch
from torch import Tensor, nn

from heedful.model.cpu import door
from heedful.model.cpu.kernels import Panels, floats, lay_out_source
from heedful.model.cpu.layers import Texts
from heedful.model.cpu.plan import DecoderOnlyPlan, EncoderDecoderPlan, Reason
from heedful.model.cpu.stack import Stack, key_mask
from heedful.model.mask import positions_of

LONG = 128  # from this many source tokens, torch's products of whole sentences are faster
WritingPlan = EncoderDecoderPlan | DecoderOnlyPlan


def lower(model: nn.Module) -> "Lowered | Reason":
    """For a model that writes token by token and is not being trained: its weights are copied, and copied again when
    torch reports that they have changed, which a fused optimizer does not do (the training loop compensates). If a part
    has no kernel, or none were compiled, returns the reason: then the modules decode."""
    plan = _plan(model)
    return plan if isinstance(plan, Reason) else Lowered(model, plan)


def _plan(model: nn.Module) -> WritingPlan | Reason:
    missing = door.no_kernels()
    if missing is not None:
        return missing
    plan = door.plan_of(model)
    return plan if isinstance(plan, WritingPlan | Reason) else Reason(f"{type(model).__name__}: no kernel yet")


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

    def __init__(self, model: nn.Module, plan: WritingPlan) -> None:
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

    def _pack(self, plan: WritingPlan) -> None:
        self.plan = plan
        self.encoder_reason: Reason | None = None
        self.encoder: Stack | None = None
        if isinstance(plan, EncoderDecoderPlan):
            if plan.encoder and plan.source_table:
                self.encoder = Stack(plan.encoder, plan.source_table)
            else:
                self.encoder_reason = plan.encoder if isinstance(plan.encoder, Reason) else None
        self.decoder = Stack(plan.decoder, plan.target_table)
        self.head_reason = plan.head if isinstance(plan.head, Reason) else None
        self.last: Panels | None = None
        self.factor = 1.0  # what states are multiplied by before the last map
        if plan.head:
            self.last, self.factor = (plan.head.table or plan.target_table).panels(plan.head.bias), plan.head.factor

    @torch.no_grad()
    def begin(self, source: Tensor, valid: Tensor | None, length: int) -> "KernelSteps":
        """Encode these sentences (sentences source) and start decoding, with room for `length` tokens."""
        self.refresh()
        assert isinstance(self.plan, EncoderDecoderPlan)
        if self.encoder is None or source.shape[1] > LONG:
            states, valid = self.plan.read(source, valid)
            additive = key_mask(states.shape[0], states.shape[1], valid)
            return KernelSteps(self, length, states=states.flatten(0, 1).contiguous(), additive=additive)
        additive = key_mask(source.shape[0], source.shape[1], valid)
        return KernelSteps(self, length, states=self.encoder.encode(source, additive), additive=additive)

    @torch.no_grad()
    def continue_from(self, prompt: Tensor, valid: Tensor | None, length: int) -> "KernelSteps":
        """Read these prompts (rows query), padded on the left, and go on, with room for `length` tokens more. The
        prompts may be empty."""
        self.refresh()
        rows, fed = prompt.shape
        starts = None if valid is None else (~valid).sum(1, dtype=torch.int32)
        steps = KernelSteps(self, fed + length, rows=rows, starts=starts)
        if fed and self.decoder.layers.reads_prompts:
            steps.read_prompts(prompt, valid)
        elif fed:
            steps.read(prompt, valid)
        return steps


class KernelSteps:
    """The decoding state of one or more texts: what `Cache` and `Memory` are for the modules. They have a source
    (`states`, `additive`), or none. `starts`: the padding on the left of each row; None = there is none."""

    def __init__(
        self,
        model: Lowered,
        length: int,
        *,
        rows: int = 0,
        states: Tensor | None = None,
        additive: Tensor | None = None,
        starts: Tensor | None = None,
    ) -> None:
        self.plan, self.stack, self.last, self.factor = model.plan, model.decoder, model.last, model.factor
        self.model: Any = model.model
        self.states, self.additive, self.starts = states, additive, starts
        self.sentences = rows if additive is None else len(additive)
        self.length, self.room = 0, max(1, length)
        self.least = 0 if starts is None else int(starts.min())  # padding that no row is without
        layers = self.stack.layers
        self.sources = [  # of each layer
            lay_out_source(panels(states), self.sentences, layers.cross_heads, layers.cross_head)
            for panels in self.stack.read
            if states is not None
        ]
        self.store = floats(0)  # keys and values: layers room slots 2 kv_heads*head
        self.origin = torch.empty(0, self.room, dtype=torch.int32)  # rows room: the slot of each token of a row
        self.scores = floats(0, 0)  # rows vocab

    def read(self, tokens: Tensor, valid: Tensor | None = None) -> None:
        """What was written before the first step, in one pass of the modules: rows target, as real as `valid` says."""
        rows, length = tokens.shape
        cache = self.model.new_cache(length)
        if self.states is None or self.additive is None:
            positions = None if valid is None else positions_of(valid)
            self.model.decode(tokens, valid=valid, positions=positions, cache=cache)
        else:
            states = self.states.unflatten(0, (self.sentences, -1))
            memory = self.model.decoder.read(states, self.additive[:, : states.shape[1]] == 0)
            self.model.decode(tokens, memory, cache=cache)
        self.room = max(self.room, length + 1)
        self._make_room(rows)
        for store, layer in zip(self.store, cache.layers, strict=True):
            for place, held in enumerate(layer.held):
                store[:length, :, place] = held.permute(2, 0, 1, 3).flatten(2)
        self.origin[:, :length] = torch.arange(rows, dtype=torch.int32)[:, None]
        self.length = length

    def read_prompts(self, tokens: Tensor, valid: Tensor | None) -> None:
        """The same by the kernels, for texts without a source: padding is not computed."""
        (rows, length), stack = tokens.shape, self.stack
        real = torch.ones(rows, length, dtype=torch.bool) if valid is None else valid
        lengths, positions = real.sum(1), (real.cumsum(1) - 1)[real]
        self.room = max(self.room, length + 1)
        self._make_room(rows)
        known, turns, biases = self.tables
        if (longest := int(lengths.max())) > len(known):
            raise _too_long(longest, known)
        if len(positions):
            x = stack.embed(tokens[real], known[positions])
            turns = None if turns is None else turns[positions]
            stack.layers.read_prompts(self.texts, x, lengths, length, turns=turns, biases=biases)
        self.origin[:, :length] = torch.arange(rows, dtype=torch.int32)[:, None]
        self.length = length

    def advance(self, tokens: Tensor) -> Tensor:
        """The next token of each row -> final states: rows width."""
        rows, stack, place = len(tokens), self.stack, self.length
        if rows % self.sentences or (place and rows != len(self.origin)):
            raise ValueError(f"{rows} tokens for {len(self.origin)} rows of {self.sentences} sentences")
        self._make_room(rows)
        positions, turns, biases = self.tables
        longest = place - self.least  # the position of the newest token, where it is the largest
        if longest >= len(positions):
            raise _too_long(longest + 1, positions)
        now = slice(place, place + 1) if self.starts is None else place - self.starts.long()  # positions
        x = stack.embed(tokens, positions[now])
        self.length += 1
        stack.layers.step(
            self.texts,
            x,
            self.origin,
            self.length,
            additive=self.additive,
            starts=self.starts,
            turns=None if turns is None else turns[now].expand(rows, -1).contiguous(),
            biases=biases,
        )
        return stack.finished(x)

    def logits(self, states: Tensor) -> Tensor:
        """A score for each token of the vocabulary; overwritten by the next call."""
        if self.last is None:
            return self.plan.logits(states)
        if len(self.scores) != len(states):
            self.scores = floats(len(states), self.last.columns)
        self.last.into(self.scores, states if self.factor == 1.0 else states * self.factor)
        return self.scores

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        """Keep these rows, and these sentences, in this order."""
        if self.additive is None:
            self.sentences = len(rows)
        elif sentences is not None:
            self.sources = [source.select(sentences) for source in self.sources]
            self.additive = self.additive.index_select(0, sentences)
            self.sentences = len(sentences)
        if self.starts is not None:
            self.starts = self.starts.index_select(0, rows)
            self.least = int(self.starts.min()) if len(rows) else 0
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
        layers = self.stack.layers
        store = floats(len(layers.table), self.room, max(rows, slots), 2, layers.kv_heads * layers.head)
        origin = torch.empty(rows, self.room, dtype=torch.int32)
        if self.length:
            store[:, : self.length, :slots] = self.store[:, : self.length]
            origin[:, : self.length] = self.origin[:, : self.length]
        self.store, self.origin = store, origin
        self.texts = Texts(layers, store, self.sources)
        self.tables = self.stack.positions(self.room), self.stack.turns(self.room), self.stack.biases(self.room)


def _too_long(length: int, positions: Tensor) -> ValueError:
    return ValueError(f"{length} tokens, but this model learned {len(positions)} positions; shorten the input")
