"""The three model classes as one: their configs, and how to make a model of one.

model = create(config)                    # first weights as in the paper
model = create(config, scheme="gpt2")
"""

from typing import Annotated

import torch
from pydantic import Field

from heedful.model.decoder_only import DecoderOnly, DecoderOnlyConfig
from heedful.model.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from heedful.model.encoder_only import EncoderOnly, EncoderOnlyConfig
from heedful.model.initialise import Scheme, initialise

Model = EncoderDecoder | DecoderOnly | EncoderOnly
ModelConfig = EncoderDecoderConfig | DecoderOnlyConfig | EncoderOnlyConfig
AnyModelConfig = Annotated[ModelConfig, Field(discriminator="kind")]


def create(config: ModelConfig, *, scheme: Scheme = "xavier", device: torch.device | str = "cpu") -> Model:
    """A model with its first weights: laid out without memory, then given it, then filled once."""
    model = layout(config)
    # As `to_empty` does it, which would import a library for symbolic mathematics: half a second and 40 MB.
    model._apply(lambda meta: torch.empty(meta.shape, dtype=meta.dtype, device=device))
    initialise(model, scheme)
    return model


def layout(config: ModelConfig) -> Model:
    """The model on the meta device: names and shapes without memory, however large it is."""
    with torch.device("meta"):
        return config.build()
