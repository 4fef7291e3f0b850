"""BigBird (Zaheer et al. 2020): BERT with block-sparse attention.

A folder of theirs opens with the same weights, but not with the same random blocks: theirs are drawn anew from numpy's
state in training and are all block 0 in evaluation, ours are the same in both. Up to neighbours + 1 + 2 ends + random
blocks of text (seven, as published) both are full attention.
"""

from typing import Any

from heedful.families import Family, bert, transformer
from heedful.model.architecture.encoder_only import EncoderOnlyConfig
from heedful.model.attention import MixConfig
from heedful.model.attention.bigbird import BigBirdConfig
from heedful.model.attention.softmax import SoftmaxConfig
from heedful.model.input.tokens import TokensConfig

HEADS = {"masked_lm", "next_sentence", "token_classification", "pooler"}


def big_bird(*, width: int, hidden: int, heads: int, layers: int) -> EncoderOnlyConfig:
    theirs = {
        "architectures": ["BigBirdForPreTraining"],
        "vocab_size": 50358,
        "hidden_size": width,
        "intermediate_size": hidden,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "hidden_act": "gelu_new",
        "max_position_embeddings": 4096,
        "type_vocab_size": 2,
        "rescale_embeddings": True,
    }
    return read_config(theirs, set())


def read_config(theirs: dict[str, Any], names: set[str]) -> EncoderOnlyConfig:
    theirs = {"hidden_act": "gelu_new", **theirs}
    heads = bert.read_heads(theirs, bert.held_heads(head_names("bert."), names))
    for head in heads:
        if head.kind not in HEADS:
            raise ValueError(f"the head {head.kind} of a Hugging Face big_bird is not one we have; known: masked_lm, "
                             "next_sentence, token_classification, pooler")  # fmt: skip
    config = bert.read_encoder(theirs, heads, offset=0)
    stack = transformer(config.encoder)
    mix: MixConfig = SoftmaxConfig()
    if theirs.get("attention_type", "block_sparse") == "block_sparse":
        mix = BigBirdConfig(block=theirs.get("block_size", 64), random=theirs.get("num_random_blocks", 3))
    attention = stack.attention.model_copy(update={"mix": mix, "bias": theirs.get("use_bias", True)})
    changes = {
        "encoder": stack.model_copy(update={"attention": attention}),
        "embedding": TokensConfig(scale=theirs.get("rescale_embeddings", False)),
    }
    return config.model_copy(update=changes)


def write_config(config: EncoderOnlyConfig) -> dict[str, Any]:
    attention, table = transformer(config.encoder).attention, config.embedding
    keys = {
        **bert.write_encoder(config, "BigBird"),
        "use_bias": attention.bias,
        "rescale_embeddings": isinstance(table, TokensConfig) and table.scale,
        "attention_type": "original_full",
    }
    if isinstance(attention.mix, BigBirdConfig):
        keys["attention_type"] = "block_sparse"
        keys |= {"block_size": attention.mix.block, "num_random_blocks": attention.mix.random}
    return keys


def names(config: EncoderOnlyConfig) -> dict[str, str | tuple[str, ...]]:
    base = "" if bert.architecture(config) == "Model" else "bert."
    return {**bert.encoder_names(base), **head_names(base)}


def head_names(base: str) -> dict[str, str]:
    of_bert = bert.head_names(base)
    kept = {name: theirs for name, theirs in of_bert.items() if name.split(".")[1] in HEADS}
    return {name: f"{base}pooler" if name.endswith("pooler.dense") else theirs for name, theirs in kept.items()}


FAMILY = Family(
    presets={
        "bigbird-base": big_bird(width=768, hidden=3072, heads=12, layers=12),
        "bigbird-large": big_bird(width=1024, hidden=4096, heads=16, layers=24),
    },
    model_type="big_bird",
    read_config=read_config,
    write_config=write_config,
    names=names,
    duplicates=bert.FAMILY.duplicates,
    architectures=tuple(bert.ARCHITECTURES),
    ignored=(r".*embeddings\.(position_ids|token_type_ids)",),
    prefix="bert.",
    bare=("embeddings.", "encoder.", "pooler."),
)
