"""Language models, written out for the CPU, do what the modules do: whatever their parts, with prompts of any lengths,
and however rows come and go."""

import pytest
import torch

from heedful.decoding.stepper import KernelPromptStepper, PromptStepper
from heedful.generator import GREEDY, Generator
from heedful.model.architecture.decoder_only import DecoderOnlyConfig
from heedful.model.cpu.decoding import Lowered, lower
from heedful.model.cpu.kernels import NATIVE
from heedful.model.int8 import quantize_int8
from tests.model.cpu.both import randomised

pytestmark = pytest.mark.skipif(NATIVE is None, reason="no kernels were compiled")

STACK = {"layers": 2, "attention": {"heads": 2}, "feedforward": {"hidden": 24}, "placement": "pre"}
LLAMA = {
    "norm": {"kind": "rms"},
    "position": {"kind": "rotary"},
    "attention": {"heads": 4, "kv_heads": 2, "head_width": 8, "bias": False, "output_bias": False},
    "feedforward": {"hidden": 23, "activation": "swiglu", "bias": False},
}
VARIANTS = {
    "GPT-2's": {
        "position": {"kind": "learned", "length": 40}, "feedforward": {"hidden": 24, "activation": "gelu_tanh"},
    },
    "LLaMA's": LLAMA,
    "LLaMA's, heads of 16": {**LLAMA, "attention": {"heads": 6, "kv_heads": 2, "head_width": 16, "bias": False}},
    "GPT-2's, a head of 16": {"position": {"kind": "learned", "length": 40}, "attention": {"heads": 1}},
    "T5's": {"position": {"kind": "relative_bias"}, "attention": {"heads": 2, "scaled": False}},
    "T5's, heads of 32": {
        "position": {"kind": "relative_bias"}, "attention": {"heads": 3, "head_width": 32, "scaled": False},
    },
    "alibi, a head of 16": {"position": {"kind": "alibi"}, "attention": {"heads": 1}},
    "sinusoids, post-norm, norm after the embedding": {
        "position": {"kind": "sinusoidal"}, "placement": "post", "embedding_norm": True,
    },
    "multi-query, wide heads": {
        "position": {"kind": "rotary"}, "attention": {"heads": 3, "kv_heads": 1, "head_width": 24},
    },
    "alibi": {"position": {"kind": "alibi"}},
    "a window": {"position": {"kind": "alibi"}, "attention": {"heads": 2, "window": 3}},
    "windows that differ": {"position": {"kind": "rotary"}, "attention": {"heads": 2, "window": [None, 5]}},
    "shared layers with a window": {"position": {"kind": "none"}, "attention": {"heads": 2, "window": 4},
                                    "share_layers": True},
}  # fmt: skip


def build(changes, **more):
    decoder = {**STACK, **changes}
    return randomised(DecoderOnlyConfig(**{"vocab": 50, "width": 16, "decoder": decoder, **more}).build())


def padded(lengths):
    """Prompts padded on the left, and which of their tokens are real: None if all are."""
    valid = torch.arange(max(lengths)) >= max(lengths) - torch.tensor(lengths)[:, None]
    return torch.randint(0, 50, valid.shape), None if bool(valid.all()) else valid


def both(model, lengths, room=4):
    lowered = lower(model)
    assert isinstance(lowered, Lowered), str(lowered)
    assert lowered.head_reason is None
    prompt, valid = padded(lengths)
    slow = PromptStepper(model, prompt, length=room, valid=valid)
    return slow, KernelPromptStepper(lowered, prompt, length=room, valid=valid), prompt[:, -1]


def write(slow, fast, tokens, steps=12, error=2e-5):
    """Rows fork, swap and leave, beyond the room there was."""
    for step in range(steps):
        torch.testing.assert_close(fast.advance(tokens), slow.advance(tokens), atol=error, rtol=error)
        rows = {3: [0, 0, 1, 2, 2], 6: [4, 2, 0], 8: [1, 2]}.get(step)
        if rows is not None:
            for stepper in (slow, fast):
                stepper.select(torch.tensor(rows))
        tokens = torch.randint(0, 50, (len(tokens) if rows is None else len(rows),))


