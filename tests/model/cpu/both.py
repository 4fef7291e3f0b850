"""The same texts, written by the modules and by the kernels."""

import torch

from heedful.decoding.stepper import SourceStepper
from heedful.model.architecture.encoder_decoder import EncoderDecoderConfig
from heedful.model.cpu.decoding import Lowered, lower

STACK = {"layers": 2, "attention": {"heads": 2}, "feedforward": {"hidden": 24}}


def build(changes, **more):
    """A small model; `changes` are for encoder and decoder."""
    stack = {**STACK, **changes}
    encoder = {key: value for key, value in stack.items() if key != "cross"}
    options = {"vocab": 50, "width": 16, "encoder": encoder, "decoder": stack, **more}
    return randomised(EncoderDecoderConfig(**options).build())


@torch.no_grad()
def randomised(model):
    """Every parameter matters: no bias is zero, no norm's weight is one."""
    generator = torch.Generator().manual_seed(3)
    for name, parameter in model.named_parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * parameter.shape[-1] ** -0.5)
        if "norm" in name and name.endswith("weight"):
            parameter += 1
    return model.eval().requires_grad_(False)


def steppers(model):
    torch.manual_seed(0)
    source, valid = torch.randint(0, 50, (4, 7)), torch.ones(4, 7, dtype=torch.bool)
    valid[1, 4:] = False
    lowered = lower(model)
    assert isinstance(lowered, Lowered), str(lowered)
    return [SourceStepper(model, source, valid, length=4, quick=decoder) for decoder in (None, lowered)]


def write(slow, fast, beams, error=2e-5):
    """Both write the same, as a search has them do it: one row to a sentence, then several; sentences leave."""
    rows, sentences = torch.arange(4), 4
    for step in range(11):  # beyond the room there was
        tokens = torch.randint(0, 50, (len(rows),))
        torch.testing.assert_close(fast.advance(tokens), slow.advance(tokens), atol=error, rtol=error)
        now, left = len(rows) // sentences, None
        if step in (3, 7):  # one in the middle leaves, then the first
            left = torch.tensor([0, 2, 3] if step == 3 else [1, 2])
        places = torch.arange(sentences) if left is None else left
        rows = (torch.randint(0, now, (len(places), beams)) + places[:, None] * now).flatten()
        sentences = len(places)
        for one in (slow, fast):
            one.select(rows, left)
