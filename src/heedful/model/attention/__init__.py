"""Attention variants (mixes): one file each; the file's name is the name in a recipe.

A mix takes queries, keys and values that are already projected, split into heads and rotated, and returns what each
query gathers. Projections, heads and output are implemented once, in `multihead.py`. If a variant needs other
projections, its config lists them in `projections`.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from heedful.config import PartConfig
from heedful.model.cache import LayerCache
from heedful.model.cpu.plan import Plan, Reason
from heedful.model.sight import Sight

# What a mix may be asked to honour. Padding is not among them: every mix must keep it out.
#   causal, window, segments, prefix, global_tokens, blocks, others_only    as `Mask` says
#   bias, score     terms of the scores that a position scheme gives, see `Position`
#   groups          fewer heads of keys and values than of queries
#   cross           queries of another text than the keys
#   recurrence      keys of earlier segments of a text before its own: see `SegmentMemory`
FACTS = frozenset(
    {"causal", "window", "segments", "prefix", "global_tokens", "blocks", "bias", "score", "groups", "cross"}
    | {"recurrence", "others_only"}
)
REMEDIES = {
    "causal": "use it in an encoder",
    "window": "remove attention.window",
    "bias": "choose a position that does not bias the scores, such as sinusoidal, learned or rotary",
    "score": "choose a position that does not act on the scores, such as sinusoidal, learned or rotary",
    "groups": "remove attention.kv_heads",
    "cross": "set another mix for cross, such as softmax",
    "others_only": "use it in the encoder only",
}


@dataclass(frozen=True)
class HeadShape:
    """What a mix is built for. `length`: the longest text there can be, where that is known; `scale`: what q . k is
    multiplied by; `dropout`: of the weights, in training; `layer`: its place in the stack, for what is drawn by
    chance."""

    heads: int
    kv_heads: int
    head: int  # the width of one head
    causal: bool = False
    cross: bool = False
    length: int | None = None
    window: int | None = None
    scale: float = 1.0
    dropout: float = 0.0
    layer: int = 0


class Mix(nn.Module):
    """The contract."""

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
        """query: batch heads query head; key, value: batch kv_heads key head -> batch heads query head

        Heads are grouped: each of the kv_heads serves heads / kv_heads neighbouring query heads. With a cache, key and
        value are those of the new tokens only. The result for a query that sees no key is zero. `others`: projections
        that the config names besides query, key and value.
        """
        raise NotImplementedError

    def new_cache(self, length: int) -> LayerCache:
        """An empty cache with room for this many tokens."""
        raise NotImplementedError

    def weights(self, query: Tensor, key: Tensor, *, sight: Sight, others: tuple[Tensor, ...] = ()) -> Tensor | None:
        """How much each query looks at each key, for plots: batch heads query key. None if there is no such
        matrix: a plot never shows weights that were not used."""
        return None

    def plan(self) -> Plan | Reason:
        """What our CPU kernels need to run this, or the reason why they cannot. Define this method to use a kernel. A
        class that changes what is computed does not inherit it (see `cpu/door.py`)."""
        return Reason("no kernel yet")


class MixConfig(PartConfig):
    """The contract.

    supports      the features it supports, from `FACTS`; a recipe that needs another one is rejected when it is read
    exact         whether it equals `reference` under the same facts. Otherwise its docstring says when it does, and a
                  test shows it
    long          whether it never holds a matrix of all queries and all keys, forward, backward or in its cache
    projections   what is projected from the input, in this order; `key` and `value` must be among them. Without `query`
                  the keys are the queries too. Names that begin with `query` have all heads, others those of the keys
    places        whether it has an encoding of positions of its own, and needs no other
    """

    folder: ClassVar[str] = "model/attention"
    supports: ClassVar[frozenset[str]] = frozenset()
    exact: ClassVar[bool] = True
    long: ClassVar[bool] = False
    projections: ClassVar[tuple[str, ...]] = ("query", "key", "value")
    places: ClassVar[bool] = False

    def build(self, shape: HeadShape) -> Mix:
        raise NotImplementedError

    @property
    def supported(self) -> frozenset[str]:
        """The facts it can honour with these keys: `supports`, or fewer."""
        return self.supports

    @property
    def limit(self) -> int | None:
        """The longest text it can attend to; None = no end."""
        return None

    def parameters(self, shape: HeadShape) -> int:
        """Its own parameters, besides the projections."""
        return 0

    def check(self, shape: HeadShape) -> None:
        """Raise ValueError if it does not fit this shape."""

    def flops(self, shape: HeadShape, length: int) -> int:
        """For one query that attends to `length` keys: scores and weighted sum."""
        return 2 * 2 * length * shape.heads * shape.head

    def remembered(self, shape: HeadShape) -> int:
        """How many numbers a decoder caches per token."""
        return 2 * shape.kv_heads * shape.head


def refuse_unsupported(config: MixConfig, asked: frozenset[str]) -> None:
    for fact in sorted(asked - config.supported):
        raise ValueError(
            f"attention {config.kind} does not support {fact}; {REMEDIES.get(fact, 'omit it')}, or choose mix softmax"
        )
