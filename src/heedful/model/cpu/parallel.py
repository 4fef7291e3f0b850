"""Models that write all words at once, on a CPU, when they are not being trained: the same functions by our own kernels.

One pass through a small decoder is so short that walking through its modules would take most of the time. `attend` of
native/ does the attention; what positional attention compares depends on the length alone and is computed once.
"""

import torch
from torch import Tensor

from heedful.model.architecture import Encoded, ParallelSequenceToSequence
from heedful.model.architecture.non_autoregressive import copies
from heedful.model.cpu import door, kernels
from heedful.model.cpu.decoding import LONG, Owners, Stack, key_mask, owners_of, versions_of
from heedful.model.cpu.kernels import PANEL, Panels, floats
from heedful.model.cpu.plan import LayerPlan, NormPlan, ParallelPlan, Reason, ResidualPlan, StackPlan
from heedful.model.cpu.training import masked_attention
from heedful.model.multihead import split_heads
from heedful.model.stack.transformer import waves_of


def lower_parallel(model: ParallelSequenceToSequence) -> "FastParallel | Reason":
    """For a model that is not being trained; its weights are copied, and copied again when they have changed."""
    plan = parallel_plan(model)
    return FastParallel(model, plan) if plan else plan


def parallel_plan(model: ParallelSequenceToSequence) -> ParallelPlan | Reason:
    missing = door.no_kernels()
    if missing is not None:
        return missing
    plan = door.plan_of(model)
    if not isinstance(plan, ParallelPlan):
        return plan if isinstance(plan, Reason) else Reason(f"{type(model).__name__}: no kernel yet")
    first = plan.decoder.layers[0]
    if first.feedforward.kind != "relu" or first.feedforward.gated:
        return Reason("only relu has a kernel yet", "decoder.layers.0.feedforward")
    for name, attention in (("attention", first.attention), ("cross", first.cross)):
        head = 0 if attention is None else plan.decoder.width // attention.heads
        if head % PANEL or not head:
            return Reason(f"head {head} is not a multiple of {PANEL}", f"decoder.layers.0.{name}")
    return plan


class FastParallel:
    """Called like the model."""

    def __init__(self, model: ParallelSequenceToSequence, plan: ParallelPlan) -> None:
        self.model = model
        self.owners: Owners = owners_of(model)
        self.version = versions_of(self.owners)
        self._pack(plan)

    def refresh(self) -> None:
        """Pack the weights again if they have changed."""
        version = versions_of(self.owners)
        if version != self.version:
            plan = parallel_plan(self.model)
            if not plan:
                raise ValueError(f"the model has changed since it was lowered: {plan}; lower it again")
            self._pack(plan)
            self.version = version

    def _pack(self, plan: ParallelPlan) -> None:
        self.encoder = Stack(plan.encoder, plan.source_table)
        self.decoder = _Decoder(plan.decoder)
        self.fertility = plan.fertility.panels()
        self.last = (plan.head.table or plan.target_table).panels(plan.head.bias)

    @torch.no_grad()
    def encode(self, source: Tensor, *, valid: Tensor | None = None) -> Encoded:
        if source.shape[1] > LONG:
            slow = self.model.encode(source, valid=valid)
            states = slow.memory.states.contiguous()  # type: ignore[attr-defined]
            return Encoded(slow.inputs, valid, self.decoder.read(states, valid), slow.fertilities)
        additive = key_mask(source.shape[0], source.shape[1], valid)
        states = self.encoder.encode(source, additive).view(*source.shape, -1)
        inputs = self.model.embedding(source)[0]  # type: ignore[operator]
        return Encoded(inputs, valid, self.decoder.read(states, valid), self.fertility(states))

    def copied(self, encoded: Encoded, fertilities: Tensor) -> tuple[Tensor, Tensor]:
        return copies(encoded.inputs, fertilities)

    def masked(self, target: Tensor, hidden: Tensor) -> Tensor:
        return self.model.masked(target, hidden)

    @torch.no_grad()
    def decode(self, inputs: Tensor, encoded: Encoded, *, valid: Tensor) -> Tensor:
        assert isinstance(encoded.memory, _Memory)
        return self.decoder(inputs, encoded.memory, valid)

    def logits(self, states: Tensor) -> Tensor:
        return self.last(states)


