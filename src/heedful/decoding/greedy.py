"""Greedy search: always the most likely next token. Finished sentences leave the batch."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from heedful.decoding.beam import Found, Hypothesis, gathered, left
from heedful.decoding.rules import Rules
from heedful.decoding.stepper import Stepper
from heedful.model.cpu.kernels import largest


def greedy(stepper: Stepper, first: Tensor, *, limits: list[int], rules: Rules) -> list[Hypothesis]:
    """One hypothesis per row; see `greedy_steps`."""
    return [best for (best,) in gathered(greedy_steps(stepper, first, limits=limits, rules=rules), len(limits))]


@torch.inference_mode()
def greedy_steps(
    stepper: Stepper,
    first: Tensor,
    *,
    limits: list[int],
    rules: Rules,
    dropped: Callable[[int], bool] = lambda sentence: False,
) -> Iterator[Found]:
    """Continue each row after its first token until </s> or its limit of new tokens. Equals a beam of one but is
    faster; only for rules that do not depend on earlier tokens."""
    eos = rules.eos
    tokens: list[list[int]] = [[] for _ in limits]
    log_probs: list[list[float]] = [[] for _ in limits]
    nothing = first.new_empty(1, 1, 1)
    live, last, length = list(range(len(limits))), first, 0
    while live:
        allowed = rules.apply(stepper.advance(last)[:, None], nothing.expand(len(live), 1, length), live)
        values, best = (found[:, 0] for found in largest(allowed[:, 0], 1))
        length += 1
        going = []
        for row, (sentence, token, value) in enumerate(zip(live, best.tolist(), values.tolist(), strict=True)):
            tokens[sentence].append(token)
            log_probs[sentence].append(value)
            if token != eos and length < limits[sentence] and not dropped(sentence):
                going.append(row)
        last, over = best, list[int]()
        if len(going) < len(live):
            over = left(live, going)
            live = [live[row] for row in going]
            kept = torch.tensor(going, dtype=torch.long, device=first.device)
            last = last[kept]
            if live:
                stepper.select(kept, kept)
        yield [(row, [_hypothesis(tokens[row], log_probs[row], rules)]) for row in over]


def _hypothesis(written: list[int], log_probs: list[float], rules: Rules) -> Hypothesis:
    ended, total = written[-1] == rules.eos, sum(log_probs)
    score = rules.config.rank(total, len(written))
    return Hypothesis(written[:-1] if ended else written, score, total, log_probs, ended)
