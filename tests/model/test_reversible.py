"""The reversible stack: the same as its formula by plain autograd, in memory that does not grow with depth."""

import weakref

import pytest
import torch

from heedful.config import kinds, part_config
from heedful.inspection.cost import count_parameters
from heedful.model.architecture.decoder_only import DecoderOnlyConfig
from heedful.model.architecture.encoder_decoder import EncoderDecoderConfig
from heedful.model.architecture.encoder_only import EncoderOnlyConfig
from heedful.model.attention import MixConfig
from heedful.model.create import create
from heedful.model.mask import positions_of
from heedful.model.stack.reversible import Branch

VOCAB, SOURCE, TARGET, BATCH = 23, 7, 11, 3
SIZES = {"primes": (28, 4, 6, 13), "kernels": (64, 4, 16, 48)}  # width, heads, head, hidden
sizes = pytest.mark.parametrize("size", SIZES)


def stack(size="primes", *, mix="softmax", position="sinusoidal", layers=3, window=None, **options):
    _, heads, head, hidden = SIZES[size]
    return {
        "kind": "reversible",
        "layers": layers,
        "attention": {"heads": heads, "head_width": head, "mix": mix, "window": window},
        "feedforward": {"hidden": hidden},
        "position": position,
        "dropout": 0.0,
        **options,
    }


