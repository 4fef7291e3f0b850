"""LED (Beltagy et al. 2020, section 7): BART whose encoder is a Longformer.

Which tokens are global stands in no file of theirs: none, unless they are told. Ours says it in
`encoder.attention.mix.first`, which a folder of theirs sets to 0; for summaries the paper takes 1.
"""

from typing import Any

from heedful.families import Family, bart, longformer, marian, transformer
from heedful.model.architecture.encoder_decoder import EncoderDecoderConfig
from heedful.model.position.learned import LearnedConfig

SIDES = ("encoder", "decoder")


def led(*, width: int, hidden: int, heads: int, layers: int) -> EncoderDecoderConfig:
    theirs: dict[str, Any] = {"vocab_size": 50265, "d_model": width, "attention_window": [1024] * layers}
    theirs |= {"max_encoder_position_embeddings": 16384, "max_decoder_position_embeddings": 1024}
    for side in SIDES:
        theirs |= {f"{side}_layers": layers, f"{side}_attention_heads": heads, f"{side}_ffn_dim": hidden}
    return read_config(theirs, set())


def read_config(theirs: dict[str, Any], names: set[str]) -> EncoderDecoderConfig:
    config = bart.read_config({**theirs, "max_position_embeddings": 1}, names)
    stacks = {}
    for side in SIDES:
        position = LearnedConfig(length=theirs[f"max_{side}_position_embeddings"])
        stacks[side] = transformer(getattr(config, side)).model_copy(update={"position": position})
    encoder = stacks["encoder"]
    attention = longformer.read_attention(encoder.attention, theirs, encoder.layers, first=0)
    stacks["encoder"] = encoder.model_copy(update={"attention": attention})
    return config.model_copy(update=stacks)


def write_config(config: EncoderDecoderConfig) -> dict[str, Any]:
    encoder = transformer(config.encoder)
    keys = {
        **marian.write_stacks(config),
        "architectures": ["LEDForConditionalGeneration"],
        "vocab_size": config.vocab,
        "attention_window": longformer.write_windows(encoder.attention, encoder.layers),
        "tie_word_embeddings": True,
    }
    keys.pop("scale_embedding")  # theirs are never scaled
    for side in SIDES:
        position = transformer(getattr(config, side)).position
        if not isinstance(position, LearnedConfig):
            raise ValueError(f"LED has learned positions, not {position.kind}")
        keys[f"max_{side}_position_embeddings"] = position.length
    return keys


def names(config: EncoderDecoderConfig) -> dict[str, str | tuple[str, ...]]:
    table: dict[str, str | tuple[str, ...]] = {}
    for ours, theirs in bart.names(config).items():
        renamed = [name.replace("model.", "led.", 1) for name in ([theirs] if isinstance(theirs, str) else theirs)]
        table[ours] = renamed[0] if isinstance(theirs, str) else tuple(renamed)
    layer = "led.encoder.layers.{}.self_attn"
    table["encoder.layers.{}.attention.query_key_value"] = tuple(
        f"{layer}.longformer_self_attn.{part}" for part in longformer.PARTS
    )
    table["encoder.layers.{}.attention.output"] = f"{layer}.output"
    return table


FAMILY = Family(
    presets={
        "led-base": led(width=768, hidden=3072, heads=12, layers=6),
        "led-large": led(width=1024, hidden=4096, heads=16, layers=12),
    },
    model_type="led",
    read_config=read_config,
    write_config=write_config,
    names=names,
    duplicates={
        "lm_head.weight": "led.shared.weight",
        "led.encoder.embed_tokens.weight": "led.shared.weight",
        "led.decoder.embed_tokens.weight": "led.shared.weight",
    },
    rows=frozenset({"final_logits_bias"}),
)
