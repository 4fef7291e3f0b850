"""LSH attention as transformers has it: its buckets, outputs and gradients, with and without padding.

In double precision: transformers adds rounds by exp(logit - logsumexp), and where a token sees only itself its logits
are -1e5, of which single precision keeps two digits after the point.
"""

import pytest
import torch

from heedful.exchange.hugging_face import load, save
from heedful.families import family, their_names
from heedful.model.attention.lsh import LshConfig
from heedful.model.mask import Mask
from heedful.model.multihead import MultiHeadConfig, SelfAttention
from heedful.model.sight import Sight

transformers = pytest.importorskip("transformers")
from transformers.models.reformer.modeling_reformer import LSHSelfAttention  # noqa: E402

# width, heads, head, chunk, length, buckets, rounds: distinct primes, and sizes that enter our kernels
SIZES = {
    "primes": (13, 3, 5, 7, 35, 6, 2),
    "one round": (13, 3, 5, 7, 35, 6, 1),
    "factors": (13, 3, 5, 7, 35, (4, 6), 3),
    "kernels": (64, 4, 16, 16, 64, 8, 2),
}
sizes = pytest.mark.parametrize("size", SIZES)


def both(size, *, causal):
    """Their attention and ours, with the same weights and rotations."""
    width, heads, head, chunk, length, buckets, rounds = SIZES[size]
    config = transformers.ReformerConfig(
        hidden_size=width,
        num_attention_heads=heads,
        attention_head_size=head,
        num_buckets=buckets if isinstance(buckets, int) else list(buckets),
        num_hashes=rounds,
        lsh_attn_chunk_length=chunk,
        lsh_num_chunks_before=1,
        lsh_num_chunks_after=0 if causal else 1,
        is_decoder=causal,
        hash_seed=3,
        lsh_attention_probs_dropout_prob=0.0,
    )
    torch.manual_seed(0)
    theirs = LSHSelfAttention(config, layer_idx=0).double().eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    mix = LshConfig(buckets=buckets, rounds=rounds, chunk=chunk, sees="chunk")
    multihead = MultiHeadConfig(heads=heads, head_width=head, bias=False, output_bias=False, mix=mix)
    ours = SelfAttention(multihead, width, multihead.shape(width, causal=causal)).double().eval()
    with torch.no_grad():
        ours.query_key_value.weight.copy_(torch.cat([theirs.query_key.weight, theirs.value.weight]))
        ours.output = torch.nn.Identity()
        torch.manual_seed(3)
        columns = buckets // 2 if isinstance(buckets, int) else sum(buckets) // 2
        ours.mix.rotations = torch.randn(heads, head, rounds, columns, dtype=torch.float64)
    x = torch.randn(2, length, width, dtype=torch.float64)
    return theirs, ours, x


def run(theirs, ours, x, valid, *, causal):
    results = []
    for attention in (theirs, ours):
        attention.zero_grad()
        inputs = x.clone().requires_grad_()
        if attention is theirs:
            mixed = attention(inputs, attention_mask=valid).hidden_states
        else:
            mixed = attention(inputs, sight=Sight(Mask(causal=causal, key_valid=valid)))
        real = mixed if valid is None else mixed[valid]
        real.mul(torch.randn(real.shape, generator=torch.Generator().manual_seed(1), dtype=real.dtype)).sum().backward()
        results.append((real, inputs.grad))
    (their_mixed, their_grad), (our_mixed, our_grad) = results
    torch.testing.assert_close(our_mixed, their_mixed)
    torch.testing.assert_close(our_grad, their_grad)
    weights = torch.cat([theirs.query_key.weight.grad, theirs.value.weight.grad])
    torch.testing.assert_close(ours.query_key_value.weight.grad, weights)


@sizes
def test_the_buckets_are_theirs(size):
    theirs, ours, x = both(size, causal=False)
    shared = theirs._split_hidden_size_dim(theirs.query_key(x), theirs.num_attention_heads, theirs.attention_head_size)
    rounds = theirs.num_hashes
    found = theirs._hash_vectors(shared, rounds, None).view(*shared.shape[:2], rounds, -1)
    count = torch.tensor(SIZES[size][5]).prod()
    assert torch.equal(ours.mix.hash(shared), (found - count * torch.arange(rounds)[:, None]).to(torch.int32))


