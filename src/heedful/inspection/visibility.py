"""Who sees whom: for every attention, which inputs each output depends on, found by gradients, not by reading masks."""

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from heedful.config import kinds
from heedful.model.architecture.decoder_only import DecoderOnly, DecoderOnlyConfig
from heedful.model.architecture.encoder_only import EncoderOnly, EncoderOnlyConfig
from heedful.model.architecture.non_autoregressive import NonAutoregressive, NonAutoregressiveConfig
from heedful.model.attention import MixConfig
from heedful.model.create import create
from heedful.model.mask import Mask
from heedful.model.multihead import MultiHeadConfig
from heedful.model.sight import Sight
from heedful.model.stack.transformer import TransformerConfig

WIDTH, HEADS = 16, 1
AT_ONCE = "non_autoregressive"
ROUNDING = 1e-12  # of the largest gradient: what is smaller is none
# Small enough that a picture of a short text shows something.
SETTINGS: dict[str, dict[str, Any]] = {
    "window": {"window": 4},
    "longformer": {"window": 3},
    "bigbird": {"mix": {"kind": "bigbird", "block": 2, "random": 1}},
    "lsh": {"mix": {"kind": "lsh", "chunk": 2, "buckets": 8, "rounds": 1}},
    "linformer": {"mix": {"kind": "linformer", "rank": 4}},
}


@dataclass(frozen=True)
class Picture:
    title: str
    seen: Tensor  # query key, True = the output of the query depends on the input of the key


def pictures(names: list[str] | None = None, *, length: int = 24) -> list[Picture]:
    """Of each attention in an encoder and in a decoder, where it may be used there."""
    known = [*kinds(MixConfig.folder), AT_ONCE]
    unknown = [name for name in names or () if name not in known]
    if unknown:
        raise ValueError(f"unknown attention {unknown[0]!r}; known: {', '.join(known)}")
    found = []
    for name in names or known:
        if name == AT_ONCE:
            found.append(Picture(f"{name}, decoder", seen_at_once(length)))
            continue
        for causal in (False, True):
            try:
                found.append(
                    Picture(f"{name}, {'decoder' if causal else 'encoder'}", seen(name, length, causal=causal))
                )
            except ValueError:  # not defined there
                continue
    return found


def seen(name: str, length: int, *, causal: bool) -> Tensor:
    """query key: whether an output of a one-layer model depends on an input."""
    attention = {"heads": HEADS, "mix": name, **SETTINGS.get(name, {})}
    config = TransformerConfig.model_validate(
        {"layers": 1, "placement": "pre", "position": "none", "attention": attention, "dropout": 0.0, "length": length}
    )
    torch.manual_seed(0)
    model: DecoderOnly | EncoderOnly
    if causal:
        model = cast(DecoderOnly, create(DecoderOnlyConfig(vocab=2, width=WIDTH, decoder=config)))
        stack = model.decoder
    else:
        model = cast(EncoderOnly, create(EncoderOnlyConfig(vocab=2, width=WIDTH, encoder=config)))
        stack = model.encoder
    model.eval()
    x = torch.randn(1, length, WIDTH, requires_grad=True)
    return _dependence(stack(x), x)


def seen_at_once(length: int) -> Tensor:
    """query key: whose values reach an output of the self-attention of a decoder that writes all words at once. The
    layer as a whole depends on every place: by its queries, the residual and positional attention."""
    config = TransformerConfig(layers=1, attention=MultiHeadConfig(heads=HEADS), dropout=0.0)
    model = cast(NonAutoregressive, create(NonAutoregressiveConfig(vocab=2, width=WIDTH, decoder=config))).eval()
    query, key, value = torch.randn(3, 1, 1, length, WIDTH).unbind(0)
    value.requires_grad_()
    mask = Mask(others_only=model.decoder.parallel)
    mixed = model.decoder.each_layer()[0].attention.mix(query, key, value, sight=Sight(mask))
    return _dependence(mixed[0], value)


def _dependence(states: Tensor, x: Tensor) -> Tensor:
    """query key: whether the gradient of a state reaches an input."""
    rows = []
    for query in range(states.shape[1]):
        (gradient,) = torch.autograd.grad(states[0, query].square().sum(), x, retain_graph=True)
        size = gradient.flatten(0, -3)[0].abs().amax(-1)
        rows.append(size > ROUNDING * size.max())
    return torch.stack(rows)
