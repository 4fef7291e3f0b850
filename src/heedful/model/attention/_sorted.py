"""Attention within a sorted text, cut into chunks that look at their neighbours: the work of `lsh`.

Nothing here is larger than (rounds tokens 3 chunk), and even that is made a few chunks at a time, forwards and again
backwards: what is kept for the way back grows with the tokens alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

OWN, HIDDEN = -1e5, -1e9  # the scores of oneself, and of what may not be seen: each far below what comes before it
NOBODY = -1  # the group of padding and of empty slots
SCORES = 1 << 20  # how many are computed at a time: what the processor's cache holds


@dataclass(frozen=True)
class SortedText:
    """The order of the tokens in each round, and who may see whom in it. A round has slots for whole chunks.

    order     batch heads rounds slots: the token in each slot; 0 where a slot is empty
    place     batch heads rounds key: the slot of each token
    group     the same as order: tokens of different groups do not see each other
    sees      chunks (2 or 3): the chunk before each one, itself and, unless nobody looks ahead, the one after; all
              rounds of all rows counted through
    alone     the same: whether there is no such neighbour after all
    near      chunk looked-at: what is added to all scores
    causal, window    are told from the tokens' places in the text, where `near` does not
    """

    chunk: int
    order: Tensor
    place: Tensor
    group: Tensor
    real: Tensor  # batch key
    sees: Tensor
    alone: Tensor
    near: Tensor | None
    causal: bool
    window: int | None

    @classmethod
    def of_groups(cls, group: Tensor, real: Tensor, *, chunk: int, causal: bool, window: int | None) -> "SortedText":
        """Each token sees the `chunk` nearest ones of its group on each side.  group: batch heads rounds key"""
        order, place, group = _sorted(group, real, chunk)
        batch, heads, rounds, slots = order.shape
        number = torch.arange(batch * heads * rounds * slots // chunk, device=order.device)
        in_round, chunks = number % max(1, slots // chunk), slots // chunk
        sees = torch.stack([number - 1, number] if causal else [number - 1, number, number + 1], dim=1)
        in_its_round = in_round[:, None] + torch.arange(-1, sees.shape[1] - 1, device=order.device)
        alone = (in_its_round < 0) | (in_its_round >= chunks)
        slot = torch.arange(chunk, device=order.device)[:, None]
        ahead = torch.arange(-chunk, chunk if causal else 2 * chunk, device=order.device) - slot
        hidden = (ahead.abs() > chunk) | ((ahead > 0) if causal else False)
        near = torch.zeros(ahead.shape, device=order.device).masked_fill_(hidden, HIDDEN).masked_fill_(ahead == 0, OWN)
        sees = sees.clamp(0, max(0, len(sees) - 1))
        return cls(chunk, order, place, group, real, sees, alone, near, causal=False, window=window)

    @classmethod
    def of_chunks(cls, buckets: Tensor, real: Tensor, *, chunk: int, causal: bool, window: int | None) -> "SortedText":
        """Each token sees its chunk and the one before it (and after it). The first looks at the last one of the round
        before, and the first round at the last: so does the published code.  buckets: batch heads rounds key"""
        order, place, group = _sorted(buckets, real, chunk)
        batch, heads, rounds, slots = order.shape
        chunks = slots // chunk
        used = -(-real.sum(-1) // chunk)[:, None, None, None]  # batch 1 1 1: the chunks that hold real tokens
        row = torch.arange(batch * heads, device=order.device).view(batch, heads, 1, 1) * rounds
        turn = torch.arange(rounds, device=order.device)[:, None]
        number = torch.arange(chunks, device=order.device)
        last = (row + (turn - 1) % rounds) * chunks + used - 1
        first = (row + (turn + 1) % rounds) * chunks
        here = (row + turn) * chunks + number
        before, after = torch.where(number > 0, here - 1, last), torch.where(number < used - 1, here + 1, first)
        single = ((used <= 1) | (number >= used)).expand_as(here)  # a text of one chunk sees it once
        double = (used == 2) & (rounds == 1)  # and the other one of two as well
        sees = torch.stack([before, here] if causal else [before, here, after], dim=-1)
        alone = torch.stack([single, here < 0] if causal else [single, here < 0, single | double], dim=-1)
        sees, alone = sees.flatten(0, 3).clamp(min=0), alone.flatten(0, 3)
        return cls(chunk, order, place, group.clamp(max=0), real, sees, alone, None, causal=causal, window=window)

    @property
    def rows(self) -> Tensor:
        """Of each slot, the row of its token where all tokens of all heads lie one below the other."""
        return self._flat(self.order, self.place.shape[-1])

    @property
    def slots(self) -> Tensor:
        """Of each token in each round, its slot where all slots lie one below the other."""
        rounds = self.place.flatten(0, 2)
        start = torch.arange(len(rounds), device=rounds.device)[:, None] * self.order.shape[-1]
        return (rounds + start).flatten()

    @staticmethod
    def _flat(index: Tensor, length: int) -> Tensor:
        rows = index.flatten(0, 1)
        return (rows + torch.arange(len(rows), device=rows.device)[:, None, None] * length).flatten()

    def looked_at(self, chunks: Tensor, part: slice) -> Tensor:
        """The chunks that each chunk of a part sees, side by side: part looked-at ..."""
        seen = chunks.index_select(0, self.sees[part].flatten())
        return seen.view(-1, self.sees.shape[1] * self.chunk, *chunks.shape[2:])

    def give_back(self, chunks: Tensor, looked_at: Tensor, part: slice) -> None:
        """Add to the chunks what belongs to them of `looked_at`: the way back of that."""
        chunks.index_add_(0, self.sees[part].flatten(), looked_at.view(-1, *chunks.shape[1:]))

    def parts(self) -> Iterator[slice]:
        """A few chunks at a time."""
        size = max(1, SCORES // (self.sees.shape[1] * self.chunk**2))
        for start in range(0, len(self.sees), size):
            yield slice(start, start + size)

    def scores(self, query: Tensor, key: Tensor, part: slice) -> Tensor:
        """What may not be seen is HIDDEN.  query: part chunk head; key: part looked-at head -> part chunk looked-at"""
        if self.near is None:
            scores = torch.bmm(query, key.transpose(1, 2))
        else:
            scores = torch.baddbmm(self.near.to(query.dtype), query, key.transpose(1, 2))
        return scores.masked_fill_(self._hidden(part, scores), HIDDEN)

    def _hidden(self, part: slice, scores: Tensor) -> Tensor:
        group = self.group.view(-1, self.chunk)
        others = self.looked_at(group, part)
        others = others.masked_fill(others == NOBODY, NOBODY - 1)  # not even to each other
        others.view(-1, self.sees.shape[1], self.chunk).masked_fill_(self.alone[part, :, None], NOBODY - 1)
        hidden = group[part, :, None] != others[:, None]
        if self.near is not None and self.window is None:
            return hidden
        token = self.order.view(-1, self.chunk).to(torch.int32)
        ahead = self.looked_at(token, part)[:, None] - token[part, :, None]
        if self.causal:
            hidden |= ahead > 0
        if self.window is not None:
            hidden |= ahead.abs() >= self.window
        if self.near is None:
            scores.masked_fill_(ahead == 0, OWN)
        return hidden

    def counts(self) -> Tensor:
        """In how many rounds, or chunks of a round, each token sees each other one: batch heads query key. It is as
        large as it says: for pictures."""
        batch, heads, _, length = self.place.shape
        counts = torch.zeros(batch * heads * length, length, dtype=torch.int64, device=self.order.device)
        query, token = self.rows.view(-1, self.chunk), self.order.view(-1, self.chunk)
        for part in self.parts():
            keys = self.looked_at(token, part)
            no_query, no_key = (torch.zeros(*tokens.shape, 1, device=tokens.device) for tokens in (query[part], keys))
            seen = self.scores(no_query, no_key, part) > HIDDEN / 2
            pairs = (query[part, :, None].expand_as(seen)[seen], keys[:, None].expand_as(seen)[seen])
            counts.index_put_(pairs, torch.ones_like(pairs[0]), accumulate=True)
        return counts.view(batch, heads, length, length)


def _sorted(group: Tensor, real: Tensor, chunk: int) -> tuple[Tensor, Tensor, Tensor]:
    """Order, place and sorted group; padding comes last, and is nobody's."""
    length = group.shape[-1]
    last = torch.iinfo(group.dtype).max
    group, order = group.masked_fill(~real[:, None, None], last).sort(dim=-1, stable=True)
    group = group.masked_fill(group == last, NOBODY)
    place = torch.empty_like(order).scatter_(-1, order, torch.arange(length, device=order.device).expand_as(order))
    empty = -length % chunk
    return F.pad(order, (0, empty)), place, F.pad(group, (0, empty), value=NOBODY)


