"""T5 (Raffel et al. 2020): pre-norm with RMSNorm, relative biases, no biases elsewhere, scores not scaled.

v1.1 (Shazeer 2020) gates the feed-forward with GELU and has a separate output matrix.
"""

from typing import Any

from heedful.families import Family, activation_from, activation_to, transformer
from heedful.model.architecture.encoder_decoder import EncoderDecoderConfig
from heedful.model.feedforward import FeedForwardConfig
from heedful.model.heads import VocabularyConfig
from heedful.model.input.tokens import TokensConfig
from heedful.model.multihead import MultiHeadConfig
from heedful.model.norm import NormConfig
from heedful.model.position.relative_bias import RelativeBiasConfig
from heedful.model.stack.transformer import TransformerConfig


def t5(
    *, width: int, hidden: int, heads: int, head_width: int = 64, layers: int, version: str = "1.0"
) -> EncoderDecoderConfig:
    gated = version == "1.1"
    theirs = {
        "vocab_size": 32128,
        "d_model": width,
        "d_ff": hidden,
        "num_heads": heads,
        "d_kv": head_width,
        "num_layers": layers,
        "feed_forward_proj": "gated-gelu" if gated else "relu",
        "tie_word_embeddings": not gated,
    }
    return read_config(theirs, {"lm_head.weight"} if gated else set())


def read_config(theirs: dict[str, Any], names: set[str]) -> EncoderDecoderConfig:
    # The meaning of the keys has changed: `tie_word_embeddings: false` used to mean "not scaled" as well as "not tied".
    # The tensors of the file are unambiguous: there is a separate output matrix, or there is none.
    own_output = "lm_head.weight" in names and not theirs.get("tie_word_embeddings", True)
    scale = theirs.get("scale_decoder_outputs", theirs.get("tie_word_embeddings", True))
    layers = theirs["num_layers"]
    return EncoderDecoderConfig(
        vocab=theirs["vocab_size"],
        width=theirs["d_model"],
        tie="inputs" if own_output else "all",
        embedding=TokensConfig(scale=False),
        encoder=_stack(theirs, layers),
        decoder=_stack(theirs, theirs.get("num_decoder_layers") or layers),
        head=VocabularyConfig(scale=bool(scale) and not own_output),
    )


def _stack(theirs: dict[str, Any], layers: int) -> TransformerConfig:
    gate, _, activation = theirs.get("feed_forward_proj", "relu").rpartition("-")
    dropout = theirs.get("dropout_rate", 0.1)
    if gate and activation == "gelu":
        activation = "gelu_new"  # what "gated-gelu" has always meant
    return TransformerConfig(
        layers=layers,
        attention=MultiHeadConfig(
            heads=theirs["num_heads"],
            head_width=theirs["d_kv"],
            bias=False,
            output_bias=False,
            scaled=False,
            dropout=dropout,
        ),
        feedforward=FeedForwardConfig(
            hidden=theirs["d_ff"],
            activation=activation_from(activation, gated=bool(gate)),
            bias=False,
            dropout=dropout,
        ),
        norm=NormConfig(kind="rms", eps=theirs.get("layer_norm_epsilon", 1e-6)),
        placement="pre",
        position=RelativeBiasConfig(
            buckets=theirs.get("relative_attention_num_buckets", 32),
            max_distance=theirs.get("relative_attention_max_distance", 128),
        ),
        dropout=dropout,
    )


def write_config(config: EncoderDecoderConfig) -> dict[str, Any]:
    stack = transformer(config.encoder)
    position = stack.position
    if not isinstance(position, RelativeBiasConfig):
        raise ValueError(f"T5 requires relative_bias positions, not {position.kind}")
    gated = stack.feedforward.activation == "geglu_tanh"
    return {
        "architectures": ["T5ForConditionalGeneration"],
        "is_encoder_decoder": True,
        "vocab_size": config.vocab,
        "d_model": config.width,
        "d_kv": stack.attention.head_width_in(config.width),
        "d_ff": stack.feedforward.hidden,
        "num_layers": stack.layers,
        "num_decoder_layers": transformer(config.decoder).layers,
        "num_heads": stack.attention.heads,
        "relative_attention_num_buckets": position.buckets,
        "relative_attention_max_distance": position.max_distance,
        "feed_forward_proj": "gated-gelu" if gated else activation_to(stack.feedforward.activation),
        "dense_act_fn": activation_to(stack.feedforward.activation),
        "is_gated_act": gated,
        "layer_norm_epsilon": stack.norm.eps,
        "dropout_rate": stack.dropout,
        "tie_word_embeddings": config.tie == "all",
        "scale_decoder_outputs": config.head.scale,
    }


def names(config: EncoderDecoderConfig) -> dict[str, str | tuple[str, ...]]:
    table: dict[str, str | tuple[str, ...]] = {"embedding": "shared", "head.table": "lm_head"}
    for side, last in (("encoder", 1), ("decoder", 2)):
        ours, theirs = f"{side}.layers.{{}}", f"{side}.block.{{}}.layer"
        dense = f"{theirs}.{last}.DenseReluDense"
        gated = transformer(config.encoder).feedforward.activation == "geglu_tanh"
        table |= {
            f"{side}.position": f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias",
            f"{side}.norm": f"{side}.final_layer_norm",
            f"{ours}.attention.query_key_value": tuple(f"{theirs}.0.SelfAttention.{part}" for part in "qkv"),
            f"{ours}.attention.output": f"{theirs}.0.SelfAttention.o",
            f"{ours}.attention_residual.norm": f"{theirs}.0.layer_norm",
            f"{ours}.cross.query": f"{theirs}.1.EncDecAttention.q",
            f"{ours}.cross.key_value": tuple(f"{theirs}.1.EncDecAttention.{part}" for part in "kv"),
            f"{ours}.cross.output": f"{theirs}.1.EncDecAttention.o",
            f"{ours}.cross_residual.norm": f"{theirs}.1.layer_norm",
            f"{ours}.feedforward.input": (f"{dense}.wi_0", f"{dense}.wi_1") if gated else f"{dense}.wi",
            f"{ours}.feedforward.output": f"{dense}.wo",
            f"{ours}.feedforward_residual.norm": f"{theirs}.{last}.layer_norm",
        }
    return table


FAMILY = Family(
    presets={
        "t5-small": t5(width=512, hidden=2048, heads=8, layers=6),
        "t5-base": t5(width=768, hidden=3072, heads=12, layers=12),
        "t5-large": t5(width=1024, hidden=4096, heads=16, layers=24),
        "t5-3b": t5(width=1024, hidden=16384, heads=32, head_width=128, layers=24),
        "t5-11b": t5(width=1024, hidden=65536, heads=128, head_width=128, layers=24),
        "t5-v1.1-small": t5(width=512, hidden=1024, heads=6, layers=8, version="1.1"),
        "t5-v1.1-base": t5(width=768, hidden=2048, heads=12, layers=12, version="1.1"),
    },
    model_type="t5",
    read_config=read_config,
    write_config=write_config,
    names=names,
    duplicates={
        "lm_head.weight": "shared.weight",
        "encoder.embed_tokens.weight": "shared.weight",
        "decoder.embed_tokens.weight": "shared.weight",
    },
    # Written by mistake in the first files: cross-attention has no positions.
    ignored=(r"decoder\.block\.\d+\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",),
)
