"""Linear attention and Performer against performer-pytorch and against their quadratic forms."""

import functools
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.model.attention import HeadShape, _features
from heedful.model.attention.linear import LinearConfig
from heedful.model.attention.performer import PerformerConfig, orthogonal_directions
from heedful.model.mask import Mask
from heedful.model.sight import Sight

# batch, heads, kv_heads, length, head: distinct primes where they may be, one chunk and several
SIZES = {"short": (2, 3, 3, 11, 5), "groups": (2, 6, 2, 31, 7), "long": (1, 4, 4, 307, 16)}
sized = pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
either = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
kinds = pytest.mark.parametrize("kind", ["linear", "performer"])


def built(kind, size, *, causal=False, **options):
    _, heads, kv_heads, _, head = size
    shape = HeadShape(heads, kv_heads, head, causal=causal, scale=head**-0.5)
    torch.manual_seed(3)
    mix = (LinearConfig() if kind == "linear" else PerformerConfig(**options)).build(shape)
    if kind == "performer":
        mix.first_weights()
    return mix.double()


def inputs(size, seed=0):
    batch, heads, kv_heads, length, head = size
    chance = torch.Generator().manual_seed(seed)
    shapes = [(batch, count, length, head) for count in (heads, kv_heads, kv_heads)]
    return [torch.randn(shape, generator=chance, dtype=torch.float64).requires_grad_() for shape in shapes]


def holes(size):
    """Padding on the left, in the middle and on the right; the first row has none."""
    valid = torch.rand(size[0], size[3], generator=torch.Generator().manual_seed(5)) < 0.7
    valid[0] = size[0] > 1
    return valid


def shared(x, heads):
    return x.repeat_interleave(heads // x.shape[1], dim=1)


def gradients(mixed, tensors):
    towards = torch.randn(mixed.shape, generator=torch.Generator().manual_seed(7), dtype=mixed.dtype)
    return torch.autograd.grad((mixed * towards).sum(), tensors)


def agree(ours, theirs, tensors, tolerance=1e-9):
    assert torch.allclose(ours, theirs, atol=tolerance)
    for one, other in zip(gradients(ours, tensors), gradients(theirs, tensors), strict=True):
        assert torch.allclose(one, other, atol=tolerance)


@sized
@either
def test_linear_equals_the_functions_of_performer_pytorch(size, causal):
    theirs = pytest.importorskip("performer_pytorch.performer_pytorch")
    query, key, value = inputs(size)
    ours = built("linear", size)(query, key, value, sight=Sight(Mask(causal=causal)))
    features = [F.elu(x) + 1 for x in (query, shared(key, size[1]))]
    attend = functools.partial(theirs.causal_linear_attention_noncuda, eps=0) if causal else theirs.linear_attention
    agree(ours, attend(*features, shared(value, size[1])), (query, key, value))


@sized
@either
def test_performer_equals_performer_pytorch(size, causal, monkeypatch):
    """Theirs adds eps to queries and keys after dividing by the largest of all keys, later ones too: left out here."""
    theirs = pytest.importorskip("performer_pytorch.performer_pytorch")
    exact = functools.partial(theirs.softmax_kernel, eps=0)
    monkeypatch.setattr(theirs, "softmax_kernel", exact)
    monkeypatch.setattr(
        theirs, "causal_linear_attention_noncuda", functools.partial(theirs.causal_linear_attention_noncuda, eps=0)
    )
    query, key, value = inputs(size)
    mix = built("performer", size, eps=0)
    other = theirs.FastAttention(size[4], causal=causal)
    assert other.projection_matrix.shape == mix.directions.shape
    other.projection_matrix = mix.directions
    ours = mix(query, key, value, sight=Sight(Mask(causal=causal)))
    agree(ours, other(query, shared(key, size[1]), shared(value, size[1])), (query, key, value))


@sized
@torch.no_grad()
def test_eps_changes_less_than_that_of_performer_pytorch(size):
    theirs = pytest.importorskip("performer_pytorch.performer_pytorch")
    query, key, value = inputs(size)
    mix = built("performer", size)
    other = theirs.FastAttention(size[4])
    other.projection_matrix = mix.directions
    without = built("performer", size, eps=0)(query, key, value, sight=Sight(Mask()))
    ours = (mix(query, key, value, sight=Sight(Mask())) - without).norm() / without.norm()
    their = (other(query, shared(key, size[1]), shared(value, size[1])) - without).norm() / without.norm()
    assert 0 < ours < 1e-3 and ours < their


def quadratic(kind, mix, query, key, value, mask):
    if kind == "linear":
        scores = (F.elu(query) + 1) @ (F.elu(shared(key, query.shape[1])) + 1).mT
    else:
        scale, directions = query.shape[-1] ** -0.25, mix.directions
        key = shared(key, query.shape[1]) * scale
        phi = torch.exp(query * scale @ directions.mT)
        psi = torch.exp(key @ directions.mT - key.square().sum(-1, keepdim=True) / 2) + mix.eps
        scores = phi @ psi.mT
    visible = mask.dense(query.shape[2], key.shape[2], query.device)
    scores = scores * visible.double()
    total = scores.sum(-1, keepdim=True)
    return torch.where(total > 0, scores / torch.where(total > 0, total, 1), 0) @ shared(value, query.shape[1])


@kinds
@sized
@either
def test_padding_anywhere_as_in_the_quadratic_form(kind, size, causal):
    query, key, value = inputs(size)
    mask = Mask(causal=causal, key_valid=holes(size))
    mix = built(kind, size)
    ours = mix(query, key, value, sight=Sight(mask))
    agree(ours, quadratic(kind, mix, query, key, value, mask), (query, key, value))
    shown = mix.weights(query, key, sight=Sight(mask)) @ shared(value, size[1])
    assert torch.allclose(shown, ours)


@kinds
@settings(max_examples=15, deadline=None)
@given(cuts=st.sets(st.integers(1, 299), max_size=6), chunk=st.sampled_from([3, 64, 128]), padded=st.booleans())
@torch.no_grad()
def test_the_cache_holds_sums_only_and_equals_the_full_pass(kind, cuts, chunk, padded):
    size = (2, 4, 2, 300, 8)
    query, key, value = inputs(size)
    valid = holes(size) if padded else None
    mix = built(kind, size)
    whole = mix(query, key, value, sight=Sight(Mask(causal=True, key_valid=valid)))
    cache, parts, ends = mix.new_cache(5), [], [0, *sorted(cuts), 300]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_features, "CAUSAL_CHUNK", chunk)
        for start, end in pairwise(ends):
            sight = Sight(Mask(causal=True, key_valid=None if valid is None else valid[:, :end]))
            new = (x[:, :, start:end] for x in (query, key, value))
            parts.append(mix(*new, sight=sight, cache=cache))
            features = 8 if kind == "linear" else len(mix.directions)
            assert cache.length == end and cache.sums.shape == (2, 2, features, 9)  # whatever the length
    assert torch.allclose(torch.cat(parts, dim=2), whole)


