"""Models that write all words at once, on a CPU, when they are not being trained: the same functions by our kernels.

One pass through a small decoder is so short that walking through its modules would take most of the time. `attend` of
native/ does the attention; what positional attention compares depends on the length alone and is computed once.
"""

import torch
from torch import Tensor

from heedful.model.architecture import Encoded, ParallelSequenceToSequence
from heedful.model.architecture.non_autoregressive import copies
from heedful.model.cpu import door, kernels
from heedful.model.cpu.decoding import LONG, Owners, owners_of, versions_of
from heedful.model.cpu.kernels import PANEL, Panels, address, floats
from heedful.model.cpu.plan import LayerPlan, NormPlan, ParallelPlan, Reason, ResidualPlan, StackPlan
from heedful.model.cpu.stack import Stack, key_mask
from heedful.model.stack.transformer import waves_of


def lower_parallel(model: ParallelSequenceToSequence) -> "FastParallel | Reason":
    """For a model that is not being trained; its weights are copied, and copied again when they have changed."""
    plan = parallel_plan(model)
    return plan if isinstance(plan, Reason) else FastParallel(model, plan)


def parallel_plan(model: ParallelSequenceToSequence) -> ParallelPlan | Reason:
    missing = door.no_kernels()
    if missing is not None:
        return missing
    plan = door.plan_of(model)
    if not isinstance(plan, ParallelPlan):
        return plan if isinstance(plan, Reason) else Reason(f"{type(model).__name__}: no kernel yet")
    for name, stack in (("encoder", plan.encoder), ("decoder", plan.decoder)):
        if (reason := stack.only_steps()) is not None:
            return reason.at(name)
    if plan.head.factor != 1.0:
        return Reason("scale: no kernel yet", "head")
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
    """Keys and values of a source for each layer, (batch source) 2 width, and what is added to their scores."""

    def __init__(self, layers: list[Tensor], batch: int, additive: Tensor | None) -> None:
        self.layers, self.batch, self.additive = layers, batch, additive

    def select(self, sentences: Tensor) -> "_Memory":
        layers = [one.unflatten(0, (self.batch, -1)).index_select(0, sentences).flatten(0, 1) for one in self.layers]
        return _Memory(layers, len(sentences), None if self.additive is None else self.additive[sentences])


