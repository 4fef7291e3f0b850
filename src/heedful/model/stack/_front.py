"""What stacks without a mask need: rows whose real tokens stand at the front, and facts they cannot honour refused."""

import torch
from torch import Tensor


class Front:
    """Moves the real tokens of each row to its front, in their order, and back: padding on the left or in the middle
    then comes between no two neighbours. valid: rows query."""

    def __init__(self, valid: Tensor) -> None:
        self._order = (~valid).byte().argsort(dim=1, stable=True)[..., None]  # rows query 1
        self.lengths = valid.sum(1)
        self.valid = torch.arange(valid.shape[1], device=valid.device) < self.lengths[:, None]

    def gather(self, x: Tensor) -> Tensor:
        """rows query width -> the same, real tokens first"""
        return x.gather(1, self._order.expand_as(x))

    def back(self, x: Tensor) -> Tensor:
        """To where they came from, zeros at padding."""
        x = x.masked_fill(~self.valid[..., None], 0)
        return torch.zeros_like(x).scatter(1, self._order.expand_as(x), x)


def refuse_facts(kind: str, **facts: Tensor | None) -> None:
    given = sorted(name for name, fact in facts.items() if fact is not None)
    if given:
        raise ValueError(f"stack {kind} does not support {', '.join(given)}; leave it out, or choose stack transformer")
