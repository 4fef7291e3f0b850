"""Logits -> loss, as a sum over tokens and their number: divided once, however the tokens were dealt out."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Loss:
    """`total` is the sum over `count` tokens. Micro-batches and processes add up; the division comes last."""

    total: Tensor
    count: int


def cross_entropy(logits: Tensor, targets: Tensor, *, smoothing: float = 0.0) -> Loss:
    """-sum log p(target), with label smoothing (Szegedy et al. 2016; Vaswani et al. 2017, section 5.4).

        (1 - e) * -log p(target) + e * mean over the vocabulary of -log p

    logits: tokens vocab; targets: tokens
    """
    total = F.cross_entropy(logits.float(), targets, reduction="sum", label_smoothing=smoothing)
    return Loss(total, targets.numel())
