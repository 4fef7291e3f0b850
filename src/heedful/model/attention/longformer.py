"""A sliding window, and a few global tokens that see everything and are seen by everybody."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from heedful.model.attention import HeadShape, Mix, MixConfig
from heedful.model.attention._chunks import Facts, Visible, attend, repeated, term_of
from heedful.model.attention.reference import weights_of
from heedful.model.attention.window import Band, reach, require_window
from heedful.model.cache import LayerCache
from heedful.model.position.rotary import rotate
from heedful.model.sight import Sight


class LongformerConfig(MixConfig):
    """The first `first` tokens of each text are global, and those that a task marks (`Mask.global_tokens`). It is a
    property of the model, so that training and use cannot differ. `attention.window` is as in `window`."""

    supports: ClassVar[frozenset[str]] = frozenset({"window", "segments", "global_tokens", "bias", "score", "groups"})
    exact: ClassVar[bool] = False
    long: ClassVar[bool] = True
    projections: ClassVar[tuple[str, ...]] = (
        "query",
        "key",
        "value",
        "query_global",
        "key_global",
        "value_global",
    )
    first: int = Field(1, ge=0)

    def build(self, shape: HeadShape) -> "Longformer":
        assert shape.window is not None
        return Longformer(shape.window, self.first, scale=shape.scale, dropout=shape.dropout)

    def check(self, shape: HeadShape) -> None:
        require_window(self, shape)

    def flops(self, shape: HeadShape, length: int) -> int:
        seen = min(length, reach(shape) + 2 * self.first)  # each global token sees every token, and is seen by it
        return 2 * 2 * seen * shape.heads * shape.head


class Longformer(Mix):
    """Beltagy et al. 2020, section 3.1: with G the global tokens of a text,

        i not in G:   softmax over j of  q_i . k_j,            |i - j| < window  or  j in G;     gathers v
        i in G:       softmax over j of  qg_i . kg_j,          all j;                            gathers vg

    Time and memory: length x (window + |G|). It equals full attention where the window covers the text and the global
    projections (qg, kg, vg) equal the local ones or nothing is global. Not causal: a global token sees the future.
    Differs: the paper's window w is w / 2 + 1 here, which counts the token itself; a global token within the window is
    seen once, as in their code. Queries and keys of global tokens are rotated like the others where positions rotate.
    """

    def __init__(self, window: int, first: int, *, scale: float, dropout: float) -> None:
        super().__init__()
        self.window = window
        self.first = first
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
        assert cache is None and not sight.mask.causal
        facts = Facts.of(sight, key.shape[2], key.shape[2])
        chosen = sight.mask.once(("longformer", self.first, len(key)), lambda: self._global(sight, facts, key))
        mixed = self._local(query, key, value, sight, facts, chosen)
        if not chosen.index.shape[1]:
            return mixed
        query_global, key_global = _turned(others[:2], sight)
        rows = self._all(chosen.take(query_global), key_global, others[2], sight, facts, chosen)
        index = chosen.index[:, None, :, None].expand_as(rows)
        rows = torch.where(chosen.real[:, None, :, None], rows, mixed.gather(2, index))
        return mixed.scatter(2, index, rows)

    def _global(self, sight: Sight, facts: Facts, key: Tensor) -> "Chosen":
        batch, _, length, _ = key.shape
        marked = first_of_each(facts, self.first, length, key.device)
        if sight.mask.global_tokens is not None:
            marked = marked | sight.mask.global_tokens
        if facts.valid is not None:
            marked = marked & facts.valid
        return Chosen.of(repeated(marked, batch))

    def _local(self, query: Tensor, key: Tensor, value: Tensor, sight: Sight, facts: Facts, chosen: "Chosen") -> Tensor:
        """Of every token: its window, and the global tokens in front of it."""
        length = query.shape[2]
        band = Band.of(self.window, both=True, queries=length, keys=length)
        visible = sight.mask.once((band, "longformer", len(query)), lambda: _local_visible(band, facts, query, chosen))
        chunks, spans, values = band.chunks(query), band.spans(key), band.spans(value)
        if chosen.index.shape[1]:
            spans, values = (
                torch.cat([chosen.take(x).repeat_interleave(band.count, dim=0), local], dim=2)
                for x, local in ((key, spans), (value, values))
            )
        places = facts.positions
        term = None
        if places is not None:
            term = term_of(
                facts.position,
                chunks,
                spans,
                query_positions=band.chunk_facts(repeated(places, len(query))),
                key_positions=_with_chosen(band, places, chosen, query),
                scale=self.scale,
            )
        return band.merge(attend(chunks, spans, values, visible, scale=self.scale, dropout=self._dropout, term=term))

    def _all(self, query: Tensor, key: Tensor, value: Tensor, sight: Sight, facts: Facts, chosen: "Chosen") -> Tensor:
        """Of the global tokens: everything."""
        visible = sight.mask.once(("everything", self.first, len(key)), lambda: _all_visible(facts, key, chosen))
        places = None if facts.positions is None else repeated(facts.positions, len(key))
        term = term_of(
            facts.position,
            query,
            key,
            query_positions=None if places is None else chosen.facts(places),
            key_positions=places,
            scale=self.scale,
        )
        return attend(query, key, value, visible, scale=self.scale, dropout=self._dropout, term=term)

    @property
    def _dropout(self) -> float:
        return self.dropout if self.training else 0.0

    def weights(self, query: Tensor, key: Tensor, *, sight: Sight, others: tuple[Tensor, ...] = ()) -> Tensor:
        """Rows of global tokens are weights of the global values."""
        chosen = self._global(sight, Facts.of(sight, key.shape[2], key.shape[2]), key)
        mask = replace(sight.mask, window=self.window, global_tokens=chosen.marked, _made={})
        local = weights_of(query, key, sight=replace(sight, mask=mask), scale=self.scale)
        whole = replace(sight, mask=replace(mask, window=None, global_tokens=None, _made={}))
        rows = weights_of(*_turned(others[:2], sight), sight=whole, scale=self.scale)
        return torch.where(chosen.marked[:, None, :, None], rows, local)


@dataclass(frozen=True)
class Chosen:
    """The global tokens of each text, as many as the text with the most has."""

    marked: Tensor  # batch length; True = global
    index: Tensor  # batch chosen: their places
    real: Tensor  # batch chosen; False = this text has fewer

    @classmethod
    def of(cls, marked: Tensor) -> "Chosen":
        most = int(marked.sum(1).max())
        index = (~marked).long().argsort(dim=1, stable=True)[:, :most]
        return cls(marked, index, marked.gather(1, index))

    def take(self, x: Tensor) -> Tensor:
        """batch heads length head -> batch heads chosen head"""
        return x.gather(2, self.index[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))

    def facts(self, fact: Tensor) -> Tensor:
        """batch length -> batch chosen"""
        return fact.gather(1, self.index)


def first_of_each(facts: Facts, first: int, length: int, device: torch.device) -> Tensor:
    """(batch or 1) length: whether a token is among the first of its text, padding not counted."""
    real = torch.ones(1, length, dtype=torch.long, device=device) if facts.valid is None else facts.valid.long()
    before = real.cumsum(1) - real  # how many real tokens stand before each
    if facts.segments is not None:
        starts = torch.ones_like(facts.segments, dtype=torch.bool)
        starts[:, 1:] = facts.segments[:, 1:] != facts.segments[:, :-1]
        before = before - (before * starts).cummax(1).values
    return (before < first) & real.bool()


def _local_visible(band: Band, facts: Facts, query: Tensor, chosen: Chosen) -> Visible:
    """Of each chunk: the global tokens, then those of the window that are not global."""
    others = ~chosen.marked if facts.valid is None else facts.valid & ~chosen.marked
    near = band.visible(replace(facts, valid=others), query, causal=False)  # batch*count 1 size span
    if not chosen.index.shape[1]:
        return Visible.of(near)
    marked = chosen.real[:, None].repeat_interleave(band.count, dim=0)  # batch*count 1 chosen
    if facts.segments is not None:
        segments = repeated(facts.segments, len(query))
        those = chosen.facts(segments)[:, None].repeat_interleave(band.count, dim=0)
        marked = marked & (band.chunk_facts(segments)[:, :, None] == those)
    return Visible.of(torch.cat([marked[:, None].expand(-1, -1, band.size, -1), near], dim=-1))


def _with_chosen(band: Band, places: Tensor, chosen: Chosen, query: Tensor) -> Tensor:
    """The positions of the global tokens, then of each chunk's span: batch*count chosen+span"""
    places = repeated(places, len(query))
    marked = chosen.facts(places).repeat_interleave(band.count, dim=0)
    return torch.cat([marked, band.span_facts(places)], dim=1)


def _all_visible(facts: Facts, key: Tensor, chosen: Chosen) -> Visible:
    """batch 1 chosen length"""
    batch, _, length, _ = key.shape
    seen = chosen.real[:, None, :, None].expand(-1, -1, -1, length)
    if facts.valid is not None:
        seen = seen & facts.valid[:, None, None]
    if facts.segments is not None:
        segments = repeated(facts.segments, batch)
        seen = seen & (chosen.facts(segments)[:, None, :, None] == segments[:, None, None])
    return Visible.of(seen)


def _turned(parts: tuple[Tensor, ...], sight: Sight) -> list[Tensor]:
    rotation = sight.rotation()
    return [part if rotation is None else rotate(part, rotation) for part in parts]
