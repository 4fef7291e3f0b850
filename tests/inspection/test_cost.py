"""The arithmetic formula against torch's own counter of operations."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from heedful.families import preset
from heedful.model.create import layout

LENGTH = 13


def plain(config):
    """The same with attention written out, so that the counter sees every product."""
    data = config.model_dump()
    for side in ("encoder", "decoder"):
        if side in data:
            data[side]["attention"]["mix"] = "reference"
    return type(config).model_validate(data)


def operations(run):
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


@pytest.mark.parametrize("name", ["vaswani-base", "t5-v1.1-small", "marian-base"])
def test_flops_of_an_encoder_decoder(name):
    config = plain(preset(name))
    tokens = torch.zeros(1, LENGTH, dtype=torch.long, device="meta")
    model = layout(config)
    found = config.flops(LENGTH)
    assert operations(lambda: model(tokens, tokens)) == LENGTH * sum(found.values())
    assert operations(lambda: model.encode(tokens)) == LENGTH * found["source token"]


@pytest.mark.parametrize("name", ["gpt2", "llama2-70b", "smollm2-135m"])
def test_flops_of_a_decoder(name):
    config = plain(preset(name))
    tokens = torch.zeros(1, LENGTH, dtype=torch.long, device="meta")
    assert operations(lambda: layout(config)(tokens)) == LENGTH * config.flops(LENGTH)["token"]


@pytest.mark.parametrize("name", ["bert-base", "albert-base"])
def test_flops_of_an_encoder(name):
    config = plain(preset(name))
    tokens = torch.zeros(1, LENGTH, dtype=torch.long, device="meta")
    assert operations(lambda: layout(config)(tokens)) == LENGTH * config.flops(LENGTH)["token"]


def test_the_cache_holds_what_the_formula_says():
    config = preset("smollm2-135m")
    model = layout(config)
    cache = model.new_cache(LENGTH)
    model(torch.zeros(1, LENGTH, dtype=torch.long, device="meta"), cache=cache)
    held = sum(layer._key.numel() + layer._value.numel() for layer in cache.layers)
    assert held == LENGTH * config.remembered()["token"]
