"""Banded and blocked attentions by themselves: against the plain formula with the same facts, and step by step."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.config import part_config
from heedful.model.attention import HeadShape, MixConfig, flash
from heedful.model.attention._chunks import Facts
from heedful.model.attention.bigbird import draw
from heedful.model.attention.reference import ReferenceConfig
from heedful.model.attention.window import RecentCache, Window
from heedful.model.mask import Blocks, Mask
from heedful.model.position import Position, PositionConfig
from heedful.model.position.alibi import Alibi
from heedful.model.sight import Sight

SIZES = {"primes": (2, 6, 3, 5), "kernels": (2, 4, 4, 16)}  # batch heads kv_heads head


def tensors(size, length, *, parts=3, seed=0, dtype=torch.float32):
    batch, heads, kv_heads, head = SIZES[size]
    generator = torch.Generator().manual_seed(seed)
    counts = [heads, kv_heads, kv_heads] * 2
    return [
        torch.randn(batch, count, length, head, generator=generator, dtype=dtype).requires_grad_()
        for count in counts[:parts]
    ]


def build(kind, size, *, window=None, causal=False, **options):
    _, heads, kv_heads, head = SIZES[size]
    shape = HeadShape(heads=heads, kv_heads=kv_heads, head=head, causal=causal, window=window, scale=head**-0.5)
    config = part_config(MixConfig, kind)(**options)
    config.check(shape)
    return config.build(shape)


def facts(mask_facts, batch, length, seed, *, window=None, causal=False):
    generator = torch.Generator().manual_seed(seed)
    given = {"causal": causal, "window": window}
    if "valid" in mask_facts:
        given["key_valid"] = torch.rand(batch, length, generator=generator) < 0.6
    if "segments" in mask_facts:
        given["segments"] = torch.randint(0, 3, (batch, length), generator=generator).sort().values
    if "prefix" in mask_facts and causal:
        given["prefix"] = torch.randint(0, length + 1, (batch,), generator=generator)
    if "global" in mask_facts:
        given["global_tokens"] = torch.rand(batch, length, generator=generator) < 0.2
    return Mask(**given)


def same(mix, plain, inputs, sight, plain_sight, tolerance=2e-5):
    """Value and gradient, in every input."""
    found, expected = mix(*inputs, sight=sight), plain(*inputs, sight=plain_sight)
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=1e-4)
    weight = torch.linspace(-1, 1, found.numel(), dtype=found.dtype).reshape(found.shape)
    gradients = [
        torch.autograd.grad((made * weight).sum(), inputs, retain_graph=True, materialize_grads=True)
        for made in (found, expected)
    ]
    for first, second in zip(*gradients, strict=True):
        torch.testing.assert_close(first, second, atol=5 * tolerance, rtol=1e-3)


def dilated(mask, length, window, dilation):
    place = torch.arange(length)
    away = (place[:, None] - place).abs()
    near = (away < window * dilation) & (away % dilation == 0)
    return replace(mask, window=None, blocks=Blocks(1, near[None]), _made={})


@settings(max_examples=60, deadline=None)
@given(
    size=st.sampled_from(list(SIZES)),
    length=st.integers(1, 150),
    window=st.integers(1, 60),
    dilation=st.sampled_from([1, 1, 2, 3]),
    causal=st.booleans(),
    known=st.sets(st.sampled_from(["valid", "segments", "prefix"])),
    biased=st.booleans(),
    seed=st.integers(0, 100),
)
def test_a_window_equals_the_formula_in_value_and_gradient(size, length, window, dilation, causal, known, biased, seed):
    mask = facts(known, SIZES[size][0], length, seed, window=window, causal=causal)
    positions = torch.arange(length)[None]
    position = Alibi(SIZES[size][1]) if biased else None
    sight = Sight(mask, positions, positions, position)
    plain = replace(sight, mask=dilated(mask, length, window, dilation), _made={}, _additive={})
    mix = build("window", size, window=window, causal=causal, dilation=dilation)
    same(mix, ReferenceConfig().build(HeadShape(4, 4, 5, scale=mix.scale)), tensors(size, length), sight, plain)
    query, key, value = tensors(size, length)
    groups = query.shape[1] // key.shape[1]
    shown = mix.weights(query, key, sight=sight) @ value.repeat_interleave(groups, dim=1)
    torch.testing.assert_close(shown, mix(query, key, value, sight=sight), atol=2e-5, rtol=1e-4)


@settings(max_examples=40, deadline=None)
@given(
    cuts=st.sets(st.integers(1, 40), max_size=8),
    window=st.integers(1, 12),
    dilation=st.sampled_from([1, 2, 3]),
    known=st.sets(st.sampled_from(["valid", "segments"])),
    biased=st.booleans(),
)
@torch.no_grad()
def test_a_window_step_by_step_equals_the_full_pass_and_keeps_only_the_window(cuts, window, dilation, known, biased):
    length = 41
    mask = facts(known, 2, length, 1, window=window, causal=True)
    position, places = Alibi(6) if biased else None, torch.arange(length)[None]
    mix = build("window", "primes", window=window, causal=True, dilation=dilation)
    query, key, value = tensors("primes", length)
    whole = mix(query, key, value, sight=Sight(mask, places, places, position))
    cache, made = mix.new_cache(1), []
    rows = torch.tensor([1, 0])
    for start, end in pairwise([0, *sorted(cuts), length]):
        part = replace(
            mask,
            key_valid=None if mask.key_valid is None else mask.key_valid[:, :end],
            segments=None if mask.segments is None else mask.segments[:, :end],
            _made={},
        )
        sight = Sight(part, places[:, start:end], places[:, :end], position)
        new = [x[:, :, start:end] for x in (query, key, value)]
        made.append(mix(*new, sight=sight, cache=cache))
        cache.select(rows)  # there and back again: what is remembered changes places too
        cache.select(rows)
    torch.testing.assert_close(torch.cat(made, dim=2), whole, atol=2e-5, rtol=1e-4)
    assert cache.length == length


@torch.no_grad()
def test_the_memory_of_a_window_does_not_grow():
    cache, sizes = RecentCache(4), []
    x = torch.zeros(1, 1, 100, 2)
    cache.append(x, x)
    for _ in range(50):
        key, _ = cache.append(x[:, :, :1], x[:, :, :1])
        sizes.append(key.untyped_storage().nbytes() // 8)
        assert key.shape[2] == 5
    assert max(sizes) <= 8 and cache.length == 150


def test_two_places_by_hand():
    """A window of 2 is the token and the one before it, as in Mistral."""
    mix = Window(2, 1, causal=True, scale=1.0, dropout=0.0)
    value = torch.eye(5)[None, None]
    zeros = torch.zeros_like(value)
    weights = mix(zeros, zeros, value, sight=Sight(Mask(causal=True, window=2)))[0, 0]
    assert weights.tolist() == [[1, 0, 0, 0, 0], [0.5, 0.5, 0, 0, 0], [0, 0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5, 0],
                                [0, 0, 0, 0.5, 0.5]]  # fmt: skip


@pytest.mark.parametrize("kind", ["window", "longformer"])
def test_without_a_window_it_is_refused(kind):
    with pytest.raises(ValueError, match=f"attention {kind} needs a window in every layer; set attention.window"):
        build(kind, "kernels")


def position_of(kind, heads, head):
    if kind is None:
        return None
    torch.manual_seed(0)
    position = part_config(PositionConfig, kind)().build(width=8, heads=heads, head_width=head, causal=False)
    for parameter in position.parameters():
        torch.nn.init.normal_(parameter)
    return position


@settings(max_examples=60, deadline=None)
@given(
    size=st.sampled_from(list(SIZES)),
    length=st.integers(1, 40),
    block=st.sampled_from([5, 7, 64]),
    window=st.none() | st.integers(1, 20),
    causal=st.booleans(),
    known=st.sets(st.sampled_from(["valid", "segments", "prefix", "global", "blocks"])),
    kind=st.sampled_from([None, "alibi", "relative_bias"]),
    seed=st.integers(0, 100),
)
def test_flash_equals_the_formula_under_every_fact(size, length, block, window, causal, known, kind, seed):
    batch, heads, _, head = SIZES[size]
    mask = facts(known, batch, length, seed, window=window, causal=causal)
    if "blocks" in known:
        seen = torch.rand(heads, 14, 14, generator=torch.Generator().manual_seed(seed)) < 0.5
        mask = replace(mask, blocks=Blocks(3, seen))
    position, places = position_of(kind, heads, head), torch.arange(length)[None]
    sight = Sight(mask, places, places, position)
    mix = build("flash", size)
    inputs = [*tensors(size, length), *(position.parameters() if position else ())]

    def run(one):
        return lambda query, key, value, *learned, sight: one(query, key, value, sight=sight)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flash, "BLOCK", block)
        plain = ReferenceConfig().build(HeadShape(4, 4, 5, scale=mix.scale))
        same(run(mix), run(plain), inputs, sight, replace(sight, _made={}, _additive={}))


class Near(Position):
    """score_ij = q_i . w |i - j|: a term that needs the query."""

    def __init__(self, head):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(head) * 0.1)

    def score(self, query, key, *, query_positions, key_positions):
        distance = (query_positions[:, :, None] - key_positions[:, None]).abs()[:, None]
        return (query @ self.weight)[..., None] * distance


@pytest.mark.parametrize("kind", ["flash", "window"])
@pytest.mark.parametrize("size", SIZES)
def test_a_score_that_needs_the_query_is_added_block_by_block(kind, size, monkeypatch):
    monkeypatch.setattr(flash, "BLOCK", 8)
    torch.manual_seed(0)
    position, places = Near(SIZES[size][3]), torch.arange(37)[None]
    sight = Sight(Mask(window=6), places, places, position)
    mix = build(kind, size, window=6)
    inputs = [*tensors(size, 37), position.weight]
    plain = ReferenceConfig().build(HeadShape(4, 4, 5, scale=mix.scale))

    def run(one):
        return lambda query, key, value, weight, sight: one(query, key, value, sight=sight)

    same(run(mix), run(plain), inputs, sight, replace(sight, _made={}, _additive={}), tolerance=1e-4)


def test_flash_drops_the_same_weights_on_the_way_back(monkeypatch):
    """The gradient is that of the function with those weights dropped: it is linear in the values."""
    monkeypatch.setattr(flash, "BLOCK", 8)
    mix = flash.Flash(0.3, 0.4).train()
    query, key, value = (torch.randn(2, 4, 20, 20, dtype=torch.float64).requires_grad_() for _ in range(3))

    def run(query, key, value):
        torch.manual_seed(3)
        return mix(query, key, value, sight=Sight(Mask(causal=True)))

    assert torch.autograd.gradcheck(run, (query, key, value), fast_mode=True)
    torch.manual_seed(3)
    weights = mix(query, key, torch.eye(20, dtype=torch.float64).expand(2, 4, 20, 20), sight=Sight(Mask(causal=True)))
    assert 0.3 < float((weights == 0).sum() - 2 * 4 * 190) / (2 * 4 * 210) < 0.5
    assert not torch.equal(mix(query, key, value, sight=Sight(Mask())), mix(query, key, value, sight=Sight(Mask())))
    assert torch.equal(mix.eval()(query, key, value, sight=Sight(Mask())), mix(query, key, value, sight=Sight(Mask())))


def longformer_formula(mix, parts, sight):
    """The weights as matrices, times the values of each row's kind."""
    query, key, value, query_global, key_global, value_global = parts
    weights = mix.weights(query, key, sight=sight, others=(query_global, key_global, value_global))
    groups = query.shape[1] // key.shape[1]
    chosen = mix._global(sight, Facts.of(sight, key.shape[2], key.shape[2]), key).marked[:, None, :, None]
    local, everywhere = (weights @ x.repeat_interleave(groups, dim=1) for x in (value, value_global))
    return torch.where(chosen, everywhere, local)


