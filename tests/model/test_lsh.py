"""LSH attention over texts of many chunks: who sees whom, whatever comes after, beside or between."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.model.attention import HeadShape, lsh
from heedful.model.attention.lsh import LshConfig, unit
from heedful.model.attention.reference import weights_of
from heedful.model.mask import Mask
from heedful.model.sight import Sight

BATCH, HEADS, HEAD, LENGTH, CHUNK = 2, 3, 5, 37, 4
modes = pytest.mark.parametrize("sees", ["bucket", "chunk"])
directions = pytest.mark.parametrize("causal", [False, True])


def mix(*, causal=False, dropout=0.0, **options):
    torch.manual_seed(0)
    config = LshConfig(**{"buckets": 6, "rounds": 2, "chunk": CHUNK, **options})
    made = config.build(HeadShape(HEADS, HEADS, HEAD, causal=causal, dropout=dropout))
    made.first_weights()
    return made.double().eval()


def text(length=LENGTH, batch=BATCH):
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randn(batch, HEADS, length, HEAD, generator=generator, dtype=torch.float64) for _ in range(2))


def run(attention, key, value, cache=None, **facts):
    return attention(key, key, value, sight=Sight(Mask(**facts)), cache=cache)


@directions
@modes
def test_with_one_bucket_and_one_chunk_it_is_softmax_with_itself_hidden(causal, sees):
    key, value = (x.requires_grad_() for x in text(11))
    attention = mix(causal=causal, buckets=1, chunk=11, sees=sees, rounds=3)
    mixed = run(attention, key, value, causal=causal)
    scores = key @ unit(key).transpose(-2, -1)
    hidden = torch.eye(11, dtype=torch.bool) | (torch.ones(11, 11).triu(1).bool() if causal else False)
    hidden[0, 0] = not causal  # the first one has nobody else to look at
    wanted = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ value
    torch.testing.assert_close(mixed, wanted)
    torch.testing.assert_close(torch.autograd.grad(mixed.square().sum(), (key, value)),
                               torch.autograd.grad(wanted.square().sum(), (key, value)))  # fmt: skip


@directions
@modes
def test_the_gradient_is_that_of_the_formula(causal, sees):
    """The weights shown are a formula that autograd can follow."""
    key, value = (x.requires_grad_() for x in text())
    valid = torch.ones(BATCH, LENGTH, dtype=torch.bool)
    valid[0, 5:9] = False
    attention, facts = mix(causal=causal, sees=sees), {"causal": causal, "key_valid": valid}
    mixed = run(attention, key, value, **facts)
    wanted = attention.weights(key, key, sight=Sight(Mask(**facts))) @ value
    torch.testing.assert_close(mixed, wanted)
    weight = torch.randn_like(mixed)
    torch.testing.assert_close(torch.autograd.grad((mixed * weight).sum(), (key, value)),
                               torch.autograd.grad((wanted * weight).sum(), (key, value)))  # fmt: skip


def test_the_gradient_is_right_by_differences_with_dropout_too():
    """At points that do not change their buckets. What is dropped hangs on the seed alone."""
    attention = mix(dropout=0.3, redraw=False).train()
    key, value = (x.requires_grad_() for x in text(7, batch=1))

    def dropped(key, value):
        torch.manual_seed(3)
        return run(attention, key, value)

    assert torch.autograd.gradcheck(dropped, (key, value), eps=1e-7, atol=1e-4)


@settings(max_examples=15, deadline=None)
@given(cut=st.integers(1, LENGTH - 1), window=st.none() | st.integers(1, LENGTH))
@torch.no_grad()
def test_the_future_moves_no_border(cut, window):
    key, value = text()
    attention = mix(causal=True)
    whole = run(attention, key, value, causal=True, window=window)
    torch.testing.assert_close(
        run(attention, key[:, :, :cut], value[:, :, :cut], causal=True, window=window), whole[:, :, :cut]
    )


@settings(max_examples=15, deadline=None)
@given(cuts=st.sets(st.integers(1, LENGTH - 1)), window=st.none() | st.integers(1, LENGTH))
@torch.no_grad()
def test_cached_decoding_equals_the_full_pass(cuts, window):
    key, value = text()
    attention = mix(causal=True)
    cache, ends, valid = attention.new_cache(1), [0, *sorted(cuts), LENGTH], torch.ones(BATCH, LENGTH).bool()
    valid[0, :3] = valid[1, 20:23] = False
    steps = [
        run(attention, key[:, :, start:end], value[:, :, start:end], cache, causal=True, window=window,
            key_valid=valid[:, :end])
        for start, end in pairwise(ends)
    ]  # fmt: skip
    whole = run(attention, key, value, causal=True, window=window, key_valid=valid)
    torch.testing.assert_close(torch.cat(steps, dim=2), whole)


@torch.no_grad()
def test_of_chunks_a_step_sees_what_it_would_if_the_text_ended_there():
    key, value = text()
    attention = mix(causal=True, sees="chunk")
    cache = attention.new_cache(LENGTH)
    for step in range(LENGTH):
        one = run(attention, key[:, :, step : step + 1], value[:, :, step : step + 1], cache, causal=True)
        so_far = run(attention, key[:, :, : step + 1], value[:, :, : step + 1], causal=True)
        torch.testing.assert_close(one, so_far[:, :, -1:])


@settings(max_examples=20, deadline=None)
@given(places=st.sets(st.integers(0, LENGTH + 8), min_size=9, max_size=9))
@pytest.mark.parametrize("causal", [False, True])
@modes
@torch.no_grad()
def test_padding_anywhere_changes_nothing(sees, causal, places):
    key, value = text()
    attention = mix(causal=causal, sees=sees)
    valid = torch.ones(BATCH, LENGTH + 9, dtype=torch.bool)
    valid[:, sorted(places)] = False
    padded = [torch.full((BATCH, HEADS, LENGTH + 9, HEAD), 7.0, dtype=torch.float64) for _ in range(2)]
    for room, x in zip(padded, (key, value), strict=True):
        room[:, :, valid[0]] = x
    found = run(attention, *padded, causal=causal, key_valid=valid)
    torch.testing.assert_close(found[:, :, valid[0]], run(attention, key, value, causal=causal))
    assert not found[:, :, ~valid[0]].any()


@directions
@torch.no_grad()
def test_packed_texts_come_out_as_they_do_alone(causal):
    key, value = text()
    attention = mix(causal=causal)
    segments = (torch.arange(LENGTH) >= 15).long().expand(BATCH, -1)
    packed = run(attention, key, value, causal=causal, segments=segments)
    alone = [run(attention, key[:, :, part], value[:, :, part], causal=causal) for part in (slice(15), slice(15, None))]
    torch.testing.assert_close(packed, torch.cat(alone, dim=2))
    with pytest.raises(ValueError, match="cannot keep packed texts apart; set mix.sees=bucket"):
        run(mix(sees="chunk"), key, value, segments=segments)


@torch.no_grad()
def test_a_token_sees_the_nearest_of_its_bucket_and_the_nearest_of_the_text():
    key, _ = text(batch=1)
    attention = mix(causal=True, rounds=1)
    buckets = attention.hash(key)[0, :, 0]  # heads key
    shown = attention.weights(key, key, sight=Sight(Mask(causal=True)))[0] > 0
    for head in range(HEADS):
        for query in range(1, LENGTH):
            alike = [other for other in range(query) if buckets[head, other] == buckets[head, query]]
            seen = {*alike[-CHUNK:], *range(max(0, query - CHUNK), query)}
            assert set(shown[head, query].nonzero().flatten().tolist()) == seen


@torch.no_grad()
def test_training_hashes_anew_and_evaluation_does_not():
    key, _ = text(200)
    attention = mix()
    assert torch.equal(attention.hash(key), attention.hash(key))
    attention.train()
    first = attention.hash(key)
    assert not torch.equal(first, attention.hash(key))
    assert attention.state_dict().keys() == {"rotations"}
    steady = mix(redraw=False).train()
    assert torch.equal(steady.hash(key), attention.eval().hash(key))


def test_what_is_kept_for_the_way_back_grows_with_the_text_alone():
    def kept(length):
        sizes = []
        key, value = (x.requires_grad_() for x in text(length))
        with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
            run(mix(), key, value)
        return sum(sizes)

    assert kept(800) <= 2.01 * kept(400)


def test_buckets_come_in_pairs():
    for buckets in (7, [4, 3], []):
        with pytest.raises(ValueError, match="do not come in pairs: .* choose an even number, a list of even numbers"):
            LshConfig(buckets=buckets)
    assert LshConfig(buckets=[4, 6]).factors == (4, 6) and LshConfig(buckets=1).factors == ()
    assert mix(buckets=[4, 6]).rotations.shape == (HEADS, HEAD, 2, 5)


def test_the_reference_is_another_function():
    """A text of one chunk is seen whole, but its keys have unit length and serve as queries."""
    key, value = text(3)
    reference = weights_of(key, key, sight=Sight(Mask()), scale=HEAD**-0.5) @ value
    assert not torch.allclose(run(mix(), key, value), reference)


@modes
def test_heads_taken_one_at_a_time_give_the_same(sees, monkeypatch):
    key, value = (x.requires_grad_() for x in text())
    results = []
    for size in (lsh.SORTED, 1):
        monkeypatch.setattr(lsh, "SORTED", size)
        mixed = run(mix(sees=sees), key, value)
        results.append((mixed, *torch.autograd.grad(mixed.square().sum(), (key, value))))
    torch.testing.assert_close(*results)
