"""Import of GGUF files (llama.cpp): LLaMA-style models in one file, quantised or not, with their tokenizer.

    opened = load("smollm2.gguf")               # weights as float32, whatever the file holds
    text = tokenizer("smollm2.gguf")

Needs the `gguf` package: pip install 'heedful[gguf]'.
"""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heedful.bounded import Held, opening, refuse_infinite
from heedful.exchange import gguf_header, gguf_tokenizer
from heedful.exchange.hugging_face import Opened
from heedful.families import llama, their_names
from heedful.model.architecture.decoder_only import DecoderOnlyConfig
from heedful.model.create import layout_within
from heedful.model.position.rotary import Rotary, RotaryConfig, ScalingConfig
from heedful.text.tokenizer import Tokenizer

MAGIC = b"GGUF"
SCALES = "rope_freqs.weight"  # what LLaMA 3.1's frequencies are divided by
LAYER = "decoder.layers.{}"
NAMES: dict[str, str | tuple[str, ...]] = {
    "embedding": "token_embd",
    f"{LAYER}.attention.query_key_value": ("blk.{}.attn_q", "blk.{}.attn_k", "blk.{}.attn_v"),
    f"{LAYER}.attention.output": "blk.{}.attn_output",
    f"{LAYER}.attention_residual.norm": "blk.{}.attn_norm",
    f"{LAYER}.feedforward.input": ("blk.{}.ffn_gate", "blk.{}.ffn_up"),
    f"{LAYER}.feedforward.output": "blk.{}.ffn_down",
    f"{LAYER}.feedforward_residual.norm": "blk.{}.ffn_norm",
    "decoder.norm": "output_norm",
    "head.table": "output",
}


def is_gguf(path: str | Path) -> bool:
    path = Path(path)
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def load(path: str | Path) -> Opened:
    """The model in a file. Tensors that it does not use are an error: such a file holds another kind of model."""
    with opening(path):
        return _load(Path(path))


def _load(path: Path) -> Opened:
    file = _File(path)
    config = file.config()
    model = layout_within(config, file.held(), path)
    weights = {ours: file.weight(ours, parameter) for ours, parameter in model.named_parameters()}
    refuse_infinite(weights.items(), path)
    unused = sorted(set(file.tensors) - file.used - {SCALES})
    if unused:
        raise ValueError(f"{path} contains {unused[0]}, which a LLaMA model does not have; it cannot be read")
    model.load_state_dict(weights, assign=True)
    return Opened(model=model, family="llama", details=file.details(), left_out=[])


def read_config(path: str | Path) -> DecoderOnlyConfig:
    """The config of the model in a file, without its weights."""
    with opening(path):
        return _File(Path(path)).config()


def tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer in a file."""
    with opening(path):
        return gguf_tokenizer.build(_File(Path(path)).keys, str(path))


class _File:
    def __init__(self, path: Path) -> None:
        self.path = path
        reader = _reader(path, path.stat().st_mtime_ns)
        self.keys: Mapping[str, Any] = _Keys(reader)
        self.tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.used: set[str] = set()

    def held(self) -> dict[str, Held]:
        """The sizes of its tensors."""
        return {name: Held(tuple(one.shape.tolist()), one.tensor_type.name) for name, one in self.tensors.items()}

    def _needed(self, key: str) -> Any:
        value = self.keys.get(key)
        if value is None:
            raise ValueError(f"{self.path} has no {key}, which a LLaMA model needs")
        return value

    def config(self) -> DecoderOnlyConfig:
        kind = self.keys.get("general.architecture")
        if kind != "llama":
            raise ValueError(f"{self.path} holds a model of the architecture {kind!r}; only 'llama' can be read")
        if not self.tensors:
            raise ValueError(f"{self.path} holds a vocabulary only, no weights")
        scaling = self.keys.get("llama.rope.scaling.type", "none")
        if scaling != "none":
            raise ValueError(f"{self.path}: rotary scaling {scaling!r} is not supported")
        width, heads = self._needed("llama.embedding_length"), self._needed("llama.attention.head_count")
        head_width = self.keys.get("llama.attention.key_length", width // heads)
        if self.keys.get("llama.rope.dimension_count", head_width) != head_width:
            raise ValueError(f"{self.path}: only a part of each head is rotated, which is not supported")
        config = llama.read_config(
            {
                "vocab_size": int(self._tensor("token_embd.weight").shape[-1]),
                "hidden_size": width,
                "num_hidden_layers": self._needed("llama.block_count"),
                "num_attention_heads": heads,
                "num_key_value_heads": self.keys.get("llama.attention.head_count_kv", heads),
                "head_dim": head_width,
                "intermediate_size": self._needed("llama.feed_forward_length"),
                "rms_norm_eps": _short(self._needed("llama.attention.layer_norm_rms_epsilon")),
                "rope_theta": _short(self.keys.get("llama.rope.freq_base", 10000.0)),
                "tie_word_embeddings": "output.weight" not in self.tensors,
                "attention_bias": "blk.0.attn_q.bias" in self.tensors,
                "mlp_bias": "blk.0.ffn_up.bias" in self.tensors,
            },
            set(),
        )
        return config if SCALES not in self.tensors else self._scaled(config, head_width)

    def _scaled(self, config: DecoderOnlyConfig, head_width: int) -> DecoderOnlyConfig:
        """The file has the divisor of each frequency; we have the few numbers that LLaMA 3 computes them from."""
        divisors = self._read(SCALES)
        plain = llama.transformer(config.decoder).position
        assert isinstance(plain, RotaryConfig)
        scaled = plain.model_copy(update={"scaling": ScalingConfig(factor=float(divisors.max()))})
        here = torch.device("cpu")
        found = Rotary(plain, head_width).frequencies(here) / Rotary(scaled, head_width).frequencies(here)
        if found.shape != divisors.shape or not torch.allclose(found, divisors, rtol=1e-3):
            raise ValueError(f"{self.path}: {SCALES} is not LLaMA 3's scaling, which is the only one supported")
        return config.model_copy(update={"decoder": config.decoder.model_copy(update={"position": scaled})})

    def weight(self, ours: str, parameter: Tensor) -> Tensor:
        pieces = [self._rows(name) for name in their_names(ours, NAMES)]
        tensor = torch.cat(pieces) if len(pieces) > 1 else pieces[0]
        if tensor.shape != parameter.shape:
            raise ValueError(f"{self.path}: {ours} should have the shape {[*parameter.shape]}, not {[*tensor.shape]}")
        return tensor

    def _rows(self, name: str) -> Tensor:
        """Queries and keys are stored for rotated pairs (x_2i, x_2i+1); ours are (x_i, x_{i + head/2})."""
        tensor = self._read(name)
        part = name.split(".")[-2]
        if part not in ("attn_q", "attn_k"):
            return tensor
        count = self._needed("llama.attention.head_count")
        heads = count if part == "attn_q" else self.keys.get("llama.attention.head_count_kv", count)
        return tensor.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2).contiguous()

    def _tensor(self, name: str) -> Any:
        if name not in self.tensors:
            raise ValueError(f"{self.path} has no tensor {name}")
        return self.tensors[name]

    def _read(self, name: str) -> Tensor:
        from gguf.quants import dequantize

        found = self._tensor(name)
        self.used.add(name)
        if found.data.size == 0 or found.data.nbytes * 8 < found.n_elements:
            raise ValueError(f"{self.path} is damaged: {name} ends too early")
        try:
            numbers = dequantize(found.data, found.tensor_type)
        except NotImplementedError:
            raise ValueError(f"{self.path}: {name} is quantised as {found.tensor_type.name}, "
                             "which the gguf package cannot dequantise") from None  # fmt: skip
        return torch.tensor(numbers, dtype=torch.float32).reshape(*reversed(found.shape.tolist()))

    def details(self) -> dict[str, Any]:
        """The token ids that a config.json would contain."""
        roles = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
        found = {name: self.keys.get(f"tokenizer.ggml.{role}_token_id") for name, role in roles.items()}
        found["max_position_embeddings"] = self.keys.get("llama.context_length")
        return {name: value for name, value in found.items() if value is not None}


class _Keys(Mapping[str, Any]):
    """The metadata of a file, decoded on demand: a vocabulary takes seconds."""

    def __init__(self, reader: Any) -> None:
        self.fields = reader.fields

    def __getitem__(self, key: str) -> Any:
        return self.fields[key].contents()

    def __iter__(self) -> Any:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)


@lru_cache(maxsize=1)
def _reader(path: Path, changed: int) -> Any:
    """`changed`: when the file last did, so that a new file of the same name is read again."""
    try:
        from gguf import GGUFReader
    except ImportError:
        raise ValueError("reading GGUF files needs the gguf package: pip install 'heedful[gguf]'") from None
    try:
        gguf_header.check(path)
        return GGUFReader(path)
    except (ValueError, IndexError, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a GGUF file, or is damaged: {error}") from None


def _short(number: float) -> float:
    """A float32 as the decimal number that it was written as: 9.999999747378752e-06 -> 1e-05"""
    return float(f"{number:.7g}")
