"""What every file of model/stack must keep, inside a whole model: each with its defaults, and some with keys changed.

The source is padded on the right, on the left and in the middle; positions are those of the real tokens.
"""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.config import kinds, override, part_config
from heedful.inspection.cost import cost
from heedful.model.architecture.decoder_only import DecoderOnlyConfig
from heedful.model.architecture.encoder_decoder import EncoderDecoderConfig
from heedful.model.architecture.encoder_only import EncoderOnlyConfig
from heedful.model.create import create, layout
from heedful.model.mask import positions_of
from heedful.model.multihead import MemoryAttention
from heedful.model.record import recorded
from heedful.model.stack import StackConfig
from heedful.training.step import recompute_layers

VOCAB, WIDTH, SOURCE, TARGET, BATCH = 23, 32, 7, 11, 3
KINDS = {kind: {"kind": kind} for kind in kinds("model/stack")}
# Those that may stand in any place, and those that only make sense in a decoder with a source.
ANYWHERE = {
    **KINDS,
    "recurrent-lstm": {"kind": "recurrent", "cell": "lstm", "layers": 3},
    "recurrent-one-way": {"kind": "recurrent", "bidirectional": False, "layers": 1},
    "convolutional-wide": {"kind": "convolutional", "kernel": 5, "layers": 2, "position": "sinusoidal"},
    "convolutional-single": {"kind": "convolutional", "kernel": 1, "position": "none"},
}
DECODERS = {
    **ANYWHERE,
    "recurrent-multiplicative": {"kind": "recurrent", "attention": "multiplicative"},
    "recurrent-dot": {"kind": "recurrent", "attention": "dot"},
    "recurrent-none": {"kind": "recurrent", "attention": "none"},
    "recurrent-feeding": {"kind": "recurrent", "input_feeding": True},
    "recurrent-lstm-none-feeding": {"kind": "recurrent", "cell": "lstm", "attention": "none", "input_feeding": True},
    "convolutional-even": {"kind": "convolutional", "kernel": 2},
}
anywhere = pytest.mark.parametrize("stack", ANYWHERE)
decoders = pytest.mark.parametrize("stack", DECODERS)
OLDER = ("recurrent", "convolutional")
# 7 places: padded on the right, on the left, in the middle
VALID = torch.tensor([[1, 1, 1, 1, 0, 0, 0], [0, 0, 1, 1, 1, 1, 1], [1, 1, 0, 1, 0, 0, 1]]).bool()


def decoder_only(stack):
    return make(DecoderOnlyConfig(vocab=VOCAB, width=WIDTH, decoder=ANYWHERE[stack]))


def encoder_only(stack):
    return make(EncoderOnlyConfig(vocab=VOCAB, width=WIDTH, encoder=ANYWHERE[stack]))


def pair(stack, **options):
    encoder = ANYWHERE.get(stack, KINDS[stack.split("-")[0]])
    return EncoderDecoderConfig(vocab=VOCAB, width=WIDTH, encoder=encoder, decoder=DECODERS[stack], **options)


def encoder_decoder(stack):
    return make(pair(stack))


def make(config):
    torch.manual_seed(1)
    model = create(config).eval()
    with torch.no_grad():  # biases too must matter
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def tokens(length, batch=BATCH, seed=0):
    return torch.randint(0, VOCAB, (batch, length), generator=torch.Generator().manual_seed(seed))


def close(first, second, tolerance=2e-5):
    """Measured by the largest number, since without norms they grow."""
    return bool((first - second).abs().max() <= tolerance * max(1.0, second.abs().max().item()))


@anywhere
@torch.no_grad()
def test_future_tokens_cannot_change_the_past(stack):
    model, first = decoder_only(stack), tokens(TARGET)
    for place in range(1, TARGET):
        second = first.clone()
        second[:, place:] = (second[:, place:] + 1) % VOCAB
        before, after = model(first), model(second)
        assert close(before[:, :place], after[:, :place])
        assert not close(before[:, place:], after[:, place:])


@pytest.mark.parametrize("stack", [name for name in ANYWHERE if name != "convolutional-single"])
@torch.no_grad()
def test_the_past_does_reach_the_present(stack):
    model, first = decoder_only(stack), tokens(5)
    second = first.clone()
    second[:, 0] = (second[:, 0] + 1) % VOCAB
    assert not close(model(first)[:, -1], model(second)[:, -1])


