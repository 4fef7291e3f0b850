"""The decoder written out for the CPU does what the modules do, whatever the model and however rows come and go."""

import pytest
import torch

from heedful.decoding.stepper import SourceStepper
from heedful.model.architecture.encoder_decoder import EncoderDecoderConfig
from heedful.model.cpu.decoding import lower
from heedful.model.cpu.kernels import NATIVE
from heedful.model.feedforward import FeedForward, FeedForwardConfig
from heedful.model.initialise import initialise
from heedful.model.int8 import quantize_int8
from tests.model.cpu.both import build, steppers, write

pytestmark = pytest.mark.skipif(NATIVE is None, reason="no kernels were compiled")

VARIANTS = {
    "the paper's": {},
    "pre-norm": {"placement": "pre"},
    "gated, RMS, learned": {
        "feedforward": {"hidden": 24, "activation": "swiglu"},
        "norm": {"kind": "rms"},
        "position": {"kind": "learned", "length": 12},
    },
    "shared layers, norm after the embedding, no biases": {
        "share_layers": True,
        "embedding_norm": True,
        "attention": {"heads": 2, "bias": False, "output_bias": False},
        "feedforward": {"hidden": 24, "bias": False, "activation": "gelu"},
    },
    "geglu_tanh": {"feedforward": {"hidden": 20, "activation": "geglu_tanh"}, "attention": {"heads": 1}},
    "silu, odd sizes": {"feedforward": {"hidden": 23, "activation": "silu"}, "cross": {"heads": 1}},
    "reglu, no positions": {"feedforward": {"hidden": 24, "activation": "reglu"}, "position": {"kind": "none"}},
}
OTHERS = {
    "relative": {"position": {"kind": "relative"}},
    "grouped, of a source": {"attention": {"heads": 2, "kv_heads": 1}},
    "another mix": {"attention": {"heads": 2, "mix": "reference"}},
}


@torch.inference_mode()
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("name", VARIANTS)
def test_it_writes_what_the_modules_write(name, beams):
    write(*steppers(build(VARIANTS[name])), beams)


@torch.inference_mode()
@pytest.mark.parametrize("more", [
    {"tie": "output", "source_vocab": 60}, {"tie": "inputs"}, {"tie": "none", "head": {"bias": True}},
    {"head": {"scale": True}}, {"embedding": {"scale": False}},
])  # fmt: skip
@pytest.mark.parametrize("int8", [False, True])
def test_tables_and_heads_of_every_kind(more, int8):
    model = build({"placement": "pre"}, **more)
    if model.head.bias is not None:
        model.head.bias.normal_()
    if int8:
        quantize_int8(model, least=0)
    write(*steppers(model), 2, error=3e-4 if int8 else 2e-5)


@torch.inference_mode()
@pytest.mark.parametrize("least", [0, 300])  # all, or the larger ones
def test_int8_too(least):
    model = build({"feedforward": {"hidden": 23}})
    assert quantize_int8(model, least=least) > 0
    write(*steppers(model), 3, error=3e-4)


@torch.inference_mode()
@pytest.mark.parametrize("length", [1, 8, 16, 128, 129])
def test_sources_of_every_length(length):
    model, source = build({}), torch.randint(0, 50, (4, length))
    write(*(SourceStepper(model, source, None, length=4, quick=one) for one in (None, lower(model))), 2)


@torch.inference_mode()
def test_an_encoder_it_does_not_know_is_left_to_its_modules():
    stack = {"layers": 1, "attention": {"heads": 2}, "feedforward": {"hidden": 24}}
    encoder = {**stack, "position": {"kind": "rotary"}}
    model = (
        EncoderDecoderConfig(vocab=50, width=16, encoder=encoder, decoder=stack).build().eval().requires_grad_(False)
    )
    assert lower(model).encoder is None
    write(*steppers(model), 2)


@torch.inference_mode()
def test_where_there_is_nothing_to_see_nothing_is_seen():
    model, source, valid = build({}), torch.randint(0, 50, (2, 7)), torch.ones(2, 7, dtype=torch.bool)
    valid[1] = False
    slow, fast = (SourceStepper(model, source, valid, length=4, quick=one) for one in (None, lower(model)))
    tokens = torch.tensor([1, 2])
    torch.testing.assert_close(fast.advance(tokens), slow.advance(tokens), atol=2e-5, rtol=1e-5)


@torch.inference_mode()
def test_rows_that_do_not_fit_are_refused_and_any_integers_will_do():
    writing = lower(build({})).begin(torch.randint(0, 50, (2, 7), dtype=torch.int32), None, 4)
    with pytest.raises(ValueError, match="3 tokens for 0 rows of 2 sentences"):
        writing.advance(torch.tensor([1, 2, 3]))
    writing.advance(torch.tensor([1, 2, 3, 4], dtype=torch.int32))
    writing.select(torch.tensor([0, 2]))
    with pytest.raises(ValueError, match="4 tokens for 2 rows of 2 sentences"):
        writing.advance(torch.tensor([1, 2, 3, 4]))


