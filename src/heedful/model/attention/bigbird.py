"""Blocks of tokens see their neighbours, both ends of the text, and a few blocks drawn by chance."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from heedful.config import Size
from heedful.model.attention import HeadShape, Mix, MixConfig
from heedful.model.attention._chunks import Visible, attend, repeated
from heedful.model.attention.longformer import Chosen
from heedful.model.attention.window import padded
from heedful.model.cache import LayerCache
from heedful.model.sight import Sight

NOWHERE = -1


class BigBirdConfig(MixConfig):
    """Each block of `block` tokens sees itself, `neighbours` blocks on each side, `ends` blocks at each end of the
    text, and `random` others, drawn by `seed` for each layer and head (layers that share their weights share
    their blocks). The blocks at the ends see everything."""

    supports: ClassVar[frozenset[str]] = frozenset({"groups"})
    exact: ClassVar[bool] = False
    long: ClassVar[bool] = True
    block: Size = 64
    random: int = Field(3, ge=0)
    neighbours: int = Field(1, ge=0)
    ends: int = Field(1, ge=0)
    seed: int = Field(0, ge=0)

    def build(self, shape: HeadShape) -> "BigBird":
        return BigBird(self, shape)

    def flops(self, shape: HeadShape, length: int) -> int:
        blocks = self.slots + 2 * self.ends  # those at the ends see every token
        return 2 * 2 * min(length, blocks * self.block) * shape.heads * shape.head

    @property
    def slots(self) -> int:
        """How many blocks a block sees at most."""
        return 2 * self.neighbours + 1 + 2 * self.ends + self.random


class BigBird(Mix):
    """Zaheer et al. 2020, section 2 and appendix D: softmax attention over some blocks of keys,

        i's block sees   its window of 2 neighbours + 1 blocks  +  the ends of the text  +  `random` others

    Time and memory: length x blocks seen x block. It equals full attention where a text has at most neighbours + 1 +
    2 ends + random blocks: then every block sees all. Not causal: the ends see everything.

    Which blocks are drawn depends on seed, layer, head and the number of blocks of the text: it is the same in
    training and use, does not depend on what was computed before, and every block of the text may be drawn. Blocks are
    counted from a text's first real token, so padding changes nothing. Differs: the paper's code draws from the first
    1,024 tokens only, and a block that is both drawn and near counts twice there.
    """

    def __init__(self, config: BigBirdConfig, shape: HeadShape) -> None:
        super().__init__()
        self.config = config
        self.layer, self.heads = shape.layer, shape.heads
        self.scale, self.dropout = shape.scale, shape.dropout

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
        assert cache is None and not sight.mask.causal
        batch, _, length, _ = key.shape
        valid = sight.mask.key_valid
        lengths = [length] * batch
        order = None
        if valid is not None:
            valid = repeated(valid, batch)
            lengths = valid.sum(1).tolist()
            if bool((valid[:, 1:] & ~valid[:, :-1]).any()):  # padding before or between the tokens: they close ranks
                order = (~valid).long().argsort(dim=1, stable=True)
                query, key, value = (_ordered(x, order) for x in (query, key, value))
            valid = torch.arange(length, device=key.device) < valid.sum(1, keepdim=True)
        plan = self.plan_of(lengths, length).to(key.device)
        dropout = self.dropout if self.training else 0.0
        mixed = attend_by_plan(query, key, value, plan, valid, scale=self.scale, dropout=dropout)
        return mixed if order is None else torch.zeros_like(mixed).scatter(2, _index(order, mixed), mixed)

    def plan_of(self, lengths: list[int], longest: int) -> "Plan":
        """Of texts of these lengths, in a batch that is `longest` wide."""
        config = self.config
        counts = [-(-length // config.block) for length in lengths]
        drawn = {count: draw(config, count, self.heads, self.layer) for count in set(counts)}
        room = -(-longest // config.block)
        if len(drawn) == 1 and counts[0] == room:
            counts = counts[:1]
        slots = torch.full((len(counts), self.heads, room, config.slots), NOWHERE)
        for row, count in enumerate(counts):
            slots[row, :, :count] = drawn[count]
        place, last = torch.arange(room), torch.tensor(counts)[:, None]
        ends = (place < last) & ((place < config.ends) | (place >= last - config.ends))
        return Plan(config.block, slots, ends)

    def weights(self, query: Tensor, key: Tensor, *, sight: Sight, others: tuple[Tensor, ...] = ()) -> Tensor:
        batch, kv_heads, length, _ = key.shape
        valid = torch.ones(batch, length, dtype=torch.bool, device=key.device)
        if sight.mask.key_valid is not None:
            valid = repeated(sight.mask.key_valid, batch)
        plan = self.plan_of(valid.sum(1).tolist(), length).to(key.device)
        block = ((valid.long().cumsum(1) - 1).clamp(min=0) // plan.block)[:, None]  # batch 1 length
        seen = repeated(plan.dense(), batch)  # batch heads blocks blocks
        rows = seen.gather(2, block[..., None].expand(-1, seen.shape[1], -1, seen.shape[-1]))
        visible = rows.gather(3, block[:, :, None].expand(-1, seen.shape[1], length, -1))
        visible = visible & valid[:, None, None] & valid[:, None, :, None]
        scores = self.scale * query @ key.repeat_interleave(query.shape[1] // kv_heads, dim=1).transpose(-2, -1)
        scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
        return scores.softmax(-1).masked_fill(~visible, 0)


@dataclass(frozen=True)
class Plan:
    """Which blocks of keys each block of queries sees."""

    block: int
    slots: Tensor  # (batch or 1) heads blocks slots: numbers of blocks, each at most once; NOWHERE = none
    ends: Tensor  # (batch or 1) blocks: True = sees everything

    def to(self, device: torch.device) -> "Plan":
        return Plan(self.block, self.slots.to(device), self.ends.to(device))

    def dense(self) -> Tensor:
        """(batch or 1) heads blocks blocks, for pictures"""
        blocks = self.slots.shape[2]
        seen = torch.zeros(*self.slots.shape[:3], blocks + 1, dtype=torch.bool, device=self.slots.device)
        seen.scatter_(3, self.slots.where(self.slots != NOWHERE, blocks), True)
        return seen[..., :blocks] | self.ends[:, None, :, None]


def draw(config: BigBirdConfig, blocks: int, heads: int, layer: int) -> Tensor:
    """The blocks that each block of a text of so many sees: heads blocks slots. No state is read or changed."""
    place = torch.arange(blocks)[:, None]
    near = place + torch.arange(-config.neighbours, config.neighbours + 1)
    ends = torch.cat([torch.arange(config.ends), torch.arange(blocks - config.ends, blocks)])
    fixed = torch.cat([near, ends.expand(blocks, -1)], dim=1)
    fixed = fixed.masked_fill((fixed < 0) | (fixed >= blocks), NOWHERE)
    again = (fixed[:, :, None] == fixed[:, None]).tril(-1).any(-1)
    fixed = fixed.masked_fill(again, NOWHERE).expand(heads, -1, -1)
    number = (config.seed * 1_000_003 + layer) * 1_000_003 + blocks
    generator = torch.Generator("cpu").manual_seed(number % 2**63)
    chance = torch.rand(config.random, heads, blocks, generator=generator, dtype=torch.float64)
    return torch.cat([fixed, _others(fixed, chance, blocks)], dim=-1)


def _others(fixed: Tensor, chance: Tensor, blocks: int) -> Tensor:
    """As many different blocks that are not among the fixed ones as there are, at most len(chance): Floyd's way to draw
    without replacement, then a step over each fixed block below.  fixed: heads blocks slots -> heads blocks random"""
    left = blocks - (fixed != NOWHERE).sum(-1)  # heads blocks: how many there are to draw from
    drawn: list[Tensor] = []
    for turn, luck in enumerate(chance):
        last = left - len(chance) + turn
        one = (luck * (last + 1)).long()
        taken = torch.stack([one == other for other in drawn]).any(0) if drawn else torch.zeros_like(one).bool()
        drawn.append(torch.where(last < 0, NOWHERE, torch.where(taken, last, one)))
    found = torch.stack(drawn, dim=-1) if drawn else fixed[..., :0]
    for step in fixed.where(fixed != NOWHERE, blocks + 1).sort(-1).values.unbind(-1):
        found = torch.where(found == NOWHERE, NOWHERE, found + (found >= step[..., None]))
    return found


def attend_by_plan(
    query: Tensor, key: Tensor, value: Tensor, plan: Plan, valid: Tensor | None, *, scale: float, dropout: float = 0.0
) -> Tensor:
    """For shapes see `Mix`; valid: batch length, and what is not valid gathers zeros."""
    batch, _, length, head = query.shape
    blocks = plan.slots.shape[2]
    room = blocks * plan.block - length
    real = torch.ones(batch, length, dtype=torch.bool, device=key.device) if valid is None else valid
    real = padded(real, 0, room)
    query, key, value = (padded(x.transpose(1, 2), 0, room).transpose(1, 2) for x in (query, key, value))
    mixed = _some(query, key, value, plan, real, scale=scale, dropout=dropout)
    chosen = Chosen.of(repeated(plan.ends, batch))
    if chosen.index.shape[1]:
        whole = mixed.unflatten(2, (blocks, -1)).flatten(3)  # batch heads blocks block*head
        rows = chosen.take(query.unflatten(2, (blocks, -1)).flatten(3))
        rows = rows.unflatten(3, (plan.block, head)).flatten(2, 3)
        rows = attend(rows, key, value, Visible.of(real[:, None, None]), scale=scale, dropout=dropout)
        rows = rows.unflatten(2, (-1, plan.block)).flatten(3)
        index = chosen.index[:, None, :, None].expand_as(rows)
        rows = torch.where(chosen.real[:, None, :, None], rows, whole.gather(2, index))
        mixed = whole.scatter(2, index, rows).unflatten(3, (plan.block, head)).flatten(2, 3)
    if valid is not None:
        mixed = mixed * real[:, None, :, None]
    return mixed[:, :, :length]


def _some(
    query: Tensor, key: Tensor, value: Tensor, plan: Plan, real: Tensor, *, scale: float, dropout: float
) -> Tensor:
    """Every block of queries to its blocks of keys, each block of each head of each text an attention of its own."""
    batch, heads, length, head = query.shape
    kv_heads, (blocks, count) = key.shape[1], plan.slots.shape[2:]
    slots = repeated(plan.slots, batch)
    index = slots.clamp(min=0)  # batch heads blocks slots
    there = real.unflatten(1, (blocks, -1))  # batch blocks block
    text = torch.arange(batch, device=key.device)[:, None, None, None]
    seen = there[text, index] & (slots != NOWHERE)[..., None]  # batch heads blocks slots block
    lane = text * kv_heads + torch.arange(heads, device=key.device)[:, None, None] // (heads // kv_heads)
    flat = (lane * blocks + index).flatten()
    spans = [
        x.reshape(batch * kv_heads * blocks, -1).index_select(0, flat).reshape(-1, 1, count * plan.block, head)
        for x in (key, value)
    ]
    chunks = query.reshape(-1, 1, plan.block, head)
    visible = Visible.of(seen.reshape(-1, 1, 1, count * plan.block))
    mixed = attend(chunks, spans[0], spans[1], visible, scale=scale, dropout=dropout)
    return mixed.reshape(batch, heads, length, head)


def _index(order: Tensor, x: Tensor) -> Tensor:
    return order[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3])


def _ordered(x: Tensor, order: Tensor) -> Tensor:
    return x.gather(2, _index(order, x))
