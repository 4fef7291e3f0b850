"""Windows, Longformer and BigBird against transformers and torch: values and gradients, padding included."""

import os

import pytest
import torch
import transformers as hf
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from heedful.config import part_config
from heedful.model.attention import HeadShape, MixConfig
from heedful.model.mask import Mask
from heedful.model.sight import Sight

os.environ.setdefault("HF_HUB_OFFLINE", "1")
SIZES = {"primes": (3, 7), "kernels": (4, 16)}  # heads, head


def parts(size, length, *, batch=2, count=3, seed=0):
    heads, head = SIZES[size]
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, heads, length, head, generator=generator).requires_grad_() for _ in range(count)]


def built(kind, size, *, window=None, causal=False, layer=0, **options):
    heads, head = SIZES[size]
    shape = HeadShape(heads, heads, head, causal=causal, window=window, scale=head**-0.5, layer=layer)
    return part_config(MixConfig, kind)(**options).build(shape)


def randomised(model, std=0.3):
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * std)
    return model


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("length", "window"), [(131, 17), (64, 5), (40, 40), (97, 1)])
@pytest.mark.parametrize("causal", [True, False])
def test_a_window_equals_flex_attention(size, length, window, causal):
    query, key, value = (part.detach() for part in parts(size, length))  # on a CPU, flex_attention has no gradient
    valid = torch.ones(2, length, dtype=torch.bool)
    valid[1, length - 7 :] = False
    valid[0, 3] = False  # in the middle

    def seen(batch, head, query, key):
        near = ((query - key).abs() < window) & valid[batch, key]
        return near & (query >= key) if causal else near

    expected = flex_attention(query, key, value, block_mask=create_block_mask(seen, 2, None, length, length, "cpu"))
    mix = built("window", size, window=window, causal=causal)
    found = mix(query, key, value, sight=Sight(Mask(causal=causal, window=window, key_valid=valid)))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("width", "heads", "kv_heads"), [(30, 5, 5), (64, 4, 2), (64, 4, 4)])
