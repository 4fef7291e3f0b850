"""LSH attention as transformers has it: its buckets, outputs and gradients, with and without padding.

In double precision: transformers adds rounds by exp(logit - logsumexp), and where a token sees only itself its logits
are -1e5, of which single precision keeps two digits after the point.
"""

import pytest
import torch

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
