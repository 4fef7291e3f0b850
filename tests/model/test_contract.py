"""What every file of model/attention and model/position must keep, inside a whole model.

Each at two sizes: distinct primes and their products, so that a swapped axis cannot pass, and sizes that enter our
kernels. What a mix does not support is not asked of it; that a recipe which asks for it is refused, is.
"""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.config import kinds, part_config
from heedful.model.architecture.decoder_only import DecoderOnlyConfig
from heedful.model.architecture.encoder_decoder import EncoderDecoderConfig
from heedful.model.architecture.encoder_only import EncoderOnlyConfig
from heedful.model.attention import FACTS, MixConfig
from heedful.model.create import create
from heedful.model.mask import positions_of
from heedful.model.multihead import SelfAttention
from heedful.model.record import recorded
from heedful.model.stack.transformer import TransformerConfig
from tests.model.no_square import NoSquare

VOCAB, SOURCE, TARGET, BATCH = 23, 7, 11, 3
SIZES = {  # width, heads, head, hidden; with 3 x 11 tokens there are rows enough for the kernels
    "primes": (28, 4, 6, 13),
    "kernels": (64, 4, 16, 48),
}
WINDOWED = ("window", "longformer")  # they need a window; one of TARGET is as good as none
ATTENTIONS, POSITIONS = kinds("model/attention"), kinds("model/position")
EXACT = [kind for kind in ATTENTIONS if part_config(MixConfig, kind).exact]
# Every attention with one position, every position with the default attention, and keys shared by groups of heads.
PARTS = [
    (attention, position, kv_heads, size)
    for size in SIZES
    for attention, position, kv_heads in (
        *((attention, "rotary", 4) for attention in ATTENTIONS),
        *(("softmax", position, 2) for position in POSITIONS),
        *(("softmax", "sinusoidal", 4), ("softmax", "relative_bias", 4)),
        *(("reference", position, 1) for position in POSITIONS),
    )
]


def supporting(*facts):
    """The parts whose mix supports these facts."""
    able = [parts for parts in PARTS if {*facts} <= part_config(MixConfig, parts[0]).supports]
    return pytest.mark.parametrize("parts", able, ids=lambda parts: "-".join(map(str, parts)))


def stack(parts, *, placement="pre", window=None) -> TransformerConfig:
    attention, position, kv_heads, size = parts
    if attention in WINDOWED:
        window = tuple(one or TARGET for one in window) if isinstance(window, tuple) else window or TARGET
    _, heads, head, hidden = SIZES[size]
    return TransformerConfig(
        layers=2,
        attention={"heads": heads, "kv_heads": kv_heads, "head_width": head, "mix": attention, "window": window},
        feedforward={"hidden": hidden},
        position=position,
        placement=placement,
        length=4 * TARGET,
        dropout=0.0,
    )


def width(parts):
    return SIZES[parts[3]][0]


def decoder_only(parts, **options):
    return make(DecoderOnlyConfig(vocab=VOCAB, width=width(parts), decoder=stack(parts, **options)))


def encoder_only(parts, **options):
    return make(EncoderOnlyConfig(vocab=VOCAB, width=width(parts), encoder=stack(parts, **options)))


def encoder_decoder(parts, **options):
    cross = stack(parts, **options)
    return make(EncoderDecoderConfig(vocab=VOCAB, width=width(parts), encoder=cross, decoder=cross))


def make(config):
    torch.manual_seed(1)
    model = create(config).eval()
    with torch.no_grad():  # biases and norms too must matter
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def tokens(length, batch=BATCH, seed=0):
    return torch.randint(0, VOCAB, (batch, length), generator=torch.Generator().manual_seed(seed))


def close(first, second, tolerance=2e-5):
    return torch.allclose(first, second, atol=tolerance, rtol=1e-4)


