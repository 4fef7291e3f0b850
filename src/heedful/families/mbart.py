"""mBART (Liu et al. 2020): BART with the norms before each sub-layer, and one more after each stack."""

from typing import Any

from heedful.families import Family, bart, marian, transformer
from heedful.model.architecture.encoder_decoder import EncoderDecoderConfig
from heedful.model.input.tokens import TokensConfig


def read_config(theirs: dict[str, Any], names: set[str]) -> EncoderDecoderConfig:
    found = bart.read_config(theirs, names)
    stacks = {side: transformer(getattr(found, side)) for side in ("encoder", "decoder")}
    return found.model_copy(
        update={side: stack.model_copy(update={"placement": "pre"}) for side, stack in stacks.items()}
    )


def write_config(config: EncoderDecoderConfig) -> dict[str, Any]:
    return {**bart.write_config(config), "architectures": ["MBartForConditionalGeneration"]}


def names(config: EncoderDecoderConfig) -> dict[str, str | tuple[str, ...]]:
    norms = {f"{side}.norm": f"model.{side}.layer_norm" for side in ("encoder", "decoder")}
    return {**bart.names(config), **norms}


def _large() -> EncoderDecoderConfig:
    """The size of mbart-large-cc25."""
    made = bart.bart(width=1024, hidden=4096, heads=16, layers=12)
    stack = transformer(made.encoder).model_copy(update={"placement": "pre"})
    update = {"vocab": 250027, "embedding": TokensConfig(scale=True), "encoder": stack, "decoder": stack}
    return made.model_copy(update=update)


FAMILY = Family(
    presets={"mbart-large": _large()},
    model_type="mbart",
    read_config=read_config,
    write_config=write_config,
    names=names,
    duplicates=marian.FAMILY.duplicates,
    rows=frozenset({"final_logits_bias"}),
)