@settings(max_examples=60, deadline=None)
@given(
    size=st.sampled_from(list(SIZES)),
    length=st.integers(1, 90),
    window=st.integers(1, 40),
    first=st.integers(0, 3),
    known=st.sets(st.sampled_from(["valid", "segments", "global"])),
    kind=st.sampled_from([None, "alibi", "rotary"]),
    seed=st.integers(0, 100),
)
def test_longformer_equals_its_formula_in_value_and_gradient(size, length, window, first, known, kind, seed):
    batch, heads, _, head = SIZES[size]
    head = head if head % 2 == 0 else head - 1
    mask = facts(known, batch, length, seed, window=window)
    places = torch.arange(length)[None]
    sight = Sight(mask, places, places, position_of(kind, heads, head))
    mix = build("longformer", size, window=window, first=first)
    inputs = [x[..., :head].detach().requires_grad_() for x in tensors(size, length, parts=6)]

    def run(*parts, sight):
        return mix(*parts[:3], sight=sight, others=parts[3:])

    def formula(*parts, sight):
        return longformer_formula(mix, parts, sight)

    same(run, formula, inputs, sight, replace(sight, _made={}, _additive={}))


@pytest.mark.parametrize("size", SIZES)
def test_longformer_is_full_attention_where_the_window_covers_the_text_and_projections_are_shared(size):
    parts = tensors(size, 29)
    valid = torch.arange(29) < torch.tensor([[29], [17]])
    mix = build("longformer", size, window=29, first=2)
    plain = ReferenceConfig().build(HeadShape(4, 4, 5, scale=mix.scale))

    def run(*parts, sight):
        return mix(*parts, sight=sight, others=parts)

    same(run, plain, parts, Sight(Mask(window=29, key_valid=valid)), Sight(Mask(key_valid=valid)))


