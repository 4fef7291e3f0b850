"""int8 weights: close to the original, a quarter of the size, and the same interface."""

import pytest
import torch

from heedful.families.vaswani import vaswani
from heedful.model.cpu.kernels import NATIVE
from heedful.model.create import create
from heedful.model.int8 import Int8Embedding, Int8Linear, quantize_int8
from heedful.model.surgery import replace_modules


def test_logits_stay_close_and_decoding_works():
    torch.manual_seed(0)
    model = create(vaswani(vocab=101, width=64, hidden=96, heads=4, layers=2, dropout=0.1)).eval()
    source, target = torch.randint(0, 101, (3, 7)), torch.randint(0, 101, (3, 11))
    with torch.no_grad():
        exact = model(source, target)
        changed = quantize_int8(model, least=0)
        rough = model(source, target)
        memory, cache = model.encode(source), model.new_cache(11)
        steps = [model.decode(target[:, [step]], memory, cache=cache) for step in range(11)]
    assert changed == 1 + 2 * 4 + 2 * 7  # the table; two products in each attention, three where it crosses; two more
    assert (rough - exact).norm() < 0.1 * exact.norm()
    assert not any(isinstance(module, torch.nn.Linear) for module in model.modules())
    assert torch.cat(steps, dim=1).shape == (3, 11, 64)


def test_rows_are_rounded_to_the_nearest_of_255_steps():
    linear = torch.nn.Linear(50, 20)
    x = torch.eye(50)
    found = Int8Linear(linear)(x) - linear.bias
    step = linear.weight.abs().amax(1) / 127
    assert ((found.T - linear.weight).abs() <= 0.51 * step[:, None]).all()


def test_a_table_reads_what_it_holds():
    model = create(vaswani(vocab=101, width=64, hidden=96, heads=4, layers=1, dropout=0.1))
    tokens = torch.arange(101)
    exact, rough = model.embedding.embed(tokens), Int8Embedding(model.embedding).embed(tokens)
    assert (exact - rough).abs().max() < 0.01 * exact.abs().max()


def test_surgery_replaces_what_it_is_told_and_counts():
    model = create(vaswani(vocab=101, width=64, hidden=96, heads=4, layers=1, dropout=0.1))
    count = replace_modules(model, lambda name, module: torch.nn.Identity() if name.endswith("feedforward") else None)
    assert count == 2 and isinstance(model.encoder.layers[0].feedforward, torch.nn.Identity)


@pytest.mark.skipif(NATIVE is None, reason="no kernels were compiled")
def test_a_vector_does_not_depend_on_its_neighbours():
    torch.manual_seed(0)
    linear, x = Int8Linear(torch.nn.Linear(30, 20)), torch.randn(4, 30) * torch.tensor([[0.0], [0.1], [1.0], [100.0]])
    together = linear(x)
    for row in range(4):
        assert torch.equal(linear(x[row : row + 1])[0], together[row])


def test_without_kernels_it_is_the_same_function(monkeypatch):
    linear, x = Int8Linear(torch.nn.Linear(31, 21)), torch.randn(2, 3, 31)
    fast = linear(x)
    monkeypatch.setattr("heedful.model.cpu.kernels.NATIVE", None)
    torch.testing.assert_close(fast, linear(x), atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_pass_through_as_through_the_rounded_weights(monkeypatch, kernels, dtype):
    if not kernels:
        monkeypatch.setattr("heedful.model.cpu.kernels.NATIVE", None)
    torch.manual_seed(0)
    int8 = Int8Linear(torch.nn.Linear(31, 21))
    exact = torch.nn.Linear(31, 21)
    with torch.no_grad():
        exact.weight.copy_(int8.panels.rows(torch.arange(21)))
        exact.bias.copy_(int8(torch.zeros(31)))
        int8(torch.randn(31))  # in another mode: what is kept from here must not be in the way
    x, dy = torch.randn(3, 2, 31).to(dtype).transpose(0, 1).requires_grad_(), torch.randn(2, 3, 21)
    expected = exact(x.float())
    torch.testing.assert_close(int8(x), expected, atol=2e-4, rtol=1e-4)
    (wanted,) = torch.autograd.grad(expected, x, dy)
    (found,) = torch.autograd.grad(int8(x), x, dy)
    assert found.dtype == dtype
    torch.testing.assert_close(found, wanted)


def test_gradients_pass_through_an_output_table_and_a_fused_product():
    model = create(vaswani(vocab=101, width=64, hidden=96, heads=4, layers=1, dropout=0.0)).eval()
    table, states = Int8Embedding(model.embedding), torch.randn(2, 3, 64, requires_grad=True)
    (found,) = torch.autograd.grad(table.project(states).sum(), states)
    torch.testing.assert_close(found[1, 2], table.rows(torch.arange(101)).sum(0))
    fused = Int8Linear(model.encoder.layers[0].attention.query_key_value, parts=(64, 64, 64))
    (found,) = torch.autograd.grad(fused(states)[1].sum(), states)
    torch.testing.assert_close(found[1, 2], fused.panels.rows(torch.arange(64, 128)).sum(0))


def test_without_kernels_gradients_pass_after_use_in_inference_mode(monkeypatch):
    monkeypatch.setattr("heedful.model.cpu.kernels.NATIVE", None)
    linear, x = Int8Linear(torch.nn.Linear(31, 21)), torch.randn(31, requires_grad=True)
    with torch.inference_mode():
        linear(torch.randn(31))
    linear(x).sum().backward()
    torch.testing.assert_close(x.grad, linear.panels.rows(torch.arange(21)).sum(0))


@pytest.mark.parametrize(("tokens", "wrong"), [([3, 101], 101), ([-1, 3], -1), ([111], 111)])
def test_a_token_outside_the_table_is_refused(tokens, wrong):
    model = create(vaswani(vocab=101, width=64, hidden=96, heads=4, layers=1, dropout=0.1))
    with pytest.raises(IndexError, match=f"there is no row {wrong}; rows are 0 to 100"):
        Int8Embedding(model.embedding).embed(torch.tensor(tokens))
    assert Int8Embedding(model.embedding).embed(torch.zeros(2, 0, dtype=torch.long)).shape == (2, 0, 64)


def test_what_is_small_stays_as_it_is():
    model = create(vaswani(vocab=9000, width=64, hidden=96, heads=4, layers=1, dropout=0.1))
    assert quantize_int8(model, least=1 << 18) == 1 and isinstance(model.embedding, Int8Embedding)
