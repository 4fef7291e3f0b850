"""Adapters beside PEFT: a folder of either opens in the other, with the same logits and gradients."""

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file

from heedful.adapters import AdapterConfig, install
from heedful.adapters.lora import LoraConfig
from heedful.exchange import peft as exchange
from heedful.exchange.hugging_face import load
from tests.adapters.models import shaken

peft = pytest.importorskip("peft")

VOCAB = 53
SIZES = {"primes": (28, 6, 13), "kernels": (64, 16, 48)}  # width, head, hidden: four heads, two of keys and values


def llama(size):
    width, head, hidden = SIZES[size]
    config = hf.LlamaConfig(
        vocab_size=VOCAB, hidden_size=width, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        head_dim=head, intermediate_size=hidden, max_position_embeddings=41, tie_word_embeddings=False,
    )  # fmt: skip
    return hf.LlamaForCausalLM(config)


def gpt2(size):
    width, _, _ = SIZES[size]
    config = hf.GPT2Config(vocab_size=VOCAB, n_embd=width, n_layer=2, n_head=4, n_positions=41)
    return hf.GPT2LMHeadModel(config)


def bart(size):
    width, _, hidden = SIZES[size]
    config = hf.BartConfig(
        vocab_size=VOCAB, d_model=width, encoder_layers=2, decoder_layers=3, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=hidden, decoder_ffn_dim=hidden, max_position_embeddings=41,
        pad_token_id=0, bos_token_id=2, eos_token_id=1, decoder_start_token_id=0, forced_eos_token_id=None,
    )  # fmt: skip
    return hf.BartForConditionalGeneration(config)


MODELS = {"llama": llama, "gpt2": gpt2, "bart": bart}


def published(name, size, folder):
    """A small model of transformers with large weights, also as a folder."""
    torch.manual_seed(1)
    model = MODELS[name](size).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return model


def logits(model, name):
    torch.manual_seed(7)
    source, target = torch.randint(3, VOCAB, (3, 7)), torch.randint(3, VOCAB, (3, 11))
    theirs = isinstance(model, torch.nn.Module) and hasattr(model, "peft_config")
    if name == "bart":
        return model(input_ids=source, decoder_input_ids=target).logits if theirs else model(source, target)
    return model(input_ids=target).logits[:, -target.shape[1] :] if theirs else model(target)


def squares(grads):
    return sum(grad.square().sum() for grad in grads)


def label(value):
    return "-".join(map(str, value)) if isinstance(value, dict) else value


LORAS = [
    ("llama", {"target_modules": ["q_proj", "v_proj"]}),
    ("llama", {"target_modules": "all-linear", "use_rslora": True}),
    ("llama", {"target_modules": ["k_proj", "up_proj"], "use_dora": True}),
    (
        "llama",
        {"target_modules": ["q_proj", "down_proj"], "rank_pattern": {"down_proj": 5}, "alpha_pattern": {"q_proj": 3}},
    ),
    ("llama", {"target_modules": ["embed_tokens"]}),
    ("gpt2", {"target_modules": ["c_attn"], "fan_in_fan_out": True}),
    ("gpt2", {"target_modules": ["c_fc"], "fan_in_fan_out": True}),
    ("bart", {"target_modules": ["q_proj", "out_proj", "fc1"]}),
]


