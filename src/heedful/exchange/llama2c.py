"""The weights of llama2.c (its first export format): seven integers, then float32 tensors in a fixed order."""

import struct
from collections.abc import Iterator
from itertools import accumulate, pairwise
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from heedful.bounded import Held, opening, refuse_infinite, regular
from heedful.families import transformer
from heedful.families.llama import llama
from heedful.model.architecture.decoder_only import DecoderOnly, DecoderOnlyConfig
from heedful.model.create import layout_within


def load(path: str | Path) -> DecoderOnly:
    """The model in a .bin file, with rows reordered for our `rotary` positions."""
    with opening(path):
        return _load(Path(path))


def _load(path: Path) -> DecoderOnly:
    with regular(path).open("rb") as file:
        data = file.read(28)
    if len(data) < 28:
        raise ValueError(f"{path} is too short for a llama2.c model")
    width, hidden, layers, heads, kv_heads, vocab, length = struct.unpack("<7i", data[:28])
    if min(width, hidden, layers, heads, kv_heads, length) < 1:
        raise ValueError(f"{path} is not a llama2.c model in the first format: its sizes are not positive")
    numbers = path.stat().st_size // 4 - 7
    smallest = layers * (2 * width * width + 3 * width * hidden) + abs(vocab) * width
    if smallest > numbers or layers > numbers:
        raise ValueError(f"{path} has {numbers:,} numbers, but its header requires more than {smallest:,}")
    config = llama(
        width=width,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        vocab=abs(vocab),
        tie=vocab > 0,
    )
    model = layout_within(config, {"numbers": Held((numbers,), "F32"), **{str(n): Held((), "") for n in range(layers)}},
                          path)  # fmt: skip
    values = torch.from_numpy(np.fromfile(path, dtype="<f4", offset=28))
    refuse_infinite([("the weights", values)], path)
    model.load_state_dict(dict(_weights(values, config, length, path)), assign=True)
    assert isinstance(model, DecoderOnly)
    return model


def _weights(numbers: Tensor, config: DecoderOnlyConfig, length: int, path: str | Path) -> Iterator[tuple[str, Tensor]]:
    decoder = transformer(config.decoder)
    width, layers, hidden = config.width, decoder.layers, decoder.feedforward.hidden
    queries, keys, values = decoder.attention.parts(width)
    head = decoder.attention.head_width_in(width)
    shapes = {
        "embedding": (config.vocab, width),
        "attention_norm": (layers, width),
        "query": (layers, queries, width),
        "key": (layers, keys, width),
        "value": (layers, values, width),
        "output": (layers, width, queries),
        "feedforward_norm": (layers, width),
        "gate": (layers, hidden, width),
        "down": (layers, width, hidden),
        "up": (layers, hidden, width),
        "norm": (width,),
        "unused_cos_and_sin": (length, head),
    }
    if config.tie == "none":
        shapes["head"] = (config.vocab, width)
    ends = list(accumulate((prod(shape) for shape in shapes.values()), initial=0))
    if len(numbers) != ends[-1]:
        raise ValueError(f"{path} has {len(numbers):,} numbers, but its header requires {ends[-1]:,}")
    pieces = zip(shapes.items(), pairwise(ends), strict=True)
    found = {name: numbers[start:end].reshape(shape) for (name, shape), (start, end) in pieces}
    yield "embedding.weight", found["embedding"]
    for layer in range(layers):
        name = f"decoder.layers.{layer}"
        query, key = (_pairs_to_halves(found[part][layer], head) for part in ("query", "key"))
        yield f"{name}.attention.query_key_value.weight", torch.cat([query, key, found["value"][layer]])
        yield f"{name}.attention.output.weight", found["output"][layer]
        yield f"{name}.attention_residual.norm.weight", found["attention_norm"][layer]
        yield f"{name}.feedforward.input.weight", torch.cat([found["gate"][layer], found["up"][layer]])
        yield f"{name}.feedforward.output.weight", found["down"][layer]
        yield f"{name}.feedforward_residual.norm.weight", found["feedforward_norm"][layer]
    yield "decoder.norm.weight", found["norm"]
    if "head" in found:
        yield "head.table.weight", found["head"]


def _pairs_to_halves(weight: Tensor, head: int) -> Tensor:
    """llama2.c rotates (x_2i, x_2i+1), we rotate (x_i, x_{i + head/2}): equivalent after reordering the rows."""
    return weight.unflatten(0, (-1, head // 2, 2)).transpose(1, 2).flatten(0, 2)
