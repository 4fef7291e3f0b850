"""A text read segment by segment, with what each layer read of the segments before (Dai et al. 2019, section 3.2)."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.config import kinds, part_config
from heedful.model.architecture.decoder_only import DecoderOnlyConfig
from heedful.model.attention import MixConfig
from heedful.model.create import create
from heedful.model.position import Position, PositionConfig
from heedful.training.step import recompute_layers

VOCAB, WIDTH, HEADS, LENGTH, BATCH = 23, 28, 2, 13, 3
PARTS = [
    ("transformer_xl", "none"),
    ("softmax", "rotary"),
    ("softmax", "relative_bias"),
    ("reference", "alibi"),
    ("reference", "none"),
]
every = pytest.mark.parametrize("parts", PARTS, ids="-".join)
both = pytest.mark.parametrize("states", [True, False], ids=["states", "keys-and-values"])


def make(parts, *, placement="post", seed=1, **attention):
    mix, position = parts
    config = DecoderOnlyConfig(
        vocab=VOCAB,
        width=WIDTH,
        decoder={
            "layers": 3,
            "attention": {"heads": HEADS, "mix": mix, **attention},
            "feedforward": {"hidden": 11},
            "position": position,
            "placement": placement,
            "dropout": 0.0,
        },
    )
    torch.manual_seed(seed)
    model = create(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def text(length=LENGTH, seed=0):
    return torch.randint(0, VOCAB, (BATCH, length), generator=torch.Generator().manual_seed(seed))


def read(model, tokens, cuts, cache, **facts):
    ends = [0, *sorted(cuts), tokens.shape[1]]
    return torch.cat([model(tokens[:, start:end], cache=cache, **facts) for start, end in pairwise(ends)], dim=1)


def close(first, second):
    torch.testing.assert_close(first, second, atol=3e-5, rtol=1e-4)


@every
@both
@settings(max_examples=8, deadline=None)
@given(cuts=st.sets(st.integers(1, LENGTH - 1)), placement=st.sampled_from(["pre", "post"]))
@torch.no_grad()
def test_a_memory_that_covers_the_text_equals_one_pass(parts, states, cuts, placement):
    model = make(parts, placement=placement)
    close(read(model, text(), cuts, model.new_memory(LENGTH, states=states)), model(text()))


@every
@settings(max_examples=8, deadline=None)
@given(cuts=st.sets(st.integers(1, LENGTH - 1)), memory=st.integers(0, LENGTH))
@torch.no_grad()
def test_kept_keys_and_values_equal_kept_states_while_the_weights_stay(parts, cuts, memory):
    model = make(parts)
    by_states = read(model, text(), cuts, model.new_memory(memory))
    close(read(model, text(), cuts, model.new_memory(memory, states=False)), by_states)


@pytest.mark.parametrize("memory", [0, 2, 5])
@torch.no_grad()
def test_a_layer_looks_back_as_far_as_the_memory_and_layers_add_up(memory):
    """Three layers, token by token: a change is seen 3 x memory tokens later, and no further."""
    model = make(("transformer_xl", "none"))
    tokens = text(19)
    changed = tokens.clone()
    changed[:, 0] = (changed[:, 0] + 1) % VOCAB
    outputs = [read(model, one, range(1, 19), model.new_memory(memory)) for one in (tokens, changed)]
    differs = (outputs[0] - outputs[1]).abs().amax((0, 2)) > 1e-6
    assert differs.tolist() == [place <= 3 * memory for place in range(19)]


@every
@both
@torch.no_grad()
def test_documents_do_not_see_each_other_through_the_memory(parts, states):
    """The second text begins in the middle of a segment, in each row at another place."""
    model = make(parts)
    first, second = text(), text(seed=2)
    borders = [3, 5, 9]
    rows = [torch.cat([first[row, :border], second[row, border:]]) for row, border in enumerate(borders)]
    tokens = torch.stack(rows)
    documents = (torch.arange(LENGTH) >= torch.tensor(borders)[:, None]).long()
    memory, found, held = model.new_memory(4, states=states), [], documents[:, :0]
    for start, end in pairwise([0, 4, 8, LENGTH]):
        held = torch.cat([held[:, -4:], documents[:, start:end]], dim=1)
        found.append(model(tokens[:, start:end], segments=held, cache=memory))
    whole = torch.cat(found, dim=1)
    for row, border in enumerate(borders):
        cuts = [cut - border for cut in (4, 8) if border < cut]
        alone = read(model, tokens[[row], border:], cuts, model.new_memory(4))
        close(whole[[row], border:], alone)


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_what_is_remembered_teaches_the_weights_of_keys_and_values_but_not_the_past(placement):
    model = make(("transformer_xl", "none"), placement=placement)
    memory = model.new_memory(LENGTH)
    model.decode(text(), cache=memory)
    assert not memory.state().requires_grad
    new, attention = text(1, seed=5), model.decoder.layers[0].attention.query_key_value
    model.decode(new, cache=memory).square().sum().backward()
    with_memory = attention.weight.grad.clone()
    model.zero_grad()
    model.decode(new).square().sum().backward()
    query, key, value = (part.abs().sum() for part in with_memory.split(WIDTH))
    alone_key = attention.weight.grad.split(WIDTH)[1].abs().sum()
    assert key > 0.01 and alone_key < 1e-4  # one token alone has a weight of 1, whatever its key
    assert query > 0 and value > 0


def test_layers_that_are_computed_again_remember_once():
    tokens, results = text(), []
    for again in (False, True):
        model = make(("transformer_xl", "none")).train()
        if again:
            recompute_layers(model)
        memory = model.new_memory(5)
        states = [model.decode(part, cache=memory) for part in tokens.split(4, dim=1)]
        torch.cat(states, dim=1).square().sum().backward()
        results.append([memory.state(), *(parameter.grad for parameter in model.parameters())])
    for plain, recomputed in zip(*results, strict=True):
        assert torch.equal(plain, recomputed)


@torch.no_grad()
def test_a_memory_is_a_tensor_out_and_in_again():
    model = make(("transformer_xl", "none"))
    tokens = text()
    memory = model.new_memory(6)
    assert memory.state() is None
    model(tokens[:, :8], cache=memory)
    saved = memory.state()
    assert saved.shape == (3, BATCH, 6, WIDTH)
    again = model.new_memory(6)
    again.restore(saved.clone())
    assert torch.equal(model(tokens[:, 8:], cache=again), model(tokens[:, 8:], cache=memory))
    less = model.new_memory(2)
    less.restore(saved)
    assert less.length == 2


@both
@torch.no_grad()
def test_rows_of_a_memory_may_be_reordered_and_dropped(states):
    model = make(("transformer_xl", "none"))
    rows = torch.tensor([2, 0, 2, 1])
    memory = model.new_memory(5, states=states)
    model(text()[:, :8], cache=memory)
    memory.select(rows)
    new = text(4, seed=3)[rows]
    other = model.new_memory(5, states=states)
    model(text()[rows, :8], cache=other)
    close(model(new, cache=memory), model(new, cache=other))


@torch.no_grad()
def test_decoding_for_long_keeps_no_more_than_the_memory():
    model = make(("softmax", "rotary"))
    memory = model.new_memory(4, states=False)
    for step in range(70):
        model(text(70)[:, [step]], cache=memory)
    assert memory.length == 70
    held = memory.layers[0]._key
    assert held.shape[2] <= 16


@pytest.mark.parametrize(
    "parts", [("softmax", "learned"), ("softmax", "sinusoidal"), ("transformer_xl", "rotary")], ids="-".join
)
def test_absolute_positions_are_refused(parts):
    model = make(parts)
    with pytest.raises(
        ValueError, match="choose mix transformer_xl and position none, or mix softmax and position rot"
    ):
        model.new_memory(5)


@pytest.mark.parametrize("position", kinds("model/position"))
def test_a_position_that_is_added_to_the_states_says_that_it_is_absolute(position):
    config = part_config(PositionConfig, position)
    built = config().build(width=4, heads=2, head_width=2, causal=True)
    assert config.absolute == (type(built).embed is not Position.embed)


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_without_distances_it_is_the_reference_without_positions(kv_heads):
    plain, xl = (make((mix, "none"), kv_heads=kv_heads) for mix in ("reference", "transformer_xl"))
    missing, _ = xl.load_state_dict(plain.state_dict(), strict=False)
    assert len(missing) == 3 * 3
    with torch.no_grad():
        for layer in xl.decoder.layers:
            layer.attention.mix.distance.weight.zero_()
            layer.attention.mix.content.zero_()
    close(xl(text()), plain(text()))


def test_its_parameters_are_counted_and_odd_widths_refused():
    model = make(("transformer_xl", "none"))
    assert sum(model.config.parameters().values()) == sum(parameter.numel() for parameter in model.parameters())
    with pytest.raises(ValueError, match="even number for its sines and cosines, not 1 heads of 7; choose an even"):
        DecoderOnlyConfig(
            vocab=VOCAB,
            width=7,
            decoder={"attention": {"heads": 1, "mix": "transformer_xl"}, "position": "none"},
        )
    assert "recurrence" in part_config(MixConfig, "transformer_xl").supports


@torch.no_grad()
def test_a_clamp_makes_all_distances_beyond_it_equal():
    model = make(("transformer_xl", "none"), mix={"kind": "transformer_xl", "clamp": 3})
    mix = model.decoder.layers[0].attention.mix
    table = mix._project(torch.tensor([-9, -3, 2, 3, 8]))
    assert torch.equal(table[:, 0], table[:, 1])
    assert torch.equal(table[:, 3], table[:, 4])
    assert not torch.equal(table[:, 2], table[:, 3])
