"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017), in the sizes of its table 3.

Hugging Face has no model of that name, but its Marian is the same function with the sinusoids in another order, so it
is exported as Marian: the axes of the residual stream are permuted, and nothing else changes.
"""

import torch
from torch import Tensor

from heedful.families import Family, State, transformer
from heedful.families.marian import names, read_config, write_config
from heedful.model.architecture.encoder_decoder import EncoderDecoderConfig
from heedful.model.feedforward import FeedForwardConfig
from heedful.model.heads import VocabularyConfig
from heedful.model.multihead import MultiHeadConfig
from heedful.model.position.sinusoidal import SinusoidalConfig
from heedful.model.stack.transformer import TransformerConfig


def vaswani(*, vocab: int, width: int, hidden: int, heads: int, layers: int, dropout: float) -> EncoderDecoderConfig:
    stack = TransformerConfig(
        layers=layers,
        attention=MultiHeadConfig(heads=heads),
        feedforward=FeedForwardConfig(hidden=hidden),
        dropout=dropout,
    )
    return EncoderDecoderConfig(vocab=vocab, width=width, encoder=stack, decoder=stack)


def to_marian(config: EncoderDecoderConfig, weights: State) -> tuple[EncoderDecoderConfig, State]:
    """The same function with sinusoids in halves: (sin, cos, sin, cos ...) -> (sin, sin, ..., cos, cos, ...)."""
    encoder, decoder = transformer(config.encoder), transformer(config.decoder)
    order = torch.arange(config.width).reshape(-1, 2).T.flatten()
    moved = {name: _reorder(name, tensor, order) for name, tensor in weights.items()}
    if not config.head.bias:
        moved["head.bias"] = torch.zeros(config.vocab)
    halves = SinusoidalConfig(layout="halves")
    changed = config.model_copy(
        update={
            "encoder": encoder.model_copy(update={"position": halves}),
            "decoder": decoder.model_copy(update={"position": halves}),
            "head": VocabularyConfig(bias=True),
        }
    )
    return changed, moved


def _reorder(name: str, tensor: Tensor, order: Tensor) -> Tensor:
    """Reorder the axis of a weight that reads from or writes to the residual stream."""
    if name == "head.bias":
        return tensor
    owner = name.split(".")[-2]
    if owner in ("norm", "embedding_norm", "output"):  # what writes to the stream, or acts on it
        return tensor[order]
    return tensor if name.endswith(".bias") else tensor[:, order]  # what reads from it, and the tables


FAMILY = Family(
    presets={
        "vaswani-tiny": vaswani(vocab=10000, width=128, hidden=256, heads=4, layers=4, dropout=0.1),
        "vaswani-base": vaswani(vocab=37000, width=512, hidden=2048, heads=8, layers=6, dropout=0.1),
        "vaswani-big": vaswani(vocab=37000, width=1024, hidden=4096, heads=16, layers=6, dropout=0.3),
    },
    model_type="marian",
    read_config=read_config,
    write_config=write_config,
    names=names,
    rows=frozenset({"final_logits_bias"}),
    convert=to_marian,
)
