"""Longformer (Beltagy et al. 2020): RoBERTa with a sliding window and global tokens that have projections of their own.

Which tokens are global stands in no file of theirs: their classifier takes the first one, the other classes none unless
they are told. Ours says it in `encoder.attention.mix.first`, and follows their classes when it reads a folder.
"""

from typing import Any

from heedful.families import Family, bert, transformer
from heedful.families.roberta import head_names
from heedful.model.architecture.encoder_only import EncoderOnlyConfig
from heedful.model.attention.longformer import LongformerConfig
from heedful.model.multihead import MultiHeadConfig

PARTS = LongformerConfig.projections


def longformer(*, width: int, hidden: int, heads: int, layers: int) -> EncoderOnlyConfig:
    theirs = {
        "architectures": ["LongformerForMaskedLM"],
        "vocab_size": 50265,
        "hidden_size": width,
        "intermediate_size": hidden,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "max_position_embeddings": 4098,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
        "attention_window": [512] * layers,
    }
    return read_config(theirs, set())


def read_config(theirs: dict[str, Any], names: set[str]) -> EncoderOnlyConfig:
    # Their masked-LM head has GELU whatever the layers have, as RoBERTa's; dropout of the classifier is that of layers.
    heads = bert.read_heads({**theirs, "hidden_act": "gelu"}, bert.held_heads(head_names("longformer."), names))
    config = bert.read_encoder(theirs, heads, offset=2)
    stack = transformer(config.encoder)
    first = 1 if [head.kind for head in heads] == ["sequence_classification"] else 0
    attention = read_attention(stack.attention, theirs, stack.layers, first=first)
    return config.model_copy(update={"encoder": stack.model_copy(update={"attention": attention})})


def read_attention(attention: MultiHeadConfig, theirs: dict[str, Any], layers: int, *, first: int) -> MultiHeadConfig:
    """Their window counts both sides without the token itself, ours one side with it."""
    window = theirs.get("attention_window", 512)
    sizes = [window] * layers if isinstance(window, int) else window
    ours = tuple(size // 2 + 1 for size in sizes)
    one = ours[0] if len(set(ours)) == 1 else ours
    return attention.model_copy(update={"mix": LongformerConfig(first=first), "window": one})


def write_config(config: EncoderOnlyConfig) -> dict[str, Any]:
    stack = transformer(config.encoder)
    windows = write_windows(stack.attention, stack.layers)
    return {**bert.write_encoder(config, "Longformer"), "attention_window": windows}


def write_windows(attention: MultiHeadConfig, layers: int) -> list[int]:
    windows = [attention.window_of(layer) for layer in range(layers)]
    if None in windows or 1 in windows:
        raise ValueError("a Hugging Face longformer needs a window of 2 or more in every layer; set attention.window")
    return [2 * (window - 1) for window in windows if window is not None]


def names(config: EncoderOnlyConfig) -> dict[str, str | tuple[str, ...]]:
    base = "" if bert.architecture(config) == "Model" else "longformer."
    table = {**bert.encoder_names(base), **head_names(base)}
    table["encoder.layers.{}.attention.query_key_value"] = tuple(
        f"{base}encoder.layer.{{}}.attention.self.{part}" for part in PARTS
    )
    return table


FAMILY = Family(
    presets={
        "longformer-base": longformer(width=768, hidden=3072, heads=12, layers=12),
        "longformer-large": longformer(width=1024, hidden=4096, heads=16, layers=24),
    },
    model_type="longformer",
    read_config=read_config,
    write_config=write_config,
    names=names,
    duplicates={
        "lm_head.decoder.weight": "longformer.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    architectures=tuple(bert.ARCHITECTURES),
    ignored=(r".*embeddings\.position_ids",),
    prefix="longformer.",
    bare=("embeddings.", "encoder.", "pooler."),
)
