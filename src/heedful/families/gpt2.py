"""GPT-2 (Radford et al. 2019) and, in size, GPT-3 (Brown et al. 2020): pre-norm decoder with learned positions.

Differs: GPT-3's layers alternate with locally banded attention, which does not change the number of parameters.
"""

from typing import Any

from heedful.families import Family, activation_from, activation_to, transformer
from heedful.model.architecture.decoder_only import DecoderOnlyConfig
from heedful.model.feedforward import FeedForwardConfig
from heedful.model.input.tokens import TokensConfig
from heedful.model.multihead import MultiHeadConfig
from heedful.model.norm import NormConfig
from heedful.model.position.learned import LearnedConfig
from heedful.model.stack.transformer import TransformerConfig


def gpt2(*, width: int, layers: int, heads: int, length: int = 1024) -> DecoderOnlyConfig:
    theirs = {"vocab_size": 50257, "n_embd": width, "n_layer": layers, "n_head": heads, "n_positions": length}
    return read_config(theirs, set())


def read_config(theirs: dict[str, Any], names: set[str]) -> DecoderOnlyConfig:
    for key, wanted in (("scale_attn_weights", True), ("scale_attn_by_inverse_layer_idx", False)):
        if theirs.get(key, wanted) is not wanted:
            raise ValueError(f"GPT-2 with {key}={theirs[key]} is not supported, only {wanted}")
    width = theirs["n_embd"]
    return DecoderOnlyConfig(
        vocab=theirs["vocab_size"],
        width=width,
        tie="all" if theirs.get("tie_word_embeddings", True) else "none",
        embedding=TokensConfig(scale=False),
        decoder=TransformerConfig(
            layers=theirs["n_layer"],
            attention=MultiHeadConfig(heads=theirs["n_head"], dropout=theirs.get("attn_pdrop", 0.1)),
            feedforward=FeedForwardConfig(
                hidden=theirs.get("n_inner") or 4 * width,
                activation=activation_from(theirs.get("activation_function", "gelu_new")),
            ),
            norm=NormConfig(eps=theirs.get("layer_norm_epsilon", 1e-5)),
            placement="pre",
            position=LearnedConfig(length=theirs["n_positions"]),
            dropout=theirs.get("resid_pdrop", 0.1),
        ),
    )


def write_config(config: DecoderOnlyConfig) -> dict[str, Any]:
    stack = transformer(config.decoder)
    position = stack.position
    if not isinstance(position, LearnedConfig):
        raise ValueError(f"GPT-2 requires learned positions, not {position.kind}")
    hidden = stack.feedforward.hidden
    return {
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": config.vocab,
        "n_embd": config.width,
        "n_layer": stack.layers,
        "n_head": stack.attention.heads,
        "n_inner": None if hidden == 4 * config.width else hidden,
        "n_positions": position.length,
        "activation_function": activation_to(stack.feedforward.activation),
        "layer_norm_epsilon": stack.norm.eps,
        "embd_pdrop": stack.dropout,
        "resid_pdrop": stack.dropout,
        "attn_pdrop": stack.attention.dropout,
        "tie_word_embeddings": config.tie == "all",
    }


def names(config: DecoderOnlyConfig) -> dict[str, str | tuple[str, ...]]:
    ours, theirs = "decoder.layers.{}", "transformer.h.{}"
    return {
        "embedding": "transformer.wte",
        "decoder.position": "transformer.wpe",
        f"{ours}.attention.query_key_value": f"{theirs}.attn.c_attn",
        f"{ours}.attention.output": f"{theirs}.attn.c_proj",
        f"{ours}.attention_residual.norm": f"{theirs}.ln_1",
        f"{ours}.feedforward.input": f"{theirs}.mlp.c_fc",
        f"{ours}.feedforward.output": f"{theirs}.mlp.c_proj",
        f"{ours}.feedforward_residual.norm": f"{theirs}.ln_2",
        "decoder.norm": "transformer.ln_f",
        "head.table": "lm_head",
    }


FAMILY = Family(
    presets={
        "gpt2": gpt2(width=768, layers=12, heads=12),
        "gpt2-medium": gpt2(width=1024, layers=24, heads=16),
        "gpt2-large": gpt2(width=1280, layers=36, heads=20),
        "gpt2-xl": gpt2(width=1600, layers=48, heads=25),
        "gpt3-175b": gpt2(width=12288, layers=96, heads=96, length=2048),
    },
    model_type="gpt2",
    read_config=read_config,
    write_config=write_config,
    names=names,
    duplicates={"lm_head.weight": "transformer.wte.weight"},
    ignored=(r"transformer\.h\.\d+\.attn\.(bias|masked_bias)",),
    prefix="transformer.",
    bare=("wte.", "wpe.", "h.", "ln_f."),
    transposed=True,
)
