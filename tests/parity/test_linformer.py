"""Linformer against the package of that name, and against softmax where nothing is compressed."""

import pytest
import torch
import torch.nn.functional as F

from heedful.model.architecture.encoder_decoder import EncoderDecoderConfig
from heedful.model.architecture.encoder_only import EncoderOnlyConfig
from heedful.model.attention import HeadShape
from heedful.model.attention.linformer import LinformerConfig
from heedful.model.create import create
from heedful.model.mask import Mask
from heedful.model.multihead import MultiHeadConfig, SelfAttention
from heedful.model.sight import Sight

SIZES = {"primes": (3, 13, 17, 5, 4, 7), "kernels": (2, 40, 64, 16, 4, 16)}  # batch tokens length rank heads head
sized = pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)


def built(size, kv_heads=None):
    _, _, length, rank, heads, head = size
    shape = HeadShape(heads, kv_heads or heads, head, length=length, scale=head**-0.5)
    mix = LinformerConfig(rank=rank).build(shape)
    torch.manual_seed(1)
    mix.first_weights()
    return mix


@sized
@pytest.mark.parametrize("short", [False, True], ids=["whole", "short"])
def test_it_equals_linformer_in_value_and_gradient(size, short):
    theirs = pytest.importorskip("linformer.linformer")
    batch, tokens, length, rank, heads, head = size
    tokens = tokens if short else length
    torch.manual_seed(2)
    width = heads * head
    config = MultiHeadConfig(heads=heads, bias=False, mix={"kind": "linformer", "rank": rank})
    ours = SelfAttention(config, width, config.shape(width, length=length)).double()
    other = theirs.LinformerSelfAttention(width, length, k=rank, heads=heads).double()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.normal_(std=0.3)
        for part, weight in zip((other.to_q, other.to_k, other.to_v), ours.query_key_value.part_weights(), strict=True):
            part.weight.copy_(weight)
        other.proj_k.copy_(ours.mix.compress_key)
        other.proj_v.copy_(ours.mix.compress_value)
        other.to_out.load_state_dict(ours.output.state_dict())
    x = torch.randn(batch, tokens, width, dtype=torch.float64, requires_grad=True)
    towards = torch.randn(batch, tokens, width, dtype=torch.float64)
    mixed, expected = ours(x, sight=Sight(Mask())), other(x)
    assert torch.allclose(mixed, expected)
    pairs = [(x, x), (ours.mix.compress_key, other.proj_k), (ours.mix.compress_value, other.proj_v),
             (ours.output.weight, other.to_out.weight)]  # fmt: skip
    first = torch.autograd.grad((mixed * towards).sum(), [one for one, _ in pairs])
    second = torch.autograd.grad((expected * towards).sum(), [one for _, one in pairs])
    assert all(torch.allclose(one, two) for one, two in zip(first, second, strict=True))


@sized
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_padding_anywhere_changes_nothing(size, dtype):
    """It comes out as the real tokens do alone; what stands in the padding, and its gradient, do not matter."""
    batch, tokens, _, _, heads, head = size
    mix = built(size, kv_heads=2).to(dtype)
    chance = torch.Generator().manual_seed(3)
    valid = torch.rand(batch, tokens, generator=chance) < 0.6
    shapes = [(batch, count, tokens, head) for count in (heads, 2, 2)]
    query, key, value = (torch.randn(shape, generator=chance).to(dtype).requires_grad_() for shape in shapes)
    mixed = mix(query, key, value, sight=Sight(Mask(key_valid=valid)))
    for row, real in enumerate(valid):
        alone = mix(query[[row]], key[[row]][:, :, real], value[[row]][:, :, real], sight=Sight(Mask()))
        assert torch.allclose(mixed[row], alone[0], atol=3e-2 if dtype == torch.bfloat16 else 1e-5)
    for gradient in torch.autograd.grad(mixed.float().square().sum(), (key, value)):
        assert (gradient.transpose(1, 2)[~valid] == 0).all() and torch.isfinite(gradient).all()


def test_with_identities_of_full_rank_it_equals_softmax():
    size = (2, 11, 11, 11, 3, 5)
    mix = built(size)
    with torch.no_grad():
        mix.compress_key.copy_(torch.eye(11))
        mix.compress_value.copy_(torch.eye(11))
    query, key, value = torch.randn(3, 2, 3, 11, 5).unbind()
    expected = F.scaled_dot_product_attention(query, key, value)
    assert torch.allclose(mix(query, key, value, sight=Sight(Mask())), expected, atol=1e-6)


def test_a_text_without_real_tokens_gives_zeros_and_no_nan():
    mix = built(SIZES["primes"])
    query, key, value = (x.requires_grad_() for x in torch.randn(3, 2, 4, 13, 7).unbind())
    valid = torch.ones(2, 13, dtype=torch.bool)
    valid[1] = False
    mixed = mix(query, key, value, sight=Sight(Mask(key_valid=valid)))
    assert (mixed[1] == 0).all()
    assert all(torch.isfinite(g).all() for g in torch.autograd.grad(mixed.sum(), (query, key, value)))


def stack(**changes):
    return {"layers": 1, "attention": {"heads": 2, "mix": {"kind": "linformer", **changes}}, "length": 32}


def test_what_does_not_fit_is_refused_with_a_remedy():
    with pytest.raises(ValueError, match="linformer does not support causal; use it in an encoder, or choose mix soft"):
        EncoderDecoderConfig(vocab=9, width=8, decoder=stack())
    with pytest.raises(ValueError, match=r"must know the longest text: set length beside attention \(encoder.length="):
        EncoderOnlyConfig(vocab=9, width=8, encoder={**stack(), "length": None})
    with pytest.raises(ValueError, match="rank 33 is more than the longest text, 32; choose less"):
        EncoderOnlyConfig(vocab=9, width=8, encoder=stack(rank=33))
    model = create(EncoderOnlyConfig(vocab=9, width=8, encoder=stack(length=5)))
    with pytest.raises(ValueError, match="6 tokens, but this model is limited to 5 positions; shorten the input"):
        model(torch.zeros(1, 6, dtype=torch.long))


@torch.no_grad()
def test_a_decoder_may_look_at_its_source_with_it():
    """With a length of its own; the parameters are those counted."""
    cross = {"heads": 2, "mix": {"kind": "linformer", "rank": 3, "length": 20}}
    small = {"layers": 1, "attention": {"heads": 2}, "feedforward": {"hidden": 8}}
    config = EncoderDecoderConfig(vocab=9, width=8, encoder=small, decoder={**small, "cross": cross})
    model = create(config).eval()
    assert sum(config.parameters().values()) == sum(p.numel() for p in model.parameters())
    source, target = torch.randint(0, 9, (2, 7)), torch.randint(0, 9, (2, 5))
    valid = torch.arange(7) < torch.tensor([[7], [4]])
    whole = model(source, target, source_valid=valid)
    assert torch.allclose(whole[1:], model(source[1:, :4], target[1:]), atol=1e-5)
