"""Layers that can be run backwards, so that training needs not keep what happens inside.      Gomez et al. 2017;
Kitaev et al. 2020, section 3"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from heedful.config import Size
from heedful.model.cache import LayerCache, LayersCache, SegmentMemory
from heedful.model.feedforward import FeedForward
from heedful.model.mask import Mask
from heedful.model.multihead import CrossAttention, SelfAttention
from heedful.model.residual import Placement, Residual, normed
from heedful.model.sight import Sight
from heedful.model.stack import StackShape
from heedful.model.stack.transformer import LayerMemory, Transformer, TransformerConfig


class ReversibleConfig(TransformerConfig):
    """The keys of `transformer`, always with `placement: pre`, and

    join     what comes out of the two streams. `mean`: their mean, each as wide as the model. `both`: one beside the
             other, each as wide as the embeddings, which must then be half as wide as the model (Reformer as published)
    pieces   the feed-forward takes this many tokens at a time: its hidden layer is never held for the whole text
    """

    recomputes: ClassVar[bool] = False  # nothing is kept that could be thrown away
    placement: Placement = "pre"
    join: Literal["mean", "both"] = "mean"
    pieces: Size | None = None

    @property
    def supports(self) -> frozenset[str]:
        return super().supports - {"recurrence"}

    def check(self, shape: StackShape) -> None:
        if self.placement != "pre":
            raise ValueError(
                "a reversible stack cannot normalise its streams between layers, since that cannot be undone; "
                "set placement=pre"
            )
        if self.join == "both" and shape.width != 2 * shape.input_width:
            raise ValueError(
                f"join both puts two streams of the embeddings' width {shape.input_width} side by side, but the model "
                f"has width {shape.width}; set embedding.width={shape.width // 2}, or join=mean"
            )
        if self.join == "both" and shape.cross:
            raise ValueError("join both has streams narrower than the memory to look at; set join=mean")
        if self.pieces is not None and self.feedforward.kernel > 1:
            raise ValueError(f"feedforward kernel {self.feedforward.kernel} sees beyond a piece; drop pieces or kernel")
        super().check(self.inner(shape))

    def build(self, shape: StackShape) -> "Reversible":
        return Reversible(self, shape)

    def inner(self, shape: StackShape) -> StackShape:
        """What the layers are built for: the width of a stream."""
        return replace(shape, width=shape.input_width) if self.join == "both" else shape

    def parameters(self, shape: StackShape) -> dict[str, int]:
        inner = self.inner(shape)
        counts = super().parameters(inner)
        counts["norms"] += self.norm.parameters(shape.width) - self.norm.parameters(inner.width)
        return counts

    def flops(self, shape: StackShape, length: int) -> int:
        return super().flops(self.inner(shape), length)

    def remembered(self, shape: StackShape) -> int:
        return super().remembered(self.inner(shape))


class Reversible(Transformer):
    """Two streams that start equal; each sub-layer reads one and adds to the other, in turns:

        y1 = x1 + attention(norm(x2)),   y2 = x2 + feedforward(norm(y1))
        x2 = y2 - feedforward(norm(y1)), x1 = y1 - attention(norm(x2))         the way back

    What a layer was given is computed from what it gave, so training keeps the last two streams and nothing of the
    layers: memory does not grow with depth, for one more forward pass. Sums are rounded, so what is computed back
    agrees to about seven digits, not to the bit. Random draws (dropout, the directions of `lsh`) are the same again.

    A decoder with a memory has three sub-layers, attention, cross attention, feed-forward, and they take turns all the
    same (as Trax does): the streams then change roles with each layer. Keys and values of the memory are computed
    within the layers while it trains, and ahead, once per source, when it does not.

    Differs: the last streams are averaged before the last norm, unless `join` is `both`.
    """

    def __init__(self, config: ReversibleConfig, shape: StackShape) -> None:
        super().__init__(config, config.inner(shape))
        self.both, self.pieces = config.join == "both", config.pieces
        self.norm = config.norm.build(shape.width)

    def read(self, states: Tensor, valid: Tensor | None = None, *, inputs: Tensor | None = None) -> LayerMemory:
        if torch.is_grad_enabled():
            return LayerMemory(states=states, layers=[], mask=Mask(key_valid=valid))
        return super().read(states, valid)

    def recomputable(self) -> list[nn.Module]:
        """None: nothing is kept that could be thrown away."""
        return []

    def _through_layers(
        self,
        x: Tensor,
        sights: dict[int | None, Sight],
        memory: LayerMemory | None,
        cache: LayersCache | SegmentMemory | None,
    ) -> Tensor:
        assert cache is None or isinstance(cache, LayersCache)  # it does not support `recurrence`
        branches = list(self._branches(sights, memory, cache))
        states = None if memory is None else memory.states
        first = second = x
        if torch.is_grad_enabled() and cache is None:
            shared = [one for one in self.position.parameters() if one.requires_grad]
            used = [*shared, *(one for branch in branches for one in branch.parameters())]
            weights = {id(one): one for one in used}
            given = (first, second, states, branches, shared, self.training)
            first, second = _Backwards.apply(*given, *weights.values())
        else:
            for branch in branches:
                first, second = second, first + branch(second, states)
        return torch.cat([first, second], dim=-1) if self.both else (first + second) / 2

    def _branches(
        self, sights: dict[int | None, Sight], memory: LayerMemory | None, cache: LayersCache | None
    ) -> Iterator["Branch"]:
        """The sub-layers of all layers, in the order in which they act."""
        for index, layer in enumerate(self.each_layer()):
            sight, held = sights[self.windows[index]], None if cache is None else cache.layers[index]
            yield Branch(layer.attention_residual, layer.attention, sight, cache=held)
            if layer.cross is not None and layer.cross_residual is not None and memory is not None:
                ahead = memory.layers[index] if memory.layers else None
                yield Branch(layer.cross_residual, layer.cross, Sight(memory.mask), read=ahead)
            yield Branch(layer.feedforward_residual, layer.feedforward, sight, pieces=self.pieces)


@dataclass(frozen=True)
class Branch:
    """dropout(sublayer(norm(x))): what one sub-layer adds."""

    residual: Residual
    sublayer: SelfAttention | CrossAttention | FeedForward
    sight: Sight
    cache: LayerCache | None = None
    read: tuple[Tensor, Tensor] | None = None
    pieces: int | None = None

    def __call__(self, x: Tensor, states: Tensor | None) -> Tensor:
        if isinstance(self.sublayer, FeedForward) and self.pieces is not None:
            return torch.cat([self._whole(piece, states) for piece in x.split(self.pieces, dim=1)], dim=1)
        return self._whole(x, states)

    def _whole(self, x: Tensor, states: Tensor | None) -> Tensor:
        x = normed(x, self.residual.norm)
        if isinstance(self.sublayer, SelfAttention):
            x = self.sublayer(x, sight=self.sight, cache=self.cache)
        elif isinstance(self.sublayer, CrossAttention):
            memory = self.sublayer.read(states) if self.read is None and states is not None else self.read
            x = self.sublayer(x, memory=memory, sight=self.sight)
        else:
            x = self.sublayer(x, mask=self.sight.mask)
        dropped: Tensor = self.residual.dropout(x)
        return dropped

    def parameters(self) -> list[Tensor]:
        """Those that are trained."""
        return [one for part in (self.residual, self.sublayer) for one in part.parameters() if one.requires_grad]

    def fresh(self) -> "Branch":
        """The same, with a sight that computes anew what it gives: for a graph of its own."""
        return replace(self, sight=replace(self.sight, _made={}, _additive={}))


class _Backwards(torch.autograd.Function):
    """All branches, of which only the last streams are kept. `shared`: parameters that every attention may use.
    `weights`: all that are trained, so that autograd asks for their gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        first: Tensor,
        second: Tensor,
        states: Tensor | None,
        branches: list[Branch],
        shared: list[Tensor],
        draws: bool,
        *weights: Tensor,
    ) -> tuple[Tensor, Tensor]:
        ctx.branches, ctx.shared, ctx.weights = branches, shared, weights
        ctx.autocast = _autocast(first)
        ctx.random = []
        for branch in branches:
            ctx.random.append(_random_state(first) if draws else None)
            # With a graph, though it is dropped at once: so that the same kernels run as on the way back, and draw the
            # same random numbers.
            with torch.enable_grad():
                added = branch(second.detach().requires_grad_(), states).detach()
            first, second = second, first + added
        ctx.save_for_backward(first, second, states)
        return first, second

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        first, second, states = ctx.saved_tensors
        d_first, d_second = grads
        states = None if states is None else states.detach().requires_grad_(ctx.needs_input_grad[2])
        d_states: Any = None if states is None or not states.requires_grad else torch.zeros_like(states)
        found: dict[int, Tensor] = {}
        for branch, random in zip(reversed(ctx.branches), reversed(ctx.random), strict=True):
            wanted = [*branch.parameters(), *(ctx.shared if isinstance(branch.sublayer, SelfAttention) else [])]
            looks = d_states is not None and isinstance(branch.sublayer, CrossAttention)
            x = first.detach().requires_grad_()
            with torch.enable_grad(), torch.autocast(**ctx.autocast), _replayed(random, x):
                added = branch.fresh()(x, states)
            inputs = [x, *([states] if looks else []), *wanted]
            d_x, *others = torch.autograd.grad(added, inputs, d_second.to(added.dtype), allow_unused=True)
            if looks:
                d_states = d_states + others.pop(0)
            for weight, grad in zip(wanted, others, strict=True):
                if grad is not None:
                    found[id(weight)] = grad if id(weight) not in found else found[id(weight)] + grad
            first, second = second - added.detach(), first
            d_first, d_second = d_second, d_first + d_x
        return d_first, d_second, d_states, None, None, None, *(found.get(id(weight)) for weight in ctx.weights)


def _autocast(x: Tensor) -> dict[str, Any]:
    kind = x.device.type
    return {
        "device_type": kind,
        "dtype": torch.get_autocast_dtype(kind),
        "enabled": torch.is_autocast_enabled(kind),
    }


def _random_state(x: Tensor) -> tuple[Tensor, Tensor | None]:
    return torch.get_rng_state(), torch.cuda.get_rng_state(x.device) if x.is_cuda else None


@contextmanager
def _replayed(state: tuple[Tensor, Tensor | None] | None, x: Tensor) -> Iterator[None]:
    """With the random numbers of an earlier moment, and then those of now again."""
    now = _random_state(x)
    _set_random_state(now if state is None else state, x)
    try:
        yield
    finally:
        _set_random_state(now, x)


def _set_random_state(state: tuple[Tensor, Tensor | None], x: Tensor) -> None:
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1], x.device)
