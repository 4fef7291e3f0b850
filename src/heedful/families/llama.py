"""LLaMA (Touvron et al. 2023) and its successors: pre-norm with RMSNorm, rotary positions, SwiGLU, no biases.

LLaMA 2 (70B) and 3 share keys and values among query heads; LLaMA 3.2 and SmolLM2 tie input and output.
"""

from typing import Any

from heedful.families import Family, activation_from, activation_to, transformer
from heedful.model.architecture.decoder_only import DecoderOnlyConfig
from heedful.model.feedforward import FeedForwardConfig
from heedful.model.input.tokens import TokensConfig
from heedful.model.multihead import MultiHeadConfig
from heedful.model.norm import NormConfig
from heedful.model.position.rotary import RotaryConfig, ScalingConfig
from heedful.model.stack.transformer import TransformerConfig


def llama(
    *,
    width: int,
    hidden: int,
    layers: int,
    heads: int,
    kv_heads: int | None = None,
    vocab: int = 32000,
    eps: float = 1e-5,
    base: float = 10000.0,
    scaling: ScalingConfig | None = None,
    tie: bool = False,
) -> DecoderOnlyConfig:
    return DecoderOnlyConfig(
        vocab=vocab,
        width=width,
        tie="all" if tie else "none",
        embedding=TokensConfig(scale=False),
        decoder=TransformerConfig(
            layers=layers,
            attention=MultiHeadConfig(heads=heads, kv_heads=kv_heads, bias=False, output_bias=False),
            feedforward=FeedForwardConfig(hidden=hidden, activation="swiglu", bias=False),
            norm=NormConfig(kind="rms", eps=eps),
            placement="pre",
            position=RotaryConfig(base=base, scaling=scaling),
            dropout=0.0,
        ),
    )


def read_config(theirs: dict[str, Any], names: set[str]) -> DecoderOnlyConfig:
    bias = theirs.get("attention_bias", False)
    width, heads = theirs["hidden_size"], theirs["num_attention_heads"]
    kv_heads, head_width = theirs.get("num_key_value_heads"), theirs.get("head_dim")
    return DecoderOnlyConfig(
        vocab=theirs["vocab_size"],
        width=width,
        tie="all" if theirs.get("tie_word_embeddings", False) else "none",
        embedding=TokensConfig(scale=False),
        decoder=TransformerConfig(
            layers=theirs["num_hidden_layers"],
            attention=MultiHeadConfig(
                heads=heads,
                kv_heads=None if kv_heads == heads else kv_heads,
                head_width=None if head_width and head_width * heads == width else head_width,
                bias=bias,
                output_bias=bias,
                dropout=theirs.get("attention_dropout", 0.0),
            ),
            feedforward=FeedForwardConfig(
                hidden=theirs["intermediate_size"],
                activation=activation_from(theirs.get("hidden_act", "silu"), gated=True),
                bias=theirs.get("mlp_bias", False),
            ),
            norm=NormConfig(kind="rms", eps=theirs.get("rms_norm_eps", 1e-6)),
            placement="pre",
            position=_read_rotary(theirs),
            dropout=0.0,
        ),
    )


def _read_rotary(theirs: dict[str, Any]) -> RotaryConfig:
    """Two formats: `rope_theta` and `rope_scaling`, or, since transformers 5, both in `rope_parameters`. Of a folder
    with both, transformers reads `rope_scaling`."""
    name = "rope_scaling" if theirs.get("rope_scaling") else "rope_parameters"
    rope = theirs.get(name) or {}
    if not isinstance(rope, dict):
        raise ValueError(f"{name} must be an object such as {{'rope_type': 'default'}}, not {rope!r:.100}")
    base = rope.get("rope_theta", theirs.get("rope_theta", 10000.0))
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return RotaryConfig(base=base)
    if kind != "llama3":
        raise ValueError(f"rope_type {kind!r} is not supported; known: default, llama3")
    scaling = ScalingConfig(
        factor=rope["factor"],
        low_frequency_factor=rope["low_freq_factor"],
        high_frequency_factor=rope["high_freq_factor"],
        original_length=rope["original_max_position_embeddings"],
    )
    return RotaryConfig(base=base, scaling=scaling)


