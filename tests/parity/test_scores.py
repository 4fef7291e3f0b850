"""Scores of other kinds: relative positions (Shaw), additive (Bahdanau) and multiplicative (Luong) attention, against
transformers, joeynmt and the formulas."""

import math
import os

import pytest
import torch

from heedful.model.attention import HeadShape, additive
from heedful.model.attention.additive import AdditiveConfig
from heedful.model.attention.multiplicative import MultiplicativeConfig
from heedful.model.attention.reference import Reference
from heedful.model.mask import Mask
from heedful.model.multihead import MultiHeadConfig, SelfAttention
from heedful.model.position.relative import RelativeConfig
from heedful.model.sight import Sight

os.environ.setdefault("HF_HUB_OFFLINE", "1")
SIZES = {"primes": (3, 13, 3, 5), "kernels": (2, 40, 4, 16)}  # batch tokens heads head
sized = pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)


def random(module):
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.3)
    return module.double()


def gradients(mixed, tensors):
    towards = torch.randn(mixed.shape, generator=torch.Generator().manual_seed(7), dtype=mixed.dtype)
    return torch.autograd.grad((mixed * towards).sum(), tensors, retain_graph=True)


def agree(ours, theirs, tensors, others):
    assert torch.allclose(ours, theirs)
    for one, other in zip(gradients(ours, tensors), gradients(theirs, others), strict=True):
        assert torch.allclose(one, other)


def relative_sight(position, tokens, mask=None, first=0):
    places = torch.arange(tokens)[None]
    return Sight(mask or Mask(), places[:, first:], places, position)


@sized
@pytest.mark.parametrize("distance", [2, 50])
def test_relative_positions_equal_those_of_transformers(size, distance):
    modeling = pytest.importorskip("transformers.models.wav2vec2_bert.modeling_wav2vec2_bert")
    from transformers import Wav2Vec2BertConfig

    batch, tokens, heads, head = size
    width = heads * head
    theirs = modeling.Wav2Vec2BertSelfAttention(
        Wav2Vec2BertConfig(
            hidden_size=width,
            num_attention_heads=heads,
            position_embeddings_type="relative_key",
            left_max_position_embeddings=distance,
            right_max_position_embeddings=distance,
            attention_dropout=0.0,
            attn_implementation="eager",
        )
    ).double()
    config = MultiHeadConfig(heads=heads)
    ours = random(SelfAttention(config, width, config.shape(width)))
    position = random(RelativeConfig(distance=distance).build(width=width, heads=heads, head_width=head, causal=False))
    parts = (theirs.linear_q, theirs.linear_k, theirs.linear_v)
    with torch.no_grad():
        for part, weight in zip(parts, ours.query_key_value.part_weights(), strict=True):
            part.weight.copy_(weight)
        for part, bias in zip(parts, ours.query_key_value.bias.chunk(3), strict=True):
            part.bias.copy_(bias)
        theirs.linear_out.load_state_dict(ours.output.state_dict())
        theirs.distance_embedding.weight.copy_(position.weight)
    x = torch.randn(batch, tokens, width, dtype=torch.float64, requires_grad=True)
    valid = torch.arange(tokens) < torch.tensor([[tokens - row] for row in range(batch)])
    hidden = torch.zeros(batch, 1, 1, tokens, dtype=torch.float64).masked_fill(~valid[:, None, None], -1e30)
    mixed = ours(x, sight=relative_sight(position, tokens, Mask(key_valid=valid)))
    agree(mixed, theirs(x, attention_mask=hidden)[0], (x, position.weight), (x, theirs.distance_embedding.weight))


@pytest.mark.parametrize("causal", [False, True])
def test_relative_positions_follow_the_formula(causal):
    batch, tokens, heads, head = SIZES["primes"]
    position = random(RelativeConfig(distance=3).build(width=15, heads=heads, head_width=head, causal=causal))
    query, key, value = torch.randn(3, batch, heads, tokens, head, dtype=torch.float64).unbind()
    sight = relative_sight(position, tokens, Mask(causal=causal))
    mixed = Reference(head**-0.5, 0.0)(query, key, value, sight=sight)
    for i in range(tokens):
        seen = range(i + 1 if causal else tokens)
        terms = [key[:, :, j] + position.weight[max(-3, min(3, j - i)) + 3] for j in seen]
        scores = torch.stack([(query[:, :, i] * term).sum(-1) for term in terms], dim=-1) / math.sqrt(head)
        expected = (scores.softmax(-1)[..., None] * value[:, :, : len(terms)]).sum(-2)
        assert torch.allclose(mixed[:, :, i], expected)