def test_the_first_tokens_of_each_text_are_global_whatever_stands_before_them():
    valid = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1, 0, 1, 1, 1, 1, 0]]).bool()
    segments = torch.tensor([[0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 1, 1]])
    mix = build("longformer", "kernels", window=2, first=2)
    key = torch.zeros(2, 4, 7, 16)
    chosen = mix._global(Sight(Mask(key_valid=valid, segments=segments)), Facts(valid, segments), key)
    assert chosen.marked.int().tolist() == [[0, 0, 1, 1, 1, 1, 0], [1, 0, 1, 1, 1, 0, 0]]


def test_longformer_is_refused_in_a_decoder():
    from heedful.model.architecture.decoder_only import DecoderOnlyConfig

    with pytest.raises(ValueError, match="attention longformer does not support causal; use it in an encoder"):
        DecoderOnlyConfig(vocab=9, width=16, decoder={"attention": {"heads": 2, "window": 3, "mix": "longformer"}})


@settings(max_examples=50, deadline=None)
@given(
    size=st.sampled_from(list(SIZES)),
    length=st.integers(1, 70),
    options=st.fixed_dictionaries(
        {
            "block": st.sampled_from([1, 3, 8]),
            "random": st.integers(0, 4),
            "neighbours": st.integers(0, 2),
            "ends": st.integers(0, 2),
            "seed": st.integers(0, 5),
        }
    ),
    known=st.sets(st.sampled_from(["valid"])),
    seed=st.integers(0, 100),
)
def test_bigbird_equals_its_formula_in_value_and_gradient(size, length, options, known, seed):
    mask = facts(known, SIZES[size][0], length, seed)
    mix = build("bigbird", size, **options)

    def formula(query, key, value, sight):
        groups = query.shape[1] // key.shape[1]
        return mix.weights(query, key, sight=sight) @ value.repeat_interleave(groups, dim=1)

    def real(run):  # of the tokens that are not padding: what the others gather, nobody reads
        def shown(*parts, sight):
            mixed = run(*parts, sight=sight)
            return mixed if mask.key_valid is None else mixed * mask.key_valid[:, None, :, None]

        return shown

    same(real(mix), real(formula), tensors(size, length), Sight(mask), Sight(mask))


