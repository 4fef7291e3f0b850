"""Linformer: keys and values are compressed to a fixed number, whatever the length of the text."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.config import Size
from heedful.model.attention import HeadShape, Mix, MixConfig
from heedful.model.cache import LayerCache
from heedful.model.sight import Sight

MOST = 256  # the rank where none is given, for texts that are longer


class LinformerConfig(MixConfig):
    """`rank`: how many keys and values are left of a text; None = 256, or the length of the longest text if that is
    less. `length`: the longest text that is looked at; None = the stack's, which an attention to a source has not."""

    supports: ClassVar[frozenset[str]] = frozenset({"groups", "cross"})
    exact: ClassVar[bool] = False
    long: ClassVar[bool] = True
    rank: Size | None = None
    length: Size | None = None

    def build(self, shape: HeadShape) -> "Linformer":
        return Linformer(self.length_of(shape), self.rank_of(shape), shape)

    def check(self, shape: HeadShape) -> None:
        length = self.length_of(shape)
        if self.rank is not None and self.rank > length:
            raise ValueError(
                f"attention linformer: rank {self.rank} is more than the longest text, {length}; choose less"
            )

    def length_of(self, shape: HeadShape) -> int:
        length = self.length or shape.length
        if length is None:
            raise ValueError(
                "attention linformer must know the longest text: set length beside attention (encoder.length=1024), "
                "or length in the mix of cross"
            )
        return length

    @property
    def limit(self) -> int | None:
        return self.length

    def rank_of(self, shape: HeadShape) -> int:
        return self.rank or min(MOST, self.length_of(shape))

    def parameters(self, shape: HeadShape) -> int:
        return 2 * self.length_of(shape) * self.rank_of(shape)

    def flops(self, shape: HeadShape, length: int) -> int:
        """Compressing a key and a value; then scores and weighted sum over `rank` of them."""
        return 2 * 2 * self.rank_of(shape) * (shape.kv_heads + shape.heads) * shape.head


class Linformer(Mix):
    """softmax(scale * Q (E^T K)^T) (F^T V),     E, F: length x rank, learned.      Wang et al. 2020, equation 7

    E and F are shared by the heads ("headwise sharing"). Their rows belong to places: a shorter text uses the first
    ones, and padding is left out before places are counted. Not exact: it equals softmax where rank is the length and
    E and F are identities.

    Not causal: every compressed key holds something of all tokens, later ones too.
    """

    def __init__(self, length: int, rank: int, shape: HeadShape) -> None:
        super().__init__()
        self.scale, self.dropout = shape.scale, shape.dropout
        self.compress_key = nn.Parameter(torch.empty(length, rank))
        self.compress_value = nn.Parameter(torch.empty(length, rank))

    def first_weights(self) -> None:
        """N(0, 1/rank), as in the proof of theorem 2."""
        for matrix in (self.compress_key, self.compress_value):
            nn.init.normal_(matrix, std=matrix.shape[1] ** -0.5)

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
        length = len(self.compress_key)
        if key.shape[2] > length:
            raise ValueError(f"{key.shape[2]} tokens, but this linformer is made for {length}; shorten the input")
        valid = sight.mask.key_valid
        return F.scaled_dot_product_attention(
            query,
            _compressed(key, valid, self.compress_key),
            _compressed(value, valid, self.compress_value),
            dropout_p=self.dropout if self.training else 0.0,
            scale=self.scale,
            enable_gqa=bool(key.shape[1] != query.shape[1]),
        )


def _compressed(x: Tensor, valid: Tensor | None, matrix: Tensor) -> Tensor:
    """batch kv_heads key head -> batch kv_heads rank head"""
    heads = x.shape[1]
    tokens = x.transpose(1, 2).flatten(2)  # batch key kv_heads*head
    if valid is not None:
        tokens = _to_the_front(tokens, valid)
    return (matrix[: tokens.shape[1]].mT @ tokens).unflatten(2, (heads, -1)).transpose(1, 2)


def _to_the_front(tokens: Tensor, valid: Tensor) -> Tensor:
    """The real tokens in their order, then zeros: batch key width"""
    tokens = tokens * valid[:, :, None].to(tokens.dtype)
    batch, length, _ = tokens.shape
    order = (~valid).to(torch.uint8).argsort(dim=1, stable=True)
    order = order + length * torch.arange(batch, device=order.device)[:, None]
    return tokens.flatten(0, 1).index_select(0, order.flatten()).view_as(tokens)
