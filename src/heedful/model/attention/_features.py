"""Attention whose weights are products of features, so that keys and values are summed before any query comes.

    y_i = sum_j w_ij v_j / sum_j w_ij,     w_ij = phi(q_i) . psi(k_j)
        = phi(q_i) S / phi(q_i) z,         S = sum_j psi(k_j) v_j^T,     z = sum_j psi(k_j)

Under a causal mask the sums run up to j = i.      Katharopoulos et al. 2020, equations 4 to 12

Time and memory are linear in the length, and a decoder keeps S and z only. z is one more column of S: each value is
given a last component of 1, and padding is a value of zeros. It is computed chunk by chunk, so that features stay in
the processor's cache, and features are computed again for the gradient instead of being kept. All of it in float32 at
least, whatever the precision around it: a sum of thousands of keys outgrows what bfloat16 can add to.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from heedful.model.attention import HeadShape
from heedful.model.cache import LayerCache
from heedful.model.mask import Mask

# Tokens computed at once, the fastest of 64, 128 and 256 on a CPU: in a causal attention, whose chunks look at
# themselves by a matrix of weights, and in one that is not.
CAUSAL_CHUNK, CHUNK = 64, 256


class Features(Protocol):
    """A map of vectors to features that are never negative, and its gradient."""

    def __call__(self, x: Tensor) -> Tensor:
        """... head -> ... features"""
        ...

    def gradient(self, x: Tensor, features: Tensor, gradient: Tensor) -> Tensor:
        """Of x (... head), from that of its features (... features); it may overwrite both."""
        ...


class RunningSums:
    """What is remembered between steps: the same few numbers for a text of any length."""

    def __init__(self) -> None:
        self.length = 0
        self.sums: Tensor | None = None  # rows kv_heads features head+1

    def select(self, rows: Tensor) -> None:
        if self.sums is not None:
            self.sums = self.sums.index_select(0, rows)


@dataclass(frozen=True)
class FeatureAttention:
    """`of_queries` and `of_keys` are phi and psi; `features`: how many they give."""

    of_queries: Features
    of_keys: Features
    features: int

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, *, mask: Mask, cache: LayerCache | None) -> Tensor:
        """query: batch heads query head; key, value: batch kv_heads key head -> batch heads query head. With a cache,
        key and value are those of the new tokens."""
        batch, kv_heads, keys, _ = key.shape
        query = query.reshape(batch * kv_heads, -1, *query.shape[2:])  # rows group query head
        key, value = key.flatten(0, 1), value.flatten(0, 1)  # rows key head
        valid = None if mask.key_valid is None else _of_rows(mask.key_valid[:, -keys:], kv_heads)
        with torch.autocast(query.device.type, enabled=False):
            if cache is None and not mask.causal:
                mixed: Tensor = _Everywhere.apply(self, query, key, value, valid)
                return mixed.view(batch, -1, *mixed.shape[2:])
            assert cache is None or isinstance(cache, RunningSums)
            held = None if cache is None else cache.sums
            start = self.empty_sums(value) if held is None else held.flatten(0, 1)
            mixed, sums = _UpToItself.apply(self, query, key, value, valid, start)
            if cache is not None:
                cache.sums, cache.length = sums.unflatten(0, (batch, kv_heads)), cache.length + keys
            return mixed.view(batch, -1, *mixed.shape[2:])

    def weights(self, query: Tensor, key: Tensor, *, mask: Mask) -> Tensor:
        """The matrix that is never made otherwise, for pictures: batch heads query key."""
        phi, psi = self.of_queries(_wide(query)), self.of_keys(_wide(key))
        scores = phi @ psi.repeat_interleave(phi.shape[1] // psi.shape[1], dim=1).mT
        visible = mask.dense(query.shape[2], key.shape[2], query.device)
        scores = scores if visible is None else scores.masked_fill(~visible, 0)
        return scores / _divisor(scores.sum(-1, keepdim=True))

    def empty_sums(self, value: Tensor) -> Tensor:
        """value: rows key head -> rows features head+1"""
        kind = torch.promote_types(value.dtype, torch.float32)
        return value.new_zeros(len(value), self.features, value.shape[-1] + 1, dtype=kind)


def refuse_dropout(kind: str, shape: HeadShape) -> None:
    if shape.dropout:
        raise ValueError(
            f"attention {kind} has no matrix of weights to drop {shape.dropout} of; "
            "set attention.dropout to 0, or choose mix softmax"
        )


class _Everywhere(torch.autograd.Function):
    """Every query sees every key: first all keys into the sums, then all queries.

    query: rows group query head; key, value: rows key head; valid: rows key 1
    """

    @staticmethod
    def forward(
        ctx: Any, how: FeatureAttention, query: Tensor, key: Tensor, value: Tensor, valid: Tensor | None
    ) -> Tensor:
        sums = how.empty_sums(value)
        for part in _parts(key, CHUNK):
            sums.baddbmm_(how.of_keys(_wide(key[:, part])).mT, _counted(value, valid, part))
        mixed, totals = _room(query, value)
        for part in _parts(query, CHUNK):
            _divide(how.of_queries(_stacked(query, part)) @ sums, mixed, totals, part)
        ctx.how = how
        ctx.save_for_backward(query, key, value, valid, sums, mixed, totals)
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        how: FeatureAttention = ctx.how
        query, key, value, valid, sums, mixed, totals = ctx.saved_tensors
        grad_query, grad_key, grad_value = (torch.empty_like(tensor) for tensor in (query, key, value))
        grad_sums = torch.zeros_like(sums)
        for part in _parts(query, CHUNK):
            g, q = _undivided(gradient, mixed, totals, part), _stacked(query, part)
            phi = how.of_queries(q)
            grad_sums.baddbmm_(phi.mT, g)
            grad_query[:, :, part] = _apart(how.of_queries.gradient(q, phi, g @ sums.mT), query)
        for part in _parts(key, CHUNK):
            k, counted = _wide(key[:, part]), _counted(value, valid, part)
            psi = how.of_keys(k)
            grad_value[:, part] = _uncounted(psi @ grad_sums, valid, part)
            grad_key[:, part] = how.of_keys.gradient(k, psi, counted @ grad_sums.mT)
        return None, grad_query, grad_key, grad_value, None


class _UpToItself(torch.autograd.Function):
    """A query sees the keys up to its own: those of its chunk by a small matrix of weights, those before by the sums.

    As above, and start: rows features head+1, the sums of what came before; gives the last sums too. Kept for the
    gradient: the sums at the beginning of each chunk.
    """

    @staticmethod
    def forward(
        ctx: Any, how: FeatureAttention, query: Tensor, key: Tensor, value: Tensor, valid: Tensor | None, start: Tensor
    ) -> tuple[Tensor, Tensor]:
        mixed, totals = _room(query, value)
        sums, at_chunk = start, []
        for part in _parts(key, CAUSAL_CHUNK):
            phi, psi = how.of_queries(_stacked(query, part)), how.of_keys(_wide(key[:, part]))
            counted = _counted(value, valid, part)
            at_chunk.append(sums)
            _divide(torch.baddbmm(_inside(phi, psi) @ counted, phi, sums), mixed, totals, part)
            sums = torch.baddbmm(sums, psi.mT, counted)
        ctx.how = how
        ctx.save_for_backward(query, key, value, valid, mixed, totals, *at_chunk)
        return mixed, sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, grad_sums: Tensor) -> tuple[Tensor | None, ...]:
        """From the last chunk to the first: `grad_sums` holds what the later queries ask of the keys of a chunk."""
        how: FeatureAttention = ctx.how
        query, key, value, valid, mixed, totals, *at_chunk = ctx.saved_tensors
        grad_query, grad_key, grad_value = (torch.empty_like(tensor) for tensor in (query, key, value))
        for part, sums in zip(reversed(_parts(key, CAUSAL_CHUNK)), reversed(at_chunk), strict=True):
            g, counted = _undivided(gradient, mixed, totals, part), _counted(value, valid, part)
            q, k = _stacked(query, part), _wide(key[:, part])
            phi, psi = how.of_queries(q), how.of_keys(k)
            inside, grad_inside = _inside(phi, psi), _inside(g, counted)
            grad_phi = torch.baddbmm(g @ sums.mT, grad_inside, psi)
            grad_psi = torch.baddbmm(counted @ grad_sums.mT, grad_inside.mT, phi)
            grad_counted = torch.baddbmm(psi @ grad_sums, inside.mT, g)
            grad_sums = torch.baddbmm(grad_sums, phi.mT, g)
            grad_query[:, :, part] = _apart(how.of_queries.gradient(q, phi, grad_phi), query)
            grad_key[:, part] = how.of_keys.gradient(k, psi, grad_psi)
            grad_value[:, part] = _uncounted(grad_counted, valid, part)
        return None, grad_query, grad_key, grad_value, None, grad_sums


def _parts(x: Tensor, size: int) -> list[slice]:
    return [slice(start, start + size) for start in range(0, x.shape[-2], size)]


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _of_rows(valid: Tensor, kv_heads: int) -> Tensor:
    """batch key -> rows key 1"""
    return valid[:, None, :, None].expand(-1, kv_heads, -1, -1).flatten(0, 1)


def _stacked(x: Tensor, part: slice) -> Tensor:
    """The heads of a group under each other, so that one product serves them all: rows group*chunk head"""
    return _wide(x[:, :, part].flatten(1, 2))


def _apart(x: Tensor, like: Tensor) -> Tensor:
    """And back: rows group chunk head"""
    return x.unflatten(1, (like.shape[1], -1))


def _counted(value: Tensor, valid: Tensor | None, part: slice) -> Tensor:
    """The values with a last component that counts them; zeros where there is padding: rows chunk head+1"""
    counted = F.pad(_wide(value[:, part]), (0, 1), value=1.0)
    return counted if valid is None else counted.mul_(valid[:, part])


def _uncounted(gradient: Tensor, valid: Tensor | None, part: slice) -> Tensor:
    """The gradient of the values, from that of the counted ones."""
    return gradient[..., :-1] if valid is None else gradient[..., :-1] * valid[:, part]


def _inside(phi: Tensor, psi: Tensor) -> Tensor:
    """The weights of a chunk on itself, zero where they would see what comes later: rows group*chunk chunk"""
    scores = phi @ psi.mT
    scores.view(len(scores), -1, scores.shape[2], scores.shape[2]).tril_()
    return scores


def _room(query: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """For what the queries gather (rows group query head), and for the sums of their weights."""
    rows, group, length, _ = query.shape
    wide = torch.promote_types(value.dtype, torch.float32)
    return value.new_empty(rows, group, length, value.shape[-1]), value.new_empty(rows, group, length, 1, dtype=wide)


def _divide(sums: Tensor, mixed: Tensor, totals: Tensor, part: slice) -> None:
    """sums: rows group*chunk head+1, the last component being the total of the weights"""
    total = _divisor(sums[..., -1:])
    mixed[:, :, part] = _apart(sums[..., :-1] / total, mixed)
    totals[:, :, part] = _apart(total, totals)


def _undivided(gradient: Tensor, mixed: Tensor, totals: Tensor, part: slice) -> Tensor:
    """The gradient of sums and total (rows group*chunk head+1), from that of their quotient."""
    g = _stacked(gradient, part) / _stacked(totals, part)
    return torch.cat([g, -(g * _stacked(mixed, part)).sum(-1, keepdim=True)], dim=-1)


def _divisor(total: Tensor) -> Tensor:
    """Where nothing is seen, sums and total are zero: 0 / 1 is 0, with a gradient that is a number."""
    return total.masked_fill(total == 0, 1)