@pytest.mark.parametrize("size", SIZES)
def test_bigbird_is_full_attention_where_the_blocks_cover_the_text(size):
    mix = build("bigbird", size, block=4, random=3)
    for length in (1, 4, 19, 28):  # up to seven blocks: itself, one neighbour, two ends, three drawn
        plain = ReferenceConfig().build(HeadShape(4, 4, 5, scale=mix.scale))
        same(mix, plain, tensors(size, length), Sight(Mask()), Sight(Mask()))
    parts = tensors(size, 37)
    assert not torch.allclose(mix(*parts, sight=Sight(Mask())), plain(*parts, sight=Sight(Mask())))


@pytest.mark.parametrize(("blocks", "random"), [(30, 3), (8, 3), (7, 3), (2, 1), (1, 0), (64, 5)])
def test_blocks_are_drawn_once_each_from_the_whole_text_and_by_seed_layer_head_and_count_only(blocks, random):
    config = part_config(MixConfig, "bigbird")(random=random)
    before = torch.get_rng_state()
    slots = draw(config, blocks, 4, layer=2)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(slots, draw(config, blocks, 4, layer=2))
    for row in slots.flatten(0, 1).tolist():
        seen = [block for block in row if block >= 0]
        assert len(seen) == len(set(seen)) == min(blocks, len(seen)) and max(seen) < blocks
    for place, row in enumerate(slots[0].tolist()):
        assert {0, place, blocks - 1} <= set(row)
        assert len([block for block in row if block >= 0]) >= min(blocks, 3 + random)
    if blocks == 64:
        assert set(slots[..., 5:].flatten().tolist()) == set(range(64)) - {0, 63}
        for other in (draw(config, 64, 4, layer=3), draw(config.model_copy(update={"seed": 1}), 64, 4, layer=2)):
            assert not torch.equal(slots, other)
        assert not torch.equal(slots[0], slots[1])


