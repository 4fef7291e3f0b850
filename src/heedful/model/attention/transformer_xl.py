"""Softmax attention that scores the distance between query and key itself.      Dai et al. 2019, section 3.3"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from heedful.config import Size
from heedful.model.attention import FACTS, HeadShape, Mix, MixConfig
from heedful.model.cache import KeyValueCache, LayerCache
from heedful.model.dropout import Dropout
from heedful.model.linear import Linear
from heedful.model.sight import Sight

BASE = 10000  # of the sinusoids' wavelengths
FIRST = 0.02  # standard deviation of u and v at first, as in the authors' code


class TransformerXlConfig(MixConfig):
    """`clamp`: distances beyond it count as this one (400 in the paper's evaluation); None = every distance is its
    own. Goes with `position: none`: the distances are in here."""

    supports: ClassVar[frozenset[str]] = FACTS - {"bias", "score", "cross"}
    exact: ClassVar[bool] = False
    places: ClassVar[bool] = True
    clamp: Size | None = None

    def build(self, shape: HeadShape) -> "TransformerXl":
        return TransformerXl(self, shape)

    def parameters(self, shape: HeadShape) -> int:
        width = shape.heads * shape.head
        return width * width + 2 * width

    def check(self, shape: HeadShape) -> None:
        width = shape.heads * shape.head
        if width % 2:
            raise ValueError(
                f"attention transformer_xl needs an even number for its sines and cosines, not {shape.heads} heads of "
                f"{shape.head}; choose an even number of heads or an even head_width"
            )

    def flops(self, shape: HeadShape, length: int) -> int:
        """With one score more for each key, and W_r R of one distance for each query."""
        width = shape.heads * shape.head
        return 2 * 3 * length * width + 2 * width * width


class TransformerXl(Mix):
    """score_ij = q_i . k_j + q_i . W_r R_(i-j) + u . k_j + v . W_r R_(i-j)

    R_d holds the sines, then the cosines, of the distance d; W_r and, for each head, u and v are learned in each layer.
    The distance terms of all keys come from one product of the queries with all distances, (q_i + v) . W_r R_d, shifted
    row by row, so there is never a vector for each pair. Nothing depends on where the text begins: a query may look at
    the states of earlier segments (`SegmentMemory`), and longer texts than those of training need no new weights.

    Equals `reference` without positions when W_r and u are zero.

    Differs: the sinusoids are as wide as all heads together, which is the model's width unless head_width is set, and
    have no dropout. Encoders, whose distances are negative too, are XLNet's (Yang et al. 2019).
    """

    undecayed = ("content", "place")  # they are biases

    def __init__(self, config: TransformerXlConfig, shape: HeadShape) -> None:
        super().__init__()
        self.heads, self.head, self.scale, self.clamp = shape.heads, shape.head, shape.scale, config.clamp
        width = shape.heads * shape.head
        self.distance = Linear(width, width, bias=False)  # W_r
        self.content = nn.Parameter(torch.empty(shape.heads, 1, shape.head))  # u
        self.place = nn.Parameter(torch.empty(shape.heads, 1, shape.head))  # v
        self.dropout = Dropout(shape.dropout)

    def first_weights(self) -> None:
        nn.init.normal_(self.content, std=FIRST)
        nn.init.normal_(self.place, std=FIRST)

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
        held = None
        if cache is not None:
            assert isinstance(cache, KeyValueCache)
            held = cache
            key, value = cache.append(key, value)
        weights = self._weights(query, key, sight, held)
        return self.dropout(weights) @ self._share(value)  # batch heads query head

    def weights(self, query: Tensor, key: Tensor, *, sight: Sight, others: tuple[Tensor, ...] = ()) -> Tensor:
        return self._weights(query, key, sight, None)

    def new_cache(self, length: int) -> KeyValueCache:
        return KeyValueCache(length)

    def _weights(self, query: Tensor, key: Tensor, sight: Sight, cache: KeyValueCache | None) -> Tensor:
        """batch heads query key"""
        queries, keys = query.shape[2], key.shape[2]
        places = self._places((query + self.place) * self.scale, keys, sight, cache)
        scores = ((query + self.content) * self.scale) @ self._share(key).transpose(-2, -1)
        scores = scores + places
        additive = sight.mask.additive(queries, keys, query.device)
        if additive is not None:
            return (scores + additive.to(scores.dtype)).softmax(-1)
        visible = sight.mask.dense(queries, keys, query.device)
        assert visible is not None
        # A row that sees nothing would give NaN: see `reference`.
        scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
        return scores.softmax(-1).masked_fill(~visible, 0)

    def _places(self, query: Tensor, keys: int, sight: Sight, cache: KeyValueCache | None) -> Tensor:
        """(q_i + v) . W_r R_(i-j) for each pair: batch heads query key. query: with v, scaled.

        Row i of the product with the distances `high, high - 1, ...` is the row of pairs, begun query - 1 - i places
        late. Laid end to end, rows one shorter than they are stand in their places: a view, nothing is moved. A causal
        mask hides the negative distances, and one of them is all that the rows need.
        """
        queries = query.shape[2]
        causal = sight.mask.causal and sight.mask.prefix is None
        if not _is_run(sight, queries, keys):
            return self._places_anywhere(query, sight, cache, causal)
        low = -1 if causal else min(-1, 1 - queries)
        scores = query @ self._distances(keys - 1, low, query, cache).transpose(-2, -1)  # batch heads query distance
        row = scores.shape[-1] - 1
        laid = scores.flatten(-2)[..., queries - 1 : queries - 1 + queries * row]
        return laid.unflatten(-1, (queries, row))[..., :keys]

    def _places_anywhere(self, query: Tensor, sight: Sight, cache: KeyValueCache | None, causal: bool) -> Tensor:
        """The same where positions do not simply count on: each pair picks its distance."""
        assert sight.query_positions is not None and sight.key_positions is not None
        distance = sight.query_positions[:, :, None] - sight.key_positions[:, None, :]  # (batch or 1) query key
        high, low = max(0, int(distance.max())), min(-1, int(distance.min()))
        if causal:
            low, distance = -1, distance.clamp(min=-1)
        scores = query @ self._distances(high, low, query, cache).transpose(-2, -1)  # batch heads query distance
        return scores.gather(-1, (high - distance)[:, None].expand(*scores.shape[:2], -1, -1))

    def _distances(self, high: int, low: int, like: Tensor, cache: KeyValueCache | None) -> Tensor:
        """W_r R_d for d = high, ..., low: heads distance head. A cache keeps those down to -1 from step to step."""
        if cache is None or low != -1:
            return self._project(torch.arange(high, low - 1, -1, device=like.device))
        if cache.table is None or cache.table.shape[1] < high + 2:
            known = 0 if cache.table is None else cache.table.shape[1]
            cache.table = self._project(torch.arange(max(high, 2 * known), -2, -1, device=like.device))
        return cache.table[:, -(high + 2) :]

    def _project(self, distances: Tensor) -> Tensor:
        width = self.heads * self.head
        if self.clamp is not None:
            distances = distances.clamp(-self.clamp, self.clamp)
        rates = BASE ** -(torch.arange(0, width, 2, device=distances.device) / width)
        angles = distances[:, None] * rates
        waves = torch.cat([angles.sin(), angles.cos()], dim=-1).to(self.content.dtype)
        return self.distance(waves).unflatten(-1, (self.heads, self.head)).transpose(0, 1)

    def _share(self, x: Tensor) -> Tensor:
        """Give each query head its key/value head: batch kv_heads key head -> batch heads key head"""
        return x if x.shape[1] == self.heads else x.repeat_interleave(self.heads // x.shape[1], dim=1)


def _is_run(sight: Sight, queries: int, keys: int) -> bool:
    """Whether keys and queries count on one by one and end together, in all rows alike."""
    query, key = sight.query_positions, sight.key_positions
    if query is None or key is None:
        return True
    if len(query) > 1 or len(key) > 1:
        return False
    count = torch.arange(keys, device=key.device) + key[0, 0]
    return torch.equal(key[0], count) and torch.equal(query[0], count[keys - queries :])