@supporting("causal")
@torch.no_grad()
def test_future_tokens_cannot_change_the_past(parts):
    model = decoder_only(parts)
    first = tokens(TARGET)
    for place in range(1, TARGET):
        second = first.clone()
        second[:, place:] = (second[:, place:] + 1) % VOCAB
        before, after = model(first), model(second)
        assert close(before[:, :place], after[:, :place])
        assert not close(before[:, place:], after[:, place:])


@supporting("causal")
@torch.no_grad()
def test_the_past_does_reach_the_present(parts):
    """A mask turned upside down would hide the past and pass a test of the future alone."""
    model = decoder_only(parts)
    first = tokens(TARGET)
    second = first.clone()
    second[:, 0] = (second[:, 0] + 1) % VOCAB
    assert not close(model(first)[:, -1], model(second)[:, -1])


@supporting("causal")
@torch.no_grad()
def test_padding_content_cannot_reach_the_output(parts):
    model = encoder_decoder(parts)
    source, target = tokens(SOURCE), tokens(TARGET, seed=1)
    valid = torch.arange(SOURCE) < torch.tensor([[SOURCE], [4], [2]])
    other = torch.where(valid, source, (source + 5) % VOCAB)
    whole = model(source, target, source_valid=valid)
    assert close(whole, model(other, target, source_valid=valid))
    for row, length in enumerate((SOURCE, 4, 2)):  # and a sentence comes out as it does alone, unpadded
        alone = model(source[row : row + 1, :length], target[row : row + 1])
        assert close(whole[row], alone[0])


@supporting("causal")
@torch.no_grad()
def test_padding_on_the_left_changes_nothing(parts):
    model = decoder_only(parts)
    text = tokens(TARGET)
    padded = torch.cat([tokens(3, seed=9), text], dim=1)
    valid = torch.ones_like(padded, dtype=torch.bool)
    valid[:, :3] = False
    assert close(model(padded, valid=valid, positions=positions_of(valid))[:, 3:], model(text))


@supporting()
@torch.no_grad()
def test_rows_are_independent(parts):
    model = encoder_only(parts)
    text = tokens(SOURCE)
    together = model(text)
    assert close(together, torch.cat([model(row[None]) for row in text]))
    assert close(model(text.flip(0)), together.flip(0))


@supporting("causal", "window")
@settings(max_examples=10, deadline=None)
@given(cuts=st.sets(st.integers(1, TARGET - 1)), room=st.integers(1, TARGET), window=st.none() | st.integers(1, TARGET))
@torch.no_grad()
def test_cached_decoding_equals_the_full_pass(parts, cuts, room, window):
    model = decoder_only(parts, window=window)
    text = tokens(TARGET)
    cache = model.new_cache(room)
    ends = [0, *sorted(cuts), TARGET]
    chunks = [model(text[:, start:end], cache=cache) for start, end in pairwise(ends)]
    assert cache.length == TARGET
    assert close(torch.cat(chunks, dim=1), model(text))


@supporting("causal")
@torch.no_grad()
def test_cached_decoding_equals_the_full_pass_with_a_memory(parts):
    model = encoder_decoder(parts)
    source, target = tokens(SOURCE), tokens(TARGET, seed=1)
    valid = torch.arange(SOURCE) < torch.tensor([[SOURCE], [4], [2]])
    memory, cache = model.encode(source, valid=valid), model.new_cache(TARGET)
    steps = [model.decode(target[:, [step]], memory, cache=cache) for step in range(TARGET)]
    assert close(model.logits(torch.cat(steps, dim=1)), model(source, target, source_valid=valid))


