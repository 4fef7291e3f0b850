"""What an attention says of its cost, against what it is."""

import pytest
import torch

from heedful.config import kinds, part_config
from heedful.model.architecture.encoder_only import EncoderOnlyConfig
from heedful.model.attention import HeadShape, MixConfig
from heedful.model.attention.linear import LinearConfig
from heedful.model.attention.performer import PerformerConfig
from heedful.model.create import create
from heedful.model.mask import Mask
from heedful.model.sight import Sight

WINDOWED = ("window", "longformer")
SHAPE = HeadShape(heads=4, kv_heads=2, head=6, length=32)


@pytest.mark.parametrize("kind", kinds("model/attention"))
def test_the_parameters_counted_are_those_there_are(kind):
    window = 5 if kind in WINDOWED else None
    encoder = {"layers": 2, "attention": {"heads": 4, "head_width": 6, "mix": kind, "window": window}, "length": 32}
    config = EncoderOnlyConfig(vocab=23, width=28, encoder=encoder)
    model = create(config)
    assert sum(config.parameters().values()) == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("kind", ["linear", "performer", "linformer"])
def test_the_cost_of_a_token_does_not_grow_with_the_text(kind):
    config = part_config(MixConfig, kind)()
    assert config.long and config.flops(SHAPE, 100) == config.flops(SHAPE, 10_000)


@pytest.mark.parametrize("kind", ["linear", "performer"])
def test_dropout_of_weights_that_are_not_there_is_refused(kind):
    encoder = {"attention": {"heads": 4, "mix": kind, "dropout": 0.1}}
    with pytest.raises(ValueError, match=f"attention {kind} has no matrix of weights to drop 0.1 of; set attent"):
        EncoderOnlyConfig(vocab=23, width=28, encoder=encoder)


@pytest.mark.parametrize("config", [LinearConfig(), PerformerConfig()], ids=["linear", "performer"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_what_is_kept_for_the_gradient_grows_with_the_text_and_no_faster(config, causal):
    mix = config.build(HeadShape(heads=2, kv_heads=2, head=16, causal=causal, scale=0.25))
    if hasattr(mix, "first_weights"):
        mix.first_weights()
    first, second, third = (kept(mix, length, causal) for length in (512, 1024, 2048))
    assert second < 2.1 * first and third < 2.1 * second


def kept(mix, length, causal):
    """How many numbers are held between forward and backward."""
    held = {}

    def note(x):
        held[x.data_ptr()] = x.numel()
        return x

    query, key, value = (x.requires_grad_() for x in torch.randn(3, 1, 2, length, 16).unbind())
    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        mix(query, key, value, sight=Sight(Mask(causal=causal))).sum().backward()
    return sum(held.values())


@pytest.mark.parametrize("kind", ["linear", "performer"])
@torch.no_grad()
def test_beside_a_token_a_decoder_remembers_nothing(kind):
    """`remembered` is of each token: the sums are all there is."""
    config = part_config(MixConfig, kind)()
    mix = config.build(SHAPE)
    if hasattr(mix, "first_weights"):
        mix.first_weights()
    cache = mix.new_cache(1)
    sizes = set()
    for _ in range(3):
        query, key, value = torch.randn(1, 4, 5, 6), torch.randn(1, 2, 5, 6), torch.randn(1, 2, 5, 6)
        mix(query, key, value, sight=Sight(Mask(causal=True)), cache=cache)
        sizes.add(cache.sums.numel())
    assert len(sizes) == 1 and config.remembered(SHAPE) == 0