@pytest.mark.parametrize("window", [1, 4, 37, 80])
def test_a_causal_window_equals_mistral(width, heads, kv_heads, window):
    """Its self-attention with rotary positions, inside our layer; the text is padded on the right."""
    from heedful.model.multihead import MultiHeadConfig, SelfAttention
    from heedful.model.position.rotary import RotaryConfig

    config = hf.MistralConfig(vocab_size=11, hidden_size=width, intermediate_size=8, num_hidden_layers=1,
                              num_attention_heads=heads, num_key_value_heads=kv_heads, sliding_window=window,
                              attn_implementation="eager")  # fmt: skip
    theirs = randomised(hf.MistralModel(config))
    multihead = MultiHeadConfig(
        heads=heads, kv_heads=kv_heads, window=window, bias=False, output_bias=False, mix="window"
    )
    ours = SelfAttention(multihead, width, multihead.shape(width, causal=True))
    their = theirs.layers[0].self_attn
    with torch.no_grad():
        ours.query_key_value.weight.copy_(torch.cat([their.q_proj.weight, their.k_proj.weight, their.v_proj.weight]))
        ours.output.weight.copy_(their.o_proj.weight)
    x = torch.randn(2, 61, width, generator=torch.Generator().manual_seed(1)).requires_grad_()
    valid = torch.arange(61) < torch.tensor([[61], [50]])
    positions = torch.arange(61)[None]
    position = RotaryConfig().build(width=width, heads=heads, head_width=width // heads, causal=True)
    found = ours(x, sight=Sight(Mask(causal=True, window=window, key_valid=valid), positions, positions, position))
    place = torch.arange(61)
    away = place[:, None] - place
    mask = ((away >= 0) & (away < config.sliding_window))[None, None] & valid[:, None, None]
    additive = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
    expected, _ = their(x, position_embeddings=theirs.rotary_emb(x, positions), attention_mask=additive)
    torch.testing.assert_close(found[valid], expected[valid], atol=2e-5, rtol=1e-4)
    gradients = [torch.autograd.grad(y[valid].square().sum(), x)[0] for y in (found, expected)]
    torch.testing.assert_close(*gradients, atol=2e-3, rtol=1e-3)


def test_a_whole_mistral_makes_the_same_mask():
    """`sliding_window` of transformers is our `window`, itself included."""
    config = hf.MistralConfig(vocab_size=11, hidden_size=8, intermediate_size=8, num_hidden_layers=1, sliding_window=3,
                              num_attention_heads=2, num_key_value_heads=2, attn_implementation="eager")  # fmt: skip
    model = randomised(hf.MistralModel(config))
    with torch.no_grad():
        weights = model(torch.arange(9)[None], output_attentions=True).attentions[0][0, 0]
    dense = Mask(causal=True, window=3).dense(9, 9, torch.device("cpu"))
    assert torch.equal(weights > 0, dense[0, 0])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("marked", ["none", "one", "some"])
def test_longformer_attention_equals_transformers(size, marked):
    """Their self-attention, two sizes, padded on the right; rows of padding they set to zero, and nobody reads them."""
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    from heedful.model.multihead import MultiHeadConfig, SelfAttention

    heads, head = SIZES[size]
    width, length, their_window = heads * head, 48, 8
    config = hf.LongformerConfig(hidden_size=width, num_attention_heads=heads, attention_window=[their_window],
                                 num_hidden_layers=1, attention_probs_dropout_prob=0.0)  # fmt: skip
    theirs = randomised(LongformerSelfAttention(config, 0))
    window = their_window // 2 + 1
    multihead = MultiHeadConfig(heads=heads, window=window, mix={"kind": "longformer", "first": 0})
    ours = SelfAttention(multihead, width, multihead.shape(width))
    names = ("query", "key", "value", "query_global", "key_global", "value_global")
    with torch.no_grad():
        for leaf in ("weight", "bias"):
            whole = torch.cat([getattr(getattr(theirs, name), leaf) for name in names])
            getattr(ours.query_key_value, leaf).copy_(whole)
        torch.nn.init.eye_(ours.output.weight)
        torch.nn.init.zeros_(ours.output.bias)
    x = torch.randn(2, length, width, generator=torch.Generator().manual_seed(1)).requires_grad_()
    valid = torch.arange(length) < torch.tensor([[length], [37]])
    chosen = torch.zeros(2, length, dtype=torch.bool)
    if marked != "none":
        chosen[:, 0] = True
    if marked == "some":
        chosen[0, [5, 6, 40]] = True  # one text has more than the other
    additive = torch.zeros(2, length).masked_fill(~valid, -10000.0).masked_fill(chosen, 10000.0)
    expected = theirs(
        x,
        attention_mask=additive,
        is_index_masked=additive < 0,
        is_index_global_attn=chosen,
        is_global_attn=bool(chosen.any()),
    )[0]
    mask = Mask(window=window, key_valid=valid, global_tokens=chosen if marked != "none" else None)
    found = ours(x, sight=Sight(mask))
    torch.testing.assert_close(found[valid], expected[valid], atol=2e-5, rtol=1e-4)
    leaves = [getattr(getattr(theirs, name), leaf) for leaf in ("weight", "bias") for name in names]
    wanted = torch.autograd.grad(expected[valid].square().sum(), [x, *leaves], allow_unused=True)
    got = torch.autograd.grad(found[valid].square().sum(), [x, *ours.query_key_value.parameters()])
    torch.testing.assert_close(got[0], wanted[0], atol=1e-3, rtol=1e-3)
    for mine, first in zip(got[1:], (1, 7), strict=True):
        these = zip(wanted[first : first + 6], leaves[first - 1 : first + 5], strict=True)
        pieces = [torch.zeros_like(leaf) if grad is None else grad for grad, leaf in these]
        torch.testing.assert_close(mine, torch.cat(pieces), atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("blocks", [12, 17])
def test_bigbird_attention_equals_transformers_in_training(size, blocks):
    """With the blocks that they draw put in place of ours; rows of padding they set to zero."""
    import numpy as np
    from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention, BigBirdModel

    from heedful.model.attention.bigbird import Plan, attend_by_plan, draw

    heads, head = SIZES[size]
    block, random, layer = 4, 2, 1
    width, length = heads * head, block * blocks
    config = hf.BigBirdConfig(hidden_size=width, num_attention_heads=heads, block_size=block, num_random_blocks=random,
                              attention_type="block_sparse", max_position_embeddings=128,
                              attention_probs_dropout_prob=0.0)  # fmt: skip
    theirs = randomised(BigBirdBlockSparseAttention(config, seed=layer)).train()
    x = torch.randn(2, length, width, generator=torch.Generator().manual_seed(1)).requires_grad_()
    valid = torch.arange(length) < torch.tensor([[length], [length - 7]])
    blocked, band, rows, columns = BigBirdModel.create_masks_for_block_sparse_attn(valid.float(), block)
    expected = theirs(x, band_mask=band, from_mask=rows, to_mask=columns, from_blocked_mask=blocked,
                      to_blocked_mask=blocked)[0]  # fmt: skip
    np.random.seed(layer)
    lengths, counts = theirs._get_rand_attn_plan(length, block, random)
    drawn = theirs._bigbird_block_rand_mask_with_head(length, length, block, block, heads, lengths, counts)
    ours = part_config(MixConfig, "bigbird")(block=block, random=random)
    slots = draw(ours, blocks, heads, layer)[None]
    slots[:, :, 1:-1, -random:] = torch.tensor(np.stack(drawn))
    for row in slots[0, :, 1:-1].flatten(0, 1).tolist():  # otherwise theirs would count a block twice
        seen = [one for one in row if one >= 0]
        assert len(seen) == len(set(seen))
    place = torch.arange(blocks)[None]
    plan = Plan(block, slots, (place == 0) | (place == blocks - 1))
    made = [getattr(theirs, name)(x) for name in ("query", "key", "value")]
    parts = [part.unflatten(-1, (heads, head)).transpose(1, 2) for part in made]
    found = attend_by_plan(*parts, plan, valid, scale=head**-0.5).transpose(1, 2).flatten(2)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)
    leaves = [x, *theirs.parameters()]
    for got, wanted in zip(*(torch.autograd.grad(y.square().sum(), leaves) for y in (found, expected)), strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-3, rtol=1e-3)
