"""The losses of preferences and rewards: what the papers say of them."""

import math

import pytest
import torch

from heedful import preferences

LENGTHS = torch.tensor([7, 3, 5])
VALID = torch.arange(7) < LENGTHS[:, None]


def numbers(*shape, seed=0, scale=1.0):
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_a_policy_that_is_its_reference_has_the_loss_of_a_guess():
    nothing = torch.zeros(5)
    assert preferences.dpo(nothing, nothing, beta=0.3).tolist() == pytest.approx([math.log(2)] * 5)
    assert preferences.dpo(nothing, nothing, beta=0.3, smoothing=0.2).tolist() == pytest.approx([math.log(2)] * 5)
    assert preferences.ipo(nothing, nothing, beta=0.25).tolist() == pytest.approx([4.0] * 5)


def test_ipo_wants_a_margin_and_no_larger_one():
    reached = torch.tensor([2.0], requires_grad=True)
    loss = preferences.ipo(reached, torch.zeros(1), beta=0.25)
    loss.backward()
    assert loss.item() == 0 and reached.grad.item() == 0
    beyond = preferences.ipo(torch.tensor([3.0]), torch.zeros(1), beta=0.25)
    assert float(beyond) > 0 and float(preferences.dpo(torch.tensor([3.0]), torch.zeros(1), beta=0.25)) < math.log(2)


@pytest.mark.parametrize("loss", [preferences.dpo, preferences.ipo])
def test_labels_that_are_wrong_half_of_the_time_teach_no_direction(loss):
    one = torch.tensor([0.7], requires_grad=True)
    assert loss(one, -one, beta=0.3, smoothing=0.5).item() == pytest.approx(
        loss(-one, one, beta=0.3, smoothing=0.5).item()
    )


def test_the_estimates_of_the_divergence_agree_on_average_and_one_is_never_negative():
    torch.manual_seed(1)
    policy, reference = numbers(1, 13, seed=3).log_softmax(-1)[0], numbers(1, 13, seed=4).log_softmax(-1)[0]
    exact = float((policy.exp() * (policy - reference)).sum())
    drawn = torch.multinomial(policy.exp(), 200_000, replacement=True)
    plain = preferences.divergence(policy[drawn], reference[drawn])
    positive = preferences.positive_divergence(policy[drawn], reference[drawn])
    assert float(plain.mean()) == pytest.approx(exact, rel=0.02)
    assert float(positive.mean()) == pytest.approx(exact, rel=0.02)
    assert float(plain.min()) < 0 <= float(positive.min())
    assert float(positive.var()) < float(plain.var())


def test_the_score_counts_at_the_last_valid_token_alone():
    nothing = torch.zeros(3, 7)
    found = preferences.token_rewards(torch.tensor([1.0, 2.0, 3.0]), nothing, nothing, VALID, beta=0.1)
    assert found.nonzero().tolist() == [[0, 6], [1, 2], [2, 4]]
    assert found[found != 0].tolist() == [1.0, 2.0, 3.0]


def test_advantages_with_every_step_counted_are_returns_minus_values():
    rewards, values = numbers(3, 7), numbers(3, 7, seed=1)
    advantages, returns = preferences.estimate_advantages(rewards, values, VALID, discount=1.0, smoothing=1.0)
    wanted = torch.where(VALID, rewards, 0).flip(1).cumsum(1).flip(1)
    assert torch.allclose(returns[VALID], wanted[VALID], atol=1e-6)
    assert torch.allclose(advantages[VALID], (wanted - values)[VALID], atol=1e-6)
    assert not advantages[~VALID].any() and not returns[~VALID].any()


def test_advantages_do_not_depend_on_padding():
    rewards, values = numbers(3, 7), numbers(3, 7, seed=1)
    whole = preferences.estimate_advantages(rewards, values, VALID)
    alone = preferences.estimate_advantages(rewards[1:2, :3], values[1:2, :3], VALID[1:2, :3])
    for one, other in zip(whole, alone, strict=True):
        assert torch.allclose(one[1, :3], other[0])


def test_whitened_numbers_have_mean_0_and_variance_1():
    found = preferences.whiten(numbers(3, 7, scale=5.0) + 3, VALID)
    assert float(found[VALID].mean()) == pytest.approx(0, abs=1e-6)
    assert float(found[VALID].var()) == pytest.approx(1, rel=1e-5)
    assert not found[~VALID].any()
    assert preferences.whiten(torch.tensor([[4.0]]), torch.tensor([[True]])).tolist() == [[0.0]]


def test_a_policy_that_went_too_far_has_no_gradient_to_go_further():
    old = torch.zeros(1, 2)
    moved = torch.tensor([[0.5, -0.5]], requires_grad=True)
    loss, clipped = preferences.policy_loss(moved, old, torch.tensor([[1.0, -1.0]]), torch.ones(1, 2).bool(), clip=0.2)
    loss.backward()
    assert not moved.grad.any() and float(clipped) == 1
    back = torch.tensor([[0.5, -0.5]], requires_grad=True)
    loss, _ = preferences.policy_loss(back, old, torch.tensor([[-1.0, 1.0]]), torch.ones(1, 2).bool(), clip=0.2)
    loss.backward()
    assert back.grad.all()


def test_minimum_risk_is_the_expected_cost_and_moves_away_from_the_costly():
    log_probs = torch.log(torch.tensor([[0.2, 0.6, 0.1]])).requires_grad_()
    costs, valid = torch.tensor([[1.0, 0.25, 9.0]]), torch.tensor([[True, True, False]])
    risk = preferences.minimum_risk(log_probs, costs, valid, alpha=1.0)
    assert risk.item() == pytest.approx(0.25 * 1.0 + 0.75 * 0.25)
    risk.sum().backward()
    assert log_probs.grad[0, 0] > 0 > log_probs.grad[0, 1] and log_probs.grad[0, 2] == 0
    even = preferences.minimum_risk(log_probs, costs, valid, alpha=1e-9)
    assert even.item() == pytest.approx(0.625)
