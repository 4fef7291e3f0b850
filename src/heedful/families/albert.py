"""ALBERT (Lan et al. 2020): BERT whose layers share one set of weights, with a factorised embedding table."""

from typing import Any

from heedful.families import Family, bert
from heedful.model.architecture.encoder_only import EncoderOnlyConfig


def albert(*, width: int, hidden: int, heads: int, layers: int) -> EncoderOnlyConfig:
    theirs = {
        "architectures": ["AlbertForPreTraining"],
        "vocab_size": 30000,
        "embedding_size": 128,
        "hidden_size": width,
        "intermediate_size": hidden,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "hidden_act": "gelu_new",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    return read_config(theirs, set())


def read_config(theirs: dict[str, Any], names: set[str]) -> EncoderOnlyConfig:
    if theirs.get("num_hidden_groups", 1) != 1 or theirs.get("inner_group_num", 1) != 1:
        raise ValueError("this ALBERT has several groups of layers; only a single shared layer is supported")
    heads = bert.read_heads(theirs, bert.held_heads(head_names("albert."), names))
    config = bert.read_encoder(theirs, heads, offset=0)
    return config.model_copy(update={"encoder": config.encoder.model_copy(update={"share_layers": True})})


def write_config(config: EncoderOnlyConfig) -> dict[str, Any]:
    return {
        **bert.write_encoder(config, "Albert"),
        "embedding_size": config.shape.input_width,
        "num_hidden_groups": 1,
        "inner_group_num": 1,
    }


def names(config: EncoderOnlyConfig) -> dict[str, str | tuple[str, ...]]:
    base = "" if bert.architecture(config) == "Model" else "albert."
    ours, theirs = "encoder.layers.{}", f"{base}encoder.albert_layer_groups.{{}}.albert_layers.0"
    return {
        **bert.encoder_names(base),
        "encoder.lift": f"{base}encoder.embedding_hidden_mapping_in",
        f"{ours}.attention.query_key_value": tuple(f"{theirs}.attention.{part}" for part in ("query", "key", "value")),
        f"{ours}.attention.output": f"{theirs}.attention.dense",
        f"{ours}.attention_residual.norm": f"{theirs}.attention.LayerNorm",
        f"{ours}.feedforward.input": f"{theirs}.ffn",
        f"{ours}.feedforward.output": f"{theirs}.ffn_output",
        f"{ours}.feedforward_residual.norm": f"{theirs}.full_layer_layer_norm",
        **head_names(base),
    }


def head_names(base: str) -> dict[str, str]:
    return {
        "heads.pooler.dense": f"{base}pooler",
        "heads.masked_lm.dense": "predictions.dense",
        "heads.masked_lm.norm": "predictions.LayerNorm",
        "heads.masked_lm.bias": "predictions.bias",
        "heads.next_sentence.pooler.dense": f"{base}pooler",
        "heads.next_sentence.output": "sop_classifier.classifier",
        "heads.sequence_classification.pooler.dense": f"{base}pooler",
        "heads.sequence_classification.output": "classifier",
        "heads.token_classification.output": "classifier",
        "heads.answer_span.output": "qa_outputs",
    }


FAMILY = Family(
    presets={
        "albert-base": albert(width=768, hidden=3072, heads=12, layers=12),
        "albert-large": albert(width=1024, hidden=4096, heads=16, layers=24),
        "albert-xlarge": albert(width=2048, hidden=8192, heads=16, layers=24),
        "albert-xxlarge": albert(width=4096, hidden=16384, heads=64, layers=12),
    },
    model_type="albert",
    read_config=read_config,
    write_config=write_config,
    names=names,
    duplicates={
        "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    },
    architectures=tuple(bert.ARCHITECTURES),
    ignored=(r".*embeddings\.position_ids",),
    prefix="albert.",
    bare=("embeddings.", "encoder.", "pooler."),
)
