"""Dropout by sixteen bits a value: the right share, mean and gradient, and nothing when not training."""

import pytest
import torch

from heedful.model.dropout import Dropout, keep


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.001])
def test_the_share_and_the_mean_are_right(p):
    torch.manual_seed(0)
    kept = keep(torch.empty(1000, 1003), p)
    share = (kept == 0).float().mean().item()
    assert share == pytest.approx(p, abs=5 * (p / 1_003_000) ** 0.5 + 1e-5)
    assert kept.unique().tolist() == pytest.approx([0.0, 1 / (1 - p)])


def test_neighbours_are_dropped_independently():
    """Four values share a draw: none of the four places may be special, nor follow from another."""
    torch.manual_seed(0)
    dropped = (keep(torch.empty(400_000), 0.5) == 0).view(-1, 4).float()
    assert dropped.mean(0).tolist() == pytest.approx([0.5] * 4, abs=0.01)
    assert (torch.corrcoef(dropped.T) - torch.eye(4)).abs().max() < 0.02


def test_the_same_seed_drops_the_same():
    x = torch.randn(7, 9)
    dropout = Dropout(0.4)
    torch.manual_seed(3)
    first = dropout(x)
    torch.manual_seed(3)
    assert torch.equal(dropout(x), first)
    assert not torch.equal(dropout(x), first)


def test_adding_in_one_pass_is_adding():
    x, y = torch.randn(5, 7, requires_grad=True), torch.randn(5, 7, requires_grad=True)
    dropout = Dropout(0.4)
    torch.manual_seed(1)
    fused = dropout.add(x, y)
    found = torch.autograd.grad(fused.pow(2).sum(), (x, y))
    torch.manual_seed(1)
    plain = x + dropout(y)
    expected = torch.autograd.grad(plain.pow(2).sum(), (x, y))
    assert torch.allclose(fused, plain, atol=1e-6)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(found, expected, strict=True))


def test_nothing_happens_when_not_training_or_not_asked():
    x = torch.randn(5, 7)
    assert Dropout(0.4).eval()(x) is x and Dropout(0.0)(x) is x
    assert torch.equal(Dropout(0.4).eval().add(x, x), x + x)
    assert not Dropout(1.0)(x).any()


def test_mixed_types_are_joined_as_ever():
    x, y = torch.randn(5, 7), torch.randn(5, 7).bfloat16()
    assert Dropout(0.4).add(x, y).dtype == torch.float32
