"""Sampling: draw the next token from those that are likely enough."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from heedful.decoding.beam import Found, Hypothesis, gathered, left
from heedful.decoding.generation import GenerationConfig
from heedful.decoding.rules import Rules
from heedful.decoding.stepper import Stepper


def sample(
    stepper: Stepper, first: Tensor, config: GenerationConfig, *, eos: int, limits: list[int], rules: Rules
) -> list[Hypothesis]:
    """One text per row; see `sample_steps`."""
    steps = sample_steps(stepper, first, config, eos=eos, limits=limits, rules=rules)
    return [drawn for (drawn,) in gathered(steps, len(limits))]


@torch.inference_mode()
def sample_steps(
    stepper: Stepper,
    first: Tensor,
    config: GenerationConfig,
    *,
    eos: int,
    limits: list[int],
    rules: Rules,
    names: list[int] | None = None,
    on_token: Callable[[int, int, Tensor], bool] = lambda row, token, log_probs: True,
) -> Iterator[Found]:
    """One text per row. Scores are the model's own log-probabilities, before any truncation. `on_token` is called with
    each token as it is drawn (row, token, log-probabilities of all) and returns whether to continue.

    With a seed, a row's text depends only on the seed and its name (its index, unless given), not on its neighbours.
    """
    rows = len(limits)
    chance = [_generator(config.seed, name, first.device) for name in names or range(rows)]
    tokens: list[list[int]] = [[] for _ in range(rows)]
    log_probs: list[list[float]] = [[] for _ in range(rows)]
    ended = [False] * rows
    live, latest, length = list(range(rows)), first, 0
    written = first.new_zeros(rows, 1, max(limits))
    while live:
        raw = stepper.advance(latest)
        ruled = rules.apply(raw.clone()[:, None], written[:, :, :length], live)[:, 0]
        probabilities = likely(ruled / config.temperature, config).softmax(-1)
        draws = [torch.multinomial(probabilities[place], 1, generator=chance[row]) for place, row in enumerate(live)]
        latest = torch.cat(draws)
        written[:, 0, length] = latest
        length += 1
        going = []
        for place, (row, token) in enumerate(zip(live, latest.tolist(), strict=True)):
            log_probs[row].append(float(raw[place, token]))
            wanted = on_token(row, token, raw[place])
            ended[row] = token == eos
            if not ended[row]:
                tokens[row].append(token)
                stopped = rules.stops is not None and rules.stops(tokens[row])
                if len(log_probs[row]) < limits[row] and wanted and not stopped:
                    going.append(place)
        over: list[int] = []
        if len(going) < len(live):
            over = left(live, going)
            live = [live[place] for place in going]
            kept = torch.tensor(going, dtype=torch.long, device=first.device)
            latest, written = latest[kept], written[kept]
            if live:
                stepper.select(kept, kept)
        yield [(row, [_hypothesis(tokens[row], log_probs[row], ended[row], config)]) for row in over]


def _hypothesis(tokens: list[int], log_probs: list[float], ended: bool, config: GenerationConfig) -> Hypothesis:
    total = sum(log_probs)
    return Hypothesis(tokens, config.rank(total, len(log_probs)), total, log_probs, ended)


def likely(logits: Tensor, config: GenerationConfig) -> Tensor:
    """-inf for tokens that are not likely enough.

    top_k   not among the k most likely                                    Fan et al. 2018
    top_p   not in the smallest set whose probability is at least p        Holtzman et al. 2020
    min_p   less likely than p times the most likely                       Nguyen et al. 2024
    """
    if config.top_k and config.top_k < logits.shape[-1]:
        least = logits.topk(config.top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if config.top_p < 1:
        ordered, order = logits.sort(dim=-1, descending=True)
        probabilities = ordered.softmax(-1)
        beyond = probabilities.cumsum(-1) - probabilities >= config.top_p  # the set reaches p without it
        logits = logits.masked_fill(beyond.scatter(-1, order, beyond), -torch.inf)
    if config.min_p:
        probabilities = logits.softmax(-1)
        least = config.min_p * probabilities.max(dim=-1, keepdim=True).values
        logits = logits.masked_fill(probabilities < least, -torch.inf)
    return logits


def _generator(seed: int | None, row: int, device: torch.device) -> torch.Generator | None:
    if seed is None:
        return None
    return torch.Generator(device=device).manual_seed((seed * 1_000_003 + row) % 2**63)
