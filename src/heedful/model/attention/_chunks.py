"""Attention of chunks of queries to spans of keys: what the banded and blocked variants share.

A text is cut into chunks of queries. Each chunk looks at one span of keys, which the variant has put together, and all
chunks of all texts are one batch of small attentions. What is computed is proportional to chunk x span, and so linear
in the length of the text.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.model.cpu import door
from heedful.model.cpu.training import masked_attention
from heedful.model.mask import Mask
from heedful.model.position import Position
from heedful.model.sight import Sight

PLAIN = Mask()


@dataclass(frozen=True)
class Facts:
    """What is known of each place of a text, each of shape (batch or 1) key; the queries stand at the last places."""

    valid: Tensor | None = None
    segments: Tensor | None = None
    prefix: Tensor | None = None  # True = within the prefix
    positions: Tensor | None = None
    position: Position | None = None

    @classmethod
    def of(cls, sight: Sight, keys: int, total: int) -> "Facts":
        """Of the last `keys` places of a text of `total`."""
        mask, places = sight.mask, sight.key_positions
        prefix = None
        if mask.prefix is not None:
            prefix = torch.arange(total - keys, total, device=mask.prefix.device) < mask.prefix[:, None]
        return cls(
            valid=None if mask.key_valid is None else mask.key_valid[:, -keys:],
            segments=None if mask.segments is None else mask.segments[:, -keys:],
            prefix=prefix,
            positions=None if places is None else places[:, -keys:],
            position=sight.position,
        )


@dataclass(frozen=True)
class Visible:
    """Who sees whom in each chunk, in the forms that the kernels take."""

    mask: Tensor  # chunks (heads or 1) query key; True = may see
    additive: Tensor  # the same in numbers: 0, or -inf; rows that see nothing are 0 throughout
    seen: Tensor | None  # chunks (heads or 1) query 1: 0 for rows that see nothing; None where there are none

    @classmethod
    def of(cls, mask: Tensor) -> "Visible":
        some = mask.any(-1, keepdim=True)
        additive = torch.zeros(mask.shape, device=mask.device).masked_fill_(~mask & some, -torch.inf)
        return cls(mask, additive, None if bool(some.all()) else some.float())


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Visible,
    *,
    scale: float,
    dropout: float = 0.0,
    term: Tensor | None = None,
) -> Tensor:
    """softmax(scale q k' + term, where visible) v.  query: chunks heads query head; key, value: chunks kv_heads key
    head; term: chunks heads query key. A query that sees nothing gathers zeros."""
    batched = len(visible.mask) in (1, len(query)) and visible.mask.shape[1] == 1
    reason = door.attention_now(query, key, value, PLAIN, dropout=dropout, biased=term is not None)
    if reason is None and batched:
        mixed = masked_attention(query, key, value, visible.additive, causal=False, scale=scale)
        return mixed if visible.seen is None else mixed * visible.seen
    if term is not None:
        term = term.to(query.dtype).masked_fill(~visible.mask, -torch.inf)
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=visible.mask if term is None else term,
        dropout_p=dropout,
        scale=scale,
        enable_gqa=bool(key.shape[1] != query.shape[1]),
    )


def attend_all(
    query: Tensor, key: Tensor, value: Tensor, facts: Facts, mask: Mask, *, scale: float, dropout: float
) -> Tensor | None:
    """Every query to every key, by kernels that hold no matrix of them. None where the facts would need one."""
    queries, keys = query.shape[2], key.shape[2]
    causal = mask.causal and queries > 1
    if facts.segments is not None or facts.prefix is not None or _may_bias(facts):
        return None
    if causal and (facts.valid is not None or queries < keys):
        return None
    if facts.valid is not None:
        valid = repeated(facts.valid, len(query))[:, None, None]
        visible = mask.once(("valid", len(query), keys), lambda: Visible.of(valid))
        return attend(query, key, value, visible, scale=scale, dropout=dropout)
    if door.attention_now(query, key, value, PLAIN, dropout=dropout, biased=False) is None:
        return masked_attention(query, key, value, None, causal=causal, scale=scale)
    grouped = bool(key.shape[1] != query.shape[1])
    return F.scaled_dot_product_attention(
        query, key, value, is_causal=causal, dropout_p=dropout, scale=scale, enable_gqa=grouped
    )


def _may_bias(facts: Facts) -> bool:
    if facts.position is None or facts.positions is None:
        return False
    kind = type(facts.position)
    return kind.bias is not Position.bias or kind.score is not Position.score


def term_of(
    position: Position | None,
    query: Tensor,
    key: Tensor,
    *,
    query_positions: Tensor | None,
    key_positions: Tensor | None,
    scale: float,
) -> Tensor | None:
    """What a position scheme adds to the scaled scores of each chunk: chunks heads query key.  query_positions: chunks
    query; key_positions: chunks key, or the same for fewer texts, which is repeated."""
    if position is None or query_positions is None or key_positions is None:
        return None
    bias = position.bias(query_positions, key_positions)
    if bias is not None and len(bias) > 1:
        bias = repeated(bias, len(query))
    score = position.score(
        query,
        key,
        query_positions=repeated(query_positions, len(query)),
        key_positions=repeated(key_positions, len(query)),
    )
    if score is None:
        return bias
    return scale * score if bias is None else bias + scale * score


def repeated(x: Tensor, count: int) -> Tensor:
    """What holds for one text, for each of a batch: the texts stand one after the other along the first axis."""
    return x if len(x) == count else x.repeat(count // len(x), *[1] * (x.ndim - 1))
