"""BART (Lewis et al. 2020): learned positions, a norm after the embeddings, GELU."""

from typing import Any

from heedful.families import Family, marian, transformer
from heedful.model.architecture.encoder_decoder import EncoderDecoderConfig
from heedful.model.feedforward import FeedForwardConfig
from heedful.model.heads import VocabularyConfig
from heedful.model.input.tokens import TokensConfig
from heedful.model.multihead import MultiHeadConfig
from heedful.model.position.learned import LearnedConfig
from heedful.model.stack.transformer import TransformerConfig


def bart(*, width: int, hidden: int, heads: int, layers: int) -> EncoderDecoderConfig:
    stack = TransformerConfig(
        layers=layers,
        attention=MultiHeadConfig(heads=heads),
        feedforward=FeedForwardConfig(hidden=hidden, activation="gelu"),
        position=LearnedConfig(length=1024, offset=2),
        embedding_norm=True,
    )
    return EncoderDecoderConfig(
        vocab=50265,
        width=width,
        embedding=TokensConfig(scale=False),
        encoder=stack,
        decoder=stack,
        head=VocabularyConfig(bias=True),
    )


def read_config(theirs: dict[str, Any], names: set[str]) -> EncoderDecoderConfig:
    position = LearnedConfig(length=theirs["max_position_embeddings"], offset=2)
    return EncoderDecoderConfig(
        vocab=theirs["vocab_size"],
        width=theirs["d_model"],
        embedding=TokensConfig(scale=theirs.get("scale_embedding", False)),
        encoder=marian.read_stack(theirs, "encoder", position, embedding_norm=True),
        decoder=marian.read_stack(theirs, "decoder", position, embedding_norm=True),
        head=VocabularyConfig(bias=True),
    )


def write_config(config: EncoderDecoderConfig) -> dict[str, Any]:
    position = transformer(config.encoder).position
    return {
        **marian.write_stacks(config),
        "architectures": ["BartForConditionalGeneration"],
        "vocab_size": config.vocab,
        "max_position_embeddings": position.length if isinstance(position, LearnedConfig) else 1024,
        "tie_word_embeddings": True,
    }


def names(config: EncoderDecoderConfig) -> dict[str, str | tuple[str, ...]]:
    table = marian.names(config)
    for side in ("encoder", "decoder"):
        table[f"{side}.position"] = f"model.{side}.embed_positions"
        table[f"{side}.embedding_norm"] = f"model.{side}.layernorm_embedding"
    return table


FAMILY = Family(
    presets={
        "bart-base": bart(width=768, hidden=3072, heads=12, layers=6),
        "bart-large": bart(width=1024, hidden=4096, heads=16, layers=12),
    },
    model_type="bart",
    read_config=read_config,
    write_config=write_config,
    names=names,
    duplicates=marian.FAMILY.duplicates,
    rows=frozenset({"final_logits_bias"}),
)
