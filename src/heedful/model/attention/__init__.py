"""How to mix: one file per variant; the file's name is the name in a recipe.

A mix takes queries, keys and values that are already projected, split into heads and rotated, and gives what each query
gathers. Projections, heads and output are written once, in `multihead.py`.
"""

from typing import ClassVar

from torch import Tensor, nn

from heedful.config import PartConfig
from heedful.model.cache import LayerCache
from heedful.model.mask import Mask


class Mix(nn.Module):
    """The contract."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        mask: Mask,
        bias: Tensor | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """query: batch heads query head; key, value: batch kv_heads key head -> batch heads query head

        Heads are grouped: each of the kv_heads serves heads / kv_heads neighbouring query heads. The bias, where there
        is one, carries the mask. With a cache, key and value are the new tokens' only. A query that may see nothing
        gathers zeros.
        """
        raise NotImplementedError

    def new_cache(self, length: int) -> LayerCache:
        """An empty cache with room for this many tokens; the variant knows what it must remember."""
        raise NotImplementedError


class MixConfig(PartConfig):
    folder: ClassVar[str] = "model/attention"

    def build(self, *, scale: float, dropout: float) -> Mix:
        raise NotImplementedError
