"""The decoder written out for the CPU does what the modules do, whatever the model and however rows come and go."""

import pytest
import torch

from heedful.decoding.stepper import EncoderDecoderStepper
from heedful.model.encoder_decoder import EncoderDecoderConfig
from heedful.model.initialise import initialise
from heedful.model.int8 import quantize_int8
from heedful.model.kernels import NATIVE
from heedful.model.quick import quick

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
    "other functions": {"feedforward": {"hidden": 20, "activation": "geglu_tanh"}, "attention": {"heads": 1}},
}
OTHERS = {
    "rotary": {"position": {"kind": "rotary"}},
    "alibi": {"position": {"kind": "alibi"}},
    "grouped": {"attention": {"heads": 4, "kv_heads": 2}},
    "window": {"attention": {"heads": 2, "window": 3}},
}


def build(changes, **more):
    stack = {"layers": 2, "attention": {"heads": 2}, "feedforward": {"hidden": 24}, **changes}
    model = EncoderDecoderConfig(vocab=50, width=16, encoder={**stack}, decoder=stack, **more).build().eval()
    initialise(model, "xavier")
    return model.requires_grad_(False)


def steppers(model, beams):
    torch.manual_seed(0)
    source, valid = torch.randint(0, 50, (3, 7)), torch.ones(3, 7, dtype=torch.bool)
    valid[1, 4:] = False
    made = [EncoderDecoderStepper(model, source, valid, length=4, quick=decoder) for decoder in (None, quick(model))]
    assert type(made[0].steps) is not type(made[1].steps)
    return made


@torch.inference_mode()
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("name", VARIANTS)
def test_it_writes_what_the_modules_write(name, beams):
    slow, fast = steppers(build(VARIANTS[name]), beams)
    rows = 3 * beams
    for step in range(11):  # beyond the room there was
        tokens = torch.randint(0, 50, (rows,))
        torch.testing.assert_close(fast.advance(tokens), slow.advance(tokens), atol=2e-5, rtol=1e-5)
        kept, sentences = torch.randint(0, beams, (rows,)) + torch.arange(rows) // beams * beams, None
        if step == 3:  # the first sentence leaves
            kept, sentences, rows = kept[beams:], torch.tensor([1, 2]), rows - beams
        for one in (slow, fast):
            one.select(kept, sentences)


@torch.inference_mode()
def test_int8_too():
    model = build({})
    quantize_int8(model, least=0)
    slow, fast = steppers(model, 1)
    tokens = torch.tensor([3, 4, 5])
    for _ in range(3):
        torch.testing.assert_close(fast.advance(tokens), slow.advance(tokens), atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("name", OTHERS)
def test_what_it_does_not_know_is_left_to_the_modules(name):
    assert quick(build(OTHERS[name])) is None


@torch.no_grad()
def test_the_next_text_sees_weights_and_biases_that_have_changed():
    model, tokens, source = build({}, head={"bias": True}), torch.tensor([1, 2, 3]), torch.randint(0, 50, (3, 7))
    decoder = quick(model)
    for name in ("head.bias", "embedding.weight", "decoder.layers.0.feedforward.input.bias"):
        parameter = model.get_parameter(name)
        parameter.copy_(torch.randn(parameter.shape) / 4)
        slow, fast = (EncoderDecoderStepper(model, source, None, length=4, quick=one) for one in (None, decoder))
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
    for long in (128, 64):
        monkeypatch.setattr("heedful.model.quick.LONG", long)
        slow, fast = (EncoderDecoderStepper(model, source, None, length=4, quick=one) for one in (None, quick(model)))
        for _ in range(5):
            torch.testing.assert_close(fast.advance(tokens), slow.advance(tokens), atol=2e-5, rtol=1e-5)
    torch.set_num_threads(threads)


def test_without_kernels_the_modules_do_it(monkeypatch):
    monkeypatch.setattr("heedful.model.kernels.NATIVE", None)
    assert quick(build({})) is None


@torch.inference_mode()
def test_a_row_has_the_same_numbers_whatever_stands_beside_it():
    model = build({"placement": "pre"})
    model, source = quick(model), torch.randint(0, 50, (9, 7))
    together = model.begin(source, None, 4).advance(torch.arange(9))
    for row in range(9):
        alone = model.begin(source[row : row + 1], None, 4).advance(torch.tensor([row]))
        assert torch.equal(alone[0], together[row])


def test_a_linear_map_that_was_replaced_is_not_passed_over():
    class Other(torch.nn.Linear):
        pass

    model = build({})
    model.decoder.layers[0].cross.output = Other(16, 16)
    assert quick(model) is None


@torch.inference_mode()
def test_positions_that_were_never_learned():
    _, fast = steppers(build(VARIANTS["gated, RMS, learned"]), 1)
    with pytest.raises(ValueError, match="13 tokens, but this model learned 12 positions"):
        for _ in range(13):
            fast.advance(torch.tensor([1, 2, 3]))
