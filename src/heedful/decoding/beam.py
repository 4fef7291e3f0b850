"""Beam search: at every step keep the best few continuations of each sentence.

    expand    every live hypothesis by every token, and take the best candidates
    finish    those that end
    prune     the best of the others live on
    done      is a sentence whose live hypotheses cannot beat those already kept

The functions are pure; `search` holds the state and talks to the stepper.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.decoding.generation import GenerationConfig
from heedful.decoding.rules import Rules
from heedful.decoding.stepper import Stepper


@dataclass(frozen=True)
class Hypothesis:
    """A finished text. `score` is what it is ranked by; `ended` False means that it was cut off at the limit."""

    tokens: list[int]
    score: float
    log_prob: float
    token_log_probs: list[float]
    ended: bool = True


@dataclass(frozen=True)
class Beams:
    """Live hypotheses: equally many to a sentence, best first. Places without one have the score -inf."""

    tokens: Tensor  # sentences beams length
    token_log_probs: Tensor  # sentences beams length
    scores: Tensor  # sentences beams

    @property
    def length(self) -> int:
        return self.tokens.shape[2]


@dataclass(frozen=True)
class Candidates:
    """The best continuations of each sentence, best first."""

    scores: Tensor  # sentences candidates
    parents: Tensor  # which of the sentence's beams it continues
    tokens: Tensor
    token_log_probs: Tensor


@torch.inference_mode()
def search(
    stepper: Stepper, first: Tensor, config: GenerationConfig, *, eos: int, limits: list[int], rules: Rules
) -> list[list[Hypothesis]]:
    """The best hypotheses of each sentence, best first. `first`: the token each starts with; `limits`: the most new
    tokens each may have, the end included."""
    beams = start(len(limits), first.device)
    live = list(range(len(limits)))
    finished: list[list[Hypothesis]] = [[] for _ in limits]
    tokens = first
    while live:
        log_probs = rules.apply(stepper.advance(tokens).unflatten(0, (len(live), -1)), beams.tokens, live)
        candidates = expand(beams, log_probs, config.num_beams)
        at_limit = torch.tensor([limits[sentence] <= beams.length + 1 for sentence in live], device=first.device)
        ending = (candidates.tokens == eos) | at_limit[:, None]
        for sentence, found in zip(live, finish(beams, candidates, ending, eos, config), strict=True):
            finished[sentence] = keep(finished[sentence] + found, config.num_beams)
        parents, beams = prune(beams, candidates, ending, config.num_beams)
        going = [
            place
            for place, sentence in enumerate(live)
            if not done(finished[sentence], beams.scores[place], beams.length, limits[sentence], config)
        ]
        rows = parents + torch.arange(len(live), device=first.device)[:, None] * log_probs.shape[1]
        if len(going) < len(live):
            kept = torch.tensor(going, dtype=torch.long, device=first.device)
            live = [live[place] for place in going]
            rows = rows[kept]
            beams = Beams(beams.tokens[kept], beams.token_log_probs[kept], beams.scores[kept])
            if live:
                stepper.select(rows.flatten(), kept)
        else:
            stepper.select(rows.flatten())
        tokens = beams.tokens[:, :, -1].flatten()
    return [hypotheses[: config.num_return_sequences] for hypotheses in finished]


def start(sentences: int, device: torch.device) -> Beams:
    """One empty hypothesis each: there is nothing yet to tell beams apart."""
    nothing = torch.zeros(sentences, 1, 0, device=device)
    return Beams(nothing.long(), nothing, torch.zeros(sentences, 1, device=device))


def expand(beams: Beams, log_probs: Tensor, num_beams: int) -> Candidates:
    """The best continuations. Twice as many as beams: even if half of them end, enough live on.

    log_probs: sentences beams vocab
    """
    vocab = log_probs.shape[-1]
    totals = (beams.scores[..., None] + log_probs).flatten(1)
    scores, places = totals.topk(min(2 * num_beams, totals.shape[1]), dim=1)
    parents, tokens = places // vocab, places % vocab
    return Candidates(scores, parents, tokens, log_probs.flatten(1).gather(1, places))


def finish(
    beams: Beams, candidates: Candidates, ending: Tensor, eos: int, config: GenerationConfig
) -> list[list[Hypothesis]]:
    """The candidates that end, of each sentence; only those good enough to have lived on."""
    within = ending.clone()
    within[:, config.num_beams :] = False
    within &= candidates.scores > -torch.inf
    found: list[list[Hypothesis]] = [[] for _ in range(len(ending))]
    for sentence, place in within.nonzero().tolist():
        parent = int(candidates.parents[sentence, place])
        token, log_prob = int(candidates.tokens[sentence, place]), float(candidates.scores[sentence, place])
        before = beams.tokens[sentence, parent].tolist()
        found[sentence].append(
            Hypothesis(
                tokens=before if token == eos else [*before, token],
                score=config.rank(log_prob, beams.length + 1),
                log_prob=log_prob,
                token_log_probs=[
                    *beams.token_log_probs[sentence, parent].tolist(),
                    float(candidates.token_log_probs[sentence, place]),
                ],
                ended=token == eos,
            )
        )
    return found


def keep(hypotheses: list[Hypothesis], count: int) -> list[Hypothesis]:
    return sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)[:count]


def prune(beams: Beams, candidates: Candidates, ending: Tensor, num_beams: int) -> tuple[Tensor, Beams]:
    """The best candidates that go on, and the beams they come from."""
    open_scores = candidates.scores.masked_fill(ending, -torch.inf)
    scores, places = open_scores.topk(min(num_beams, open_scores.shape[1]), dim=1)
    parents = candidates.parents.gather(1, places)
    history = parents[..., None].expand(-1, -1, beams.length)
    tokens = torch.cat([beams.tokens.gather(1, history), candidates.tokens.gather(1, places)[..., None]], dim=2)
    latest = candidates.token_log_probs.gather(1, places)[..., None]
    token_log_probs = torch.cat([beams.token_log_probs.gather(1, history), latest], dim=2)
    return parents, Beams(tokens, token_log_probs, scores)


def done(finished: list[Hypothesis], live: Tensor, length: int, limit: int, config: GenerationConfig) -> bool:
    """Whether nothing that lives can still get among the hypotheses to be returned."""
    best = float(live[0])
    if best == -torch.inf or length >= limit:
        return True
    if config.early_stopping is True or config.num_beams == 1:  # a beam of one is greedy: it takes the first end
        return len(finished) >= config.num_beams
    wanted = config.num_return_sequences
    if len(finished) < wanted:
        return False
    return config.best_rank(best, length, limit) <= finished[wanted - 1].score