@anywhere
@torch.no_grad()
def test_an_encoder_sees_both_sides(stack):
    if stack in ("recurrent-one-way", "convolutional-single"):
        pytest.skip("not this one")
    model, first = encoder_only(stack), tokens(5)
    for place in (0, 4):
        second = first.clone()
        second[:, place] = (second[:, place] + 1) % VOCAB
        assert not close(model(first)[:, 2], model(second)[:, 2])


@decoders
@torch.no_grad()
def test_padding_anywhere_changes_nothing(stack):
    model = encoder_decoder(stack)
    source, target = tokens(SOURCE), tokens(TARGET, seed=1)
    memory = model.encode(source, valid=VALID, positions=positions_of(VALID))
    whole = model.decode(target, memory)
    other = torch.where(VALID, source, (source + 5) % VOCAB)
    assert close(model.decode(target, model.encode(other, valid=VALID, positions=positions_of(VALID))), whole)
    for row in range(BATCH):
        alone = model.encode(source[row][VALID[row]][None])
        assert close(model.decode(target[row : row + 1], alone)[0], whole[row])


@decoders
@torch.no_grad()
def test_padding_in_the_target_changes_nothing(stack):
    model = encoder_decoder(stack)
    source, target = tokens(SOURCE), tokens(SOURCE, seed=1)
    states = model.decode(target, model.encode(source), valid=VALID, positions=positions_of(VALID))
    for row in range(BATCH):
        alone = model.decode(target[row][VALID[row]][None], model.encode(source[row : row + 1]))
        assert close(alone[0], states[row][VALID[row]])


@pytest.mark.parametrize("stack", [name for name in ANYWHERE if not name.startswith("transformer")])
@torch.no_grad()
def test_these_count_positions_by_themselves(stack):
    if not stack.startswith(OLDER):
        pytest.skip("not this one")
    model, text = encoder_only(stack), tokens(SOURCE)
    assert close(model(text, valid=VALID), model(text, valid=VALID, positions=positions_of(VALID)))


@anywhere
@torch.no_grad()
def test_rows_are_independent(stack):
    model, text = encoder_only(stack), tokens(SOURCE)
    together = model(text)
    assert close(together, torch.cat([model(row[None]) for row in text]))
    assert close(model(text.flip(0)), together.flip(0))


@anywhere
@settings(max_examples=8, deadline=None)
@given(cuts=st.sets(st.integers(1, TARGET - 1)), room=st.integers(1, TARGET))
@torch.no_grad()
def test_cached_decoding_equals_the_full_pass(stack, cuts, room):
    model, text = decoder_only(stack), tokens(TARGET)
    cache = model.new_cache(room)
    ends = [0, *sorted(cuts), TARGET]
    chunks = [model(text[:, start:end], cache=cache) for start, end in pairwise(ends)]
    assert cache.length == TARGET
    assert close(torch.cat(chunks, dim=1), model(text))


@anywhere
@settings(max_examples=8, deadline=None)
@given(cuts=st.sets(st.integers(1, SOURCE - 1)))
@torch.no_grad()
def test_cached_decoding_skips_padding(stack, cuts):
    """Also where a chunk holds no real token of a row."""
    model, text, positions = decoder_only(stack), tokens(SOURCE), positions_of(VALID)
    cache = model.new_cache(SOURCE)
    ends = [0, *sorted(cuts), SOURCE]
    chunks = [
        model.decode(text[:, start:end], valid=VALID[:, :end], positions=positions[:, start:end], cache=cache)
        for start, end in pairwise(ends)
    ]
    states = torch.cat(chunks, dim=1)
    for row in range(BATCH):
        assert close(states[row][VALID[row]], model.decode(text[row][VALID[row]][None])[0])


@decoders
@torch.no_grad()
def test_cached_decoding_equals_the_full_pass_with_a_memory(stack):
    model = encoder_decoder(stack)
    source, target = tokens(SOURCE), tokens(TARGET, seed=1)
    memory, cache = model.encode(source, valid=VALID), model.new_cache(TARGET)
    steps = [model.decode(target[:, [step]], memory, cache=cache) for step in range(TARGET)]
    assert close(model.logits(torch.cat(steps, dim=1)), model(source, target, source_valid=VALID))


