"""RoBERTa (Liu et al. 2019): BERT trained longer; positions are counted from 2, and there is no next-sentence head."""

from typing import Any

from heedful.families import Family, bert
from heedful.model.architecture.encoder_only import EncoderOnlyConfig


def roberta(*, width: int, hidden: int, heads: int, layers: int) -> EncoderOnlyConfig:
    theirs = {
        "architectures": ["RobertaForMaskedLM"],
        "vocab_size": 50265,
        "hidden_size": width,
        "intermediate_size": hidden,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "max_position_embeddings": 514,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
    }
    return read_config(theirs, set())


def read_config(theirs: dict[str, Any], names: set[str]) -> EncoderOnlyConfig:
    # Their masked-LM head always uses GELU, whatever the layers use.
    heads = bert.read_heads({**theirs, "hidden_act": "gelu"}, bert.held_heads(head_names("roberta."), names))
    return bert.read_encoder(theirs, heads, offset=2)


def write_config(config: EncoderOnlyConfig) -> dict[str, Any]:
    return bert.write_encoder(config, "Roberta")


def names(config: EncoderOnlyConfig) -> dict[str, str | tuple[str, ...]]:
    base = "" if bert.architecture(config) == "Model" else "roberta."
    return {**bert.encoder_names(base), **head_names(base)}


def head_names(base: str) -> dict[str, str]:
    return {
        "heads.pooler.dense": f"{base}pooler.dense",
        "heads.masked_lm.dense": "lm_head.dense",
        "heads.masked_lm.norm": "lm_head.layer_norm",
        "heads.masked_lm.bias": "lm_head.bias",
        "heads.sequence_classification.pooler.dense": "classifier.dense",
        "heads.sequence_classification.output": "classifier.out_proj",
        "heads.token_classification.output": "classifier",
        "heads.answer_span.output": "qa_outputs",
    }


FAMILY = Family(
    presets={
        "roberta-base": roberta(width=768, hidden=3072, heads=12, layers=12),
        "roberta-large": roberta(width=1024, hidden=4096, heads=16, layers=24),
    },
    model_type="roberta",
    read_config=read_config,
    write_config=write_config,
    names=names,
    duplicates={
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    architectures=tuple(bert.ARCHITECTURES),
    ignored=(r".*embeddings\.position_ids",),
    prefix="roberta.",
    bare=("embeddings.", "encoder.", "pooler."),
)
