"""The loss in chunks is the loss: value and gradients, whatever the sizes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful import objectives
from heedful.objectives import cross_entropy, vocabulary_cross_entropy


@pytest.fixture(autouse=True, scope="module")
def chunks_of_128():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(objectives, "HELD", 1)
        yield


def both(tokens, width, vocab, smoothing, with_bias, scale=1.0):
    torch.manual_seed(tokens * 31 + vocab)
    states = (torch.randn(tokens, width) * scale).requires_grad_()
    weight, bias = torch.randn(vocab, width, requires_grad=True), torch.randn(vocab, requires_grad=True)
    targets = torch.randint(0, vocab, (tokens,))
    inputs = [states, weight, bias] if with_bias else [states, weight]
    chunked = vocabulary_cross_entropy(states, weight, bias if with_bias else None, targets, smoothing=smoothing)
    found = torch.autograd.grad(chunked.total / chunked.count, inputs)
    logits = torch.nn.functional.linear(states, weight, bias if with_bias else None)
    plain = cross_entropy(logits, targets, smoothing=smoothing)
    expected = torch.autograd.grad(plain.total / plain.count, inputs)
    return chunked, plain, found, expected


@settings(max_examples=40, deadline=None)
@given(
    tokens=st.sampled_from([1, 5, 127, 128, 129, 391]),
    vocab=st.integers(2, 60),
    smoothing=st.sampled_from([0.0, 0.1, 0.5]),
    with_bias=st.booleans(),
)
def test_in_chunks_it_is_the_same(tokens, vocab, smoothing, with_bias):
    chunked, plain, found, expected = both(tokens, 8, vocab, smoothing, with_bias)
    assert chunked.count == plain.count
    assert float(chunked.total.detach()) == pytest.approx(float(plain.total.detach()), rel=1e-5, abs=1e-4)
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-5)


def test_logits_far_apart_do_not_overflow():
    chunked, plain, found, expected = both(20, 8, 30, 0.1, True, scale=100.0)
    assert float(chunked.total.detach()) == pytest.approx(float(plain.total.detach()), rel=1e-4)
    assert all(torch.allclose(mine, theirs, atol=1e-4) for mine, theirs in zip(found, expected, strict=True))


def test_without_gradients_the_value_is_the_same():
    states, weight, targets = torch.randn(9, 8), torch.randn(5, 8), torch.randint(0, 5, (9,))
    with torch.no_grad():
        quiet = vocabulary_cross_entropy(states, weight, None, targets, smoothing=0.1)
    loud = vocabulary_cross_entropy(states, weight.requires_grad_(), None, targets, smoothing=0.1)
    assert float(quiet.total) == pytest.approx(float(loud.total.detach()), rel=1e-5)


def test_a_broken_number_is_seen():
    states = torch.randn(9, 8)
    states[3, 2] = torch.nan
    weight = torch.randn(5, 8, requires_grad=True)
    assert vocabulary_cross_entropy(states, weight, None, torch.zeros(9, dtype=torch.long)).total.isnan()


@pytest.mark.parametrize("smoothing", [0.1, 0.5])
@pytest.mark.parametrize("with_bias", [False, True])
def test_the_loss_without_smoothing_is_known_beside_the_smoothed_one(smoothing, with_bias):
    torch.manual_seed(0)
    states, weight, targets = (
        torch.randn(391, 16, requires_grad=True),
        torch.randn(307, 16),
        torch.randint(0, 307, (391,)),
    )
    bias = torch.randn(307) if with_bias else None
    logits = torch.nn.functional.linear(states, weight, bias)
    wanted = torch.nn.functional.cross_entropy(logits, targets, reduction="sum").item()
    assert cross_entropy(logits, targets, smoothing=smoothing).plain.item() == pytest.approx(wanted, rel=1e-5)
    chunked = vocabulary_cross_entropy(states, weight, bias, targets, smoothing=smoothing)
    assert chunked.plain.item() == pytest.approx(wanted, rel=1e-5)
    assert vocabulary_cross_entropy(states, weight, bias, targets).plain is None


@pytest.mark.parametrize("frozen", [{"weight"}, {"bias"}, {"weight", "bias"}, {"states"}])
def test_what_is_frozen_gets_no_gradient_and_the_others_the_same(frozen):
    torch.manual_seed(5)
    given = {"states": torch.randn(391, 8), "weight": torch.randn(30, 8), "bias": torch.randn(30)}
    targets = torch.randint(0, 30, (391,))
    gradients = []
    for free in (set(given), set(given) - frozen):
        inputs = {name: one.clone().requires_grad_(name in free) for name, one in given.items()}
        found = vocabulary_cross_entropy(*inputs.values(), targets, smoothing=0.1)
        found.total.backward()
        gradients.append({name: one.grad for name, one in inputs.items()})
    for name in given:
        if name in frozen:
            assert gradients[1][name] is None
        else:
            torch.testing.assert_close(gradients[1][name], gradients[0][name])