def make(config):
    torch.manual_seed(1)
    model = create(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def pair(size="primes", **options):
    both = stack(size, **options)
    return make(EncoderDecoderConfig(vocab=VOCAB, width=SIZES[size][0], encoder=both, decoder=both))


def writer(size="primes", **options):
    return make(DecoderOnlyConfig(vocab=VOCAB, width=SIZES[size][0], decoder=stack(size, **options)))


def tokens(length, seed=0):
    return torch.randint(0, VOCAB, (BATCH, length), generator=torch.Generator().manual_seed(seed))


def results(model, *inputs, seed=5, **options):
    """The output, and the gradient of every parameter."""
    model.zero_grad()
    torch.manual_seed(seed)
    logits = model(*inputs, **options)
    logits.log_softmax(-1)[..., 3].sum().backward()
    return logits.detach(), {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def plainly(monkeypatch):
    """The same formula, all of it kept by autograd."""
    from heedful.model.stack import reversible

    def apply(first, second, states, branches, shared, draws, *weights):
        for branch in branches:
            first, second = second, first + branch(second, states)
        return first, second

    monkeypatch.setattr(reversible._Backwards, "apply", apply)


def same(one, other, tolerance=2e-4):
    (logits, grads), (other_logits, other_grads) = one, other
    torch.testing.assert_close(logits, other_logits, atol=2e-5, rtol=1e-4)
    for name, grad in grads.items():
        torch.testing.assert_close(
            grad, other_grads[name], atol=tolerance, rtol=1e-3, msg=lambda m, n=name: f"{n}: {m}"
        )


@sizes
@pytest.mark.parametrize("mix", kinds("model/attention"))
def test_it_equals_plain_autograd_with_every_mix(mix, size, monkeypatch):
    if "causal" not in part_config(MixConfig, mix).supports:
        pytest.skip("no decoder")
    model = pair(size, mix=mix, window=3 if mix == "window" else None)
    valid = torch.arange(SOURCE) < torch.tensor([[SOURCE], [4], [2]])
    inputs = (tokens(SOURCE), tokens(TARGET, seed=1))
    found = results(model, *inputs, source_valid=valid)
    plainly(monkeypatch)
    same(found, results(model, *inputs, source_valid=valid))


@sizes
@pytest.mark.parametrize("position", kinds("model/position"))
def test_it_equals_plain_autograd_with_every_position(position, size, monkeypatch):
    """A learned bias is used in every layer, and its gradient is the sum."""
    model = writer(size, position=position)
    found = results(model, tokens(TARGET))
    plainly(monkeypatch)
    same(found, results(model, tokens(TARGET)))


@sizes
@pytest.mark.parametrize("mix", ["softmax", "lsh"])
def test_what_is_dropped_is_dropped_again_on_the_way_back(mix, size, monkeypatch):
    attention = {"heads": 4, "head_width": SIZES[size][2], "mix": mix, "dropout": 0.2}
    feedforward = {"hidden": SIZES[size][3], "dropout": 0.2}
    model = pair(size, attention=attention, feedforward=feedforward, dropout=0.3).train()
    inputs = (tokens(SOURCE), tokens(TARGET, seed=1))
    found = results(model, *inputs)
    state = torch.get_rng_state()
    plainly(monkeypatch)
    same(found, results(model, *inputs))
    assert torch.equal(state, torch.get_rng_state())  # and what is drawn after it is the same, too


def test_shared_layers_add_up_their_gradients(monkeypatch):
    model = writer(share_layers=True)
    found = results(model, tokens(TARGET))
    plainly(monkeypatch)
    same(found, results(model, tokens(TARGET)))


def test_frozen_weights_stay_out(monkeypatch):
    model = writer()
    model.decoder.layers[1].requires_grad_(False)
    model(tokens(TARGET)).sum().backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is None) == name.startswith("decoder.layers.1."), name


def test_under_autocast_too(monkeypatch):
    model = pair("kernels")
    inputs = (tokens(SOURCE), tokens(TARGET, seed=1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(*inputs)
    logits.float().log_softmax(-1)[..., 3].sum().backward()
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    exact, gradients = results(model, *inputs)
    assert (logits - exact).norm() < 0.1 * exact.norm()
    for name, gradient in gradients.items():
        assert (found[name] - gradient).norm() < 0.15 * gradient.norm(), name


class Held:
    """A tensor that is kept for the way back, as long as it is."""

    def __init__(self, x):
        self.x = x


def kept(model, *inputs):
    """How many bytes autograd still keeps when the forward pass is over, weights aside."""
    held = weakref.WeakSet()

    def note(x):
        one = Held(x.detach())  # an output would keep its own graph alive
        held.add(one)
        return one

    with torch.autograd.graph.saved_tensors_hooks(note, lambda one: one.x):
        logits = model(*inputs)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    storages = {one.x.untyped_storage().data_ptr(): one.x.untyped_storage().nbytes() for one in held}
    assert logits.requires_grad
    return sum(size for place, size in storages.items() if place not in weights)


@pytest.mark.parametrize("mix", ["softmax", "lsh"])
def test_what_is_kept_does_not_grow_with_depth(mix, monkeypatch):
    inputs = (tokens(SOURCE), tokens(TARGET, seed=1))
    few, many = (kept(pair(mix=mix, layers=layers), *inputs) for layers in (2, 8))
    assert few == many
    plainly(monkeypatch)
    assert kept(pair(mix=mix, layers=8), *inputs) > 5 * few


@pytest.mark.parametrize("mix", ["softmax", "lsh"])
@torch.no_grad()
def test_cached_decoding_equals_the_full_pass(mix):
    model = pair(mix=mix).eval()
    source, target = tokens(SOURCE), tokens(TARGET, seed=1)
    valid = torch.arange(SOURCE) < torch.tensor([[SOURCE], [4], [2]])
    whole = model(source, target, source_valid=valid)
    for grad in (False, True):  # with gradients the memory is read within the layers
        with torch.set_grad_enabled(grad):
            memory, cache = model.encode(source, valid=valid), model.new_cache(TARGET)
            steps = [model.decode(target[:, [step]], memory, cache=cache) for step in range(TARGET)]
            torch.testing.assert_close(model.logits(torch.cat(steps, dim=1)), whole, atol=2e-5, rtol=1e-4)


@torch.no_grad()
def test_padding_on_the_left_changes_nothing():
    model = writer(mix="lsh").eval()
    text = tokens(TARGET)
    padded = torch.cat([tokens(3, seed=9), text], dim=1)
    valid = torch.arange(TARGET + 3).expand(BATCH, -1) >= 3
    found = model(padded, valid=valid, positions=positions_of(valid))[:, 3:]
    torch.testing.assert_close(found, model(text), atol=2e-5, rtol=1e-4)


def test_the_feed_forward_may_be_computed_in_pieces():
    whole, pieces = (results(writer(pieces=size), tokens(TARGET)) for size in (None, 4))
    same(whole, pieces)


@pytest.mark.parametrize("options", [{}, {"position": "learned", "norm": {"kind": "rms"}}, {"share_layers": True}])
def test_parameters_are_counted(options):
    both = stack(**options)
    configs = [
        EncoderDecoderConfig(vocab=VOCAB, width=28, encoder=both, decoder=both),
        DecoderOnlyConfig(vocab=VOCAB, width=56, embedding={"width": 28}, decoder={**both, "join": "both"}),
    ]
    for config in configs:
        assert {name: count for name, count in config.parameters().items() if count} == count_parameters(config)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"placement": "post"}, "encoder: a reversible stack cannot normalise .* set placement=pre"),
        ({"join": "both"}, "encoder: join both puts two streams of the embeddings' width 28 .* set embedding.width=14"),
        ({"pieces": 4, "feedforward": {"kernel": 3}}, "encoder: feedforward kernel 3 sees beyond a piece"),
        ({"pices": 4}, "unknown key 'pices'; did you mean 'pieces'?"),
    ],
)
def test_what_does_not_fit_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        EncoderOnlyConfig(vocab=VOCAB, width=28, encoder=stack(**options))


def test_a_branch_leaves_the_sight_of_others_alone():
    """On the way back each branch computes its own bias, with a graph of its own."""
    model = writer(position="relative_bias")
    seen = []
    call = Branch.__call__
    try:
        Branch.__call__ = lambda branch, x, states: seen.append(branch.sight) or call(branch, x, states)
        model(tokens(TARGET)).sum().backward()
    finally:
        Branch.__call__ = call
    forwards, backwards = seen[:6], seen[6:]
    assert len({id(sight._made) for sight in forwards}) == 1 and len({id(sight._made) for sight in backwards}) == 6
