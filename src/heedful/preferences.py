"""Learning from preferences and rewards: the losses, as functions of numbers that a model has computed.

Sums of log-probabilities belong to whole answers (`pairs`), everything else to tokens (`batch length`), where `valid`
marks those of the answer. The functions know nothing of models and texts.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

TINY = 1e-8  # added to a variance


def bradley_terry(chosen: Tensor, rejected: Tensor, *, smoothing: float = 0.0) -> Tensor:
    """-log p(chosen is better than rejected), for each pair of rewards.      Bradley and Terry 1952

        p = sigmoid(r_chosen - r_rejected)

    `smoothing`: the share of pairs that are labelled the wrong way round.
    """
    margin = chosen - rejected
    return -(1 - smoothing) * F.logsigmoid(margin) - smoothing * F.logsigmoid(-margin)


def dpo(chosen: Tensor, rejected: Tensor, *, beta: float, smoothing: float = 0.0) -> Tensor:
    """Direct preference optimisation: Bradley and Terry with the rewards that a policy implies.      Rafailov et al.
    2023, equation 7; smoothing: Mitchell 2023 (conservative DPO)

        r(x, y) = beta (log pi(y|x) - log pi_ref(y|x))

    `chosen` and `rejected`: log pi - log pi_ref, summed over the tokens of each answer.
    """
    return bradley_terry(beta * chosen, beta * rejected, smoothing=smoothing)


def ipo(chosen: Tensor, rejected: Tensor, *, beta: float, smoothing: float = 0.0) -> Tensor:
    """Identity preference optimisation: the margin goes to 1 / (2 beta), and no further.      Azar et al. 2024,
    equation 17, with tau = beta; smoothing: both directions, weighted

        (h - 1 / (2 beta))^2,      h = (log pi - log pi_ref)(chosen) - (log pi - log pi_ref)(rejected)

    `chosen` and `rejected`: as in `dpo`, but the mean over the tokens of each answer: the paper's results were computed
    in this way, although it does not say so (as its authors told those of TRL).
    """
    margin, target = chosen - rejected, 1 / (2 * beta)
    return (1 - smoothing) * (margin - target) ** 2 + smoothing * (margin + target) ** 2


def divergence(log_probs: Tensor, reference: Tensor) -> Tensor:
    """log pi - log pi_ref of each token: its mean over samples of pi is KL(pi, pi_ref). Single ones may be negative."""
    return log_probs - reference


def positive_divergence(log_probs: Tensor, reference: Tensor) -> Tensor:
    """The same mean, with less variance and never negative.      Schulman 2020, "Approximating KL divergence", k3

    exp(d) - 1 - d,      d = log pi_ref - log pi
    """
    difference = reference - log_probs
    return difference.expm1() - difference


def token_rewards(scores: Tensor, log_probs: Tensor, reference: Tensor, valid: Tensor, *, beta: float) -> Tensor:
    """The reward of each token: -beta (log pi - log pi_ref), and at the last one the score of the answer.      Ziegler
    et al. 2019, section 2

    scores: batch
    """
    rewards = torch.where(valid, -beta * divergence(log_probs, reference), 0)
    places = torch.arange(valid.shape[1], device=valid.device)
    last = torch.where(valid, places, -1).amax(1)
    return rewards + torch.where(places == last[:, None], scores[:, None], 0)


def estimate_advantages(
    rewards: Tensor, values: Tensor, valid: Tensor, *, discount: float = 1.0, smoothing: float = 0.95
) -> tuple[Tensor, Tensor]:
    """(advantages, returns) by generalised advantage estimation.      Schulman et al. 2016, equation 16

        A_t = delta_t + (discount smoothing) A_(t+1),      delta_t = r_t + discount V_(t+1) - V_t

    Returns are A + V. Where a token is not valid, both are 0.
    """
    rewards, values = (torch.where(valid, one, 0) for one in (rewards, values))
    advantage, following = torch.zeros_like(rewards[:, 0]), torch.zeros_like(rewards[:, 0])
    found = torch.zeros_like(rewards)
    for place in reversed(range(rewards.shape[1])):
        delta = rewards[:, place] + discount * following - values[:, place]
        advantage = delta + discount * smoothing * advantage
        following = values[:, place]
        found[:, place] = advantage
    found = torch.where(valid, found, 0)
    return found, found + values


def whiten(numbers: Tensor, valid: Tensor) -> Tensor:
    """Mean 0 and variance 1 (the unbiased one) over the valid places; 0 elsewhere.

    Differs from torchtune 0.6, which adds the mean back, against its source (Ziegler et al. 2019) and TRL.
    """
    centred = torch.where(valid, numbers - masked_mean(numbers, valid), 0)
    variance = centred.square().sum() / (valid.sum() - 1).clamp(min=1)
    return centred * torch.rsqrt(variance + TINY)


def policy_loss(
    log_probs: Tensor, old: Tensor, advantages: Tensor, valid: Tensor, *, clip: float
) -> tuple[Tensor, Tensor]:
    """(PPO's loss, the share of tokens where clipping matters).      Schulman et al. 2017, equation 7

    mean of max(-A rho, -A clamp(rho, 1 - clip, 1 + clip)),      rho = pi / pi_old
    """
    ratio = torch.where(valid, log_probs - old, 0).exp()
    free, clipped = -advantages * ratio, -advantages * ratio.clamp(1 - clip, 1 + clip)
    return masked_mean(torch.maximum(free, clipped), valid), masked_mean((clipped > free).float(), valid)


def value_loss(values: Tensor, old: Tensor, returns: Tensor, valid: Tensor, *, clip: float) -> Tensor:
    """Half of the squared error, of the value or of the value that may not move by more than `clip`: the larger one.
    As in OpenAI's baselines; not in the paper."""
    bounded = old + (values - old).clamp(-clip, clip)
    return 0.5 * masked_mean(torch.maximum((values - returns) ** 2, (bounded - returns) ** 2), valid)


def minimum_risk(log_probs: Tensor, costs: Tensor, valid: Tensor, *, alpha: float) -> Tensor:
    """The expected cost of each source's samples, under the model's renormalised probabilities.      Shen et al. 2016,
    equations 11 to 13

        sum_y Q(y) cost(y),      Q(y) = p(y)^alpha / sum_y' p(y')^alpha

    log_probs, costs: sources samples. A sample that is drawn twice is valid once.
    """
    shares = (alpha * log_probs).masked_fill(~valid, -torch.inf).softmax(-1)
    return torch.where(valid, shares * costs, 0).sum(-1)


def masked_mean(numbers: Tensor, valid: Tensor) -> Tensor:
    return torch.where(valid, numbers, 0).sum() / valid.sum().clamp(min=1)
