"""Attention to a memory with one head as wide as the model, as recurrent and convolutional decoders have it: what is
gathered are the memory's own values, unprojected."""

from torch import Tensor, nn

from heedful.model.attention import HeadShape, MixConfig
from heedful.model.multihead import KeyValue, MemoryAttention
from heedful.model.sight import Sight


def one_head(width: int, *, scale: float = 1.0) -> HeadShape:
    return HeadShape(heads=1, kv_heads=1, head=width, cross=True, scale=scale)


class OneHead(MemoryAttention):
    """sum_j a_ij v_j, a = softmax of how well the mix finds the query x_i and the key k_j to match.

    `query` and `key` are the projections there are; Identity = none. `stepwise`: see `MemoryAttention`.
    """

    def __init__(
        self, mix: MixConfig, shape: HeadShape, *, query: nn.Module, key: nn.Module, stepwise: bool = False
    ) -> None:
        super().__init__()
        self.heads, self.query, self.key = 1, query, key
        self.mix = mix.build(shape)
        self.stepwise = stepwise

    def read(self, states: Tensor, values: Tensor | None = None) -> KeyValue:
        """The keys and values of a source: batch 1 source width. Unless others are given, the states are the values."""
        return self.key(states)[:, None], (states if values is None else values)[:, None]

    def forward(self, x: Tensor, *, memory: KeyValue, sight: Sight, plus: Tensor | None = None) -> Tensor:
        """x: rows query width, where rows = batch x beam; `plus` is added to the queries. The beams of a sentence share
        its memory without a copy: they are just more queries."""
        key, value = memory
        query = self.query(x)
        query = query if plus is None else query + plus
        query = query.reshape(len(key), 1, -1, query.shape[-1])  # batch 1 beam*query width
        return self.mix(query.to(key.dtype), key, value, sight=sight).reshape(x.shape)
