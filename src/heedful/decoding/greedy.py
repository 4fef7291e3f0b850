"""Always the likeliest next token. Sentences that are done leave the batch."""

import torch
from torch import Tensor

from heedful.decoding.stepper import Stepper


@torch.inference_mode()
def greedy(stepper: Stepper, first: Tensor, *, eos: int, limits: list[int]) -> list[list[int]]:
    """Continue each row after its first token until `eos` (left out) or its limit of new tokens."""
    written: list[list[int]] = [[] for _ in limits]
    live, tokens = list(range(len(limits))), first
    while live:
        tokens = stepper.advance(tokens).argmax(-1)
        going = []
        for row, (sentence, token) in enumerate(zip(live, tokens.tolist(), strict=True)):
            if token != eos:
                written[sentence].append(token)
                if len(written[sentence]) < limits[sentence]:
                    going.append(row)
        if len(going) < len(live):
            live = [live[row] for row in going]
            kept = torch.tensor(going, dtype=torch.long, device=tokens.device)
            tokens = tokens[kept]
            if live:
                stepper.select(kept, kept)
    return written