@torch.no_grad()
def test_a_text_comes_out_of_bigbird_as_it_does_alone_whatever_was_computed_before():
    """Padded on the right, on the left and in the middle, in training mode and in evaluation."""
    mix = build("bigbird", "kernels", block=4, random=2)
    parts = [part[:1] for part in tensors("kernels", 60)]
    alone = mix(*parts, sight=Sight(Mask()))
    mix.train()
    mix(*(part[:, :, :7] for part in parts), sight=Sight(Mask()))  # a short text in between
    for places in (range(60), range(13, 73), [*range(10), *range(20, 70)]):
        valid = torch.zeros(2, 80, dtype=torch.bool)
        valid[0, list(places)] = True
        valid[1, :17] = True
        wide = [torch.randn(2, 4, 80, 16) for _ in parts]
        for part, whole in zip(parts, wide, strict=True):
            whole[0, :, list(places)] = part[0]
        mixed = mix(*wide, sight=Sight(Mask(key_valid=valid)))
        torch.testing.assert_close(mixed[0, :, list(places)], alone[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kind", ["window", "flash", "longformer", "bigbird"])
def test_other_kinds_of_numbers(kind, dtype):
    window = 7 if kind in ("window", "longformer") else None
    mix = build(kind, "kernels", window=window, **({"block": 4} if kind == "bigbird" else {}))
    valid = torch.arange(50) < torch.tensor([[50], [0]])  # and a text without a token
    parts = tensors("kernels", 50, parts=6, dtype=dtype)
    exact = [part.detach().float().requires_grad_() for part in parts]
    sight = Sight(Mask(key_valid=valid, window=window))
    results = []
    for inputs in (parts, exact):
        mixed = mix(*inputs[:3], sight=replace(sight, mask=replace(sight.mask, _made={})), others=tuple(inputs[3:]))
        mixed.square().sum().backward()
        results.append((mixed.float(), inputs[0].grad.float()))
        assert mixed.dtype == inputs[0].dtype and not mixed[1].any() and torch.isfinite(inputs[1].grad).all()
    for rough, plain in zip(*results, strict=True):
        assert (rough - plain).norm() < (0.03 if dtype is torch.bfloat16 else 1e-5) * plain.norm()
