"""Bottleneck adapters against AdapterHub's library (`adapters`), where `adapter_oracles.sh` has put it: same outputs
and same gradients of the adapter's weights in each placement, in post-norm (BERT, BART) and pre-norm (GPT-2, Llama)
models.

It needs another transformers than ours, so it runs in a process of its own, once for all cases.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

from heedful.adapters import install
from heedful.adapters.bottleneck import BottleneckConfig
from heedful.exchange.hugging_face import load
from tests.adapters.models import shaken

FOLDER = os.environ.get("HEEDFUL_ADAPTER_ORACLES", "")
VOCAB, BATCH, SOURCE, TARGET, REDUCTION = 53, 3, 7, 11, 4
SIZES = {"primes": (28, 13), "kernels": (64, 48)}  # width, hidden; four heads, bottlenecks of 7 and 16
PRE_NORM = ("gpt2", "llama")

# Of the library: its names for the three, with the reduction and the activation of ours.
CONFIGS = {
    "houlsby": {"mh_adapter": True, "output_adapter": True, "non_linearity": "swish"},
    "pfeiffer": {"mh_adapter": False, "output_adapter": True, "non_linearity": "relu", "original_ln_before": True},
    "parallel": {"mh_adapter": False, "output_adapter": True, "non_linearity": "relu", "is_parallel": True,
                 "scaling": 4.0},
}  # fmt: skip
OURS = {
    "houlsby": {"style": "houlsby", "activation": "silu"},
    "pfeiffer": {"style": "pfeiffer"},
    "parallel": {"style": "parallel", "scale": 4.0},
}


def bert(width, hidden):
    return hf.BertModel(
        hf.BertConfig(vocab_size=VOCAB, hidden_size=width, num_hidden_layers=3, num_attention_heads=4,
                      intermediate_size=hidden, max_position_embeddings=41)
    )  # fmt: skip


def bart(width, hidden):
    config = hf.BartConfig(
        vocab_size=VOCAB, d_model=width, encoder_layers=2, decoder_layers=3, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=hidden, decoder_ffn_dim=hidden, max_position_embeddings=41,
        pad_token_id=0, bos_token_id=2, eos_token_id=1, decoder_start_token_id=0, forced_eos_token_id=None,
    )  # fmt: skip
    return hf.BartForConditionalGeneration(config)


def gpt2(width, hidden):
    return hf.GPT2LMHeadModel(
        hf.GPT2Config(vocab_size=VOCAB, n_embd=width, n_inner=hidden, n_layer=3, n_head=4, n_positions=41)
    )


def llama(width, hidden):
    config = hf.LlamaConfig(
        vocab_size=VOCAB, hidden_size=width, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        head_dim=6, intermediate_size=hidden, max_position_embeddings=41, tie_word_embeddings=False,
    )  # fmt: skip
    return hf.LlamaForCausalLM(config)


MODELS = {"bert": bert, "bart": bart, "gpt2": gpt2, "llama": llama}
PLACEMENTS = [(name, style, False) for name in MODELS for style in OURS]
PLACEMENTS.append(("bart", "houlsby", True))  # also after attention to the source
CASES = {
    f"{name}-{style}{'-cross' if cross else ''}-{size}": (name, style, cross, size)
    for name, style, cross in PLACEMENTS
    for size in SIZES
}
UNNORMED = {f"{name}-parallel-unnormed": (name, "parallel", False, "primes") for name in PRE_NORM}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with our models, and in it what the library computes of every case."""
    if not FOLDER:
        pytest.skip("HEEDFUL_ADAPTER_ORACLES names no folder; see adapter_oracles.sh")
    place = tmp_path_factory.mktemp("bottleneck")
    save_file(inputs(["input_ids"]), place / "inputs.safetensors")
    save_file(inputs(["input_ids", "decoder_input_ids"]), place / "inputs-bart.safetensors")
    for name, build in MODELS.items():
        for size, sizes in SIZES.items():
            torch.manual_seed(1)
            base = build(*sizes)
            shaken(base, dict(base.named_parameters())).save_pretrained(place / f"{name}-{size}")
    cases = []
    for case, (name, style, cross, size) in {**CASES, **UNNORMED}.items():
        model, places = adapted(place, name, style, cross, size)
        tensors = {key: model.get_parameter(ours).detach() for key, ours in places.items()}
        save_file(tensors, place / f"{case}.safetensors")
        cases.append({
            "class": type(MODELS[name](*SIZES[size])).__name__,
            "base": str(place / f"{name}-{size}"),
            "config": {**CONFIGS[style], "reduction_factor": REDUCTION, "cross_adapter": cross},
            "normed": style == "parallel" and name in PRE_NORM and case not in UNNORMED,
            "weights": str(place / f"{case}.safetensors"),
            "inputs": str(place / ("inputs-bart.safetensors" if name == "bart" else "inputs.safetensors")),
            "out": str(place / f"{case}-theirs.safetensors"),
        })  # fmt: skip
    (place / "cases.json").write_text(json.dumps(cases))
    words = [sys.executable, str(Path(__file__).with_name("adapter_oracle.py")), str(place / "cases.json")]
    environment = {**os.environ, "PYTHONPATH": FOLDER, "HF_HUB_OFFLINE": "1"}
    result = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return place


def inputs(names):
    torch.manual_seed(7)
    lengths = (SOURCE, TARGET) if len(names) == 2 else (TARGET,)
    return {name: torch.randint(3, VOCAB, (BATCH, length)) for name, length in zip(names, lengths, strict=True)}


def adapted(place, name, style, cross, size):
    """Our model with its adapter, and {their place of a weight: the name of ours}."""
    model = load(place / f"{name}-{size}").model.eval()
    torch.manual_seed(3)
    names = install(BottleneckConfig(reduction=REDUCTION, cross=cross, **OURS[style]), model)
    shaken(model, names)
    places = {}
    for one in names:
        stack, _, layer, residual, _, side, leaf = one.split(".")
        index = int(layer) + (2 if (name, stack) == ("bart", "decoder") else 0)  # they count on from the encoder
        places[f"{index}.{residual.removesuffix('_residual')}.{side}.{leaf}"] = one
    return model, places


@pytest.mark.parametrize("case", CASES)
def test_each_placement_equals_the_librarys_in_outputs_and_gradients(place, case):
    name, *_ = CASES[case]
    model, places = adapted(place, *CASES[case])
    theirs = load_file(place / f"{case}-theirs.safetensors")
    found = model(*inputs(["input_ids", "decoder_input_ids"] if name == "bart" else ["input_ids"]).values())
    torch.testing.assert_close(found, theirs["output"], rtol=1e-4, atol=1e-4)
    found.square().sum().backward()
    for key, ours in places.items():
        wanted = theirs[f"gradient.{key}"]
        scale = wanted.abs().max().item()
        assert scale > 0
        torch.testing.assert_close(model.get_parameter(ours).grad, wanted, rtol=1e-3, atol=1e-4 * scale, msg=key)


@pytest.mark.parametrize("case", UNNORMED)
def test_parallel_in_a_pre_norm_model_reads_what_the_network_reads_and_the_librarys_does_not(place, case):
    """In the code of He et al. 2022 too, it reads norm(x) by default (hi_lnbefore 0); in the library, x."""
    model, _ = adapted(place, *UNNORMED[case])
    theirs = load_file(place / f"{case}-theirs.safetensors")
    assert (model(*inputs(["input_ids"]).values()) - theirs["output"]).abs().max() > 0.1
