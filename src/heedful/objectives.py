"""Logits -> loss: named terms, each a sum and a count. They are divided once, however a batch was split."""

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from heedful.model.cpu import door
from heedful.model.cpu.loss import cross_entropy_, vocabulary_products

HELD = 4_000_000  # logits per chunk: few enough for the CPU cache, enough for fast products


@dataclass(frozen=True)
class Term:
    """`total` is the sum over `count` items: tokens, sentences, pairs; or over their weights, if they have
    any. `weight`: its weight in the loss. `plain`: for a
    smoothed loss, the sum of -log p(target) without smoothing, comparable to the validation loss."""

    total: Tensor
    count: float
    weight: float = 1.0
    plain: Tensor | None = None


@dataclass(frozen=True)
class Loss:
    """sum over terms of weight * total / count, with the total and count of a whole step: sums over micro-batches and
    processes come first, the division last. `state`: what the task receives at the next step. `figures`: what else is
    to be logged, each a sum and a count; it is not learned from."""

    terms: dict[str, Term]
    state: dict[str, Tensor] = field(default_factory=dict)
    figures: dict[str, Term] = field(default_factory=dict)


def cross_entropy(logits: Tensor, targets: Tensor, *, smoothing: float = 0.0) -> Term:
    """-sum log p(target), with label smoothing (Szegedy et al. 2016; Vaswani et al. 2017, section 5.4).

        (1 - e) * -log p(target) + e * mean over the vocabulary of -log p

    logits: tokens vocab; targets: tokens
    """
    total = F.cross_entropy(logits.float(), targets, reduction="sum", label_smoothing=smoothing)
    if not smoothing:
        return Term(total, targets.numel())
    right = logits.detach().gather(1, targets[:, None]).sum(dtype=torch.float64)
    plain = _unsmoothed(total, right, logits.detach().sum(dtype=torch.float64), smoothing, logits.shape[1])
    return Term(total, targets.numel(), plain=plain)


def vocabulary_cross_entropy(
    states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, *, smoothing: float = 0.0
) -> Term:
    """The same from the states before the last linear map, logits = W h + b, without storing all logits: they
    are computed and turned into probabilities and gradients a few rows at a time, while these are in the CPU cache.

    states: tokens width; weight: vocab width
    """
    if not len(states) or door.chunked_loss(states, weight) is not None:
        return cross_entropy(F.linear(states, weight, bias), targets, smoothing=smoothing)
    total: Tensor = _VocabularyCrossEntropy.apply(states, weight, bias, targets, smoothing)
    if not smoothing:
        return Term(total, targets.numel())
    with torch.no_grad():
        right = (states * weight[targets]).sum(dtype=torch.float64)
        every = states.sum(0).double() @ weight.sum(0).double()
        if bias is not None:
            right, every = right + bias[targets].sum(), every + len(states) * bias.sum()
    return Term(total, targets.numel(), plain=_unsmoothed(total, right, every, smoothing, len(weight)))


def _unsmoothed(total: Tensor, right: Tensor, every: Tensor, smoothing: float, vocab: int) -> Tensor:
    """The sum of -log p(target), from the smoothed loss, the sum of the targets' logits and that of all logits."""
    return total.detach().double() - smoothing * right + smoothing / vocab * every


class _VocabularyCrossEntropy(torch.autograd.Function):
    """With p = softmax(W h + b), target t and smoothing e over V words:

        loss  = lse(W h + b) - (1 - e) (W h + b)_t - e/V sum_j (W h + b)_j
        dloss/dlogits = p - (1 - e) onehot(t) - e/V

    The last term is the same for all words, so it needs no pass over the vocabulary: its share of a sum over words is a
    product with the sum of W's rows. Frozen weights get no gradient.
    """

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float
    ) -> Tensor:
        even, vocab = smoothing / len(weight), len(weight)
        states = states.detach()
        d_states = torch.empty_like(states)
        d_weight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
        d_bias = torch.zeros_like(bias) if bias is not None and ctx.needs_input_grad[2] else None
        loss = states.new_zeros((), dtype=torch.float64)
        rows = min(len(states), max(128, HELD // vocab))
        scores = states.new_empty(rows, vocab)
        forwards, backwards, weight_gradient = vocabulary_products(states, weight, bias)
        for start in range(0, len(states), max(1, rows)):
            some = states[start : start + rows]
            logits = scores[: len(some)]
            forwards(logits, some)
            loss += cross_entropy_(logits, targets[start : start + rows], 1 - smoothing)
            backwards(d_states[start : start + rows], logits)
            if d_weight is not None:
                weight_gradient(d_weight, logits, some, add=start > 0)
            if d_bias is not None:
                d_bias += logits.sum(0)
        if smoothing:
            every, summed = states.sum(0), weight.sum(0)
            loss -= even * (
                every.double() @ summed.double() + (0 if bias is None else len(states) * bias.double().sum())
            )
            d_states -= even * summed
            if d_weight is not None:
                d_weight -= even * every
            if d_bias is not None:
                d_bias -= even * len(states)
        ctx.save_for_backward(d_states, d_weight, d_bias)
        return loss.to(states.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        states, weight, bias = (None if saved is None else saved * grads[0] for saved in ctx.saved_tensors)
        return states, weight, bias, None, None