def attend_sorted(query: Tensor, key: Tensor, value: Tensor, text: SortedText, *, dropout: float) -> Tensor:
    """What each token gathers from what it sees in all rounds: batch heads key head. Padding gathers zeros."""
    seed = int(torch.empty((), dtype=torch.int64).random_()) if dropout else 0
    return _AttendSorted.apply(query, key, value, text, dropout, seed)


class _AttendSorted(torch.autograd.Function):
    """One softmax over all rounds: with m_i the highest score of i and z_i the sum of exp(s_ij - m_i), both over all
    rounds, a weight is exp(s_ij - m_i) / z_i in each of them. So the way back needs m and z, and it is the same for
    every round. (Their logsumexp m + log z would lose all but two digits where a token sees only itself.)"""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, text: SortedText, dropout: float, seed: int
    ) -> Tensor:
        queries, keys, values = (_in_chunks(x, text) for x in (query, key, value))
        gathered = torch.empty_like(values)
        highest, total = (values.new_empty(*values.shape[:2], 1) for _ in range(2))
        draw = _Draw(dropout, seed, query.device)
        for part in text.parts():
            scores = text.scores(queries[part], text.looked_at(keys, part), part)
            torch.amax(scores, -1, keepdim=True, out=highest[part])
            weights = _exp(scores.sub_(highest[part]))
            torch.sum(weights, -1, keepdim=True, out=total[part])
            torch.bmm(draw.dropped(weights), text.looked_at(values, part), out=gathered[part])
        each, heights, totals = (_in_rounds(x, text) for x in (gathered, highest, total))  # rows rounds key (head or 1)
        top = heights.amax(1, keepdim=True)
        share = (heights - top).exp()
        sums = (share * totals).sum(1)
        mixed = (each * share).sum(1) / sums
        mixed = mixed.view(value.shape) * text.real[:, None, :, None]
        ctx.save_for_backward(query, key, value, mixed, top[:, 0], sums)
        ctx.text, ctx.dropout, ctx.seed = text, dropout, seed
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, mixed, top, sums = ctx.saved_tensors
        text: SortedText = ctx.text
        d_mixed = grads[0] * text.real[:, None, :, None] / sums.view(*grads[0].shape[:3], 1)
        queries, keys, values = (_in_chunks(x, text) for x in (query, key, value))
        d_gathered, tops = _in_chunks(d_mixed, text), _in_chunks(top, text)
        inner = _in_chunks((d_mixed * mixed).sum(-1, keepdim=True), text)
        d_queries, d_keys, d_values = torch.empty_like(queries), torch.zeros_like(keys), torch.zeros_like(values)
        draw = _Draw(ctx.dropout, ctx.seed, query.device)
        for part in text.parts():
            looked_at, seen = text.looked_at(keys, part), text.looked_at(values, part)
            weights = _exp(text.scores(queries[part], looked_at, part).sub_(tops[part]))
            kept = draw.kept(weights)
            d_weights = torch.bmm(d_gathered[part], seen.transpose(1, 2))
            used = weights if kept is None else weights * kept
            text.give_back(d_values, torch.bmm(used.transpose(1, 2), d_gathered[part]), part)
            d_scores = (d_weights if kept is None else d_weights.mul_(kept)).sub_(inner[part]).mul_(weights)
            torch.bmm(d_scores, looked_at, out=d_queries[part])
            text.give_back(d_keys, torch.bmm(d_scores.transpose(1, 2), queries[part]), part)
        found = (_in_rounds(x, text).sum(1).view(value.shape) for x in (d_queries, d_keys, d_values))
        return *found, None, None, None


