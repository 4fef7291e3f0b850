"""Reformer (Kitaev et al. 2020): a reversible decoder with LSH attention, as transformers has it.

Differs: layers are all `lsh` and positions are learned one by one. The `local` layers and axial positions of the
published checkpoints have no counterpart here, so those are refused. The directions to hash by are in no file of
transformers, which draws them in each pass; ours are drawn once, when a folder is opened, and the same each time.
"""

from typing import Any

from heedful.families import Family, activation_from, activation_to
from heedful.model.architecture.decoder_only import DecoderOnlyConfig
from heedful.model.attention.lsh import LshConfig
from heedful.model.feedforward import FeedForwardConfig
from heedful.model.heads import VocabularyConfig
from heedful.model.input.tokens import TokensConfig
from heedful.model.multihead import MultiHeadConfig
from heedful.model.norm import NormConfig
from heedful.model.position.learned import LearnedConfig
from heedful.model.stack.reversible import ReversibleConfig

FIXED = {"is_decoder": True, "axial_pos_embds": False, "lsh_num_chunks_before": 1, "lsh_num_chunks_after": 0}


def reformer(*, width: int, layers: int, heads: int, head: int, hidden: int, length: int) -> DecoderOnlyConfig:
    theirs = {"vocab_size": 320, "hidden_size": width, "attn_layers": ["lsh"] * layers, "feed_forward_size": hidden}
    theirs |= {"num_attention_heads": heads, "attention_head_size": head, "max_position_embeddings": length}
    return read_config({**FIXED, **theirs, "num_buckets": 2 * length // 64}, set())


def read_config(theirs: dict[str, Any], names: set[str]) -> DecoderOnlyConfig:
    if set(theirs["attn_layers"]) != {"lsh"}:
        raise ValueError(f"Reformer with the layers {theirs['attn_layers']} is not known here; only lsh layers")
    default = {"is_decoder": False, "axial_pos_embds": True, "lsh_num_chunks_before": 1, "lsh_num_chunks_after": 0}
    for key, wanted in FIXED.items():
        if theirs.get(key, default[key]) != wanted:
            raise ValueError(f"Reformer with {key}={theirs.get(key, default[key])} is not known here; only {wanted}")
    if theirs.get("num_buckets") is None:
        raise ValueError("Reformer without num_buckets takes them from its first text; set num_buckets in config.json")
    width, buckets, dropout = theirs["hidden_size"], theirs["num_buckets"], theirs.get("hidden_dropout_prob", 0.05)
    return DecoderOnlyConfig(
        vocab=theirs["vocab_size"],
        width=2 * width,
        tie="none",
        embedding=TokensConfig(width=width, scale=False),
        decoder=ReversibleConfig(
            layers=len(theirs["attn_layers"]),
            attention=MultiHeadConfig(
                heads=theirs["num_attention_heads"],
                head_width=theirs.get("attention_head_size", 64),
                bias=False,
                output_bias=False,
                dropout=theirs.get("lsh_attention_probs_dropout_prob") or 0.0,
                mix=LshConfig(
                    buckets=tuple(buckets) if isinstance(buckets, list | tuple) else buckets,
                    rounds=theirs.get("num_hashes", 1),
                    chunk=theirs.get("lsh_attn_chunk_length", 64),
                    sees="chunk",
                ),
            ),
            feedforward=FeedForwardConfig(
                hidden=theirs["feed_forward_size"], activation=activation_from(theirs.get("hidden_act", "relu"))
            ),
            norm=NormConfig(eps=theirs.get("layer_norm_eps", 1e-12)),
            position=LearnedConfig(length=theirs.get("max_position_embeddings", 4096)),
            dropout=dropout,
            join="both",
        ),
        head=VocabularyConfig(wide=True),
    )


def write_config(config: DecoderOnlyConfig) -> dict[str, Any]:
    stack = config.decoder
    if not isinstance(stack, ReversibleConfig) or not isinstance(stack.attention.mix, LshConfig):
        raise ValueError(f"a Reformer is a reversible stack with mix lsh, not a {stack.kind}")
    if not isinstance(stack.position, LearnedConfig):
        raise ValueError(f"a Reformer has learned positions, not {stack.position.kind}")
    mix = stack.attention.mix
    return {
        **FIXED,
        "architectures": ["ReformerModelWithLMHead"],
        "vocab_size": config.vocab,
        "hidden_size": config.table_width,
        "attn_layers": ["lsh"] * stack.layers,
        "num_attention_heads": stack.attention.heads,
        "attention_head_size": stack.attention.head_width_in(config.table_width),
        "feed_forward_size": stack.feedforward.hidden,
        "hidden_act": activation_to(stack.feedforward.activation),
        "layer_norm_eps": stack.norm.eps,
        "max_position_embeddings": stack.position.length,
        "num_buckets": list(mix.buckets) if isinstance(mix.buckets, tuple) else mix.buckets,
        "num_hashes": mix.rounds,
        "lsh_attn_chunk_length": mix.chunk,
        "hidden_dropout_prob": stack.dropout,
        "lsh_attention_probs_dropout_prob": stack.attention.dropout,
        "tie_word_embeddings": False,
    }


def names(config: DecoderOnlyConfig) -> dict[str, str | tuple[str, ...]]:
    ours, theirs = "decoder.layers.{}", "reformer.encoder.layers.{}"
    own = f"{theirs}.attention.self_attention"
    return {
        "embedding": "reformer.embeddings.word_embeddings",
        "decoder.position": "reformer.embeddings.position_embeddings.embedding",
        f"{ours}.attention.query_key_value": (f"{own}.query_key", f"{own}.value"),
        f"{ours}.attention.output": f"{theirs}.attention.output.dense",
        f"{ours}.attention_residual.norm": f"{theirs}.attention.layer_norm",
        f"{ours}.feedforward.input": f"{theirs}.feed_forward.dense.dense",
        f"{ours}.feedforward.output": f"{theirs}.feed_forward.output.dense",
        f"{ours}.feedforward_residual.norm": f"{theirs}.feed_forward.layer_norm",
        "decoder.norm": "reformer.encoder.layer_norm",
        "head.table": "lm_head.decoder",
    }


FAMILY = Family(
    presets={"reformer-small": reformer(width=256, layers=6, heads=12, head=64, hidden=512, length=4096)},
    model_type="reformer",
    read_config=read_config,
    write_config=write_config,
    names=names,
    ignored=(r"lm_head\.bias",),  # there is one, which is added to nothing
    prefix="reformer.",
    bare=("embeddings.", "encoder."),
)
