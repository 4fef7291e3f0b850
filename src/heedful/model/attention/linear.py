"""Linear attention: the exponential of softmax replaced by a product of positive features."""

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from heedful.model.attention import HeadShape, Mix, MixConfig
from heedful.model.attention._features import FeatureAttention, RunningSums, refuse_dropout
from heedful.model.cache import LayerCache
from heedful.model.sight import Sight


class LinearConfig(MixConfig):
    supports: ClassVar[frozenset[str]] = frozenset({"causal", "groups", "cross"})
    exact: ClassVar[bool] = False
    long: ClassVar[bool] = True

    def build(self, shape: HeadShape) -> "LinearAttention":
        return LinearAttention(shape.head)

    def check(self, shape: HeadShape) -> None:
        refuse_dropout(self.kind, shape)

    def flops(self, shape: HeadShape, length: int) -> int:
        """A key is added to the sums and a query multiplied by them, whatever the length."""
        return 2 * 2 * shape.heads * shape.head * (shape.head + 1)

    def remembered(self, shape: HeadShape) -> int:
        return 0  # for each token: the sums are the same size for all of them


class LinearAttention(Mix):
    """w_ij = phi(q_i) . phi(k_j),     phi(x) = elu(x) + 1.      Katharopoulos et al. 2020, equations 4 to 7

    Not exact: it never equals softmax, it is another function of the same queries and keys. `scaled` has no meaning
    here: there is no 1/sqrt(head).
    """

    def __init__(self, head: int) -> None:
        super().__init__()
        self.attend = FeatureAttention(_Positive(), _Positive(), head)

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
        return self.attend(query, key, value, mask=sight.mask, cache=cache)

    def weights(self, query: Tensor, key: Tensor, *, sight: Sight, others: tuple[Tensor, ...] = ()) -> Tensor:
        return self.attend.weights(query, key, mask=sight.mask)

    def new_cache(self, length: int) -> RunningSums:
        return RunningSums()


class _Positive:
    """elu(x) + 1: x + 1 above zero, exp(x) below"""

    def __call__(self, x: Tensor) -> Tensor:
        return F.elu(x).add_(1)

    def gradient(self, x: Tensor, features: Tensor, gradient: Tensor) -> Tensor:
        """The slope is 1 where the feature is above 1, and the feature itself below."""
        return gradient.mul_(features.clamp(max=1))