class _Decoder:
    def __init__(self, plan: StackPlan) -> None:
        self.plan, self.width = plan, plan.width
        known = {id(layer): _Layer(layer) for layer in plan.layers}
        self.layers = [known[id(layer)] for layer in plan.layers]
        self.positions = floats(0, self.width)

    def read(self, states: Tensor, valid: Tensor | None) -> _Memory:
        additive = None if valid is None or bool(valid.all()) else hidden_keys(valid)
        flat = states.view(-1, self.width)
        return _Memory([layer.key_value(flat) for layer in self.layers], len(states), additive)

    def __call__(self, inputs: Tensor, memory: _Memory, valid: Tensor) -> Tensor:
        """rows query width, as real as `valid` says -> states of the same shape"""
        rows, length, width = inputs.shape
        if width != self.width or valid.shape != (rows, length) or rows % memory.batch or not rows * length:
            raise ValueError(f"{list(inputs.shape)} do not fit {memory.batch} sources of width {self.width}")
        padding = None if bool(valid.all()) else hidden_keys(valid)
        own, lonely = self._own(padding, length, valid) if self.plan.parallel else (padding, None)
        x = (inputs + self._placed(length)).view(-1, width)
        normed(x, self.plan.embedding_norm)
        work = _Work(x, rows, length, self.layers[0], len(memory.layers[0]) // memory.batch)
        for layer, source in zip(self.layers, memory.layers, strict=True):
            layer.attend(work, own, lonely)
            if layer.positional is not None:
                layer.look_at_places(work, padding)
            layer.look(work, source, memory)
            layer.feed(work)
        normed(x, self.plan.norm)
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
        known = self.positions
        if length > len(known):
            places = torch.arange(length)[None]
            known = position.embed(floats(1, length, self.width).zero_(), places)[0].contiguous()
            self.positions = known
        return known[:length]


class _Work:
    """The states of a pass, and room for what its layers compute: so that a step of it is one call of a kernel, without
    views of tensors in between. Sizes are in floats, addresses in bytes."""

    def __init__(self, x: Tensor, rows: int, length: int, layer: "_Layer", source: int) -> None:
        self.x, self.rows, self.length, self.width = x, rows, length, x.shape[1]
        self.count, self.threads = len(x), torch.get_num_threads()
        inside, heads = layer.inner.columns, max(layer.heads, layer.cross_heads)
        self.normed = floats(len(x), self.width)
        self.mixed = floats(len(x), self.width)
        widest = max(self.width, inside)
        keys, head = max(length, source), max(self.width // layer.heads, self.width // layer.cross_heads)
        sizes = [len(x) * max(3 * self.width, inside), len(x) * (2 + widest // 2), len(x) * heads,
                 kernels.attention_room(keys, head)]  # fmt: skip
        self.room = floats(sum(sizes))
        start = self.room.data_ptr()
        self.parts, self.rounded, self.sums, self.scratch = (start + 4 * sum(sizes[:n]) for n in range(4))
        self.x_at, self.mixed_at = x.data_ptr(), self.mixed.data_ptr()

    def entered(self, residual: ResidualPlan) -> int:
        """What a sub-layer gets to see of the states."""
        if not residual.pre:
            return self.x_at
        self.normed.copy_(self.x)
        normed(self.normed, residual.norm)
        return self.normed.data_ptr()

    def product(self, panels: Panels, x: int, y: int, *, add: bool = False, relu: bool = False) -> None:
        assert kernels.NATIVE is not None
        weights = panels.values.data_ptr(), address(panels.scales), address(panels.bias), panels.depth, panels.columns
        kernels.NATIVE.product(*weights, x, y, self.count, add, relu, self.threads, self.rounded)

    def leave(self, panels: Panels, mixed: int, residual: ResidualPlan) -> None:
        """Add what a sub-layer gives to the states."""
        self.product(panels, mixed, self.x_at, add=True)
        if not residual.pre:
            normed(self.x, residual.norm)

    def attend(
        self,
        views: tuple[int, ...],
        additive: Tensor | None,
        *,
        batch: int,
        heads: int,
        queries: int,
        keys: int,
        scale: float,
    ) -> None:
        """`views`: address and strides (batch, head, time) of queries, keys and values. What they gather is `mixed`."""
        assert kernels.NATIVE is not None
        head = self.width // heads
        to = (self.mixed_at, queries * self.width, head, self.width)
        hides = (0, 0, 0)
        if additive is not None:
            hides = (additive.data_ptr(), additive.stride(0) if len(additive) > 1 else 0,
                     additive.stride(2) if additive.shape[2] > 1 else 0)  # fmt: skip
        rest = (self.sums, batch, heads, 1, queries, keys, head, scale, False, self.scratch, self.threads, 0, 1.0, 0)
        kernels.NATIVE.attend(*views, *to, *hides, *rest)


class _Layer:
    """Each method adds what a sub-layer gives to the states, in place."""

    def __init__(self, plan: LayerPlan) -> None:
        assert plan.cross is not None and plan.cross.read is not None and plan.cross_residual is not None
        self.plan, self.heads, self.cross_heads = plan, plan.attention.heads, plan.cross.heads
        self.project, self.output = plan.attention.project.panels(), plan.attention.output.panels()
        self.query, self.key_value = plan.cross.project.panels(), plan.cross.read.panels()
        self.cross_output = plan.cross.output.panels()
        self.inner, self.outer = plan.feedforward.input.panels(), plan.feedforward.output.panels()
        self.positional = plan.positional
        if plan.positional is not None:
            self.query_key = plan.positional.query_key.panels()
            self.value, self.gathered = plan.positional.value.panels(), plan.positional.output.panels()
            self.places = floats(0, 2 * plan.positional.value.inputs)  # queries and keys of each position

    def attend(self, work: _Work, additive: Tensor | None, alone: Tensor | None) -> None:
        residual, width, at = self.plan.attention_residual, work.width, work.parts
        work.product(self.project, work.entered(residual), at)
        strides = (work.length * 3 * width, width // self.heads, 3 * width)
        views = (at, *strides, at + 4 * width, *strides, at + 8 * width, *strides)
        self._mix(work, views, additive, self.plan.attention.scale)
        if alone is not None:
            work.mixed.view(work.rows, -1, width)[alone, 0] = 0.0
        work.leave(self.output, work.mixed_at, residual)

    def look_at_places(self, work: _Work, additive: Tensor | None) -> None:
        plan, residual, width, at = self.plan.positional, self.plan.positional_residual, work.width, work.parts
        assert plan is not None and residual is not None
        places = self.places
        if work.length > len(places):
            self.places = places = self.query_key(waves_of(torch.arange(work.length), width).float())
        work.product(self.value, work.entered(residual), at)
        head, start = width // self.heads, places.data_ptr()
        shared = (0, head, 2 * width)  # by all rows
        views = (start, *shared, start + 4 * width, *shared, at, work.length * width, head, width)
        self._mix(work, views, additive, plan.scale)
        work.leave(self.gathered, work.mixed_at, residual)

    def _mix(self, work: _Work, views: tuple[int, ...], additive: Tensor | None, scale: float) -> None:
        length = work.length
        work.attend(views, additive, batch=work.rows, heads=self.heads, queries=length, keys=length, scale=scale)

    def look(self, work: _Work, source: Tensor, memory: _Memory) -> None:
        """The candidates of a sentence share its keys and values: they are just more queries."""
        plan, residual, width = self.plan.cross, self.plan.cross_residual, work.width
        assert plan is not None and residual is not None
        work.product(self.query, work.entered(residual), work.parts)
        queries, keys, head = work.count // memory.batch, len(source) // memory.batch, width // self.cross_heads
        start, strides = source.data_ptr(), (keys * 2 * width, head, 2 * width)
        views = (work.parts, queries * width, head, width, start, *strides, start + 4 * width, *strides)
        sizes = {"batch": memory.batch, "heads": self.cross_heads, "queries": queries, "keys": keys}
        work.attend(views, memory.additive, **sizes, scale=plan.scale)
        work.leave(self.cross_output, work.mixed_at, residual)

    def feed(self, work: _Work) -> None:
        residual = self.plan.feedforward_residual
        work.product(self.inner, work.entered(residual), work.parts, relu=True)
        work.leave(self.outer, work.parts, residual)


def normed(x: Tensor, plan: NormPlan | None) -> None:
    """In place."""
    if plan is not None:
        kernels.norm(x, plan.weight, plan.bias, rms=plan.rms, eps=plan.eps)


def hidden_keys(valid: Tensor) -> Tensor:
    """What is added to scores so that nobody sees padding: batch 1 1 key. valid: batch key"""
    return floats(*valid.shape).zero_().masked_fill_(~valid, -torch.inf)[:, None, None]