@torch.inference_mode()
@pytest.mark.parametrize("lengths", [[1, 1, 1], [7, 7, 7], [2, 7, 5], [1, 3, 11]], ids=str)
@pytest.mark.parametrize("name", VARIANTS)
def test_it_writes_what_the_modules_write(name, lengths):
    write(*both(build(VARIANTS[name]), lengths))


@torch.inference_mode()
@pytest.mark.parametrize("more", [
    {"tie": "none", "head": {"bias": True}}, {"head": {"scale": True}}, {"embedding": {"scale": True}},
])  # fmt: skip
@pytest.mark.parametrize("int8", [False, True])
def test_tables_and_heads_of_every_kind(more, int8):
    model = build(LLAMA, **more)
    if int8:
        quantize_int8(model, least=0)
    write(*both(model, [3, 5, 2]), error=1e-3 if int8 else 2e-5)


@torch.inference_mode()
@pytest.mark.parametrize("threads", [1, 2])
def test_sizes_at_which_work_is_shared_by_threads(threads):
    changes = {**LLAMA, "attention": {"heads": 6, "kv_heads": 2, "head_width": 32}, "feedforward": {"hidden": 512}}
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        write(*both(build(changes, width=192), [130, 7, 300]), steps=5, error=5e-5)
    finally:
        torch.set_num_threads(before)


@torch.inference_mode()
def test_a_row_has_the_same_numbers_whatever_stands_beside_it():
    """But for its padding: the modules read the prompt, and their products depend on its shape."""
    lowered, tokens = lower(build(LLAMA)), torch.randint(0, 50, (5, 6))
    together = lowered.continue_from(tokens[:, :0], None, 4)
    alone = [lowered.continue_from(tokens[row : row + 1, :0], None, 4) for row in range(5)]
    for step in range(6):
        found = together.advance(tokens[:, step])
        for row in range(5):
            assert torch.equal(alone[row].advance(tokens[row : row + 1, step])[0], found[row])


@torch.inference_mode()
def test_positions_that_were_never_learned():
    _, fast, tokens = both(build(VARIANTS["GPT-2's"]), [36, 30, 2])
    for _ in range(5):
        fast.advance(tokens)
    with pytest.raises(ValueError, match="41 tokens, but this model learned 40 positions; shorten the input"):
        fast.advance(tokens)
    fast.select(torch.tensor([1, 2]))  # the longest has left
    assert fast.advance(tokens[1:]).isfinite().all()


@pytest.mark.parametrize(("changes", "reason"), [
    ({"position": {"kind": "relative"}}, "decoder.position: relative: no kernel yet"),
    ({"attention": {"heads": 2, "mix": "linear"}}, "decoder.layers.0.attention.mix: linear: no kernel yet"),
    ({"attention": {"heads": 4}}, "decoder.layers.0.attention: head 4 is not a multiple of 8"),
])  # fmt: skip
def test_what_it_does_not_know_is_left_to_the_modules(changes, reason):
    assert str(lower(build(changes))) == reason


def test_a_generator_takes_the_quick_way_and_sees_weights_that_change():
    class Numbers:
        start, eos, pad, unk, vocab, never = 0, 49, 0, None, 50, ()

        def encode(self, texts):
            return [list(map(int, text.split())) for text in texts]

        def decode(self, rows):
            return [" ".join(map(str, row)) for row in rows]

    model, texts = build(LLAMA), ["1 2 3", "4 5 6 7 8", "9"]
    generator = Generator(model, Numbers())
    assert isinstance(generator.starter.quick, Lowered)
    for _ in range(2):
        quick = [one[0].text for one in generator.generate(texts, GREEDY, max_new_tokens=9)]
        slow = Generator(model, Numbers())
        slow.starter.quick = None
        assert quick == [one[0].text for one in slow.generate(texts, GREEDY, max_new_tokens=9)]
        with torch.no_grad():
            model.decoder.layers[0].feedforward.output.weight.normal_()
