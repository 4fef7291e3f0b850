"""Transformer-XL (Dai et al. 2019), in the folders of transformers' XLNet with attn_type "uni", which is that model.

Differs: the authors' adaptive softmax is not here; the character models that they published had none. XLNet itself
(Yang et al. 2019, attn_type "bi") predicts words in permuted orders by a second stream of queries: it is refused. Its
segment vectors are not used without token types, and are written as zeros.
"""

from typing import Any

import torch
from torch import Tensor

from heedful.families import Family, State, activation_from, activation_to, transformer
from heedful.model.architecture.decoder_only import DecoderOnlyConfig
from heedful.model.attention.transformer_xl import TransformerXlConfig
from heedful.model.feedforward import FeedForwardConfig
from heedful.model.heads import VocabularyConfig
from heedful.model.input.tokens import TokensConfig
from heedful.model.multihead import MultiHeadConfig
from heedful.model.norm import NormConfig
from heedful.model.position.none import NoneConfig
from heedful.model.stack.transformer import TransformerConfig

HEAD_BIAS = "lm_loss.bias"


def transformer_xl(*, width: int, layers: int, heads: int, hidden: int, vocab: int) -> DecoderOnlyConfig:
    theirs = {"vocab_size": vocab, "d_model": width, "n_layer": layers, "n_head": heads, "d_inner": hidden}
    return read_config({**theirs, "ff_activation": "relu", "layer_norm_eps": 1e-5, "attn_type": "uni"}, {HEAD_BIAS})


def read_config(theirs: dict[str, Any], names: set[str]) -> DecoderOnlyConfig:
    attention = theirs.get("attn_type", "bi")
    if attention != "uni":
        raise ValueError(
            f"XLNet with attn_type={attention} predicts words in permuted orders, which is not known here; "
            "only uni, which is Transformer-XL"
        )
    for key in ("same_length", "bi_data"):
        if theirs.get(key):
            raise ValueError(f"XLNet with {key}=True is not known here; only False")
    clamp = theirs.get("clamp_len", -1)
    dropout = theirs.get("dropout", 0.1)
    return DecoderOnlyConfig(
        vocab=theirs["vocab_size"],
        width=theirs["d_model"],
        tie="all" if theirs.get("tie_word_embeddings", True) else "none",
        embedding=TokensConfig(scale=False),
        decoder=TransformerConfig(
            layers=theirs["n_layer"],
            attention=MultiHeadConfig(
                heads=theirs["n_head"],
                bias=False,
                output_bias=False,
                dropout=dropout,
                mix=TransformerXlConfig(clamp=clamp if clamp > 0 else None),
            ),
            feedforward=FeedForwardConfig(
                hidden=theirs["d_inner"], activation=activation_from(theirs.get("ff_activation", "gelu"))
            ),
            norm=NormConfig(eps=theirs.get("layer_norm_eps", 1e-12)),
            placement="post",
            position=NoneConfig(),
            dropout=dropout,
        ),
        head=VocabularyConfig(bias=HEAD_BIAS in names),
    )


def write_config(config: DecoderOnlyConfig) -> dict[str, Any]:
    stack = transformer(config.decoder)
    mix = stack.attention.mix
    if not isinstance(mix, TransformerXlConfig):
        raise ValueError(f"XLNet has attention transformer_xl, not {mix.kind}")
    return {
        "architectures": ["XLNetLMHeadModel"],
        "attn_type": "uni",
        "vocab_size": config.vocab,
        "d_model": config.width,
        "n_layer": stack.layers,
        "n_head": stack.attention.heads,
        "d_inner": stack.feedforward.hidden,
        "ff_activation": activation_to(stack.feedforward.activation),
        "layer_norm_eps": stack.norm.eps,
        "clamp_len": mix.clamp or -1,
        "dropout": stack.dropout,
        "tie_word_embeddings": config.tie == "all",
    }


def names(config: DecoderOnlyConfig) -> dict[str, str | tuple[str, ...]]:
    ours, theirs = "decoder.layers.{}", "transformer.layer.{}"
    attention = f"{theirs}.rel_attn"
    return {
        "embedding": "transformer.word_embedding",
        f"{ours}.attention.query_key_value.weight": tuple(f"{attention}.{part}" for part in "qkv"),
        f"{ours}.attention.output.weight": f"{attention}.o",
        f"{ours}.attention.mix.distance.weight": f"{attention}.r",
        f"{ours}.attention.mix.content": f"{attention}.r_w_bias",
        f"{ours}.attention.mix.place": f"{attention}.r_r_bias",
        f"{ours}.attention_residual.norm": f"{attention}.layer_norm",
        f"{ours}.feedforward.input": f"{theirs}.ff.layer_1",
        f"{ours}.feedforward.output": f"{theirs}.ff.layer_2",
        f"{ours}.feedforward_residual.norm": f"{theirs}.ff.layer_norm",
        "head.table": "lm_loss",
        "head.bias": HEAD_BIAS,
        f"{ours}.unused.segment": f"{attention}.r_s_bias",
        f"{ours}.unused.segments": f"{attention}.seg_embed",
        "unused.mask": "transformer.mask_emb",
    }


def reads(name: str, tensor: Tensor) -> Tensor:
    """Theirs are inputs heads head, and the output's is outputs heads head."""
    part = name.rpartition(".rel_attn.")[2]
    if part in ("q", "k", "v", "r"):
        return tensor.flatten(1).T
    return tensor.flatten(1) if part == "o" else tensor


def writes(config: DecoderOnlyConfig, name: str, tensor: Tensor) -> Tensor:
    heads = transformer(config.decoder).attention.heads
    part = name.rpartition(".rel_attn.")[2]
    if part in ("q", "k", "v", "r"):
        return tensor.T.unflatten(1, (heads, -1))
    if part == "o":
        return tensor.unflatten(1, (heads, -1))
    return tensor[:, 0] if part in ("r_w_bias", "r_r_bias") else tensor


def convert(config: DecoderOnlyConfig, weights: State) -> tuple[DecoderOnlyConfig, State]:
    """With zeros in the places of what a Transformer-XL does not have."""
    stack = transformer(config.decoder)
    heads, head = stack.attention.heads, stack.attention.head_width_in(config.width)
    unused: State = {"unused.mask": torch.zeros(1, 1, config.width)}
    for layer in range(stack.layers):
        unused[f"decoder.layers.{layer}.unused.segment"] = torch.zeros(heads, head)
        unused[f"decoder.layers.{layer}.unused.segments"] = torch.zeros(2, heads, head)
    dtype = weights["embedding.weight"].dtype
    return config, {**weights, **{name: tensor.to(dtype) for name, tensor in unused.items()}}


FAMILY = Family(
    presets={  # of the paper's table 2, enwik8: its characters are bytes
        "transformer-xl-12": transformer_xl(width=512, layers=12, heads=8, hidden=2048, vocab=204),
        "transformer-xl-24": transformer_xl(width=1024, layers=24, heads=8, hidden=3072, vocab=204),
    },
    model_type="xlnet",
    read_config=read_config,
    write_config=write_config,
    names=names,
    duplicates={"lm_loss.weight": "transformer.word_embedding.weight"},
    ignored=(r"transformer\.layer\.\d+\.rel_attn\.(r_s_bias|seg_embed)", r"transformer\.mask_emb"),
    prefix="transformer.",
    bare=("word_embedding.", "layer.", "mask_emb"),
    reads=reads,
    writes=writes,
    convert=convert,
)