class _Memory:
    """Keys and values of a source for each layer (batch heads source head), and what is added to their scores."""

    def __init__(self, layers: list[tuple[Tensor, Tensor]], additive: Tensor | None) -> None:
        self.layers, self.additive = layers, additive

    def select(self, sentences: Tensor) -> "_Memory":
        layers = [(key.index_select(0, sentences), value.index_select(0, sentences)) for key, value in self.layers]
        return _Memory(layers, None if self.additive is None else self.additive.index_select(0, sentences))


class _Decoder:
    def __init__(self, plan: StackPlan) -> None:
        self.plan, self.width = plan, plan.width
        known = {id(layer): _Layer(layer) for layer in plan.layers}
        self.layers = [known[id(layer)] for layer in plan.layers]
        self.positions = floats(0, self.width)

    def read(self, states: Tensor, valid: Tensor | None) -> _Memory:
        additive = None if valid is None or bool(valid.all()) else hidden_keys(valid)
        return _Memory([layer.read(states) for layer in self.layers], additive)

    def __call__(self, inputs: Tensor, memory: _Memory, valid: Tensor) -> Tensor:
        """rows query width, as real as `valid` says -> states of the same shape"""
        rows, length, width = inputs.shape
        padding = None if bool(valid.all()) else hidden_keys(valid)
        own, lonely = self._own(padding, length, valid) if self.plan.parallel else (padding, None)
        x = (inputs + self._placed(length)).view(-1, width)
        norm(x, self.plan.embedding_norm)
        for number, layer in enumerate(self.layers):
            layer.attend(x, rows, own, lonely)
            if layer.positional is not None:
                layer.look_at_places(x, rows, length, padding)
            layer.look(x, memory.layers[number], memory.additive)
            layer.feed(x)
        norm(x, self.plan.norm)
        return x.view(rows, length, width)

    def _own(self, padding: Tensor | None, length: int, valid: Tensor) -> tuple[Tensor, Tensor | None]:
        """What is added to scores so that no position sees itself, and which rows have one word, which sees nothing."""
        diagonal = floats(length, length).zero_().fill_diagonal_(-torch.inf)[None, None]
        alone = valid.sum(1) == 1
        additive = diagonal if padding is None else diagonal + padding
        if not bool(alone.any()):
            return additive, None
        additive = additive.expand(len(valid), -1, -1, -1).clone()
        additive[alone, :, 0, 0] = 0.0  # so that its softmax exists; what it gives is dropped
        return additive, alone

    def _placed(self, length: int) -> Tensor:
        """What is added to the inputs at each position: length width."""
        position = self.plan.position
        if position.limit is not None and length > position.limit:
            raise ValueError(f"{length} tokens, but this model learned {position.limit} positions; shorten the output")
        if length > len(self.positions):
            places = torch.arange(length)[None]
            self.positions = position.embed(floats(1, length, self.width).zero_(), places)[0].contiguous()
        return self.positions[:length]


