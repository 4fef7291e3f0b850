"""Beam search: at every step keep the best few continuations of each sentence.

    expand    extend every live hypothesis by every token, and take the best candidates
    finish    collect those that end
    prune     keep the best of the others
    done      stop a sentence whose live hypotheses cannot beat the finished ones

The functions are pure; `search_steps` holds the state and talks to the stepper.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.decoding.generation import GenerationConfig
from heedful.decoding.required import Required
from heedful.decoding.rules import Rules
from heedful.decoding.stepper import Stepper
from heedful.model.cpu.kernels import largest


@dataclass(frozen=True)
class Hypothesis:
    """A finished text. `score` is what it is ranked by; `ended` False means that it was cut off at the limit.
    `fertilities`: how many of its tokens come from each source token, </s> included, where the model says so."""

    tokens: list[int]
    score: float
    log_prob: float
    token_log_probs: list[float]
    ended: bool = True
    fertilities: list[int] | None = None


# What a step of a search gives: the sentences that it finished, with their hypotheses, best first. A search is an
# iterator of steps, so that several can take turns.
Found = list[tuple[int, list[Hypothesis]]]


def gathered(steps: Iterator[Found], count: int) -> list[list[Hypothesis]]:
    """A search run to its end: the hypotheses of each sentence."""
    found = dict(one for some in steps for one in some)
    return [found[sentence] for sentence in range(count)]


@dataclass(frozen=True)
class Considered:
    """A candidate that a search considered. `parent`: the beam of the previous step that it continues; `beam`: the one
    it became, None if it was dropped or ended."""

    parent: int
    token: int
    log_prob: float
    score: float
    beam: int | None
    ended: bool


History = list[list[Considered]]  # step by step


@dataclass(frozen=True)
class Beams:
    """Live hypotheses: equally many per sentence, best first. Empty slots have the score -inf."""

    tokens: Tensor  # sentences beams length
    token_log_probs: Tensor  # sentences beams length
    scores: Tensor  # sentences beams

    @property
    def length(self) -> int:
        return self.tokens.shape[2]

    def select(self, sentences: Tensor) -> "Beams":
        return Beams(self.tokens[sentences], self.token_log_probs[sentences], self.scores[sentences])


@dataclass(frozen=True)
class Candidates:
    """The best continuations of each sentence, best first."""

    scores: Tensor  # sentences candidates
    parents: Tensor  # which of the sentence's beams it continues
    tokens: Tensor
    token_log_probs: Tensor


def search(
    stepper: Stepper, first: Tensor, config: GenerationConfig, *, eos: int, limits: list[int], rules: Rules
) -> list[list[Hypothesis]]:
    """The best hypotheses of each sentence, best first; see `search_steps`."""
    return gathered(search_steps(stepper, first, config, eos=eos, limits=limits, rules=rules), len(limits))


@torch.inference_mode()
def search_steps(
    stepper: Stepper,
    first: Tensor,
    config: GenerationConfig,
    *,
    eos: int,
    limits: list[int],
    rules: Rules,
    histories: list[History] | None = None,
    dropped: Callable[[int], bool] = lambda sentence: False,
) -> Iterator[Found]:
    """`first`: the token each sentence starts with; `limits`: the maximum number of new tokens of each, </s> included;
    `histories`: one per sentence, to be filled; `dropped`: whether a sentence has been cancelled."""
    beams = start(len(limits), first.device)
    live = list(range(len(limits)))
    finished: list[list[Hypothesis]] = [[] for _ in limits]
    tokens = first
    while live:
        log_probs = rules.apply(stepper.advance(tokens).unflatten(0, (len(live), -1)), beams.tokens, live)
        if rules.required:
            candidates = expand_required(beams, log_probs, config.num_beams, [rules.required[s] for s in live])
        else:
            candidates = expand(beams, log_probs, config.num_beams)
        ending = ends(beams, candidates, [limits[sentence] for sentence in live], eos, rules)
        if bool(ending.any()):
            for sentence, found in zip(live, finish(beams, candidates, ending, eos, config), strict=True):
                finished[sentence] = keep(finished[sentence] + found, config.num_beams)
        places, beams = prune(beams, candidates, ending, config.num_beams)
        if histories is not None:
            for sentence, step in zip(live, considered(candidates, ending, places), strict=True):
                histories[sentence].append(step)
        rows = candidates.parents.gather(1, places) + row_starts(log_probs)
        best = beams.scores[:, 0].tolist()
        going = [
            place
            for place, sentence in enumerate(live)
            if not done(finished[sentence], best[place], beams.length, limits[sentence], config)
            and not dropped(sentence)
        ]
        over: Found = []
        if len(going) < len(live):
            over = [(sentence, finished[sentence][: config.num_return_sequences]) for sentence in left(live, going)]
            kept = torch.tensor(going, dtype=torch.long, device=first.device)
            live = [live[place] for place in going]
            rows, beams = rows[kept], beams.select(kept)
            if live:
                stepper.select(rows.flatten(), kept)
        else:
            stepper.select(rows.flatten())
        tokens = beams.tokens[:, :, -1].flatten()
        yield over


def left(live: Sequence[int], going: Sequence[int]) -> list[int]:
    """The sentences that are not at these places."""
    staying = set(going)
    return [sentence for place, sentence in enumerate(live) if place not in staying]


def start(sentences: int, device: torch.device) -> Beams:
    """One empty hypothesis per sentence: more would all be the same."""
    nothing = torch.zeros(sentences, 1, 0, device=device)
    return Beams(nothing.long(), nothing, torch.zeros(sentences, 1, device=device))


def row_starts(log_probs: Tensor) -> Tensor:
    """The row of each sentence's first beam: sentences 1."""
    sentences, beams, _ = log_probs.shape
    return torch.arange(0, sentences * beams, beams, device=log_probs.device)[:, None]


