"""Import of CTranslate2 model folders: model.bin, config.json and vocabularies. float32 and int8 weights.

model.bin, little endian: uint32 version, string spec, uint32 revision, uint32 count; then for each variable its name,
uint8 rank, uint32 dimensions, uint8 item size (version 4 and later: a type number first, then the number of bytes).
Strings are a uint16 length and that many bytes, including a trailing zero.
"""

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from heedful.bounded import Held, opening, read_json, read_text, refuse_infinite, regular
from heedful.families import transformer
from heedful.model.architecture.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from heedful.model.create import layout_within
from heedful.model.feedforward import FeedForwardConfig
from heedful.model.heads import VocabularyConfig
from heedful.model.multihead import MultiHeadConfig
from heedful.model.position.sinusoidal import SinusoidalConfig
from heedful.model.stack.transformer import TransformerConfig

HEADS = {"TransformerBase": 8, "TransformerBig": 16}
TYPES = {0: "<f4", 1: "i1", 2: "<i2", 3: "<i4", 4: "<f2"}


@dataclass(frozen=True)
class Opened:
    """A model and its two vocabularies; a token's id is its index."""

    model: EncoderDecoder
    source: list[str]
    target: list[str]


def load(folder: str | Path) -> Opened:
    with opening(folder):
        return _load(Path(folder))


def _load(folder: Path) -> Opened:
    spec, variables = _read(folder / "model.bin")
    if spec not in HEADS:
        raise ValueError(f"{folder}: CTranslate2 spec {spec!r} is not supported; known: {', '.join(HEADS)}")
    weights = _dequantised(variables)
    config = _config(weights, HEADS[spec])
    model = layout_within(config, {name: Held(tuple(one.shape), "F32") for name, one in weights.items()}, folder)
    for name, parameter in model.named_parameters():
        given = weights.get(_names(config).get(name, ""))
        if given is not None and given.shape != parameter.shape:
            raise ValueError(f"{folder}: {name} should have the shape {[*parameter.shape]}, not {[*given.shape]}")
    names = _names(config)
    state = {ours: weights[theirs] for ours, theirs in names.items() if theirs in weights}
    missing = [names.get(name, name) for name, _ in model.named_parameters() if name not in state]
    if missing:
        raise ValueError(f"{folder / 'model.bin'} lacks {missing[0]}")
    refuse_infinite(state.items(), folder)
    model.load_state_dict(state, assign=True)
    source, target = _vocabulary(folder, "source"), _vocabulary(folder, "target")
    for words, rows in ((source, config.source_vocab), (target, config.vocab)):
        if rows == len(words) + 1:  # the unknown token comes last, and may be implicit
            words.append("<unk>")
        elif rows != len(words):
            raise ValueError(f"{folder}: the vocabulary has {len(words)} tokens, but there are {rows} embeddings")
    assert isinstance(model, EncoderDecoder)
    return Opened(model.eval(), source, target)