@kinds
def test_gradients_flow_through_the_cache(kind):
    """What a step adds to the sums is asked for by later steps."""
    size = (1, 2, 2, 7, 3)
    query, key, value = inputs(size)
    mix = built(kind, size)
    whole = mix(query, key, value, sight=Sight(Mask(causal=True)))
    cache, parts = mix.new_cache(7), []
    for start, end in ((0, 3), (3, 4), (4, 7)):
        new = (x[:, :, start:end] for x in (query, key, value))
        parts.append(mix(*new, sight=Sight(Mask(causal=True)), cache=cache))
    agree(torch.cat(parts, dim=2), whole, (query, key, value))


@kinds
def test_a_row_that_sees_nothing_gives_zeros_and_finite_gradients(kind):
    size = (2, 2, 2, 5, 3)
    query, key, value = inputs(size)
    valid = torch.tensor([[False] * 5, [False, False, True, True, True]])
    for causal in (False, True):
        mixed = built(kind, size)(query, key, value, sight=Sight(Mask(causal=causal, key_valid=valid)))
        assert (mixed[0] == 0).all() and (not causal or (mixed[1, :, :2] == 0).all())
        assert all(torch.isfinite(gradient).all() for gradient in gradients(mixed, (query, key, value)))


@torch.no_grad()
def test_very_large_queries_and_keys_stay_finite():
    size = (1, 2, 2, 200, 128)
    query, key, value = (100 * x.float() for x in inputs(size))
    mix = built("performer", size).float()
    key[0, 0, 3] = mix.directions[5] * 128**0.25  # the key for which a feature is largest
    for causal in (False, True):
        assert torch.isfinite(mix(query, key, value, sight=Sight(Mask(causal=causal)))).all()


@torch.no_grad()
def test_the_error_against_softmax_falls_with_the_root_of_the_features_and_orthogonal_ones_do_better():
    head, repeats = 16, 100
    chance = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, 1, 48, head, generator=chance, dtype=torch.float64) for _ in range(3))
    query, key = query / 3, key / 3  # where the error is that of the mean, not of rare large features
    exact = F.scaled_dot_product_attention(query, key, value)
    errors = {}
    for kind in ("orthogonal", "iid"):
        for features in (16, 64, 256):
            mix = built("performer", (1, 1, 1, 48, head), features=features, eps=0)
            squares = []
            for _ in range(repeats):
                drawn = orthogonal_directions(features, head, chance)
                mix.directions.copy_(drawn if kind == "orthogonal" else torch.randn(features, head, generator=chance))
                mixed = mix(query, key, value, sight=Sight(Mask()))
                squares.append((mixed - exact).square().mean())
            errors[kind, features] = float(torch.stack(squares).mean().sqrt())
        assert 1.75 < errors[kind, 16] / errors[kind, 64] < 2.25 and 1.75 < errors[kind, 64] / errors[kind, 256] < 2.25
    assert all(errors["orthogonal", features] < errors["iid", features] for features in (16, 64, 256))


def test_directions_are_orthogonal_in_blocks_and_as_long_as_gaussian_vectors():
    directions = orthogonal_directions(2005, 7, torch.Generator().manual_seed(1))
    unit = F.normalize(directions, dim=-1)
    for start in range(0, 2005, 7):
        block = unit[start : start + 7]
        assert torch.allclose(block @ block.mT, torch.eye(len(block)), atol=1e-5)
    assert directions.square().sum(-1).mean() == pytest.approx(7, rel=0.05)
    assert abs(float(directions.mean())) < 0.03