def write_config(config: DecoderOnlyConfig) -> dict[str, Any]:
    stack = transformer(config.decoder)
    position = stack.position
    if not isinstance(position, RotaryConfig):
        raise ValueError(f"LLaMA requires rotary positions, not {position.kind}")
    rope: dict[str, Any] = {"rope_theta": position.base, "rope_type": "default"}
    if position.scaling is not None:
        rope |= {
            "rope_type": "llama3",
            "factor": position.scaling.factor,
            "low_freq_factor": position.scaling.low_frequency_factor,
            "high_freq_factor": position.scaling.high_frequency_factor,
            "original_max_position_embeddings": position.scaling.original_length,
        }
    return {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": config.vocab,
        "hidden_size": config.width,
        "intermediate_size": stack.feedforward.hidden,
        "num_hidden_layers": stack.layers,
        "num_attention_heads": stack.attention.heads,
        "num_key_value_heads": stack.attention.kv_head_count,
        "head_dim": stack.attention.head_width_in(config.width),
        "hidden_act": activation_to(stack.feedforward.activation),
        "rms_norm_eps": stack.norm.eps,
        "attention_bias": stack.attention.bias,
        "mlp_bias": stack.feedforward.bias,
        "attention_dropout": stack.attention.dropout,
        "rope_parameters": rope,
        "tie_word_embeddings": config.tie == "all",
    }


def names(config: DecoderOnlyConfig) -> dict[str, str | tuple[str, ...]]:
    ours, theirs = "decoder.layers.{}", "model.layers.{}"
    return {
        "embedding": "model.embed_tokens",
        f"{ours}.attention.query_key_value": tuple(f"{theirs}.self_attn.{part}_proj" for part in "qkv"),
        f"{ours}.attention.output": f"{theirs}.self_attn.o_proj",
        f"{ours}.attention_residual.norm": f"{theirs}.input_layernorm",
        f"{ours}.feedforward.input": (f"{theirs}.mlp.gate_proj", f"{theirs}.mlp.up_proj"),
        f"{ours}.feedforward.output": f"{theirs}.mlp.down_proj",
        f"{ours}.feedforward_residual.norm": f"{theirs}.post_attention_layernorm",
        "decoder.norm": "model.norm",
        "head.table": "lm_head",
    }


FAMILY = Family(
    presets={
        "llama-7b": llama(width=4096, hidden=11008, layers=32, heads=32, eps=1e-6),
        "llama-13b": llama(width=5120, hidden=13824, layers=40, heads=40, eps=1e-6),
        "llama-33b": llama(width=6656, hidden=17920, layers=60, heads=52, eps=1e-6),
        "llama-65b": llama(width=8192, hidden=22016, layers=80, heads=64, eps=1e-5),
        "llama2-7b": llama(width=4096, hidden=11008, layers=32, heads=32),
        "llama2-13b": llama(width=5120, hidden=13824, layers=40, heads=40),
        "llama2-70b": llama(width=8192, hidden=28672, layers=80, heads=64, kv_heads=8),
        "llama3-8b": llama(width=4096, hidden=14336, layers=32, heads=32, kv_heads=8, vocab=128256, base=5e5),
        "llama3-70b": llama(width=8192, hidden=28672, layers=80, heads=64, kv_heads=8, vocab=128256, base=5e5),
        "llama3.2-1b": llama(
            width=2048,
            hidden=8192,
            layers=16,
            heads=32,
            kv_heads=8,
            vocab=128256,
            base=5e5,
            scaling=ScalingConfig(factor=32.0),
            tie=True,
        ),
        "smollm2-135m": llama(width=576, hidden=1536, layers=30, heads=9, kv_heads=3, vocab=49152, base=1e5, tie=True),
        "smollm2-360m": llama(width=960, hidden=2560, layers=32, heads=15, kv_heads=5, vocab=49152, base=1e5, tie=True),
        "smollm2-1.7b": llama(width=2048, hidden=8192, layers=24, heads=32, vocab=49152, base=130000.0, tie=True),
    },
    model_type="llama",
    read_config=read_config,
    write_config=write_config,
    names=names,
    duplicates={"lm_head.weight": "model.embed_tokens.weight"},
    ignored=(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",),
)