def _read(path: Path) -> tuple[str, dict[str, np.ndarray]]:
    try:
        data = regular(path).read_bytes()
    except FileNotFoundError:
        raise ValueError(f"there is no {path}") from None
    place = 0

    def take(layout: str) -> int:
        nonlocal place
        (value,) = struct.unpack_from(f"<{layout}", data, place)
        place += struct.calcsize(layout)
        number: int = value
        return number

    def text() -> str:
        nonlocal place
        length = take("H")
        place += length
        return data[place - length : place].rstrip(b"\0").decode()

    try:
        version = take("I")
        spec = text()
        take("I")
        variables = {}
        for _ in range(take("I")):
            name, rank = text(), take("B")
            shape = [take("I") for _ in range(rank)]
            if version >= 4:
                kind, size = np.dtype(TYPES[take("B")]), take("I")
            else:
                kind = np.dtype({1: "i1", 2: "<i2", 4: "<f4"}[take("B")])
                size = take("I") * kind.itemsize
            variables[name] = np.frombuffer(data, kind, size // kind.itemsize, place).reshape(shape)
            place += size
    except (struct.error, ValueError, KeyError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a CTranslate2 model, or is damaged: {error}") from None
    return spec, variables


def _dequantised(variables: dict[str, np.ndarray]) -> dict[str, Tensor]:
    """int8 rows times their scale; everything else unchanged."""
    found = {}
    for name, values in variables.items():
        scale = variables.get(f"{name}_scale")
        if scale is not None and (values.ndim == 0 or scale.size not in (1, len(values))):
            raise ValueError(f"{name} has {values.shape[:1]} rows, but {scale.size} scales")
        numbers = values.astype(np.float32)
        if scale is not None:
            numbers = numbers / scale.astype(np.float32).reshape(-1, *[1] * (values.ndim - 1))
        found[name] = torch.from_numpy(numbers.copy())
    return found


def _config(weights: dict[str, Tensor], heads: int) -> EncoderDecoderConfig:
    """The config, inferred from the weights: OpenNMT's Transformer, pre-norm, with sinusoidal positions from 1."""

    def stack(side: str) -> TransformerConfig:
        layers = {name.split("/")[1] for name in weights if name.startswith(f"{side}/layer_") and name.count("/") > 2}
        return TransformerConfig(
            layers=len(layers),
            attention=MultiHeadConfig(heads=heads),
            feedforward=FeedForwardConfig(hidden=len(weights[f"{side}/layer_0/ffn/linear_0/weight"])),
            placement="pre",
            position=SinusoidalConfig(layout="halves", closed=True, offset=1),
            dropout=0.0,
        )

    vocab, width = weights["decoder/projection/weight"].shape
    return EncoderDecoderConfig(
        vocab=vocab,
        source_vocab=len(weights["encoder/embeddings/weight"]),
        width=width,
        tie="none",
        encoder=stack("encoder"),
        decoder=stack("decoder"),
        head=VocabularyConfig(bias=True),
    )


def _names(config: EncoderDecoderConfig) -> dict[str, str]:
    names = {
        "embedding.weight": "encoder/embeddings/weight",
        "target_embedding.weight": "decoder/embeddings/weight",
        "head.table.weight": "decoder/projection/weight",
        "head.bias": "decoder/projection/bias",
    }
    parts = {
        "attention.query_key_value": "self_attention/linear_0",
        "attention.output": "self_attention/linear_1",
        "cross.query": "attention/linear_0",
        "cross.key_value": "attention/linear_1",
        "cross.output": "attention/linear_2",
        "feedforward.input": "ffn/linear_0",
        "feedforward.output": "ffn/linear_1",
    }
    norms = {
        "attention_residual.norm": "self_attention/layer_norm",
        "cross_residual.norm": "attention/layer_norm",
        "feedforward_residual.norm": "ffn/layer_norm",
    }
    for side, stack in (("encoder", transformer(config.encoder)), ("decoder", transformer(config.decoder))):
        names[f"{side}.norm.weight"] = f"{side}/layer_norm/gamma"
        names[f"{side}.norm.bias"] = f"{side}/layer_norm/beta"
        for layer in range(stack.layers):
            ours, theirs = f"{side}.layers.{layer}", f"{side}/layer_{layer}"
            for name, their in parts.items():
                names |= {f"{ours}.{name}.{leaf}": f"{theirs}/{their}/{leaf}" for leaf in ("weight", "bias")}
            for name, their in norms.items():
                names[f"{ours}.{name}.weight"] = f"{theirs}/{their}/gamma"
                names[f"{ours}.{name}.bias"] = f"{theirs}/{their}/beta"
    return names


def _vocabulary(folder: Path, side: str) -> list[str]:
    for name in (f"{side}_vocabulary", "shared_vocabulary"):
        if (folder / f"{name}.json").exists():
            words = read_json(folder / f"{name}.json")
            if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
                raise ValueError(f"{folder / name}.json is not a list of tokens")
            return list(words)
        if (folder / f"{name}.txt").exists():
            return read_text(folder / f"{name}.txt").split("\n")[:-1]
    raise ValueError(f"{folder} has no vocabulary for the {side}")
