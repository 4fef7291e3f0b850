"""A sliding window: each token sees its neighbours. Time and memory are linear in the length of the text."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.config import Size
from heedful.model.attention import HeadShape, Mix, MixConfig
from heedful.model.attention._chunks import Facts, Visible, attend, attend_all, repeated, term_of
from heedful.model.attention.reference import weights_of
from heedful.model.cache import LayerCache
from heedful.model.mask import Blocks, Mask
from heedful.model.sight import Sight

# Queries per chunk: enough for full matrix products; few enough that a span is little longer than the window; and so
# many that the neighbours which are copied together into a span stay few (measured with windows of 16 to 4,096).
SMALL, LARGE, COPIES = 32, 128, 4


class WindowConfig(MixConfig):
    """`attention.window` is how many places a token sees to each side, itself included. With `dilation` d it sees every
    d-th place only, as many as before, and so d times as far."""

    supports: ClassVar[frozenset[str]] = frozenset(
        {"causal", "window", "segments", "prefix", "bias", "score", "groups"}
    )
    long: ClassVar[bool] = True
    dilation: Size = 1

    def build(self, shape: HeadShape) -> "Window":
        assert shape.window is not None
        return Window(shape.window, self.dilation, causal=shape.causal, scale=shape.scale, dropout=shape.dropout)

    def check(self, shape: HeadShape) -> None:
        require_window(self, shape)

    def flops(self, shape: HeadShape, length: int) -> int:
        assert shape.window is not None
        return 2 * 2 * min(length, reach(shape)) * shape.heads * shape.head

    def remembered(self, shape: HeadShape) -> int:
        return 0  # for each token; a window of keys and values for all of them


def require_window(config: MixConfig, shape: HeadShape) -> None:
    if shape.window is None:
        raise ValueError(
            f"attention {config.kind} needs a window in every layer; set attention.window, for example to 256, "
            "or choose mix flash for layers that see everything"
        )


def reach(shape: HeadShape) -> int:
    """How many keys a query sees at most, itself included."""
    assert shape.window is not None
    return shape.window if shape.causal else 2 * shape.window - 1


class Window(Mix):
    """softmax attention over the keys fewer than `window` places away.

        y_i = sum_j softmax_j(q_i . k_j * scale) v_j,      |i - j| < window * dilation  and  dilation divides i - j

    Beltagy et al. 2020 (Longformer), section 3.1; causal: Child et al. 2019, Jiang et al. 2023 (Mistral), section 2.
    Without dilation it is exact: it equals softmax with the same window, and full attention where no text is longer
    than the window. Differs: Longformer's window w is w / 2 to each side, which is w / 2 + 1 here; Mistral's is the
    same as here.
    """

    def __init__(self, window: int, dilation: int, *, causal: bool, scale: float, dropout: float) -> None:
        super().__init__()
        self.window = window
        self.dilation = dilation
        self.causal = causal
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
            assert isinstance(cache, RecentCache)
            key, value = cache.append(key, value)
        facts = Facts.of(sight, key.shape[2], key.shape[2] if cache is None else cache.length)
        if self.dilation == 1:
            return self._attend(query, key, value, facts, sight.mask)
        weave = Weave(self.dilation, query.shape[2], key.shape[2])
        parts = weave.queries(query), weave.keys(key), weave.keys(value)
        return weave.back(self._attend(*parts, weave.facts(facts, key.device), sight.mask))

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, facts: Facts, mask: Mask) -> Tensor:
        if key.shape[2] <= self.window:
            mixed = attend_all(query, key, value, facts, mask, scale=self.scale, dropout=self._dropout)
            if mixed is not None:
                return mixed
        both = not mask.causal or facts.prefix is not None
        band = Band.of(self.window, both=both, queries=query.shape[2], keys=key.shape[2])
        visible = mask.once(
            (band, self.dilation, len(query)), lambda: Visible.of(band.visible(facts, query, mask.causal))
        )
        chunks, spans = band.chunks(query), band.spans(key)
        term = term_of(
            facts.position,
            chunks,
            spans,
            query_positions=None if facts.positions is None else band.chunk_facts(facts.positions),
            key_positions=None if facts.positions is None else band.span_facts(facts.positions),
            scale=self.scale,
        )
        mixed = attend(chunks, spans, band.spans(value), visible, scale=self.scale, dropout=self._dropout, term=term)
        return band.merge(mixed)

    @property
    def _dropout(self) -> float:
        return self.dropout if self.training else 0.0

    def new_cache(self, length: int) -> "RecentCache":
        return RecentCache((self.window - 1) * self.dilation)

    def weights(self, query: Tensor, key: Tensor, *, sight: Sight, others: tuple[Tensor, ...] = ()) -> Tensor:
        mask = replace(sight.mask, window=self.window, _made={})
        if self.dilation > 1:
            place = torch.arange(key.shape[2], device=key.device)
            away = (place[:, None] - place).abs()
            near = (away < self.window * self.dilation) & (away % self.dilation == 0)
            mask = replace(mask, window=None, blocks=Blocks(1, near[None]))
        return weights_of(query, key, sight=replace(sight, mask=mask), scale=self.scale)


@dataclass(frozen=True)
class Band:
    """How queries and keys are cut: chunk t of the queries looks at the `back` chunks of keys before its own, at its
    own and at the `ahead` chunks after it. The queries stand at the last places of the keys."""

    window: int
    size: int
    back: int
    ahead: int
    queries: int
    keys: int

    @classmethod
    def of(cls, window: int, *, both: bool, queries: int, keys: int) -> "Band":
        window = min(window, keys)
        size = min(max(min(max(window, SMALL), LARGE), window // COPIES), queries)
        back = -(-(window - 1) // size)
        return cls(window, size, back, back if both else 0, queries, keys)

    @property
    def count(self) -> int:
        return -(-self.queries // self.size)

    @property
    def width(self) -> int:
        """How many chunks of keys a span has."""
        return self.back + 1 + self.ahead

    def chunks(self, query: Tensor) -> Tensor:
        """batch heads query head -> batch*count heads size head"""
        x = padded(query.transpose(1, 2), 0, self.count * self.size - self.queries)
        return x.unflatten(1, (self.count, self.size)).transpose(2, 3).flatten(0, 1)

    def spans(self, key: Tensor) -> Tensor:
        """batch kv_heads key head -> batch*count kv_heads width*size head"""
        x = self._placed(key.transpose(1, 2)).unflatten(1, (-1, self.size)).transpose(2, 3)
        spans: Tensor = _Overlap.apply(x, self.count, self.width)
        return spans.flatten(0, 1)

    def merge(self, mixed: Tensor) -> Tensor:
        """batch*count heads size head -> batch heads query head"""
        x = mixed.transpose(1, 2).unflatten(0, (-1, self.count)).flatten(1, 2)  # batch time heads head
        return x[:, : self.queries].transpose(1, 2)

    def chunk_facts(self, fact: Tensor) -> Tensor:
        """batch key -> batch*count size, of the queries"""
        x = padded(fact[:, -self.queries :], 0, self.count * self.size - self.queries)
        return x.unflatten(1, (self.count, self.size)).flatten(0, 1)

    def span_facts(self, fact: Tensor) -> Tensor:
        """batch key -> batch*count width*size"""
        x = self._placed(fact).unflatten(1, (-1, self.size))
        shifted = [x[:, first : first + self.count] for first in range(self.width)]
        return torch.cat(shifted, dim=2).flatten(0, 1)

    def visible(self, facts: Facts, query: Tensor, causal: bool) -> Tensor:
        """batch*count 1 size width*size"""
        device, span = query.device, self.width * self.size
        distance = torch.arange(self.size, device=device)[:, None] + self.back * self.size
        distance = distance - torch.arange(span, device=device)  # size span
        near = (distance.abs() < self.window)[None]
        if causal:
            past = (distance >= 0)[None]
            near = near & (past if facts.prefix is None else past | self._of_keys(facts.prefix, query))
        valid = torch.ones(1, self.keys, dtype=torch.bool, device=device) if facts.valid is None else facts.valid
        near = near & self._of_keys(valid, query)
        if facts.segments is not None:
            segments = repeated(facts.segments, len(query))
            near = near & (self.chunk_facts(segments)[:, :, None] == self.span_facts(segments)[:, None])
        return near[:, None]

    def _of_keys(self, fact: Tensor, query: Tensor) -> Tensor:
        return self.span_facts(repeated(fact, len(query)))[:, None]

    def _placed(self, x: Tensor) -> Tensor:
        """The keys (batch key ...) with the places before and after them that complete the first and last span."""
        before = self.back * self.size - (self.keys - self.queries)
        after = (self.count + self.ahead) * self.size - self.queries
        return padded(x[:, -before:] if before < 0 else x, max(before, 0), after)


@dataclass(frozen=True)
class Weave:
    """Every `step`-th place as a text of its own: within each, a dilated window is a plain one."""

    step: int
    count: int  # of queries
    places: int  # of keys

    def queries(self, x: Tensor) -> Tensor:
        """batch heads query head -> batch*step heads query/step head"""
        return self._apart(x.transpose(1, 2), 0).transpose(1, 2)

    def keys(self, x: Tensor) -> Tensor:
        return self._apart(x.transpose(1, 2), self._before).transpose(1, 2)

    def facts(self, facts: Facts, device: torch.device) -> Facts:
        real = torch.ones(1, self.places, dtype=torch.bool, device=device) if facts.valid is None else facts.valid
        valid, segments, prefix, positions = (
            None if x is None else self._apart(x, self._before)
            for x in (real, facts.segments, facts.prefix, facts.positions)
        )
        return Facts(valid, segments, prefix, positions, facts.position)

    def back(self, mixed: Tensor) -> Tensor:
        x = mixed.transpose(1, 2).unflatten(0, (-1, self.step)).transpose(1, 2).flatten(1, 2)
        return x[:, : self.count].transpose(1, 2)

    @property
    def _before(self) -> int:
        """Places before the keys, so that the first query begins a round of `step`."""
        return -(self.places - self.count) % self.step

    @property
    def _after(self) -> int:
        return -self.count % self.step

    def _apart(self, x: Tensor, before: int) -> Tensor:
        """batch time ... -> batch*step time/step ..."""
        x = padded(x, before, self._after)
        return x.unflatten(1, (-1, self.step)).transpose(1, 2).flatten(0, 1)


class RecentCache:
    """The last `reach` keys and values: decoding a token takes the same memory however long the text is. There is room
    for twice as many, so that what is kept moves only once in a while."""

    def __init__(self, reach: int) -> None:
        self.length = 0
        self.reach = reach
        self._held: tuple[Tensor, Tensor] | None = None  # each rows kv_heads room head
        self._first, self._end = 0, 0

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Add the new tokens' keys and values; gives back those of all tokens that they may see."""
        new = key.shape[2]
        if self._held is None or self._end + new > self._held[0].shape[2]:
            self._move(key, value)
        assert self._held is not None
        first, end = self._first, self._end + new
        for held, x in zip(self._held, (key, value), strict=True):
            held[:, :, self._end : end] = x
        self._first, self._end = max(first, end - self.reach), end
        self.length += new
        return self._held[0][:, :, first:end], self._held[1][:, :, first:end]

    def select(self, rows: Tensor) -> None:
        if self._held is not None:
            first, second = (self._selected(held, rows) for held in self._held)
            self._held = first, second

    def _move(self, key: Tensor, value: Tensor) -> None:
        """Room for the new tokens behind what is kept, which moves to the front."""
        rows, kv_heads, new, head = key.shape
        kept = self._end - self._first
        room = [x.new_empty(rows, kv_heads, max(2 * self.reach, kept + new, 1), head) for x in (key, value)]
        if self._held is not None:
            for to, held in zip(room, self._held, strict=True):
                to[:, :, :kept] = held[:, :, self._first : self._end]
        self._held, self._first, self._end = (room[0], room[1]), 0, kept

    def _selected(self, held: Tensor, rows: Tensor) -> Tensor:
        room = held.new_empty(len(rows), *held.shape[1:])
        room[:, :, self._first : self._end] = held[:, :, self._first : self._end].index_select(0, rows)
        return room


class _Overlap(torch.autograd.Function):
    """batch chunks heads size head -> batch count heads width*size head: each chunk with the ones that follow it. The
    gradient is gathered in one tensor; through slices there would be one for each chunk of a span."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, count: int, width: int) -> Tensor:
        ctx.shape, ctx.count = x.shape, count
        return torch.cat([x[:, first : first + count] for first in range(width)], dim=3)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        batch, chunks, heads, size, head = ctx.shape
        d_x = grads[0].new_zeros(batch, chunks, size, heads, head).transpose(2, 3)
        for first, part in enumerate(grads[0].split(size, dim=3)):
            d_x[:, first : first + ctx.count] += part
        return d_x, None, None


def padded(x: Tensor, before: int, after: int) -> Tensor:
    """batch time ... with so many zeros more along time."""
    if not before and not after:
        return x
    return F.pad(x, [0, 0] * (x.ndim - 2) + [before, after])