class _Layer:
    """Each method adds what its sub-layer gives to x (rows x query, width), in place."""

    def __init__(self, plan: LayerPlan) -> None:
        assert plan.cross is not None and plan.cross.read is not None and plan.cross_residual is not None
        self.plan, self.head = plan, plan.attention.project.inputs // plan.attention.heads
        self.cross_head = plan.cross.project.inputs // plan.cross.heads
        self.project, self.output = plan.attention.project.panels(), plan.attention.output.panels()
        self.query, self.key_value = plan.cross.project.panels(), plan.cross.read.panels()
        self.cross_output = plan.cross.output.panels()
        self.inner, self.outer = plan.feedforward.input.panels(), plan.feedforward.output.panels()
        self.positional = plan.positional
        if plan.positional is not None:
            self.query_key = plan.positional.query_key.panels()
            self.value, self.gathered = plan.positional.value.panels(), plan.positional.output.panels()
            self.places = floats(0, 2 * plan.positional.value.inputs)  # what positions are projected to

    def read(self, states: Tensor) -> tuple[Tensor, Tensor]:
        key, value = self.key_value(states).chunk(2, dim=-1)
        return split_heads(key, self.cross_head), split_heads(value, self.cross_head)

    def attend(self, x: Tensor, rows: int, additive: Tensor | None, alone: Tensor | None) -> None:
        plan = self.plan
        parts = self.project(entered(x, plan.attention_residual)).view(rows, -1, 3 * x.shape[1]).chunk(3, dim=-1)
        query, key, value = (split_heads(part, self.head) for part in parts)
        mixed = self._mixed(query, key, value, additive, plan.attention.scale)
        if alone is not None:
            mixed.view(rows, -1, x.shape[1])[alone, 0] = 0.0
        self._add(x, mixed, self.output, plan.attention_residual)

    def look_at_places(self, x: Tensor, rows: int, length: int, additive: Tensor | None) -> None:
        plan, residual = self.plan.positional, self.plan.positional_residual
        assert plan is not None and residual is not None
        if length > len(self.places):
            self.places = self.query_key(waves_of(torch.arange(length), plan.value.inputs).float())
        both = self.places[None, :length].expand(rows, -1, -1).chunk(2, dim=-1)
        query, key = (split_heads(part, self.head) for part in both)
        value = split_heads(self.value(entered(x, residual)).view(rows, length, -1), self.head)
        self._add(x, self._mixed(query, key, value, additive, plan.scale), self.gathered, residual)

    def look(self, x: Tensor, memory: tuple[Tensor, Tensor], additive: Tensor | None) -> None:
        """The candidates of a sentence share its keys and values: they are just more queries."""
        plan, residual, (key, value) = self.plan.cross, self.plan.cross_residual, memory
        assert plan is not None and residual is not None
        query = split_heads(self.query(entered(x, residual)).view(len(key), -1, x.shape[1]), self.cross_head)
        self._add(x, self._mixed(query, key, value, additive, plan.scale), self.cross_output, residual)

    def feed(self, x: Tensor) -> None:
        residual = self.plan.feedforward_residual
        inside = floats(len(x), self.inner.columns)
        self.inner.into(inside, entered(x, residual), relu=True)
        self._add(x, inside, self.outer, residual)

    def _mixed(self, query: Tensor, key: Tensor, value: Tensor, additive: Tensor | None, scale: float) -> Tensor:
        """(rows query) width"""
        mixed = masked_attention(query, key, value, additive, causal=False, scale=scale)
        return mixed.transpose(1, 2).reshape(-1, query.shape[1] * query.shape[3])

    def _add(self, x: Tensor, mixed: Tensor, output: Panels, residual: ResidualPlan) -> None:
        output.into(x, mixed, add=True)
        if not residual.pre:
            norm(x, residual.norm)


def entered(x: Tensor, residual: ResidualPlan) -> Tensor:
    """What a sub-layer gets to see of x."""
    if not residual.pre:
        return x
    x = x.clone()
    norm(x, residual.norm)
    return x


def norm(x: Tensor, plan: NormPlan | None) -> None:
    """In place."""
    if plan is not None:
        kernels.norm(x, plan.weight, plan.bias, rms=plan.rms, eps=plan.eps)


def hidden_keys(valid: Tensor) -> Tensor:
    """What is added to scores so that nobody sees padding: batch 1 1 key. valid: batch key"""
    return floats(*valid.shape).zero_().masked_fill_(~valid, -torch.inf)[:, None, None]
