"""A stack of layers packed for our kernels: its weights, and what it adds or rotates at each position."""

import torch
from torch import Tensor

from heedful.model.cpu import kernels
from heedful.model.cpu.door import KINDS
from heedful.model.cpu.kernels import Panels, floats
from heedful.model.cpu.layers import Layers
from heedful.model.cpu.plan import LayerPlan, NormPlan, StackPlan, TablePlan


def key_mask(sentences: int, source: int, valid: Tensor | None) -> Tensor:
    """What is added to the scores: sentences source, padded with -inf to a multiple of eight."""
    additive = floats(sentences, source + -source % 8).fill_(-torch.inf)
    additive[:, :source] = 0.0 if valid is None else floats(*valid.shape).zero_().masked_fill_(~valid, -torch.inf)
    return additive


class Stack:
    """A packed encoder or decoder. It keeps alive everything it points to, and never changes it."""

    def __init__(self, plan: StackPlan, table: TablePlan) -> None:
        self.plan, self.width, self.factor, self.table = plan, plan.width, table.factor, table.rows
        keys = [id(layer.feedforward) for layer in plan.layers]  # layers may share their weights
        maps = {key: _maps(layer) for key, layer in dict(zip(keys, plan.layers, strict=True)).items()}
        reads = {
            key: layer.cross.read.panels()
            for key, layer in dict(zip(keys, plan.layers, strict=True)).items()
            if layer.cross and layer.cross.read
        }
        self.read = [reads[key] for key in keys if key in reads]
        windows = [layer.attention.window or 0 for layer in plan.layers]
        self.layers = Layers(_style(plan), [maps[key] for key in keys], [_norms(one) for one in plan.layers], windows)
        self.known_positions = floats(0, self.width)  # as these grow, another thread may set them meanwhile
        self.known_turns = floats(0, self.layers.head)
        self.known_biases = floats(self.layers.heads, 0)

    def positions(self, count: int) -> Tensor:
        """What is added at each position: for `count` positions, or as many as the model has."""
        position, known = self.plan.position, self.known_positions
        count = count if position.limit is None else min(count, position.limit)
        if count > len(known):
            known = position.embed(floats(1, count, self.width).zero_(), torch.arange(count)[None])[0].contiguous()
            self.known_positions = known
        return known[:count]

    def turns(self, count: int) -> Tensor | None:
        """By what queries and keys are rotated at each position: count head, cosines, then sines. None = not at all."""
        rotation = self.plan.position.rotation
        if rotation is None:
            return None
        known = self.known_turns
        if count > len(known):
            half = self.layers.head // 2
            cosines, sines = (part.flatten(0, -2)[:, :half].float() for part in rotation(torch.arange(count)[None]))
            self.known_turns = known = torch.cat([cosines, sines], dim=1).contiguous()
        return known

    def biases(self, count: int) -> Tensor | None:
        """What is added to the scores, by distance: heads count, that of the newest token last. None = nothing."""
        bias = self.plan.position.bias
        if bias is None:
            return None
        known = self.known_biases
        if count > known.shape[1]:
            found = bias(torch.tensor([[count - 1]]), torch.arange(count)[None])
            self.known_biases = known = found[0, :, 0].float().contiguous()
        return known

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


def _style(plan: StackPlan) -> dict[str, float]:
    """`Style` of native/fields.h, from the first layer, since all are alike."""
    first = plan.layers[0]
    attention, cross, norm = first.attention, first.cross or first.attention, first.attention_residual.norm
    return {
        "width": plan.width,
        "heads": attention.heads,
        "kv_heads": attention.kv_heads,
        "head": attention.head,
        "cross_heads": cross.heads,
        "cross_head": cross.head,
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
