"""Configs are checked when they are made, and what is wrong is told in a line that says what to change."""

import pytest
from pydantic import ValidationError

from heedful.config import kinds, override, parse, part_config
from heedful.families import preset, presets
from heedful.model.architecture.decoder_only import DecoderOnlyConfig
from heedful.model.architecture.encoder_decoder import EncoderDecoderConfig
from heedful.model.architecture.encoder_only import EncoderOnlyConfig
from heedful.model.attention import MixConfig
from heedful.model.position import PositionConfig
from heedful.model.position.rotary import RotaryConfig

BASE = EncoderDecoderConfig()

BAD = {
    "width=100": r"encoder: width 100 does not split into 8 heads; choose heads from \[1, 2, 4, 5, 10, 20, 25, 50",
    "decoder.attention.heads=7": "decoder: width 512 does not split into 7 heads",
    "decoder.cross={heads: 7}": "decoder: width 512 does not split into 7 heads",
    "encoder.attention.kv_heads=3": r"heads 8 do not split into 3 kv_heads; choose kv_heads from \[1, 2, 4, 8\]",
    "encoder.laeyrs=2": "encoder: unknown key 'laeyrs'; did you mean 'layers'?",
    "encodr.layers=2": "unknown key 'encodr'; did you mean 'encoder'?",
    "encoder.position=rotry": "encoder.position: unknown position 'rotry'; did you mean 'rotary'?",
    "encoder.attention.mix=xyz": "unknown attention 'xyz'; known: .*reference, .*softmax",
    "encoder.layers=-2": "encoder.layers: input should be greater than or equal to 1, not -2",
    "vocab=0": "vocab: input should be greater than or equal to 1, not 0",
    "vocab=many": "vocab: input should be a valid integer.* not 'many'",
    "encoder.dropout=1.5": "encoder.dropout: input should be less than 1, not 1.5",
    "decoder.cross={heads: 8, window: 5}": "decoder: cross attention cannot have a window",
    "encoder.cross={heads: 8}": "encoder: cross attention needs an encoder to look at; leave cross out",
    "decoder.feedforward.kernel=3": "decoder: feedforward kernel 3 would see the next token; a decoder needs kernel 1",
    "encoder.feedforward.kernel=2": "kernel 2 has no middle; choose an odd one such as 1 or 3",
    "encoder.feedforward.activation=rleu": "encoder.feedforward.activation: input should be 'relu', 'gelu'",
    "encoder.attention.window=0": "encoder.attention.window: window 0 sees nothing; choose 1",
    "encoder.norm.eps=0": "encoder.norm.eps: input should be greater than 0, not 0",
    "source_vocab=99": "tie 'all' shares one table, but source_vocab 99 is not vocab 32000; choose tie 'output'",
    "tie=yes": "tie: input should be 'all', 'output', 'inputs' or 'none', not True",
    "embedding.width=7": "encoder: width 7 does not make at least two pairs of sin and cos; choose an even width",
    "encoder.position={kind: relative_bias, buckets: 30}": "buckets 30 cannot be halved twice; choose a multiple of 4",
    "width": "'width' is not of the form key=value, such as width=256",
    "width.layers=3": "'width.layers': 'width' holds 512, which has no keys of its own",
    "tie.layers=3": "'tie.layers': 'tie' holds 'all', which has no keys of its own",
}


@pytest.mark.parametrize("change", BAD)
def test_bad_changes_are_refused_with_a_line_that_helps(change):
    with pytest.raises(ValueError, match=BAD[change]) as caught:
        override(BASE, [change])
    assert "\n" not in str(caught.value)


def test_an_odd_head_cannot_be_rotated():
    with pytest.raises(ValueError, match="a head is 3 wide; choose heads that make it even"):
        override(BASE, ["encoder.position=rotary", "encoder.attention.head_width=3"])


def test_llama3_scaling_is_checked():
    with pytest.raises(ValidationError, match="low_frequency_factor 4.0 must be below high_frequency_factor 4.0"):
        RotaryConfig(scaling={"low_frequency_factor": 4.0})


def test_a_head_may_be_named_once():
    with pytest.raises(ValidationError, match="name one twice; a model has each head once"):
        EncoderOnlyConfig(heads=[{"kind": "pooler"}, {"kind": "pooler"}])


def test_two_mistakes_make_two_lines():
    with pytest.raises(ValueError, match="width.*\nvocab.*"):
        parse(DecoderOnlyConfig, {"vocab": -1, "width": -1})


def test_configs_are_frozen():
    with pytest.raises(ValidationError, match="frozen"):
        BASE.width = 3  # type: ignore[misc]


@pytest.mark.parametrize("contract", [MixConfig, PositionConfig])
def test_every_file_of_a_folder_is_found_by_its_name(contract):
    for kind in kinds(contract.folder):
        config = part_config(contract, kind)()
        assert config.kind == kind
        assert contract.model_validate(kind) == config
        assert contract.model_validate({"kind": kind}) == config
        assert config.model_dump()["kind"] == kind


@pytest.mark.parametrize("name", presets())
def test_a_preset_survives_being_written_and_read(name):
    config = preset(name)
    assert parse(type(config), config.model_dump(mode="json")) == config


def test_overrides_change_only_what_they_name():
    changed = override(BASE, ["decoder.layers=3", "encoder.position={kind: rotary, base: 500}"])
    assert changed.decoder.layers == 3
    assert changed.encoder.position == RotaryConfig(base=500)
    assert override(changed, ["decoder.layers=6", "encoder.position=sinusoidal"]) == BASE


def test_keys_of_a_part_may_follow_its_name():
    changed = override(BASE, ["encoder.position=rotary", "encoder.position.base=500"])
    assert changed.encoder.position == RotaryConfig(base=500)
    assert changed.decoder.position == BASE.decoder.position
    with pytest.raises(ValueError, match="encoder.position: unknown position 'rotry'; did you mean 'rotary'?"):
        override(BASE, ["encoder.position=rotry", "encoder.position.base=500"])