OURS = [
    {"targets": ["query", "value"]},
    {"targets": ["all"], "root": True},
    {"targets": ["output"], "magnitude": True},
]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("name", "options"), LORAS, ids=label)
def test_lora_of_peft_opens_here(name, options, size, tmp_path):
    base = published(name, size, tmp_path / "base")
    config = peft.LoraConfig(r=3, lora_alpha=7, init_lora_weights=False, **options)
    theirs = peft.get_peft_model(base, config)
    theirs.save_pretrained(tmp_path / "adapter")
    ours = load(tmp_path / "base").model.eval()
    adapter, state = exchange.read(tmp_path / "adapter", ours)
    names = install(adapter, ours)
    assert names == set(state)
    ours.load_state_dict(state, strict=False)
    expected = logits(theirs, name)
    found = logits(ours, name)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    expected.square().sum().backward()
    found.square().sum().backward()
    a = {key: value.grad for key, value in theirs.named_parameters() if "lora_A" in key}
    mine = {key: value.grad for key, value in ours.named_parameters() if key.endswith(".a")}
    if name != "gpt2" and "rank_pattern" not in options and a:
        assert len(a) == len(mine)
        torch.testing.assert_close(squares(mine.values()), squares(a.values()), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "options",
    [{"targets": ["query", "value"]}, {"targets": ["all"], "root": True}, {"targets": ["output"], "magnitude": True}],
)
def test_our_lora_opens_in_peft(name, options, size, tmp_path):
    base = published(name, size, tmp_path / "base")
    ours = load(tmp_path / "base").model.eval()
    adapter = LoraConfig(rank=3, alpha=7.0, **options)
    names = install(adapter, ours)
    shaken(ours, names)
    exchange.write(ours, adapter, sorted(names), tmp_path / "adapter", base="base")
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "adapter")
    torch.testing.assert_close(logits(ours, name), logits(theirs, name), rtol=1e-4, atol=1e-4)
    again, state = exchange.read(tmp_path / "adapter", load(tmp_path / "base").model)
    copy = load(tmp_path / "base").model.eval()
    install(again, copy)
    copy.load_state_dict(state, strict=False)
    torch.testing.assert_close(logits(copy, name), logits(ours, name), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["prefix", "prompt"])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_prefix_and_prompt_both_ways(name, kind, size, tmp_path):
    base = published(name, size, tmp_path / "base")
    ours = load(tmp_path / "base").model.eval()
    adapter = AdapterConfig.model_validate({"kind": kind, "length": 5})
    names = install(adapter, ours)
    shaken(ours, names)
    exchange.write(ours, adapter, sorted(names), tmp_path / "adapter", base="base")
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "adapter")
    for key, parameter in theirs.named_parameters():
        parameter.requires_grad_("prompt_encoder" in key)
    expected, found = logits(theirs, name), logits(ours, name)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    expected.square().sum().backward()
    found.square().sum().backward()
    (their,) = [value.grad for key, value in theirs.named_parameters() if "prompt_encoder" in key]
    mine = sum(value.grad.square().sum() for key, value in ours.named_parameters() if key in names)
    torch.testing.assert_close(mine, their.square().sum(), rtol=1e-3, atol=1e-3)
    theirs.save_pretrained(tmp_path / "again")
    copy = load(tmp_path / "base").model.eval()
    read, state = exchange.read(tmp_path / "again", copy)
    install(read, copy)
    copy.load_state_dict(state, strict=False)
    torch.testing.assert_close(logits(copy, name), found, rtol=1e-4, atol=1e-4)


def test_a_prefix_of_an_encoder_decoder_is_the_decoders(tmp_path):
    base = published("bart", "primes", tmp_path / "base")
    ours = load(tmp_path / "base").model.eval()
    adapter = AdapterConfig.model_validate({"kind": "prefix", "length": 5})
    names = install(adapter, ours)
    shaken(ours, names)
    exchange.write(ours, adapter, sorted(names), tmp_path / "adapter", base="base")
    assert load_file(tmp_path / "adapter" / "adapter_model.safetensors")["prompt_embeddings"].shape == (5, 3 * 2 * 28)
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "adapter")
    torch.testing.assert_close(logits(ours, "bart"), logits(theirs, "bart"), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"peft_type": "IA3"}, "peft_type IA3 is not supported"),
        ({"r": "many"}, "r and lora_alpha must be numbers"),
        ({"bias": "all"}, "trained biases beside LoRA"),
    ],
)
def test_a_folder_that_cannot_be_used_says_why(change, said, tmp_path):
    import json

    base = published("llama", "primes", tmp_path / "base")
    peft.get_peft_model(base, peft.LoraConfig(r=3, target_modules=["q_proj"])).save_pretrained(tmp_path / "adapter")
    file = tmp_path / "adapter" / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(ValueError, match=said):
        exchange.read(tmp_path / "adapter", load(tmp_path / "base").model)


def test_an_adapter_of_another_base_fits_nothing(tmp_path):
    base = published("llama", "primes", tmp_path / "base")
    peft.get_peft_model(base, peft.LoraConfig(r=3, target_modules=["q_proj"])).save_pretrained(tmp_path / "adapter")
    published("gpt2", "primes", tmp_path / "other")
    with pytest.raises(ValueError, match="the base has none of its modules, such as base_model.model"):
        exchange.read(tmp_path / "adapter", load(tmp_path / "other").model)