@torch.inference_mode()
def test_torchs_default_type_does_not_matter():
    model, source = lower(build({})), torch.randint(0, 50, (2, 7))
    wanted = model.begin(source, None, 4).advance(torch.tensor([1, 2]))
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(model.begin(source, None, 4).advance(torch.tensor([1, 2])), wanted)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("name", OTHERS)
def test_what_it_does_not_know_is_left_to_the_modules(name):
    assert not lower(build(OTHERS[name]))


@torch.no_grad()
def test_the_next_text_sees_weights_and_biases_that_have_changed():
    model, tokens, source = build({}, head={"bias": True}), torch.tensor([1, 2, 3]), torch.randint(0, 50, (3, 7))
    decoder = lower(model)
    for name in ("head.bias", "embedding.weight", "decoder.layers.0.feedforward.input.bias"):
        parameter = model.get_parameter(name)
        parameter.copy_(torch.randn(parameter.shape) / 4)
        slow, fast = (SourceStepper(model, source, None, length=4, quick=one) for one in (None, decoder))
        torch.testing.assert_close(fast.advance(tokens), slow.advance(tokens), atol=2e-5, rtol=1e-5)


@torch.inference_mode()
def test_many_rows_on_two_threads_and_sources_too_long_for_it(monkeypatch):
    model = EncoderDecoderConfig(
        vocab=50, width=64, encoder={"layers": 1, "attention": {"heads": 4}}, decoder={"layers": 2}
    ).build()
    initialise(model.eval().requires_grad_(False), "xavier")
    source, tokens = torch.randint(0, 50, (70, 65)), torch.randint(0, 50, (70,))
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for long in (128, 64):
            monkeypatch.setattr("heedful.model.cpu.decoding.LONG", long)
            both = (SourceStepper(model, source, None, length=4, quick=one) for one in (None, lower(model)))
            slow, fast = both
            for _ in range(5):
                torch.testing.assert_close(fast.advance(tokens), slow.advance(tokens), atol=2e-5, rtol=1e-5)
    finally:
        torch.set_num_threads(threads)


def test_without_kernels_the_modules_do_it(monkeypatch):
    monkeypatch.setattr("heedful.model.cpu.kernels.NATIVE", None)
    assert not lower(build({}))


@torch.inference_mode()
def test_a_row_has_the_same_numbers_whatever_stands_beside_it():
    model = build({"placement": "pre"})
    model, source = lower(model), torch.randint(0, 50, (9, 7))
    together = model.begin(source, None, 4).advance(torch.arange(9))
    for row in range(9):
        alone = model.begin(source[row : row + 1], None, 4).advance(torch.tensor([row]))
        assert torch.equal(alone[0], together[row])


@torch.no_grad()
def test_weights_that_were_exchanged_are_seen_by_the_next_text():
    model, other, source = build({}), build({}), torch.randint(0, 50, (2, 7))
    laid = lower(model)
    going, tokens = laid.begin(source, None, 4), torch.tensor([1, 2])
    first = going.advance(tokens)
    model.load_state_dict(other.state_dict(), assign=True)
    slow, fast = (SourceStepper(model, source, None, length=4, quick=one) for one in (None, laid))
    torch.testing.assert_close(fast.advance(tokens), slow.advance(tokens), atol=2e-5, rtol=1e-5)
    assert not torch.equal(fast.steps.advance(tokens), first) and going.advance(tokens).isfinite().all()


def replaced(name, change):
    model = build({})
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, change(model.get_submodule(name)))
    return model


class Derived(torch.nn.Linear):
    pass


class Doubled(FeedForward):
    def forward(self, x, *, mask):
        return 2 * super().forward(x, mask=mask)


@pytest.mark.parametrize(("name", "change"), [
    ("decoder.layers.0.cross.output", lambda old: Derived(16, 16)),
    ("decoder.layers.1.feedforward", lambda old: torch.nn.Identity()),
    ("decoder.layers.1.feedforward", lambda old: Doubled(FeedForwardConfig(hidden=24), 16)),
    ("decoder.layers.1.feedforward", lambda old: FeedForward(FeedForwardConfig(hidden=32), 16)),
    ("decoder.layers.0.attention_residual.norm", lambda old: torch.nn.LayerNorm(16, elementwise_affine=False)),
    ("decoder.layers.0.attention_residual.norm", lambda old: torch.nn.LayerNorm(16, eps=0.1)),
    ("decoder.layers.0.attention_residual.norm", lambda old: torch.nn.RMSNorm(16)),
    ("embedding", lambda old: torch.nn.Sequential(old)),
    ("decoder", lambda old: old.to(torch.bfloat16)),
])  # fmt: skip
def test_a_part_that_was_replaced_is_not_passed_over(name, change):
    assert not lower(replaced(name, change))


def test_a_hook_is_not_passed_over():
    model = build({})
    model.decoder.layers[0].feedforward.register_forward_hook(lambda *found: None)
    assert not lower(model)


@torch.inference_mode()
def test_positions_that_were_never_learned():
    _, fast = steppers(build(VARIANTS["gated, RMS, learned"]))
    with pytest.raises(ValueError, match="13 tokens, but this model learned 12 positions"):
        for _ in range(13):
            fast.advance(torch.tensor([1, 2, 3, 4]))
