"""Presets against the parameter counts that were published for them."""

import pytest

from heedful.families import preset, presets
from heedful.inspection.cost import cost

# Published counts, and how far ours may be off: the papers round, and those of 2017 count some other biases.
PUBLISHED = {
    "vaswani-base": (65e6, 0.035),
    "vaswani-big": (213e6, 0.01),
    "bert-base": (110e6, 0.005),
    "bert-large": (335e6, 0.005),
    "roberta-base": (125e6, 0.005),
    "albert-base": (12e6, 0.02),
    "bart-base": (139e6, 0.005),
    "bart-large": (406e6, 0.005),
    "mbart-large": (610.9e6, 0.001),
    "longformer-base": (149e6, 0.005),
    "longformer-large": (435e6, 0.005),
    "led-base": (162e6, 0.005),
    "led-large": (460e6, 0.005),
    "t5-small": (60e6, 0.01),
    "t5-base": (220e6, 0.015),
    "t5-large": (770e6, 0.05),
    "t5-11b": (11.3e9, 0.001),
    "gpt2": (124e6, 0.005),
    "gpt2-medium": (355e6, 0.005),
    "gpt2-large": (774e6, 0.001),
    "gpt2-xl": (1.56e9, 0.002),
    "gpt3-175b": (175e9, 0.003),
    "transformer-xl-12": (41e6, 0.005),
    "transformer-xl-24": (277e6, 0.005),
    "llama-7b": (6.74e9, 0.001),
    "llama-13b": (13.02e9, 0.001),
    "llama-65b": (65.29e9, 0.001),
    "llama2-70b": (69e9, 0.001),
    "llama3-8b": (8.03e9, 0.001),
    "llama3.2-1b": (1.24e9, 0.005),
    "smollm2-135m": (135e6, 0.005),
    "smollm2-360m": (362e6, 0.005),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_have_their_published_size(name):
    published, tolerance = PUBLISHED[name]
    assert cost(preset(name)).total == pytest.approx(published, rel=tolerance)


@pytest.mark.parametrize("name", presets())
def test_the_formula_agrees_with_the_count_in_every_component(name):
    found = cost(preset(name))
    assert found.formula == found.counted


def test_an_unknown_preset_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match="unknown preset 'gpt2-xxl'; did you mean 'gpt2-xl'?"):
        preset("gpt2-xxl")
