"""Marian (Junczys-Dowmunt et al. 2018), as in Hugging Face: the Transformer of the paper, sinusoids in halves."""

from typing import Any

from heedful.families import Family, activation_from, activation_to, transformer
from heedful.model.architecture.encoder_decoder import EncoderDecoderConfig
from heedful.model.feedforward import FeedForwardConfig
from heedful.model.heads import VocabularyConfig
from heedful.model.input.tokens import TokensConfig
from heedful.model.multihead import MultiHeadConfig
from heedful.model.position import PositionConfig
from heedful.model.position.sinusoidal import SinusoidalConfig
from heedful.model.stack.transformer import TransformerConfig


def read_config(theirs: dict[str, Any], names: set[str]) -> EncoderDecoderConfig:
    shared = theirs.get("share_encoder_decoder_embeddings", True)
    tied_output = theirs.get("tie_word_embeddings", True)
    ties = {(True, True): "all", (True, False): "inputs", (False, True): "output", (False, False): "none"}
    return EncoderDecoderConfig(
        vocab=theirs["vocab_size"] if shared else theirs.get("decoder_vocab_size") or theirs["vocab_size"],
        source_vocab=None if shared else theirs["vocab_size"],
        width=theirs["d_model"],
        tie=ties[bool(shared), bool(tied_output)],
        embedding=TokensConfig(scale=theirs.get("scale_embedding", False)),
        encoder=read_stack(theirs, "encoder", SinusoidalConfig(layout="halves")),
        decoder=read_stack(theirs, "decoder", SinusoidalConfig(layout="halves")),
        head=VocabularyConfig(bias=True),
    )


def read_stack(
    theirs: dict[str, Any], side: str, position: PositionConfig, *, embedding_norm: bool = False
) -> TransformerConfig:
    return TransformerConfig(
        layers=theirs[f"{side}_layers"],
        attention=MultiHeadConfig(
            heads=theirs[f"{side}_attention_heads"], dropout=theirs.get("attention_dropout", 0.0)
        ),
        feedforward=FeedForwardConfig(
            hidden=theirs[f"{side}_ffn_dim"],
            activation=activation_from(theirs.get("activation_function", "gelu")),
            dropout=theirs.get("activation_dropout", 0.0),
        ),
        position=position,
        dropout=theirs.get("dropout", 0.1),
        embedding_norm=embedding_norm,
    )


def write_config(config: EncoderDecoderConfig) -> dict[str, Any]:
    return {
        **write_stacks(config),
        "architectures": ["MarianMTModel"],
        "vocab_size": config.source_vocab or config.vocab,
        "decoder_vocab_size": config.vocab,
        "share_encoder_decoder_embeddings": config.ties_inputs,
        "tie_word_embeddings": config.ties_output,
    }


def write_stacks(config: EncoderDecoderConfig) -> dict[str, Any]:
    keys: dict[str, Any] = {
        "is_encoder_decoder": True,
        "d_model": config.width,
        "scale_embedding": config.table.scale,
        "activation_function": activation_to(transformer(config.encoder).feedforward.activation),
        "dropout": transformer(config.encoder).dropout,
        "attention_dropout": transformer(config.encoder).attention.dropout,
        "activation_dropout": transformer(config.encoder).feedforward.dropout,
    }
    for side, stack in (("encoder", transformer(config.encoder)), ("decoder", transformer(config.decoder))):
        keys[f"{side}_layers"] = stack.layers
        keys[f"{side}_attention_heads"] = stack.attention.heads
        keys[f"{side}_ffn_dim"] = stack.feedforward.hidden
    return keys


def names(config: EncoderDecoderConfig) -> dict[str, str | tuple[str, ...]]:
    table: dict[str, str | tuple[str, ...]] = {
        "embedding": "model.shared" if config.ties_inputs else "model.encoder.embed_tokens",
        "target_embedding": "model.decoder.embed_tokens",
        "head.table": "lm_head",
        "head.bias": "final_logits_bias",
    }
    for side in ("encoder", "decoder"):
        ours, theirs = f"{side}.layers.{{}}", f"model.{side}.layers.{{}}"
        table |= {
            f"{ours}.attention.query_key_value": tuple(f"{theirs}.self_attn.{part}_proj" for part in "qkv"),
            f"{ours}.attention.output": f"{theirs}.self_attn.out_proj",
            f"{ours}.attention_residual.norm": f"{theirs}.self_attn_layer_norm",
            f"{ours}.cross.query": f"{theirs}.encoder_attn.q_proj",
            f"{ours}.cross.key_value": tuple(f"{theirs}.encoder_attn.{part}_proj" for part in "kv"),
            f"{ours}.cross.output": f"{theirs}.encoder_attn.out_proj",
            f"{ours}.cross_residual.norm": f"{theirs}.encoder_attn_layer_norm",
            f"{ours}.feedforward.input": f"{theirs}.fc1",
            f"{ours}.feedforward.output": f"{theirs}.fc2",
            f"{ours}.feedforward_residual.norm": f"{theirs}.final_layer_norm",
        }
    return table


def _base() -> EncoderDecoderConfig:
    """The size of most OPUS-MT models; the vocabulary is that of opus-mt-en-de."""
    stack = TransformerConfig(
        feedforward=FeedForwardConfig(hidden=2048, activation="silu"), position=SinusoidalConfig(layout="halves")
    )
    return EncoderDecoderConfig(vocab=58101, encoder=stack, decoder=stack, head=VocabularyConfig(bias=True))


FAMILY = Family(
    presets={"marian-base": _base()},
    model_type="marian",
    read_config=read_config,
    write_config=write_config,
    names=names,
    duplicates={
        "lm_head.weight": "model.shared.weight",
        "model.encoder.embed_tokens.weight": "model.shared.weight",
        "model.decoder.embed_tokens.weight": "model.shared.weight",
    },
    ignored=(r"model\.(en|de)coder\.embed_positions\.weight",),
    rows=frozenset({"final_logits_bias"}),
)
