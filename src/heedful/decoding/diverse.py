"""Diverse beam search (Vijayakumar et al. 2018): groups of beams that take turns at every step.

A group is penalised for tokens that the groups before it have just chosen, so that the results differ by more than a
word at the end.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from heedful.decoding.beam import (
    Found,
    Hypothesis,
    done,
    ends,
    expand,
    finish,
    gathered,
    keep,
    left,
    prune,
    row_starts,
    start,
)
from heedful.decoding.generation import GenerationConfig
from heedful.decoding.rules import Rules
from heedful.decoding.stepper import Stepper


def diverse_search(
    stepper: Stepper, first: Tensor, config: GenerationConfig, *, eos: int, limits: list[int], rules: Rules
) -> list[list[Hypothesis]]:
    """The best hypotheses of each sentence across all groups."""
    return gathered(diverse_steps(stepper, first, config, eos=eos, limits=limits, rules=rules), len(limits))


@torch.inference_mode()
def diverse_steps(
    stepper: Stepper, first: Tensor, config: GenerationConfig, *, eos: int, limits: list[int], rules: Rules
) -> Iterator[Found]:
    """See `search_steps`. A sentence stays in the batch until all its groups are done; what a group finds after it is
    done does not count."""
    groups, width = config.num_beam_groups, config.num_beams // config.num_beam_groups
    each = config.model_copy(update={"num_beams": width, "num_return_sequences": width})
    beams = [start(len(limits), first.device) for _ in range(groups)]
    live = list(range(len(limits)))
    finished: list[list[list[Hypothesis]]] = [[[] for _ in range(groups)] for _ in limits]
    over = [[False] * groups for _ in limits]
    tokens = first
    while live:
        every = stepper.advance(tokens).unflatten(0, (len(live), -1))
        taken = torch.zeros(len(live), every.shape[-1], device=first.device)
        starts, begun, rows = row_starts(every), beams[0].length > 0, []
        for group in range(groups):
            now, mine = beams[group], slice(group * width, (group + 1) * width) if begun else slice(0, 1)
            log_probs = rules.apply(every[:, mine].clone(), now.tokens, live)
            candidates = expand(now, log_probs, width, config.diversity_penalty * taken)
            ending = ends(now, candidates, [limits[sentence] for sentence in live], eos, rules)
            for place, found in enumerate(finish(now, candidates, ending, eos, each)):
                kept = finished[live[place]]
                if not over[live[place]][group]:
                    kept[group] = keep(kept[group] + found, width)
            places, beams[group] = prune(now, candidates, ending, width, in_order=True)
            rows.append(candidates.parents.gather(1, places) + starts + mine.start)
            best = beams[group].scores.amax(1).tolist()
            for place, sentence in enumerate(live):
                here = finished[sentence][group]
                over[sentence][group] |= done(here, best[place], beams[group].length, limits[sentence], each)
            taken.scatter_add_(1, beams[group].tokens[:, :, -1], (beams[group].scores > -torch.inf).float())
            taken.scatter_add_(1, candidates.tokens[:, :width], ending[:, :width].float())
        going = [place for place, sentence in enumerate(live) if not all(over[sentence])]
        ready = left(live, going)
        kept_rows = torch.tensor(going, dtype=torch.long, device=first.device)
        if going:
            stepper.select(torch.cat(rows, dim=1)[kept_rows].flatten(), kept_rows if ready else None)
        live = [live[place] for place in going]
        beams = [one.select(kept_rows) for one in beams]
        tokens = torch.cat([one.tokens[:, :, -1] for one in beams], dim=1).flatten()
        yield [(sentence, _merged(finished[sentence], config)) for sentence in ready]


def _merged(groups: list[list[Hypothesis]], config: GenerationConfig) -> list[Hypothesis]:
    best = keep([one for group in groups for one in group], config.num_beams)
    return _distinct(best)[: config.num_return_sequences]


def _distinct(hypotheses: list[Hypothesis]) -> list[Hypothesis]:
    """Duplicates last: several groups may arrive at the same text."""
    seen: set[tuple[int, ...]] = set()
    first: list[Hypothesis] = []
    again: list[Hypothesis] = []
    for hypothesis in hypotheses:
        (again if tuple(hypothesis.tokens) in seen else first).append(hypothesis)
        seen.add(tuple(hypothesis.tokens))
    return first + again