def _exp(x: Tensor) -> Tensor:
    """Of what is not above zero, in its place. Numbers too small for the format cost the processor twenty times as much
    as others: exp(-80) = 1.8e-35 stands for them."""
    return x.clamp_(min=-80).exp_()


def _in_chunks(x: Tensor, text: SortedText) -> Tensor:
    """batch heads key head -> chunks chunk head, in the order of each round"""
    rows = x.reshape(-1, x.shape[-1]).index_select(0, text.rows)
    return rows.view(-1, text.chunk, x.shape[-1])


def _in_rounds(x: Tensor, text: SortedText) -> Tensor:
    """chunks chunk head -> rows rounds key head, in the order of the text"""
    batch, heads, rounds, length = text.place.shape
    return x.flatten(0, 1).index_select(0, text.slots).view(batch * heads, rounds, length, -1)


class _Draw:
    """What dropout keeps, drawn the same way each time: once forwards, once backwards."""

    def __init__(self, p: float, seed: int, device: torch.device) -> None:
        self.p = p
        self.generator = torch.Generator(device).manual_seed(seed) if p else None

    def kept(self, weights: Tensor) -> Tensor | None:
        if self.generator is None:
            return None
        drawn = torch.rand(weights.shape, generator=self.generator, device=weights.device, dtype=weights.dtype)
        return (drawn >= self.p).to(weights.dtype).div_(1 - self.p)

    def dropped(self, weights: Tensor) -> Tensor:
        kept = self.kept(weights)
        return weights if kept is None else weights * kept