@pytest.mark.parametrize("causal", [False, True])
@sizes
def test_outputs_and_gradients_are_theirs(size, causal):
    run(*both(size, causal=causal), None, causal=causal)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("side", ["right", "left", "middle"])
@sizes
def test_so_are_they_with_padding(size, causal, side):
    """As long as the padding leaves the number of chunks as it is: theirs lets it change who sees whom."""
    theirs, ours, x = both(size, causal=causal)
    length = x.shape[1]
    valid = torch.ones(x.shape[:2], dtype=torch.bool)
    places = {"right": slice(length - 4, None), "left": slice(0, 4), "middle": slice(10, 14)}
    valid[0, places[side]] = False
    run(theirs, ours, x, valid, causal=causal)


@pytest.mark.parametrize("causal", [False, True])
@sizes
def test_a_text_of_one_chunk_is_seen_whole_by_both(size, causal):
    theirs, ours, x = both(size, causal=causal)
    run(theirs, ours, x[:, : SIZES[size][3]], None, causal=causal)


def whole(folder, **changes):
    """Their model with random weights, written to a folder, and ours, read from it, in double precision."""
    keys = {"attn_layers": ["lsh"] * 3, "hidden_size": 13, "attention_head_size": 5, "num_attention_heads": 3}
    keys |= {"feed_forward_size": 17, "num_buckets": 6, "num_hashes": 2, "lsh_attn_chunk_length": 7, "vocab_size": 53}
    keys |= {"axial_pos_embds": False, "max_position_embeddings": 41, "is_decoder": True, "hash_seed": 3}
    keys |= {"hidden_dropout_prob": 0.0, "lsh_attention_probs_dropout_prob": 0.0, "layer_norm_eps": 1e-5, **changes}
    torch.manual_seed(0)
    theirs = transformers.ReformerModelWithLMHead(transformers.ReformerConfig(**keys))
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    theirs.save_pretrained(folder)
    opened = load(folder)
    ours = opened.model.double().eval()
    for layer in ours.decoder.layers:
        torch.manual_seed(3)
        layer.attention.mix.rotations = torch.randn(layer.attention.mix.rotations.shape, dtype=torch.float64)
    return theirs.double(), ours, opened


def test_a_whole_model_opens_and_its_reversible_gradients_are_theirs(tmp_path):
    theirs, ours, opened = whole(tmp_path / "theirs")
    text = torch.randint(0, 53, (2, 35), generator=torch.Generator().manual_seed(0))
    wanted, found = theirs.train()(text, use_cache=False).logits, ours(text)
    torch.testing.assert_close(found, wanted)
    wanted.log_softmax(-1)[..., 3].sum().backward()
    found.log_softmax(-1)[..., 3].sum().backward()
    table = family("reformer").names(ours.config)
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, torch.cat([gradients[their] for their in their_names(name, table)]))
    save(ours.float(), tmp_path / "ours", "reformer", details=opened.details)
    again = transformers.ReformerModelWithLMHead.from_pretrained(tmp_path / "ours").eval()
    short = text[:, :7]
    torch.testing.assert_close(again(short).logits, theirs.float().eval()(short).logits, atol=1e-4, rtol=1e-4)


def test_the_same_directions_are_drawn_whenever_a_folder_is_opened(tmp_path):
    _, _, first = whole(tmp_path / "theirs")
    state = torch.get_rng_state()
    second, third = load(tmp_path / "theirs").model, load(tmp_path / "theirs").model
    assert torch.equal(state, torch.get_rng_state())
    layers = [model.decoder.layers[1].attention.mix.rotations for model in (second, third)]
    assert torch.equal(*layers) and not torch.equal(layers[0], second.decoder.layers[0].attention.mix.rotations)
    assert first.family == "reformer"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attn_layers": ["local", "lsh"]}, "only lsh layers"),
        ({"lsh_num_chunks_before": 2}, "lsh_num_chunks_before=2 is not known here; only 1"),
        ({"num_buckets": None}, "set num_buckets in config.json"),
    ],
)
def test_what_has_no_counterpart_is_refused(change, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        whole(tmp_path, **change)
