"""Performer: softmax attention approximated by random features, in linear time."""

import math
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from heedful.config import Size
from heedful.model.attention import HeadShape, Mix, MixConfig
from heedful.model.attention._features import FeatureAttention, RunningSums, refuse_dropout
from heedful.model.cache import LayerCache
from heedful.model.sight import Sight

LARGEST = 60.0  # exponent of a key's feature: sums of a million of them stay finite in float32


class PerformerConfig(MixConfig):
    """`features`: random directions for each head; None = head ln(head), the paper's. `redraw`: in training, new ones
    every so many steps; 0 = never. `eps`: the least weight of a key, where a score of 0 has the weight 1; it keeps the
    sum of the weights away from zero.
    """

    supports: ClassVar[frozenset[str]] = frozenset({"causal", "groups", "cross"})
    exact: ClassVar[bool] = False
    long: ClassVar[bool] = True
    features: Size | None = None
    redraw: int = Field(1000, ge=0)
    eps: float = Field(1e-4, ge=0, lt=1)

    def build(self, shape: HeadShape) -> "Performer":
        return Performer(self, shape)

    def check(self, shape: HeadShape) -> None:
        refuse_dropout(self.kind, shape)

    def features_of(self, shape: HeadShape) -> int:
        return self.features or max(1, int(shape.head * math.log(shape.head)))

    def flops(self, shape: HeadShape, length: int) -> int:
        """Features of a query and a key; a key is added to the sums, a query multiplied by them, whatever the
        length."""
        features = self.features_of(shape)
        return 2 * shape.heads * features * (2 * shape.head + 2 * (shape.head + 1))

    def remembered(self, shape: HeadShape) -> int:
        return 0  # for each token: the sums are the same size for all of them


class Performer(Mix):
    """exp(scale q_i . k_j) = E[phi(q_i) . psi(k_j)] over random directions w.      Choromanski et al. 2021, lemma 1

        phi(q)_f = exp(w_f . q'),     psi(k)_f = exp(w_f . k' - |k'|^2 / 2) + eps,     x' = sqrt(scale) x

    The directions are orthogonal in blocks, each with the length of a Gaussian vector (section 3.2). Not exact: the
    error falls as 1 / sqrt(features).

    Differs: phi is divided by its sum over f, which the division by the sum of the weights cancels, as it cancels
    exp(-|q'|^2 / 2); so no query overflows. psi is not divided by the largest of all keys, which would depend on keys
    that come later: its mean over w is 1, whatever the key. eps is added to psi only.

    The directions are drawn from a seed of this layer and the number of the draw, and both seed and directions are
    saved: a resumed training redraws what an uninterrupted one would, and use never does.
    """

    seed: Tensor
    directions: Tensor

    def __init__(self, config: PerformerConfig, shape: HeadShape) -> None:
        super().__init__()
        self.scale, self.redraw, self.eps = shape.scale, config.redraw, config.eps
        self.register_buffer("seed", torch.empty((), dtype=torch.long))
        self.register_buffer("directions", torch.empty(config.features_of(shape), shape.head))

    def first_weights(self) -> None:
        self.seed.copy_(torch.randint(2**31, ()))
        self._draw(0)

    def before_step(self, step: int) -> None:
        """Called by the training loop before each step, counted from 1."""
        if self.redraw and step % self.redraw == 0:
            self._draw(step // self.redraw)

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
        return self._attend(query)(query, key, value, mask=sight.mask, cache=cache)

    def weights(self, query: Tensor, key: Tensor, *, sight: Sight, others: tuple[Tensor, ...] = ()) -> Tensor:
        return self._attend(query).weights(query, key, mask=sight.mask)

    def new_cache(self, length: int) -> RunningSums:
        return RunningSums()

    def _attend(self, query: Tensor) -> FeatureAttention:
        directions = self.directions.to(torch.promote_types(query.dtype, torch.float32))
        keys = _KeyFeatures(directions, self.scale, self.eps)
        return FeatureAttention(_QueryFeatures(keys.matrix), keys, len(directions))

    @torch.no_grad()
    def _draw(self, number: int) -> None:
        # Distinct for each draw; a generator takes 32 bits.
        chance = torch.Generator().manual_seed((int(self.seed) + 0x9E3779B9 * number) % 2**32)
        features, head = self.directions.shape
        self.directions.copy_(orthogonal_directions(features, head, chance))


class _QueryFeatures:
    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix  # features head

    def __call__(self, x: Tensor) -> Tensor:
        return (x @ self.matrix.mT).softmax(-1)

    def gradient(self, x: Tensor, features: Tensor, gradient: Tensor) -> Tensor:
        gradient.mul_(features)
        return gradient.addcmul_(features, gradient.sum(-1, keepdim=True), value=-1) @ self.matrix


class _KeyFeatures:
    """All divided by exp(shift), which cancels: 0 for heads up to about 100 wide."""

    def __init__(self, directions: Tensor, scale: float, eps: float) -> None:
        self.matrix, self.scale = directions * scale**0.5, scale
        self.shift = (directions.square().sum(-1).amax() / 2 - LARGEST).clamp(min=0)  # w . k' - |k'|^2/2 <= |w|^2/2
        self.eps = eps * torch.exp(-self.shift)

    def __call__(self, x: Tensor) -> Tensor:
        exponent = x.square().sum(-1, keepdim=True).mul_(self.scale / 2).add_(self.shift)
        return (x @ self.matrix.mT).sub_(exponent).exp_().add_(self.eps)

    def gradient(self, x: Tensor, features: Tensor, gradient: Tensor) -> Tensor:
        gradient.mul_(features.sub_(self.eps))
        return (gradient @ self.matrix).addcmul_(x, gradient.sum(-1, keepdim=True), value=-self.scale)


def orthogonal_directions(features: int, head: int, chance: torch.Generator) -> Tensor:
    """features head: as many as `head` neighbouring ones are orthogonal, each as long as a Gaussian vector."""
    blocks = [nn.init.orthogonal_(torch.empty(head, head), generator=chance) for _ in range(0, features, head)]
    lengths = torch.randn(features, head, generator=chance).norm(dim=-1, keepdim=True)
    return torch.cat(blocks)[:features] * lengths
