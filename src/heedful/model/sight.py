"""What an attention layer may use, as one value: made once per pass through a stack and shared by its layers."""

from dataclasses import dataclass, field, replace

from torch import Tensor

from heedful.model.mask import Mask
from heedful.model.position import Position, Rotation


@dataclass(frozen=True)
class Sight:
    """The mask, and the positions of queries and keys. Everything derived from them is computed on demand, once for all
    layers: an attention that needs no n x n bias never causes one to be built.

    Cross-attention has no positions: those of source and target are not comparable.
    """

    mask: Mask
    query_positions: Tensor | None = None  # (batch or 1) query
    key_positions: Tensor | None = None  # (batch or 1) key
    position: Position | None = None
    _made: dict[str, Tensor | Rotation | None] = field(default_factory=dict, compare=False, repr=False)
    _additive: dict[tuple[int, int], Tensor] = field(default_factory=dict, compare=False, repr=False)

    def with_window(self, window: int | None) -> "Sight":
        """A copy with another window, for layers with their own."""
        return replace(self, mask=replace(self.mask, window=window, _made={}), _additive={})

    def rotation(self) -> Rotation | None:
        """The rotation applied to queries and new keys."""
        if self.position is None or self.query_positions is None:
            return None
        if "rotation" not in self._made:
            self._made["rotation"] = self.position.rotation(self.query_positions)
        return self._made["rotation"]  # type: ignore[return-value]

    def key_rotation(self) -> Rotation | None:
        """What all keys are turned by, where some are made again of states of earlier segments."""
        if self.position is None or self.key_positions is None:
            return None
        if "key_rotation" not in self._made:
            self._made["key_rotation"] = self.position.rotation(self.key_positions)
        return self._made["key_rotation"]  # type: ignore[return-value]

    def bias(self) -> Tensor | None:
        """What is added to the scaled scores, without the mask: (batch or 1) heads query key. None = nothing."""
        if self.position is None or self.query_positions is None or self.key_positions is None:
            return None
        if "bias" not in self._made:
            self._made["bias"] = self.position.bias(self.query_positions, self.key_positions)
        return self._made["bias"]  # type: ignore[return-value]

    def masked_bias(self) -> Tensor | None:
        """The bias with -inf where a query may not look. None if there is no bias: the mask is enough then."""
        bias = self.bias()
        if bias is None:
            return None
        size = (bias.shape[-2], bias.shape[-1])
        if size not in self._additive:
            visible = self.mask.dense(*size, bias.device)
            self._additive[size] = bias if visible is None else bias.masked_fill(~visible, float("-inf"))
        return self._additive[size]

    def score(self, query: Tensor, key: Tensor) -> Tensor | None:
        """The part of the scores that depends on query and distance: batch heads query key, before scaling.
        query: batch heads query head; key: batch kv_heads key head. It differs between layers, so it is not cached."""
        if self.position is None or self.query_positions is None or self.key_positions is None:
            return None
        return self.position.score(query, key, query_positions=self.query_positions, key_positions=self.key_positions)
