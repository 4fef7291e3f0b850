"""Attention to the keys that hash alike: Reformer.      Kitaev et al. 2020, section 2"""

from typing import ClassVar, Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor

from heedful.config import Size
from heedful.model.attention import HeadShape, Mix, MixConfig
from heedful.model.attention._sorted import HIDDEN, OWN, SortedText, attend_sorted
from heedful.model.cache import KeyValueCache, LayerCache
from heedful.model.mask import Mask
from heedful.model.sight import Sight

MOST_BUCKETS = 1 << 16
SORTED = 1 << 22  # how many numbers of queries, of keys, of values are sorted at a time
EPS = 1e-6  # of the length that keys are divided by, as in Trax and transformers


class LshConfig(MixConfig):
    """`buckets` is even, or 1 (everything is seen), or a list of even factors: [16, 32] makes 512 buckets of 16 + 32
    directions, as the paper's code does for long texts. A good number is 2 * length / chunk. `rounds`: how many hashes
    vote. `sees`:

    bucket   the `chunk` nearest tokens of its own bucket on each side, and, in one more round without hashes, of the
             text. It depends on nothing else, so the future cannot change it and a cache gives the same result
    chunk    everything in its chunk of the sorted text and in the one before (and after, unless causal), whatever the
             bucket: as published. Tokens to come move the borders of the chunks, so a step with a cache sees what it
             would see if the text ended there: not quite what the pass over the whole text sees

    `redraw`: in training, hash by new directions in every pass, as the paper's code does. Evaluation always uses those
    that are stored with the weights.
    """

    supports: ClassVar[frozenset[str]] = frozenset({"causal", "window", "segments"})
    exact: ClassVar[bool] = False
    long: ClassVar[bool] = True
    projections: ClassVar[tuple[str, ...]] = ("key", "value")

    buckets: Size | tuple[Size, ...] = 32
    rounds: int = Field(2, ge=1, le=64)
    chunk: Size = 64
    sees: Literal["bucket", "chunk"] = "bucket"
    redraw: bool = True

    @field_validator("buckets")
    @classmethod
    def _come_in_pairs(cls, buckets: int | tuple[int, ...]) -> int | tuple[int, ...]:
        if any(number > MOST_BUCKETS for number in ([buckets] if isinstance(buckets, int) else buckets)):
            raise ValueError(f"buckets {buckets} are too many; choose at most {MOST_BUCKETS:,}, or a list of factors")
        odd = [number for number in ([buckets] if isinstance(buckets, int) else buckets) if number % 2]
        if (odd and buckets != 1) or buckets == ():
            raise ValueError(
                f"buckets {buckets} do not come in pairs: a direction and its opposite are two; "
                "choose an even number, a list of even numbers, or 1"
            )
        return buckets

    @property
    def supported(self) -> frozenset[str]:
        """Chunks cannot keep packed texts apart."""
        return self.supports - ({"segments"} if self.sees == "chunk" else set())

    @property
    def factors(self) -> tuple[int, ...]:
        """The numbers of buckets that the directions tell apart one by one."""
        factors = (self.buckets,) if isinstance(self.buckets, int) else self.buckets
        return () if factors == (1,) else factors

    def build(self, shape: HeadShape) -> "Lsh":
        return Lsh(self, shape)

    def flops(self, shape: HeadShape, length: int) -> int:
        """Of the hashes, and of the scores with the chunks in reach, hidden or not."""
        rounds = self.rounds + (self.sees == "bucket")
        keys = min(length, (2 if shape.causal else 3) * self.chunk)
        hashes = self.rounds * 2 * shape.heads * shape.head * (sum(self.factors) // 2)
        return hashes + rounds * super().flops(shape, keys)

    def remembered(self, shape: HeadShape) -> int:
        """The buckets too."""
        return super().remembered(shape) + shape.heads * self.rounds


class Lsh(Mix):
    """y_i = sum_j c_ij exp(q_i . k_j / |k_j|) v_j / sum_j c_ij exp(q_i . k_j / |k_j|)      with q = k

    c_ij is the number of rounds in which i sees j. In each round the tokens are sorted by bucket,

        h(x) = argmax([x R; -x R])      R: random directions, of this round and head

    and by place in the text within a bucket, and cut into chunks; a chunk looks at its neighbours. A token sees itself
    only where it sees nothing else (section 2, "Causal masking for shared-QK attention"). The formula is the paper's
    sum over rounds weighted by their logsumexp (its equation 5), written as one sum.

    Not exact. It equals softmax attention with shared, normalised keys and itself hidden when there is one bucket and
    `chunk` is no shorter than the text. Queries are not scaled by 1/sqrt(head), since the keys have unit length.

    Differs: with `sees: bucket`, the default, other buckets in the same chunk are hidden, and one round sees what is
    near in the text (as `add_local_attn_hash` of reformer-pytorch does); so a short text is seen whole. With `sees:
    chunk` only what the published code does to padding: here the chunks end where the real tokens of a row end.
    """

    rotations: Tensor

    def __init__(self, config: LshConfig, shape: HeadShape) -> None:
        super().__init__()
        self.factors, self.rounds, self.chunk = config.factors, config.rounds, config.chunk
        self.by_bucket, self.redraw = config.sees == "bucket", config.redraw
        self.dropout = shape.dropout
        directions = sum(self.factors) // 2
        self.register_buffer("rotations", torch.empty(shape.heads, shape.head, config.rounds, directions))

    def first_weights(self) -> None:
        self.rotations.normal_()

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
        with torch.autocast(query.device.type, enabled=False):
            exact = torch.promote_types(query.dtype, torch.float32)
            shared, values = key.to(exact), value.to(exact)
            buckets, keys = self.hash(shared), unit(shared)
            queries, new = shared, key.shape[2]
            if cache is not None:
                assert isinstance(cache, LshCache)
                keys, values, buckets = cache.append(keys, values, buckets)
                if new == 1 and self.by_bucket:
                    return self._step(shared, keys, values, buckets, sight.mask).to(query.dtype)
                # What the earlier tokens gather is not asked for again, so anything may stand for their queries.
                queries = torch.cat([keys[:, :, : keys.shape[2] - new], shared], dim=2)
            dropout, size = self.dropout if self.training else 0.0, self._at_a_time(buckets)
            parts = (x.split(size, dim=1) for x in (queries, keys, values, buckets))
            mixed = [
                attend_sorted(q, k, v, self.sort(b, sight.mask), dropout=dropout)
                for q, k, v, b in zip(*parts, strict=True)
            ]
            return torch.cat(mixed, dim=1)[:, :, -new:].to(query.dtype)

    def new_cache(self, length: int) -> "LshCache":
        return LshCache(length)

    def _at_a_time(self, buckets: Tensor) -> int:
        """How many heads: of long texts few, so that what is sorted is small enough for memory to be used again."""
        batch, heads, rounds, length = buckets.shape
        return max(1, min(heads, SORTED // max(1, batch * (rounds + 1) * length * self.rotations.shape[1])))

    @torch.no_grad()
    def hash(self, x: Tensor) -> Tensor:
        """The bucket of each token in each round: batch heads key head -> batch heads rounds key"""
        if not self.factors:
            return x.new_zeros(*x.shape[:2], self.rounds, x.shape[2], dtype=torch.int32)
        rotations = self.rotations
        if self.training and self.redraw:
            rotations = torch.randn(rotations.shape, device=x.device)
        projected = x @ rotations.to(x.dtype).flatten(2)  # batch heads key rounds*directions
        projected = projected.unflatten(-1, (self.rounds, -1)).transpose(2, 3)
        buckets = torch.zeros(projected.shape[:-1], dtype=torch.int64, device=x.device)
        known = 1
        for factor, part in zip(self.factors, projected.split([f // 2 for f in self.factors], dim=-1), strict=True):
            buckets += known * torch.cat([part, -part], dim=-1).argmax(-1)
            known *= factor
        return buckets.to(torch.int32)

    def sort(self, buckets: Tensor, mask: Mask) -> SortedText:
        """The text in the order of each round.  buckets: batch heads rounds key"""
        batch, _, _, length = buckets.shape
        real = real_tokens(mask, batch, length, buckets.device)
        if not self.by_bucket:
            if mask.segments is not None:
                raise ValueError("lsh that sees chunks cannot keep packed texts apart; set mix.sees=bucket")
            return SortedText.of_chunks(buckets, real, chunk=self.chunk, causal=mask.causal, window=mask.window)
        groups = torch.cat([buckets, torch.zeros_like(buckets[:, :, :1])], dim=2)  # and one round by place alone
        if mask.segments is not None:
            apart = 1 + int(groups.max()) if groups.numel() else 1
            groups = groups + apart * mask.segments.to(groups.dtype).expand(batch, -1)[:, None, None]
        return SortedText.of_groups(groups, real, chunk=self.chunk, causal=mask.causal, window=mask.window)

    def weights(self, query: Tensor, key: Tensor, *, sight: Sight, others: tuple[Tensor, ...] = ()) -> Tensor:
        counts = self.sort(self.hash(key), sight.mask).counts()
        scores = query @ unit(key).transpose(-2, -1)
        return weighted(scores, counts, torch.eye(key.shape[2], dtype=torch.bool, device=key.device))

    def _step(self, query: Tensor, key: Tensor, value: Tensor, buckets: Tensor, mask: Mask) -> Tensor:
        """The last token alone, which sees the last ones of its bucket: no need to sort."""
        batch, _, _, length = buckets.shape
        real = real_tokens(mask, batch, length, key.device)
        if mask.segments is not None:
            real = real & (mask.segments == mask.segments[:, -1:])
        same = (buckets == buckets[..., -1:]) & real[:, None, None]
        same = torch.cat([same, real[:, None, None].expand(-1, same.shape[1], 1, -1)], dim=2)
        nearest = same.flip(-1).cumsum(-1).flip(-1) <= self.chunk + 1  # itself included
        counts = (same & nearest).sum(2)  # batch heads key
        if mask.window is not None:
            counts[..., : max(0, length - mask.window)] = 0
        counts = counts * real[:, None, -1:]
        own = torch.arange(length, device=key.device) == length - 1
        return weighted(query @ key.transpose(-2, -1), counts[:, :, None], own) @ value


class LshCache:
    """Keys (of unit length), values and buckets of all tokens so far."""

    def __init__(self, length: int) -> None:
        self._pairs, self._buckets = KeyValueCache(length), KeyValueCache(length)

    @property
    def length(self) -> int:
        return self._pairs.length

    def append(self, key: Tensor, value: Tensor, buckets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Add the new tokens'; gives back all of them. buckets: rows heads rounds key"""
        key, value = self._pairs.append(key, value)
        by_token = buckets.transpose(2, 3)
        by_token, _ = self._buckets.append(by_token, by_token[..., :0])
        return key, value, by_token.transpose(2, 3)

    def select(self, rows: Tensor) -> None:
        self._pairs.select(rows)
        self._buckets.select(rows)


def unit(x: Tensor) -> Tensor:
    """Of length one."""
    return x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt() * x.shape[-1] ** -0.5


def real_tokens(mask: Mask, batch: int, length: int, device: torch.device) -> Tensor:
    """batch key"""
    if mask.key_valid is None:
        return torch.ones(batch, length, dtype=torch.bool, device=device)
    return mask.key_valid.expand(batch, -1)


def weighted(scores: Tensor, counts: Tensor, own: Tensor) -> Tensor:
    """The weights, where each key counts as often as it is seen, and itself only if nothing else is."""
    seen = counts > 0
    scores = (scores + counts.clamp(min=1).log().to(scores.dtype)).masked_fill(own, OWN)
    return scores.masked_fill(~seen, HIDDEN).softmax(-1).masked_fill(~seen, 0)