def expand(beams: Beams, log_probs: Tensor, num_beams: int, penalties: Tensor | None = None) -> Candidates:
    """The best continuations. Twice as many as beams: even if half of them end, enough remain. `penalties` (sentences
    vocab) affect the selection, not the scores.

    log_probs: sentences beams vocab
    """
    judged = log_probs if penalties is None else log_probs - penalties[:, None]
    _, beam_count, vocab = judged.shape
    scores, places = largest(judged.flatten(1), min(2 * num_beams, beam_count * vocab), beams.scores)
    if penalties is not None:
        return _candidates(beams.scores[..., None] + log_probs, log_probs, places)
    return Candidates(scores, places // vocab, places % vocab, log_probs.flatten(1).gather(1, places))


def expand_required(beams: Beams, log_probs: Tensor, num_beams: int, required: Sequence[Required]) -> Candidates:
    """Candidates that end, then those that do not: `num_beams` of each, padded with -inf."""
    totals = beams.scores[..., None] + log_probs
    places = torch.zeros(len(totals), 2 * num_beams, dtype=torch.long, device=totals.device)
    nowhere = torch.ones_like(places, dtype=torch.bool)
    for sentence, asked in enumerate(required):
        ending, going = asked.choose(totals[sentence], beams.tokens[sentence].tolist(), num_beams)
        for begin, chosen in ((0, ending), (num_beams, going)):
            places[sentence, begin : begin + len(chosen)] = torch.tensor(chosen, dtype=torch.long)
            nowhere[sentence, begin : begin + len(chosen)] = False
    found = _candidates(totals, log_probs, places)
    return Candidates(found.scores.masked_fill(nowhere, -torch.inf), found.parents, found.tokens, found.token_log_probs)


def _candidates(totals: Tensor, log_probs: Tensor, places: Tensor) -> Candidates:
    vocab = log_probs.shape[-1]
    scores, token_log_probs = totals.flatten(1).gather(1, places), log_probs.flatten(1).gather(1, places)
    return Candidates(scores, places // vocab, places % vocab, token_log_probs)


def ends(beams: Beams, candidates: Candidates, limits: list[int], eos: int, rules: Rules) -> Tensor:
    """Which candidates are the end of their text: sentences candidates."""
    ending = candidates.tokens == eos
    if min(limits) <= beams.length + 1:
        at_limit = [limit <= beams.length + 1 for limit in limits]
        ending |= torch.tensor(at_limit, device=ending.device)[:, None]
    if rules.stops is not None:
        for sentence, (parents, tokens) in enumerate(
            zip(candidates.parents.tolist(), candidates.tokens.tolist(), strict=True)
        ):
            written = beams.tokens[sentence].tolist()
            for place, (parent, token) in enumerate(zip(parents, tokens, strict=True)):
                if rules.stops([*written[parent], token]):
                    ending[sentence, place] = True
    return ending


def finish(
    beams: Beams, candidates: Candidates, ending: Tensor, eos: int, config: GenerationConfig
) -> list[list[Hypothesis]]:
    """The candidates of each sentence that end; only those among the best `num_beams`."""
    found: list[list[Hypothesis]] = [[] for _ in range(len(ending))]
    within = ending[:, : config.num_beams] & (candidates.scores[:, : config.num_beams] > -torch.inf)
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


def prune(
    beams: Beams, candidates: Candidates, ending: Tensor, num_beams: int, *, in_order: bool = False
) -> tuple[Tensor, Beams]:
    """The best candidates that do not end: their indices, and the resulting beams. `in_order`: the first ones instead,
    where the candidates are not sorted by score."""
    open_scores = candidates.scores.masked_fill(ending, -torch.inf)
    judged = open_scores
    if in_order:
        order = -torch.arange(ending.shape[1], dtype=open_scores.dtype, device=ending.device)
        judged = torch.where(open_scores > -torch.inf, order, -torch.inf)
    places = judged.topk(min(num_beams, open_scores.shape[1]), dim=1).indices
    scores = open_scores.gather(1, places)
    history = candidates.parents.gather(1, places)[..., None].expand(-1, -1, beams.length)
    tokens = torch.cat([beams.tokens.gather(1, history), candidates.tokens.gather(1, places)[..., None]], dim=2)
    latest = candidates.token_log_probs.gather(1, places)[..., None]
    token_log_probs = torch.cat([beams.token_log_probs.gather(1, history), latest], dim=2)
    return places, Beams(tokens, token_log_probs, scores)


def done(finished: list[Hypothesis], best: float, length: int, limit: int, config: GenerationConfig) -> bool:
    """Whether no live hypothesis, the best one having this log-probability, can still be among those returned."""
    if best == -torch.inf or length >= limit:
        return True
    if config.early_stopping is True or config.num_beams == 1:  # a beam of one is greedy: it stops at the first end
        return len(finished) >= config.num_beams
    wanted = config.num_return_sequences
    if len(finished) < wanted:
        return False
    return config.best_rank(best, length, limit) <= finished[wanted - 1].score


def considered(candidates: Candidates, ending: Tensor, places: Tensor) -> list[list[Considered]]:
    """The candidates of this step, for the search history."""
    steps = []
    for sentence in range(len(ending)):
        beams = {place: beam for beam, place in enumerate(places[sentence].tolist())}
        columns = (candidates.parents, candidates.tokens, candidates.token_log_probs, candidates.scores, ending)
        rows = zip(*(column[sentence].tolist() for column in columns), strict=True)
        steps.append(
            [
                Considered(parent, token, log_prob, score, None if ended else beams.get(place), ended)
                for place, (parent, token, log_prob, score, ended) in enumerate(rows)
                if score > -torch.inf
            ]
        )
    return steps
