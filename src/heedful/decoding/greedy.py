"""Greedy search: always the most likely next token. Finished sentences leave the batch."""

from collections.abc import Callable

import torch
from torch import Tensor

from heedful.decoding.beam import Hypothesis
from heedful.decoding.rules import Rules
from heedful.decoding.stepper import Stepper
from heedful.model.cpu.kernels import largest


@torch.inference_mode()
def greedy(
    stepper: Stepper,
    first: Tensor,
    *,
    limits: list[int],
    rules: Rules,
    dropped: Callable[[int], bool] = lambda sentence: False,
) -> list[Hypothesis]:
    """Continue each row after its first token until </s> or its limit of new tokens. Equals a beam of one but is
    faster; only for rules that do not depend on earlier tokens."""
    config, eos = rules.config, rules.eos
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
        last = best
        if len(going) < len(live):
            live = [live[row] for row in going]
            kept = torch.tensor(going, dtype=torch.long, device=first.device)
            last = last[kept]
            if live:
                stepper.select(kept, kept)
    found = []
    for written, each in zip(tokens, log_probs, strict=True):
        ended, total = written[-1] == eos, sum(each)
        score = config.rank(total, len(written))
        found.append(Hypothesis(written[:-1] if ended else written, score, total, each, ended))
    return found