def built(config, size, **options):
    _, _, heads, head = size
    return random(config.build(HeadShape(heads, heads, head, scale=head**-0.5, **options)))


@sized
@pytest.mark.parametrize("room", [1, 1 << 22], ids=["one by one", "at once"])
def test_additive_scores_follow_the_formula(size, room, monkeypatch):
    monkeypatch.setattr(additive, "ROOM", room)
    batch, tokens, heads, head = size
    mix = built(AdditiveConfig(), size)
    shapes = [(batch, heads, count, head) for count in (tokens + 2, tokens, tokens)]
    query, key, value = (torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in shapes)
    valid = torch.rand(batch, tokens, generator=torch.Generator().manual_seed(1)) < 0.7
    valid[:, 0] = True
    mixed = mix(query, key, value, sight=Sight(Mask(key_valid=valid)))
    scores = (mix.vector[:, None, None] * torch.tanh(query[:, :, :, None] + key[:, :, None])).sum(-1)
    expected = scores.masked_fill(~valid[:, None, None], -torch.inf).softmax(-1) @ value
    tensors = (query, key, value, mix.vector)
    agree(mixed, expected, tensors, tensors)


@sized
def test_multiplicative_scores_follow_the_formula(size):
    batch, tokens, heads, head = size
    mix = built(MultiplicativeConfig(), size)
    query, key, value = (x.requires_grad_() for x in torch.randn(3, batch, heads, tokens, head).double().unbind())
    mixed = mix(query, key, value, sight=Sight(Mask(causal=True)))
    scores = torch.einsum("bhqd,hde,bhke->bhqk", query, mix.weight, key)
    later = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    tensors = (query, key, value, mix.weight)
    agree(mixed, scores.masked_fill(later, -torch.inf).softmax(-1) @ value, tensors, tensors)


def test_multiplicative_attention_starts_as_softmax():
    mix = built(MultiplicativeConfig(), SIZES["primes"])
    with torch.no_grad():
        mix.first_weights()
    query, key, value = torch.randn(3, 2, 3, 7, 5).double().unbind()
    expected = Reference(5**-0.5, 0.0)(query, key, value, sight=Sight(Mask()))
    assert torch.allclose(mix(query, key, value, sight=Sight(Mask())), expected)


@sized
@pytest.mark.parametrize("kind", ["additive", "multiplicative"])
def test_they_equal_those_of_joeynmt(size, kind):
    """One head, one query at a time, values as they are; theirs project keys (and queries) inside."""
    theirs = pytest.importorskip("joeynmt.attention")
    batch, tokens, _, width = size
    one = (batch, tokens, 1, width)
    states, query = torch.randn(batch, tokens, width).double(), torch.randn(batch, 1, width).double()
    states.requires_grad_()
    query.requires_grad_()
    valid = torch.arange(tokens) < torch.tensor([[tokens - row] for row in range(batch)])
    if kind == "additive":
        other = random(theirs.BahdanauAttention(width, width, width))
        mix = built(AdditiveConfig(), one)
        with torch.no_grad():
            mix.vector.copy_(other.energy_layer.weight)
        asked, key = other.query_layer(query), other.key_layer(states)
        own, their = mix.vector, other.energy_layer.weight
    else:
        other = random(theirs.LuongAttention(width, width))
        mix = built(MultiplicativeConfig(), one)
        with torch.no_grad():
            mix.weight.copy_(other.key_layer.weight[None])
        asked, key = query, states
        own, their = mix.weight, other.key_layer.weight
    other.compute_proj_keys(states)
    expected, weights = other(query, valid[:, None], states)
    sight = Sight(Mask(key_valid=valid))
    mixed = mix(asked[:, None], key[:, None], states[:, None], sight=sight)
    agree(mixed[:, 0], expected, (states, query), (states, query))
    assert torch.allclose(gradients(mixed[:, 0], own)[0].reshape(-1), gradients(expected, their)[0].reshape(-1))
    assert torch.allclose(mix.weights(asked[:, None], key[:, None], sight=sight)[:, 0], weights)


def test_additive_attention_never_holds_the_hidden_layer_of_all_pairs():
    mix = built(AdditiveConfig(), (1, 400, 2, 32))
    query, key, value = (x.requires_grad_() for x in torch.randn(3, 1, 2, 400, 32).double().unbind())
    held = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: held.append(x.numel()) or x, lambda x: x):
        mix(query, key, value, sight=Sight(Mask())).sum().backward()
    assert max(held) <= 2 * 400 * 400
