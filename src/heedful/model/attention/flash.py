"""Exact softmax attention in blocks, with memory that is linear in the length of the text."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from heedful.model.attention import FACTS, HeadShape, Mix, MixConfig
from heedful.model.attention._chunks import Facts, attend_all
from heedful.model.attention.reference import weights_of
from heedful.model.cache import KeyValueCache, LayerCache
from heedful.model.mask import Mask
from heedful.model.position import Position
from heedful.model.sight import Sight

BLOCK = 256  # queries and keys at a time: few enough that their scores stay in the cache of a core (measured)


class FlashConfig(MixConfig):
    supports: ClassVar[frozenset[str]] = FACTS
    long: ClassVar[bool] = True

    def build(self, shape: HeadShape) -> "Flash":
        return Flash(shape.scale, shape.dropout)


class Flash(Mix):
    """The same function as `softmax`, always.      Dao et al. 2022, algorithm 1; backwards: algorithm 4

        for each block of keys:  m' = max(m, rowmax S),   P = exp(S - m'),   S = scale Q K' + bias
                                 l = l e^(m - m') + rowsum P,   Y = Y e^(m - m') + P V
        then                     Y / l,   and for the way back  L = m + log l
        back:                    P = exp(S - L),   dS = P (dY V' - rowsum(dY Y)),   dQ = scale dS K, ...

    Scores are computed twice, and only a block of them is ever held. Blocks that nobody sees (the future, what is
    outside a window, other texts of a row) are skipped. Masks and position biases are made block by block.
    Differs: blocks are sized for the cache of a CPU core. Where there is nothing to mask but the future and nothing to
    add, kernels that work in the same way take over.
    """

    def __init__(self, scale: float, dropout: float) -> None:
        super().__init__()
        self.scale = scale
        self.dropout = dropout

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        sight: Sight,
        cache: LayerCache | None = None,
        others: tuple[Tensor, ...] = (),
    ) -> Tensor:
        if cache is not None:
            assert isinstance(cache, KeyValueCache)
            key, value = cache.append(key, value)
        dropout = self.dropout if self.training else 0.0
        mask = sight.mask
        if not dropout and mask.facts() <= {"causal"}:
            facts = Facts.of(sight, key.shape[2], key.shape[2])
            mixed = attend_all(query, key, value, facts, mask, scale=self.scale, dropout=0.0)
            if mixed is not None:
                return mixed
        seed = int(torch.randint(2**62, ())) if dropout else 0
        work = Work(sight, self.scale, dropout, seed, query.shape[2], key.shape[2], query.device)
        learned = [one for one in work.learned() if one.requires_grad]
        y: Tensor = _Flash.apply(work, query, key, value, *learned)
        return y

    def new_cache(self, length: int) -> KeyValueCache:
        return KeyValueCache(length)

    def weights(self, query: Tensor, key: Tensor, *, sight: Sight, others: tuple[Tensor, ...] = ()) -> Tensor:
        return weights_of(query, key, sight=sight, scale=self.scale)


@dataclass
class Work:
    """What one pass is about, beside its tensors."""

    sight: Sight
    scale: float
    dropout: float
    seed: int
    queries: int
    keys: int
    device: torch.device
    position: Position | None = field(init=False)

    def __post_init__(self) -> None:
        sight = self.sight
        placed = sight.position is not None and sight.query_positions is not None and sight.key_positions is not None
        kind = type(sight.position)
        acts = placed and (kind.bias is not Position.bias or kind.score is not Position.score)  # type: ignore[union-attr]
        self.position = sight.position if acts else None

    def learned(self) -> list[Tensor]:
        """The parameters that the scores depend on beside queries and keys."""
        return [] if self.position is None else list(self.position.parameters())

    def blocks_of_queries(self) -> Iterator[range]:
        for first in range(0, self.queries, BLOCK):
            yield range(first, min(first + BLOCK, self.queries))

    def seen_by(self, rows: range) -> list[tuple[range, bool]]:
        """The blocks of keys that these queries see something of, and whether they see all of each."""
        found: list[tuple[range, bool]] = self.sight.mask.once(
            ("flash", rows, self.queries, self.keys), lambda: list(self._seen_by(rows))
        )
        return found

    def _seen_by(self, rows: range) -> Iterator[tuple[range, bool]]:
        for first in range(0, self.keys, BLOCK):
            columns = range(first, min(first + BLOCK, self.keys))
            if _far(self.sight.mask, self.places(rows), columns):
                continue
            visible = self.visible(rows, columns)
            if visible is None or bool(visible.any()):
                yield columns, visible is None or bool(visible.all())

    def places(self, rows: range) -> range:
        """The last query stands beside the last key."""
        away = self.keys - self.queries
        return range(rows.start + away, rows.stop + away)

    def visible(self, rows: range, columns: range) -> Tensor | None:
        return self.sight.mask.part(self.places(rows), columns, self.device)

    def term(self, query: Tensor, key: Tensor, rows: range, columns: range) -> Tensor | None:
        """What the position scheme adds to the scaled scores of these queries and keys."""
        if self.position is None:
            return None
        assert self.sight.query_positions is not None and self.sight.key_positions is not None
        query_positions = self.sight.query_positions[:, rows.start : rows.stop]
        key_positions = self.sight.key_positions[:, columns.start : columns.stop]
        bias = self.position.bias(query_positions, key_positions)
        wide = _wide(query)
        score = self.position.score(
            query.to(wide), key.to(wide), query_positions=query_positions, key_positions=key_positions
        )
        if score is None:
            return bias
        return self.scale * score if bias is None else bias + self.scale * score

    def kept(self, like: Tensor, rows: range, columns: range) -> Tensor | None:
        """What dropout multiplies the weights of a block by: drawn again, the same, on the way back."""
        if not self.dropout:
            return None
        block = rows.start // BLOCK * -(-self.keys // BLOCK) + columns.start // BLOCK
        generator = torch.Generator(like.device).manual_seed((self.seed + block) % 2**63)
        kept = torch.rand(like.shape, generator=generator, device=like.device) >= self.dropout
        return kept.to(like.dtype) / (1 - self.dropout)

    def scores(self, query: Tensor, key: Tensor, rows: range, columns: range, whole: bool) -> Tensor:
        """Of a block, scaled, -inf where a query may not look: batch heads query key, as wide as `_wide` says"""
        exact = _wide(query)
        scores = _by_groups(query.to(exact) * self.scale, key.to(exact).transpose(-2, -1))
        term = self.term(query, key, rows, columns)
        if term is not None:
            scores += term
        if not whole:
            visible = self.visible(rows, columns)
            assert visible is not None
            scores.masked_fill_(~visible, -torch.inf)
        return scores


class _Flash(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, work: Work, query: Tensor, key: Tensor, value: Tensor, *learned: Tensor) -> Tensor:
        batch, heads, queries, head = query.shape
        y = query.new_empty(batch, queries, heads, head).transpose(1, 2)
        sums = query.new_empty(batch, heads, queries, 1, dtype=_wide(query))
        with torch.autocast(query.device.type, enabled=False):
            for rows in work.blocks_of_queries():
                y[:, :, _at(rows)], sums[:, :, _at(rows)] = _gathered(work, query[:, :, _at(rows)], key, value, rows)
        ctx.work = work
        ctx.save_for_backward(query, key, value, y, sums)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, y, sums = ctx.saved_tensors
        work: Work = ctx.work
        found = [torch.zeros_like(x, dtype=_wide(query)) for x in (query, key, value)]
        learned = [one for one in work.learned() if one.requires_grad]
        d_learned = [torch.zeros_like(one) for one in learned]
        with torch.autocast(query.device.type, enabled=False):
            for rows in work.blocks_of_queries():
                at = _at(rows)
                d_y = grads[0][:, :, at].to(_wide(query))
                mean = (d_y * y[:, :, at]).sum(-1, keepdim=True)
                for columns, whole in work.seen_by(rows):
                    parts = query[:, :, at], key[:, :, _at(columns)], value[:, :, _at(columns)]
                    slopes = _back(work, parts, d_y, mean, sums[:, :, at], found, rows, columns, whole)
                    _back_through_term(work, parts, slopes, found, learned, d_learned, rows, columns)
        made = [x.to(query.dtype) for x in found]
        return None, *made, *d_learned


def _gathered(work: Work, query: Tensor, key: Tensor, value: Tensor, rows: range) -> tuple[Tensor, Tensor]:
    """What a block of queries gathers, and the logarithm of the sum of its exponents (inf: nothing was seen)."""
    exact = _wide(query)
    total = query.new_zeros(*query.shape[:3], 1, dtype=exact)
    most, mixed = torch.full_like(total, -torch.inf), torch.zeros_like(query, dtype=exact)
    for columns, whole in work.seen_by(rows):
        scores = work.scores(query, key[:, :, _at(columns)], rows, columns, whole)
        higher = torch.maximum(most, scores.amax(-1, keepdim=True))
        finite = higher.masked_fill(higher == -torch.inf, 0)  # of rows that have seen nothing yet
        weights, fade = scores.sub_(finite).exp_(), (most - finite).exp_()
        total = total * fade + weights.sum(-1, keepdim=True)
        kept = work.kept(weights, rows, columns)
        if kept is not None:
            weights *= kept
        mixed = mixed * fade + _by_groups(weights, value[:, :, _at(columns)].to(exact))
        most = higher
    return mixed / total.masked_fill(total == 0, 1), (most + total.log()).masked_fill(total == 0, torch.inf)


def _back(
    work: Work,
    parts: tuple[Tensor, Tensor, Tensor],
    d_y: Tensor,
    mean: Tensor,
    sums: Tensor,
    found: list[Tensor],
    rows: range,
    columns: range,
    whole: bool,
) -> Tensor:
    """Adds what a block gives to the gradients of queries, keys and values; the gradient of its scores comes back."""
    query, key, value = (x.to(_wide(parts[0])) for x in parts)
    weights = work.scores(parts[0], parts[1], rows, columns, whole).sub_(sums).exp_()
    slopes = _by_groups(d_y, value.transpose(-2, -1))
    kept = work.kept(weights, rows, columns)
    if kept is None:
        found[2][:, :, _at(columns)] += _over_groups(weights, d_y, value.shape[1])
    else:
        slopes *= kept
        found[2][:, :, _at(columns)] += _over_groups(weights * kept, d_y, value.shape[1])
    slopes = slopes.sub_(mean).mul_(weights)
    found[0][:, :, _at(rows)] += work.scale * _by_groups(slopes, key)
    found[1][:, :, _at(columns)] += work.scale * _over_groups(slopes, query, key.shape[1])
    return slopes


def _back_through_term(
    work: Work,
    parts: tuple[Tensor, Tensor, Tensor],
    slopes: Tensor,
    found: list[Tensor],
    learned: list[Tensor],
    d_learned: list[Tensor],
    rows: range,
    columns: range,
) -> None:
    """The gradient of what the position scheme adds: computed again, with its own graph."""
    if work.position is None:
        return
    query, key = (x.detach().requires_grad_() for x in parts[:2])
    with torch.enable_grad():
        term = work.term(query, key, rows, columns)
    if term is None or not term.requires_grad:
        return
    inputs = [query, key, *learned]
    made = torch.autograd.grad(term, inputs, slopes.sum_to_size(term.shape).to(term.dtype), allow_unused=True)
    places = found[0][:, :, _at(rows)], found[1][:, :, _at(columns)], *d_learned
    for place, one in zip(places, made, strict=True):
        if one is not None:
            place += one


def _far(mask: Mask, rows: range, columns: range) -> bool:
    """Whether queries and keys are too far apart to look, which takes no matrix to tell."""
    future = mask.causal and mask.prefix is None and columns.start >= rows.stop
    if future or mask.window is None or mask.global_tokens is not None:
        return future
    return columns.start - rows.stop + 1 >= mask.window or rows.start - columns.stop + 1 >= mask.window


def _by_groups(x: Tensor, y: Tensor) -> Tensor:
    """x y, where neighbouring heads of x share one of y.  batch heads query a, batch kv_heads a b -> batch heads query
    b"""
    made = x.reshape(len(x), y.shape[1], -1, x.shape[-1]) @ y
    return made.reshape(*x.shape[:3], y.shape[-1])


def _over_groups(x: Tensor, y: Tensor, kv_heads: int) -> Tensor:
    """x' y, summed over the heads that share.  batch heads query a, batch heads query b -> batch kv_heads a b"""
    first, second = (one.reshape(len(one), kv_heads, -1, one.shape[-1]) for one in (x, y))
    return first.transpose(-2, -1) @ second


def _wide(x: Tensor) -> torch.dtype:
    """What sums are kept in."""
    return torch.float64 if x.dtype is torch.float64 else torch.float32


def _at(block: range) -> slice:
    return slice(block.start, block.stop)