@supporting("causal")
@torch.no_grad()
def test_beams_share_a_memory_and_may_be_reordered_and_dropped(parts):
    """Two beams a sentence, then rows change places, then one sentence leaves."""
    model = encoder_decoder(parts)
    source, target = tokens(SOURCE), tokens(TARGET, batch=2 * BATCH, seed=1)
    memory, cache = model.encode(source), model.new_cache(TARGET)
    model.decode(target[:, :4], memory, cache=cache)
    rows = torch.tensor([1, 0, 2, 2, 5, 4])
    cache.select(rows)
    kept = target[rows].clone()
    kept[:, 4:6] = target[:, 4:6]
    model.decode(kept[:, 4:6], memory, cache=cache)
    sentences, rows = torch.tensor([0, 2]), torch.tensor([0, 1, 4, 5])
    memory = memory.select(sentences)
    cache.select(rows)
    states = model.decode(kept[rows, 6:], memory, cache=cache)
    plain = model(source[sentences].repeat_interleave(2, dim=0), kept[rows])
    assert close(model.logits(states), plain[:, 6:])


@supporting("causal", "segments")
@torch.no_grad()
def test_packed_texts_come_out_as_they_do_alone(parts):
    model = decoder_only(parts)
    first, second = tokens(4, batch=1), tokens(6, batch=1, seed=3)
    segments = torch.tensor([[0] * 4 + [1] * 6])
    packed = model(torch.cat([first, second], dim=1), segments=segments)
    assert close(packed, torch.cat([model(first), model(second)], dim=1))


@supporting("causal", "prefix")
@torch.no_grad()
def test_a_prefix_sees_itself_whole(parts):
    model = decoder_only(parts)
    text = tokens(TARGET)
    prefix = torch.tensor([5, 0, 2])
    changed = text.clone()
    changed[0, 4] = (changed[0, 4] + 1) % VOCAB
    before, after = model(text, prefix=prefix), model(changed, prefix=prefix)
    assert not close(before[0, 0], after[0, 0])  # inside the prefix, a later token is seen
    assert close(before[1], model(text)[1])  # without a prefix, nothing is different
    changed = text.clone()
    changed[0, 7] = (changed[0, 7] + 1) % VOCAB
    assert close(before[0, :7], model(changed, prefix=prefix)[0, :7])  # beyond it, the future stays hidden


@supporting("causal")
def test_an_all_padding_row_gives_no_nan(parts):
    model = encoder_decoder(parts).train()
    valid = torch.ones(BATCH, SOURCE, dtype=torch.bool)
    valid[1] = False
    logits = model(tokens(SOURCE), tokens(TARGET), source_valid=valid)
    logits.square().mean().backward()
    assert torch.isfinite(logits).all()
    for name, parameter in model.named_parameters():
        assert torch.isfinite(parameter.grad).all(), name


@supporting("causal")
@pytest.mark.parametrize("placement", ["pre", "post"])
@torch.no_grad()
def test_the_model_runs_in_bfloat16_and_under_autocast(parts, placement):
    model = encoder_decoder(parts, placement=placement)
    source, target = tokens(SOURCE), tokens(TARGET)
    exact = model(source, target)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = model(source, target)
        memory, cache = model.encode(source), model.new_cache(TARGET)
        for step in range(TARGET):
            model.decode(target[:, [step]], memory, cache=cache)
    half = model.to(torch.bfloat16)(source, target)
    assert half.dtype == torch.bfloat16
    for rough in (mixed, half):
        assert torch.isfinite(rough).all()
        assert (rough.float() - exact).norm() < 0.1 * exact.norm()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("attention", EXACT)
@pytest.mark.parametrize(("window", "kv_heads"), [(None, 2), (3, 2), ((3, None), 4)])
def test_an_exact_attention_equals_the_reference_in_value_and_gradient(attention, position, window, kv_heads, size):
    source, target = tokens(SOURCE), tokens(TARGET)
    valid = torch.arange(SOURCE) < torch.tensor([[SOURCE], [4], [2]])
    results = []
    for mix in ("reference", attention):
        model = encoder_decoder((mix, position, kv_heads, size), window=window)
        logits = model(source, target, source_valid=valid)
        logits.log_softmax(-1)[..., 3].sum().backward()
        results.append((logits, {name: parameter.grad for name, parameter in model.named_parameters()}))
    (plain, plain_gradients), (fast, fast_gradients) = results
    assert close(plain, fast)
    for name, gradient in plain_gradients.items():
        assert close(gradient, fast_gradients[name], tolerance=1e-4), name