@decoders
@torch.no_grad()
def test_beams_share_a_memory_and_may_be_reordered_and_dropped(stack):
    """Two beams a sentence, then rows change places, then one sentence leaves."""
    model = encoder_decoder(stack)
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


@decoders
def test_an_all_padding_row_gives_no_nan(stack):
    model = encoder_decoder(stack).train()
    valid = torch.ones(BATCH, SOURCE, dtype=torch.bool)
    valid[1] = False
    logits = model(tokens(SOURCE), tokens(TARGET), source_valid=valid)
    logits.square().mean().backward()
    assert torch.isfinite(logits).all()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), name


@decoders
@torch.no_grad()
def test_the_model_runs_in_other_precisions(stack):
    model = encoder_decoder(stack)
    source, target = tokens(SOURCE), tokens(TARGET)
    exact = model(source, target, source_valid=VALID)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = model(source, target, source_valid=VALID)
        memory, cache = model.encode(source), model.new_cache(TARGET)
        for step in range(TARGET):
            model.decode(target[:, [step]], memory, cache=cache)
    double = model.double()(source, target, source_valid=VALID)
    assert double.dtype == torch.float64 and close(double.float(), exact)
    half = model.to(torch.bfloat16)(source, target, source_valid=VALID)
    assert half.dtype == torch.bfloat16
    for rough in (mixed, half):
        assert torch.isfinite(rough).all()
        assert (rough.float() - exact).norm() < 0.1 * exact.norm()


@decoders
def test_training_in_bfloat16_gives_finite_gradients(stack):
    model = encoder_decoder(stack).train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(tokens(SOURCE), tokens(TARGET), source_valid=VALID).float().square().mean()
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), name


@decoders
@pytest.mark.parametrize("table", [None, 14])
def test_parameters_are_those_of_the_formula(stack, table):
    found = cost(pair(stack, embedding={"kind": "tokens", "width": table}))
    assert found.formula == found.counted


@anywhere
def test_parameters_of_a_decoder_alone_are_those_of_the_formula(stack):
    found = cost(DecoderOnlyConfig(vocab=VOCAB, width=WIDTH, decoder=ANYWHERE[stack]))
    assert found.formula == found.counted


@decoders
def test_flops_are_those_of_the_formula(stack):
    """Of encoding and of decoding; what is done once per source is not counted."""
    from torch.utils.flop_counter import FlopCounterMode

    if not stack.startswith(OLDER):
        pytest.skip("other tests see to it")
    config = pair(stack)
    model, length = layout(config), 13
    text = torch.zeros(1, length, dtype=torch.long, device="meta")
    once = 2 * 2 * WIDTH * WIDTH * getattr(config.decoder, "layers", 0) if stack.startswith("recurrent") else 0
    once += 2 * 2 * WIDTH * WIDTH if "none" in stack else 0
    with FlopCounterMode(display=False) as counter:
        memory = model.encode(text)
    assert counter.get_total_flops() == length * config.flops(length)["source token"] + once
    with FlopCounterMode(display=False) as counter:
        model.logits(model.decode(text, memory))
    if "feeding" not in stack and not stack.startswith("convolutional"):  # softmax may be one call, not counted here
        assert counter.get_total_flops() <= length * config.flops(length)["target token"]


@pytest.mark.parametrize("kind", KINDS)
def test_facts_that_are_not_supported_are_refused(kind):
    supported = part_config(StackConfig, kind)().supports
    model = decoder_only(kind)
    fact = {"segments": torch.zeros(BATCH, SOURCE, dtype=torch.long), "prefix": torch.tensor([1, 2, 3])}
    for name, value in fact.items():
        if name not in supported:
            with pytest.raises(ValueError, match=f"does not support {name}"):
                model(tokens(SOURCE), **{name: value})
    if "global_tokens" not in supported:
        with pytest.raises(ValueError, match="does not support global_tokens"):
            encoder_only(kind)(tokens(SOURCE), global_tokens=VALID)


