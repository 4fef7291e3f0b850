"""Our kernels for training do what torch does, forwards and backwards, whatever the sizes."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heedful.model.attention.softmax import Softmax
from heedful.model.cpu import kernels, training
from heedful.model.dropout import Dropout
from heedful.model.feedforward import GATED, FeedForwardConfig
from heedful.model.linear import FusedLinear, Linear
from heedful.model.mask import Mask
from heedful.model.position.alibi import Alibi
from heedful.model.position.rotary import rotate
from heedful.model.residual import normed
from heedful.model.sight import Sight
from heedful.objectives import cross_entropy, vocabulary_cross_entropy

pytestmark = pytest.mark.skipif(kernels.NATIVE is None, reason="no kernels were compiled")
few = settings(max_examples=60, deadline=None)
sixteens = st.integers(1, 9).map(lambda count: 16 * count)
lengths = st.one_of(st.integers(1, 20), st.integers(40, 130))


@few
@given(batch=st.integers(1, 3), kv_heads=st.integers(1, 3), shared=st.integers(1, 3), queries=lengths, keys=lengths,
       head=st.sampled_from([16, 32, 48]), mask=st.sampled_from(["none", "causal", "padding", "both"]),
       one_product=st.booleans(), seed=st.integers(0, 99), threads=st.integers(1, 2))  # fmt: skip
def test_attention(batch, kv_heads, shared, queries, keys, head, mask, one_product, seed, threads):
    torch.manual_seed(seed)
    if mask in ("causal", "both") or one_product:
        keys = queries
    wide = [kv_heads * shared * head, kv_heads * head, kv_heads * head]
    parts = [torch.randn(batch, length, size) for length, size in zip((queries, keys, keys), wide, strict=True)]
    if one_product:  # as they come out of a FusedLinear: beside each other
        parts = list(torch.cat(parts, -1).split(wide, -1))
    inputs = [part.unflatten(-1, (-1, head)).transpose(1, 2).detach().requires_grad_() for part in parts]
    hidden = torch.zeros(batch, 1, queries if mask == "both" else 1, keys, dtype=torch.bool)
    if mask in ("padding", "both"):
        hidden |= (torch.rand(batch, 1, 1, keys) < 0.4) & (torch.arange(keys) > 0)
    if mask == "both":
        hidden |= torch.ones(queries, keys, dtype=torch.bool).triu(1)
    additive = None if mask in ("none", "causal") else torch.zeros(hidden.shape).masked_fill(hidden, -torch.inf)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        y = training.masked_attention(*inputs, additive, causal=mask == "causal", scale=0.3)
        outer = torch.randn(y.shape)
        found = torch.autograd.grad(y, inputs, outer)
    finally:
        torch.set_num_threads(before)
    query, key, value = (part.double() for part in inputs)
    key, value = (part.repeat_interleave(shared, 1) for part in (key, value))
    scores = query @ key.transpose(-2, -1) * 0.3
    if mask == "causal":
        scores = scores.masked_fill(torch.ones(queries, keys, dtype=torch.bool).triu(1), -torch.inf)
    wanted = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ value
    torch.testing.assert_close(y.double(), wanted, atol=1e-5, rtol=1e-5)
    for one, other in zip(found, torch.autograd.grad(wanted, inputs, outer.double()), strict=True):
        torch.testing.assert_close(one, other.float(), atol=1e-4, rtol=1e-4)


def dropped_weights(query, key, additive, *, seed, **options):
    """What a call with this seed multiplies the values by (batch heads query key), by attending to unit vectors."""
    keys, head = key.shape[2:]
    found = []
    for first in range(0, keys, head):
        units = torch.zeros(keys, head)
        last = min(keys, first + head)
        units[first:last, : last - first] = torch.eye(last - first)
        torch.manual_seed(seed)
        seen = training.masked_attention(query, key, units.expand(key.shape).contiguous(), additive, **options)
        found.append(seen[..., : last - first])
    return torch.cat(found, -1).detach()


@few
@given(batch=st.integers(1, 3), heads=st.integers(1, 3), length=lengths, head=st.sampled_from([16, 48]),
       causal=st.booleans(), p=st.sampled_from([0.1, 0.5]), seed=st.integers(0, 99),
       threads=st.integers(1, 2))  # fmt: skip
def test_attention_with_dropout(batch, heads, length, head, causal, p, seed, threads):
    torch.manual_seed(seed)
    inputs = [torch.randn(batch, heads, length, head, requires_grad=True) for _ in range(3)]
    hidden = torch.zeros(batch, 1, 1, length, dtype=torch.bool)
    if not causal:
        hidden |= (torch.rand(batch, 1, 1, length) < 0.4) & (torch.arange(length) > 0)
    additive = None if causal else torch.zeros(hidden.shape).masked_fill(hidden, -torch.inf)
    options = {"causal": causal, "scale": 0.3, "dropout": p}
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        torch.manual_seed(seed)
        y = training.masked_attention(*inputs, additive, **options)
        outer = torch.randn(y.shape)
        found = torch.autograd.grad(y, inputs, outer)
        kept = dropped_weights(*inputs[:2], additive, seed=seed, **options) > 0
    finally:
        torch.set_num_threads(before)
    query, key, value = (part.double() for part in inputs)
    if causal:
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
    weights = (query @ key.transpose(-2, -1) * 0.3).masked_fill(hidden, -torch.inf).softmax(-1)
    wanted = (weights * kept / (1 - p)) @ value
    torch.testing.assert_close(y.double(), wanted, atol=1e-5, rtol=1e-5)
    for one, other in zip(found, torch.autograd.grad(wanted, inputs, outer.double()), strict=True):
        torch.testing.assert_close(one, other.float(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("p", [0.1, 0.4])
def test_each_weight_of_attention_is_dropped_by_itself(p):
    torch.manual_seed(0)
    query, key = torch.randn(7, 3, 61, 16), torch.randn(7, 3, 61, 16)
    kept = dropped_weights(query, key, None, seed=1, causal=False, scale=0.1, dropout=p) > 0
    assert kept.float().mean().item() == pytest.approx(1 - p, abs=0.01)
    for axis in range(4):  # neighbours of any kind are independent
        one, other = kept.narrow(axis, 0, kept.shape[axis] - 1), kept.narrow(axis, 1, kept.shape[axis] - 1)
        assert (one & other).float().mean().item() == pytest.approx((1 - p) ** 2, abs=0.02)
    again = dropped_weights(query, key, None, seed=2, causal=False, scale=0.1, dropout=p) > 0
    assert (kept & again).float().mean().item() == pytest.approx((1 - p) ** 2, abs=0.02)


def test_who_sees_nothing_gathers_nothing():
    query, key, value = (torch.randn(2, 2, 5, 16, requires_grad=True) for _ in range(3))
    additive = torch.zeros(2, 1, 5, 5)
    additive[1, 0, 3] = -torch.inf
    y = training.masked_attention(query, key, value, additive, causal=False, scale=1.0)
    assert not y[1, :, 3].any() and y[0].all()
    for gradient in torch.autograd.grad(y.sum(), (query, key, value)):
        assert gradient.isfinite().all()


def test_the_mix_takes_our_kernel_where_it_can_and_torch_elsewhere(monkeypatch):
    calls = []
    monkeypatch.setattr(training, "masked_attention", lambda *given, **_: calls.append(1) or given[0])
    mix = Softmax(scale=0.2, dropout=0.1).eval()
    suited = [torch.randn(2, 4, 9, 32) for _ in range(3)]
    mix(*suited, sight=Sight(Mask(causal=True)))
    assert len(calls) == 1
    mix(*(part[..., :12] for part in suited), sight=Sight(Mask()))  # a width that is not a multiple of 16
    mix(*(part.double() for part in suited), sight=Sight(Mask()))
    mix(*suited, sight=Sight(Mask(), torch.arange(9)[None], torch.arange(9)[None], Alibi(4)))
    assert len(calls) == 1
    mix(suited[0], *(part[:, :2] for part in suited[1:]), sight=Sight(Mask()))  # grouped heads
    assert len(calls) == 2
    mix.train()(*suited, sight=Sight(Mask()))  # dropout inside
    assert len(calls) == 3
    mix.dropout = 1.0
    mix(*suited, sight=Sight(Mask()))
    assert len(calls) == 3


@pytest.mark.parametrize("sizes", [(32, 32, 32), (96, 32, 32)])
def test_gradients_side_by_side_are_joined_without_a_copy(monkeypatch, sizes):
    linear, x = FusedLinear(32, sizes, ("query", "key", "value")), torch.randn(3, 7, 32, requires_grad=True)

    def gradient():
        parts = [part.unflatten(-1, (-1, 16)).transpose(1, 2) for part in linear(x)]
        y = training.masked_attention(*parts, None, causal=True, scale=0.25)
        return torch.autograd.grad(y.pow(2).sum(), x)[0]

    copies = []
    cat = torch.cat
    monkeypatch.setattr(torch, "cat", lambda *given, **more: copies.append(1) or cat(*given, **more))
    found = gradient()
    assert not copies
    monkeypatch.setattr(training, "_adjacent", lambda *parts: [torch.empty_like(part) for part in parts])
    torch.testing.assert_close(gradient(), found)
    assert copies


@few
@given(batch=st.integers(1, 3), heads=st.integers(1, 5), length=lengths, head=sixteens, alike=st.booleans(),
       beside=st.booleans(), threads=st.integers(1, 3), seed=st.integers(0, 99))  # fmt: skip
def test_rotary_positions(batch, heads, length, head, alike, beside, threads, seed):
    torch.manual_seed(seed)
    x = torch.randn(batch, length, (heads + 2 * beside) * head)[..., : heads * head]
    x = x.unflatten(-1, (heads, head)).transpose(1, 2).requires_grad_()
    rotation = torch.randn(2, 1 if alike else batch, 1, length, head).unbind(0)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        y = rotate(x, rotation)
        assert "_Rotated" in type(y.grad_fn).__name__
        outer = torch.randn(y.shape)
        (found,) = torch.autograd.grad(y, x, outer)
    finally:
        torch.set_num_threads(before)
    wanted = rotate(x.double(), tuple(one.double() for one in rotation))
    torch.testing.assert_close(y.double(), wanted, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found, torch.autograd.grad(wanted, x, outer.double())[0], atol=1e-5, rtol=1e-5)


def test_rotations_that_the_kernels_do_not_take():
    angles = torch.randn(3, 1, 7, 24)
    for x in (torch.randn(3, 2, 7, 24), torch.randn(3, 2, 7, 24).double(), torch.randn(0, 2, 7, 24)):
        rotation = angles.to(x.dtype)[: len(x)]
        assert "_Rotated" not in type(rotate(x.requires_grad_(), (rotation, rotation)).grad_fn).__name__


@few
@given(rows=st.one_of(st.integers(32, 60), st.integers(250, 530)), inputs=sixteens,
       outputs=sixteens, bias=st.booleans(), threads=st.integers(1, 3),
       frozen=st.booleans(), seed=st.integers(0, 99))  # fmt: skip
def test_a_linear_map(rows, inputs, outputs, bias, threads, frozen, seed):
    torch.manual_seed(seed)
    x = torch.randn(rows, inputs, requires_grad=True)
    weight = torch.randn(outputs, inputs, requires_grad=not frozen)
    offset = torch.randn(outputs, requires_grad=True) if bias else None
    leaves = [one for one in (x, weight, offset) if one is not None and one.requires_grad]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        y = training.linear(x, weight, offset)
        assert "_Linear" in type(y.grad_fn).__name__
        outer = torch.randn(y.shape)
        found = torch.autograd.grad(y, leaves, outer)
    finally:
        torch.set_num_threads(before)
    wanted = F.linear(x.double(), weight.double(), None if offset is None else offset.double())
    torch.testing.assert_close(y.double(), wanted, atol=1e-4, rtol=1e-4)
    for one, other in zip(found, torch.autograd.grad(wanted, leaves, outer.double()), strict=True):
        torch.testing.assert_close(one, other.float(), atol=3e-4, rtol=3e-4)


@few
@given(rows=st.one_of(st.integers(32, 60), st.integers(190, 530)), width=sixteens, hidden=sixteens,
       name=st.sampled_from([*training.KINDS, *GATED]), bias=st.booleans(), threads=st.integers(1, 3),
       frozen=st.sampled_from(["nothing", "input", "output", "all"]), seed=st.integers(0, 99))  # fmt: skip
def test_a_feed_forward_network(rows, width, hidden, name, bias, threads, frozen, seed):
    torch.manual_seed(seed)
    network = FeedForwardConfig(hidden=hidden, activation=name, bias=bias).build(width)
    for part in ("input", "output"):
        getattr(network, part).requires_grad_(frozen not in (part, "all"))
    x = torch.randn(1, rows, width, requires_grad=True)
    leaves = [x, *(parameter for parameter in network.parameters() if parameter.requires_grad)]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        y = network(x, mask=Mask())
        assert "_FeedForward" in type(y.grad_fn).__name__
        outer = torch.randn(y.shape)
        found = torch.autograd.grad(y, leaves, outer)
    finally:
        torch.set_num_threads(before)
    network = network.double()
    x = x.detach().double().requires_grad_()
    wanted = network(x, mask=Mask())
    leaves = [x, *(parameter for parameter in network.parameters() if parameter.requires_grad)]
    torch.testing.assert_close(y.double(), wanted, atol=1e-4, rtol=1e-4)
    for one, other in zip(found, torch.autograd.grad(wanted, leaves, outer.double()), strict=True):
        torch.testing.assert_close(one, other.float(), atol=3e-4, rtol=3e-4)


@few
@given(rows=st.one_of(st.integers(32, 60), st.integers(190, 400)), width=sixteens, hidden=sixteens,
       name=st.sampled_from([*training.KINDS, *GATED]), p=st.sampled_from([0.1, 0.5]), threads=st.integers(1, 3),
       seed=st.integers(0, 99))  # fmt: skip
def test_a_feed_forward_network_with_dropout(rows, width, hidden, name, p, threads, seed):
    torch.manual_seed(seed)
    config = FeedForwardConfig(hidden=hidden, activation=name, dropout=p)
    network, ones = config.build(width), config.build(hidden)
    with torch.no_grad():  # a network that shows what is dropped: its hidden units are all alike and positive
        ones.input.weight.zero_(), ones.input.bias.fill_(1.0), ones.output.weight.copy_(torch.eye(hidden))
        ones.output.bias.zero_()
    x = torch.randn(1, rows, width, requires_grad=True)
    leaves = [x, *network.parameters()]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        torch.manual_seed(seed)
        y = network(x, mask=Mask())
        assert "_FeedForward" in type(y.grad_fn).__name__
        outer = torch.randn(y.shape)
        found = torch.autograd.grad(y, leaves, outer)
        torch.manual_seed(seed)
        kept = ones(torch.zeros(1, rows, hidden, requires_grad=True), mask=Mask()) > 0
    finally:
        torch.set_num_threads(before)
    assert kept.float().mean().item() == pytest.approx(1 - p, abs=0.1)
    network = network.double().eval()
    hidden_units = network._hidden(x.double())
    wanted = network.output(hidden_units * kept / (1 - p))
    leaves = [x, *network.parameters()]
    torch.testing.assert_close(y.double(), wanted, atol=1e-4, rtol=1e-4)
    for one, other in zip(found, torch.autograd.grad(wanted, leaves, outer.double()), strict=True):
        torch.testing.assert_close(one.double(), other.double(), atol=3e-4, rtol=3e-4)


def test_frozen_weights_keep_no_inputs():
    def kept(frozen):
        network, held = FeedForwardConfig(hidden=48, activation="swiglu").build(16).requires_grad_(not frozen), []
        x = torch.randn(1, 40, 16, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(lambda one: held.append(one) or one, lambda one: one):
            training.linear(network(x, mask=Mask()), torch.randn(32, 16, requires_grad=not frozen), None)
        weights = {parameter.data_ptr() for parameter in network.parameters()}
        return sorted(one.shape[-1] for one in held if one.dim() == 3 and one.data_ptr() not in weights)

    assert kept(frozen=False) == [16, 16, 96] and kept(frozen=True) == [96]


class Doubled(Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def test_a_network_that_was_changed_is_left_to_its_modules():
    def way(change, activation="gelu"):
        network = FeedForwardConfig(hidden=32, activation=activation, dropout=0.5).build(16).eval()
        change(network)
        return type(network(torch.randn(1, 40, 16, requires_grad=True), mask=Mask()).grad_fn).__name__

    seen = []
    assert "_FeedForward" in way(lambda network: None)
    assert "_FeedForward" in way(lambda network: network.train())
    assert "_FeedForward" in way(lambda network: None, "swiglu")
    assert "_FeedForward" not in way(lambda network: setattr(network.train().dropout, "p", 1.0))
    assert "_FeedForward" not in way(lambda network: setattr(network, "output", Doubled(32, 16)))
    assert "_FeedForward" not in way(lambda network: setattr(network, "function", torch.sin))
    assert "_FeedForward" not in way(lambda network: network.input.register_forward_hook(lambda *_: seen.append(1)))
    assert "_FeedForward" not in way(lambda network: network.output.register_full_backward_pre_hook(lambda *_: None))
    assert seen


def test_what_is_not_a_number_is_not_hidden_by_a_relu():
    network = FeedForwardConfig(hidden=32, activation="relu").build(16)
    with torch.no_grad():
        network.input.weight[3, 5] = torch.nan
    y = network(torch.randn(1, 40, 16, requires_grad=True), mask=Mask())
    assert "_FeedForward" in type(y.grad_fn).__name__ and y.isnan().all()


@pytest.mark.parametrize(("inputs", "outputs"), [(2048, 48), (48, 2048), (1040, 1024)])
def test_a_linear_map_of_sizes_that_are_cut_into_blocks(inputs, outputs):
    test_a_linear_map.hypothesis.inner_test(390, inputs, outputs, True, 2, False, 0)


def test_a_linear_map_that_the_kernels_do_not_take():
    weight, x = torch.randn(32, 48, requires_grad=True), torch.randn(40, 48)
    cases = [(x[:8], weight), (x, weight[:31]), (x[:, :47], weight[:, :47]), (x.T.contiguous().T, weight)]
    cases += [(x.double(), weight.double()), (x, weight.detach())]
    for some, by in cases:
        y = training.linear(some, by, None)
        assert "_Linear" not in type(y.grad_fn).__name__
        torch.testing.assert_close(y, some @ by.T)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        training.linear(torch.randn(40, 32), weight, None)
    with torch.autocast("cpu", torch.bfloat16):
        assert training.linear(x, weight, None).dtype == torch.bfloat16


def test_a_split_of_which_one_part_is_used_alone():
    linear, x = FusedLinear(8, (4, 6), ("key", "value")), torch.randn(3, 7, 8, requires_grad=True)
    first, _ = linear(x)
    (found,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(found, linear.weight[:4].sum(0).expand(3, 7, 8))


@few
@given(size=st.one_of(st.integers(1, 40), st.integers(30_000, 40_000)), name=st.sampled_from(training.KINDS[1:]),
       wide=st.sampled_from([0.1, 3.0, 30.0]), seed=st.integers(0, 99))  # fmt: skip
def test_functions(size, name, wide, seed):
    torch.manual_seed(seed)
    ours = {"gelu": training.gelu, "gelu_tanh": training.gelu_tanh, "silu": training.silu}[name]
    theirs = {"gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu}[name]
    x, outer = (wide * torch.randn(size)).requires_grad_(), torch.randn(size)
    y, wanted = ours(x), theirs(x.double())
    torch.testing.assert_close(y.double(), wanted, atol=2e-6, rtol=2e-6)
    (found,), (slope,) = torch.autograd.grad(y, x, outer), torch.autograd.grad(wanted, x, outer.double())
    torch.testing.assert_close(found, slope, atol=3e-6, rtol=3e-6)


def test_functions_of_what_the_kernels_do_not_take():
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(training.gelu, x) and torch.autograd.gradcheck(
        training.silu, x.detach().T.requires_grad_()
    )
    assert training.gelu_tanh(torch.randn(0, 6)).shape == (0, 6)


@pytest.mark.parametrize("p", [0.001, 0.1, 0.3, 0.5])
def test_dropout(p):
    torch.manual_seed(0)
    x, y = torch.randn(1000, 1003, requires_grad=True), torch.ones(1000, 1003, requires_grad=True)
    z = Dropout(p).add(x, y)
    kept = (z - x).detach()
    share = (kept.abs() < 0.5).float().mean().item()
    assert share == pytest.approx(p, abs=5 * (p / 1_003_000) ** 0.5 + 1e-5)
    d_x, d_y = torch.autograd.grad(z, (x, y), torch.full_like(z, 2.0))
    assert (d_x == 2).all()
    torch.testing.assert_close(d_y, 2 * kept, atol=1e-5, rtol=1e-5)  # the way back drops the same


def test_neighbours_and_draws_are_independent():
    torch.manual_seed(0)
    dropped = [(Dropout(0.5)(torch.ones(400_000)) == 0).view(-1, 16).float() for _ in range(2)]
    both = torch.cat(dropped, 1)
    assert both.mean(0).tolist() == pytest.approx([0.5] * 32, abs=0.02)
    assert (torch.corrcoef(both.T) - torch.eye(32)).abs().max() < 0.03


def test_what_is_dropped_does_not_depend_on_threads():
    x, before, found = torch.ones(100_001), torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            torch.manual_seed(5)
            found.append(Dropout(0.3)(x))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


@pytest.fixture
def small_ones_too(monkeypatch):
    monkeypatch.setattr("heedful.model.cpu.door.LARGE", 0)


@pytest.mark.usefixtures("small_ones_too")
@settings(few, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.integers(32, 90), width=sixteens, rms=st.booleans(), adds=st.booleans(), bias=st.booleans(),
       threads=st.integers(1, 3), seed=st.integers(0, 99))  # fmt: skip
def test_a_norm_of_a_sum(rows, width, rms, adds, bias, threads, seed):
    torch.manual_seed(seed)
    norm = torch.nn.RMSNorm(width, eps=1e-5) if rms else torch.nn.LayerNorm(width, bias=bias)
    with torch.no_grad():
        norm.weight.copy_(torch.randn(width).sign() * (torch.rand(width) + 0.1))
        if not rms and bias:
            norm.bias.copy_(torch.randn(width))
    inputs = [torch.randn(1, rows, width, requires_grad=True) for _ in range(1 + adds)]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        y = normed(inputs[0], norm, *([inputs[1], Dropout(0.5).eval()] if adds else []))
        assert "_AddNorm" in type(y.grad_fn).__name__
        outer = torch.randn(y.shape)
        found = torch.autograd.grad(y, [*inputs, *norm.parameters()], outer)
    finally:
        torch.set_num_threads(before)
    norm = norm.double()
    inputs = [one.detach().double().requires_grad_() for one in inputs]
    wanted = norm(sum(inputs))
    torch.testing.assert_close(y.double(), wanted, atol=1e-5, rtol=1e-5)
    theirs = torch.autograd.grad(wanted, [*inputs, *norm.parameters()], outer.double())
    for one, other in zip(found, theirs, strict=True):
        torch.testing.assert_close(one, other.float(), atol=1e-4, rtol=1e-4)


def test_what_a_norm_of_a_sum_drops_is_dropped_on_the_way_back():
    norm, x, v = torch.nn.LayerNorm(32), torch.randn(500, 32, requires_grad=True), torch.randn(500, 32)
    v.requires_grad_()
    torch.manual_seed(3)
    y = normed(x, norm, v, Dropout(0.3))
    torch.manual_seed(3)
    wanted = norm(Dropout(0.3).add(x, v))  # the same draws
    torch.testing.assert_close(y, wanted, atol=1e-5, rtol=1e-5)
    outer = torch.randn(y.shape)
    for one, other in zip(
        torch.autograd.grad(y, (x, v), outer), torch.autograd.grad(wanted, (x, v), outer), strict=True
    ):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
        assert one is not other


def test_too_little_to_be_dropped_is_nothing():
    x, v = (torch.randn(40, 32, requires_grad=True) for _ in range(2))
    y = normed(x, torch.nn.LayerNorm(32), v, Dropout(1e-6))
    assert "_AddNorm" in type(y.grad_fn).__name__
    of_x, of_v = torch.autograd.grad(y, (x, v), torch.randn(40, 32))
    assert torch.equal(of_x, of_v)


@pytest.mark.usefixtures("small_ones_too")
@pytest.mark.parametrize(("weight", "bias"), [(0.0, 0.0), (1e-30, 0.0), (0.1, 4.0), (float("nan"), 0.0)])
def test_a_norm_whose_input_cannot_be_told_from_its_output_keeps_it(weight, bias):
    norm, x = torch.nn.LayerNorm(16), torch.randn(40, 16, requires_grad=True)
    assert "_AddNorm" in type(normed(x, norm).grad_fn).__name__
    with torch.no_grad():
        norm.weight[3], norm.bias[3] = weight, bias
    assert "_AddNorm" not in type(normed(x, norm).grad_fn).__name__


@pytest.mark.usefixtures("small_ones_too")
def test_a_norm_of_another_kind_is_left_to_itself():
    class Doubled(torch.nn.LayerNorm):
        def forward(self, x):
            return 2 * super().forward(x)

    x = torch.randn(40, 16, requires_grad=True)
    watched = torch.nn.LayerNorm(16)
    watched.register_full_backward_hook(lambda *_: None)
    for norm in (Doubled(16), torch.nn.LayerNorm(16, elementwise_affine=False), torch.nn.Identity(), watched):
        y = normed(x, norm)
        assert torch.equal(y, norm(x)) and "_AddNorm" not in type(y.grad_fn).__name__


@pytest.fixture
def always_in_chunks(monkeypatch):
    monkeypatch.setattr("heedful.model.cpu.door.LEAST_SCORES", 0)
    monkeypatch.setattr("heedful.objectives.HELD", 1000)


@pytest.mark.usefixtures("always_in_chunks")
@settings(few, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.one_of(st.integers(1, 40), st.integers(260, 300)), vocab=st.integers(1, 700),
       width=st.sampled_from([24, 32]), smoothing=st.sampled_from([0.0, 0.1]), bias=st.booleans(),
       seed=st.integers(0, 99))  # fmt: skip
def test_the_loss(rows, vocab, width, smoothing, bias, seed):
    torch.manual_seed(seed)
    states, weight = torch.randn(rows, width, requires_grad=True), torch.randn(vocab, width, requires_grad=True)
    offset = torch.randn(vocab, requires_grad=True) if bias else None
    targets = torch.randint(0, vocab, (rows,))
    inputs = [states, weight] + ([offset] if offset is not None else [])
    ours = vocabulary_cross_entropy(states, weight, offset, targets, smoothing=smoothing).total
    theirs = cross_entropy(F.linear(states, weight, offset), targets, smoothing=smoothing).total
    assert "Vocabulary" in type(ours.grad_fn).__name__
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-5)
    for one, other in zip(torch.autograd.grad(ours, inputs), torch.autograd.grad(theirs, inputs), strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)


@pytest.mark.usefixtures("always_in_chunks")
def test_a_target_outside_the_vocabulary_is_told():
    states, weight = torch.randn(3, 8, requires_grad=True), torch.randn(5, 8)
    with pytest.raises(IndexError, match="target 5 is outside the vocabulary of 5 tokens"):
        vocabulary_cross_entropy(states, weight, None, torch.tensor([0, 5, 1]))


def test_training_is_the_same_without_kernels(monkeypatch):
    """A model's loss and gradients, all of it together."""
    from heedful.families.vaswani import vaswani
    from heedful.model.create import create

    torch.manual_seed(0)
    model = create(vaswani(vocab=50, width=32, hidden=64, heads=2, layers=2, dropout=0.0)).train()
    source, target = torch.randint(0, 50, (5, 9)), torch.randint(0, 50, (5, 8))
    valid = torch.arange(9) < torch.tensor([[9], [4], [7], [1], [9]])

    def gradients():
        model.zero_grad()
        states = model.decode(target[:, :-1], model.encode(source, valid=valid)).flatten(0, 1)
        loss = vocabulary_cross_entropy(*model.last_linear(states), target[:, 1:].flatten(), smoothing=0.1).total
        loss.backward()
        return [loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())]

    ours = gradients()
    monkeypatch.setattr(kernels, "NATIVE", None)
    for one, other in zip(ours, gradients(), strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=2e-4)