@pytest.mark.parametrize("position", ["rotary", "alibi"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", [kind for kind in ATTENTIONS if part_config(MixConfig, kind).long])
def test_an_attention_for_long_texts_never_builds_a_square(kind, causal, position):
    """Forwards, backwards and with a cache, padding included. Everything else in the model is narrow: the largest
    tensor belongs to the attention."""
    supports, length = part_config(MixConfig, kind).supports, 2048
    asked = {fact for fact, wanted in (("causal", causal), ("bias", position == "alibi")) if wanted}
    if not asked <= supports:
        pytest.skip(f"{kind} is not asked for that")
    stack = {"layers": 1, "attention": {"heads": 2, "mix": kind, "window": 16 if kind in WINDOWED else None},
             "feedforward": {"hidden": 8}, "position": position, "dropout": 0.0, "length": length}  # fmt: skip
    of = {"vocab": VOCAB, "width": 8}
    model = make(DecoderOnlyConfig(**of, decoder=stack) if causal else EncoderOnlyConfig(**of, encoder=stack)).train()
    valid = torch.ones(1, length, dtype=torch.bool)
    valid[:, -5:] = False
    for known in (valid, None):
        with NoSquare(length) as watch:
            model(tokens(length, batch=1), valid=known).square().sum().backward()
        assert watch.largest >= length * 8
    if causal:
        with NoSquare(length), torch.no_grad():
            cache = model.new_cache(length)
            model(tokens(length - 1, batch=1), cache=cache)
            model(tokens(1, batch=1), cache=cache)


def test_softmax_may_build_a_square():
    """The watch does see one where there is one."""
    attention = {"heads": 4, "head_width": 6, "mix": "reference"}
    model = make(DecoderOnlyConfig(vocab=VOCAB, width=28, decoder={"layers": 1, "attention": attention}))
    with pytest.raises(AssertionError, match=r"made \(4, 2048, 2048\), with 2048 tokens"), NoSquare(2048):
        model(tokens(2048, batch=1))


@supporting()
@torch.no_grad()
def test_weights_shown_are_the_weights_used(parts):
    """Where a mix has weights to show, their product with the values is what it gave."""
    model = encoder_only(parts)
    values, mixed = {}, {}
    for name, module in model.named_modules():
        if isinstance(module, SelfAttention):

            def note(mix, inputs, options, output, name=name):
                values[name], mixed[name] = inputs[2], output

            module.mix.register_forward_hook(note, with_kwargs=True)
    with recorded(model, SelfAttention) as attentions:
        model(tokens(SOURCE), valid=torch.arange(SOURCE) < torch.tensor([[SOURCE], [4], [2]]))
    assert attentions
    for one in attentions:
        weights = one.weights()
        if weights is not None:
            if one.others:
                continue  # rows may be of other values: the mix has a test of its own
            value = values[one.name].repeat_interleave(weights.shape[1] // values[one.name].shape[1], dim=1)
            assert close(weights @ value, mixed[one.name])


@pytest.mark.parametrize("kind", ATTENTIONS)
def test_what_a_mix_does_not_support_is_refused_when_the_config_is_read(kind):
    config = part_config(MixConfig, kind)
    assert config.supports <= FACTS
    asked = {
        "groups": {"attention": {"heads": 4, "kv_heads": 2, "mix": kind}},
        "window": {"attention": {"heads": 4, "window": 3, "mix": kind}},
        "bias": {"attention": {"heads": 4, "mix": kind}, "position": "alibi"},
    }
    if kind in WINDOWED:
        for one in asked.values():
            one["attention"].setdefault("window", 3)
    for fact, stack in asked.items():
        if fact not in config.supports:
            with pytest.raises(ValueError, match=f"encoder: attention {kind} does not support {fact}; "):
                EncoderOnlyConfig(vocab=VOCAB, width=28, encoder=stack)