@decoders
def test_what_a_decoder_attends_to_can_be_recorded(stack):
    model = encoder_decoder(stack)
    with recorded(model, MemoryAttention) as seen, torch.no_grad():
        model(tokens(SOURCE), tokens(TARGET), source_valid=VALID)
    if "none" in stack:
        assert not seen
        return
    assert len(seen) == (1 if stack.startswith("recurrent") else model.config.decoder.layers)
    for one in seen:
        weights = one.weights()
        assert weights.shape[0] == BATCH and weights.shape[2:] == (TARGET, SOURCE)
        assert torch.allclose(weights.sum(-1), torch.ones(()), atol=1e-5)
        assert not weights.movedim(-1, 1)[~VALID].any()


@decoders
@torch.no_grad()
def test_a_forward_pass_changes_no_state(stack):
    model = encoder_decoder(stack)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    first = model(tokens(SOURCE), tokens(TARGET))
    model(tokens(2, seed=5), tokens(3, seed=6))
    assert torch.equal(model(tokens(SOURCE), tokens(TARGET)), first)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_checkpointing_is_right_or_refused(kind):
    plain, again = encoder_decoder(kind).train(), encoder_decoder(kind).train()
    try:
        recompute_layers(again)
    except ValueError as error:
        assert "set training.recompute=false" in str(error)
        return
    for model in (plain, again):
        torch.manual_seed(3)
        model(tokens(SOURCE), tokens(TARGET), source_valid=VALID).square().mean().backward()
    for (name, first), second in zip(plain.named_parameters(), again.parameters(), strict=True):
        assert torch.allclose(first.grad, second.grad, atol=1e-6), name


@pytest.mark.parametrize("stack", [name for name in DECODERS if name.startswith(OLDER)])
@torch.no_grad()
def test_a_cache_of_these_does_not_grow(stack):
    model = encoder_decoder(stack)
    memory, cache, sizes = model.encode(tokens(SOURCE)), model.new_cache(3), []
    for step in range(9):
        model.decode(tokens(1, seed=step), memory, cache=cache)
        held = [*getattr(cache, "inputs", []), getattr(cache, "state", None), getattr(cache, "output", None)]
        sizes.append(sum(tensor.numel() for tensor in held if tensor is not None))
    assert len(set(sizes)) == 1 and model.config.remembered()["target token"] == 0


@pytest.mark.parametrize(
    "changes, message",
    [
        (["decoder=recurrent", "decoder.bidirectional=true"], "bidirectional would see the next token"),
        (["width=31", "encoder=recurrent"], "width 31 does not split into two directions; choose an even one"),
        (["encoder=recurrent", "encoder.input_feeding=true"], "input_feeding needs an encoder to look at"),
        (["encoder=recurrent", "encoder.attention=none"], "attention none needs an encoder to look at"),
        (["decoder=recurrent", "decoder.cell=rnn"], "decoder.*cell.*'gru' or 'lstm'"),
        (["encoder=convolutional", "encoder.kernel=4"], "kernel 4 has no middle; choose an odd one in an encoder"),
        (["encoder=convolutional", "encoder.position=rotary"], "position rotary acts inside self-attention.*learned"),
        (["decoder=convolutional", "decoder.position=alibi"], "position alibi acts inside self-attention.*learned"),
        (["encoder=recurent"], "unknown stack 'recurent'; did you mean 'recurrent'?"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_remedy(changes, message):
    start = EncoderDecoderConfig(width=WIDTH, encoder="convolutional", decoder="convolutional")
    with pytest.raises(ValueError, match=message):
        override(start, changes)


@torch.no_grad()
def test_a_text_longer_than_the_learned_positions_is_refused():
    model = make(
        EncoderOnlyConfig(
            vocab=VOCAB,
            width=WIDTH,
            encoder={"kind": "convolutional", "position": {"kind": "learned", "length": 5}},
        )
    )
    model(tokens(5))
    model(tokens(SOURCE), valid=torch.arange(SOURCE).expand(BATCH, -1) > 1)  # padding has no position
    with pytest.raises(ValueError, match="7 tokens, but this model learned 5 positions; shorten the input"):
        model(tokens(SOURCE))
