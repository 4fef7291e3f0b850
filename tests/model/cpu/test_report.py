"""`heedful doctor MODEL`: part by part, what runs it and why."""

import pytest

from heedful.families.vaswani import vaswani
from heedful.model.architecture.decoder_only import DecoderOnlyConfig
from heedful.model.architecture.encoder_only import EncoderOnlyConfig
from heedful.model.cpu import kernels
from heedful.model.cpu.report import report
from heedful.model.int8 import quantize_int8
from tests.model.cpu.both import build

pytestmark = pytest.mark.skipif(kernels.NATIVE is None, reason="no kernels were compiled")
STACK = {"attention": {"heads": 2}, "feedforward": {"hidden": 32}}


def paths(model):
    return {row.part: (row.training, row.decoding) for row in report(model)}


def built(changes, width=32, **more):
    return paths(build({**STACK, **changes}, width=width, **more))


def test_the_papers_model():
    model = vaswani(vocab=50, width=32, hidden=64, heads=2, layers=2, dropout=0.1).build()
    torchs, ours = ("torch (no kernel yet)", "kernels"), ("kernels", "kernels")
    assert paths(model) == {
        "embedding": torchs,
        "encoder.position": torchs,
        "encoder.attention": ours,
        "encoder.feedforward": ours,
        "encoder.norms": ours,
        "decoder.position": torchs,
        "decoder.attention": ours,
        "decoder.cross": ours,
        "decoder.feedforward": ours,
        "decoder.norms": ours,
        "head": ours,
        "loss": ("kernels", "-"),
    }


def test_a_position_without_a_kernel():
    found = built({"position": {"kind": "relative"}})
    assert found["decoder.position"] == ("torch (no kernel yet)", "modules (relative: no kernel yet)")
    assert found["decoder.attention"][1] == "modules (decoder.position: relative: no kernel yet)"
    assert found["head"] == ("kernels", "modules (decoder.position: relative: no kernel yet)")
    found = built({"position": {"kind": "alibi"}})
    assert found["decoder.attention"][1] == found["decoder.position"][1] == "kernels"
    assert found["encoder.attention"][1] == (
        "modules (encoder.position: terms added to the scores: a kernel for steps only)"
    )
    assert found["decoder.attention"][0] == "kernels, mixing by torch (terms added to the scores: no kernel yet)"
    assert found["decoder.cross"][0] == "kernels"


def test_an_encoder_that_is_left_to_its_modules():
    found = built({}, encoder={**STACK, "layers": 1, "position": {"kind": "rotary"}})
    assert found["encoder.attention"] == (
        "kernels",
        "modules (encoder.position: rotated queries and keys: a kernel for steps only)",
    )
    assert found["decoder.attention"] == ("kernels", "kernels")


def test_grouped_heads():
    found = built({"attention": {"heads": 2, "kv_heads": 1}})
    assert found["decoder.attention"] == (
        "kernels",
        "modules (decoder.layers.0.cross: grouped heads (2 share 1): no kernel yet)",
    )


def test_a_window():
    found = built({"attention": {"heads": 2, "window": 3}})
    assert found["decoder.attention"] == (
        "kernels",
        "kernels",
    )


def test_dropout_inside():
    found = built({"attention": {"heads": 2, "dropout": 0.1}, "feedforward": {"hidden": 32, "dropout": 0.1}})
    assert found["encoder.attention"] == ("kernels", "kernels")
    assert found["encoder.feedforward"] == ("kernels", "kernels")
    found = built({}, encoder={**STACK, "feedforward": {"hidden": 32, "kernel": 3}})
    assert found["encoder.feedforward"][0] == "kernels (a convolution: linear maps separately)"


def test_widths_that_are_no_multiples_of_16():
    found = built({}, width=24, encoder={**STACK, "attention": {"heads": 3}}, decoder={"attention": {"heads": 3}})
    assert found["encoder.attention"] == ("torch (head 8 is not a multiple of 16)", "kernels")
    assert found["encoder.feedforward"] == ("torch (width 24 is not a multiple of 16)", "kernels")
    assert found["encoder.norms"] == ("torch (width 24 is not a multiple of 16)", "kernels")
    assert found["loss"] == ("torch (width 24 is not a multiple of 16)", "-")
    assert built({"attention": {"heads": 4}})["encoder.attention"][0] == (
        "kernels, mixing by torch (head 8 is not a multiple of 16)"
    )
    found = built({"feedforward": {"hidden": 24}})
    assert found["encoder.feedforward"] == ("torch (width 24 is not a multiple of 16)", "kernels")


def test_gated_convolved_and_int8():
    found = built({"feedforward": {"hidden": 32, "activation": "swiglu"}})
    assert found["decoder.feedforward"] == ("kernels", "kernels")
    model = build(STACK, width=32)
    quantize_int8(model, least=0)
    assert paths(model)["decoder.feedforward"] == ("torch (int8 weights are not trained)", "kernels")


def test_layers_that_differ_have_a_row_each():
    model = build(STACK, width=32)
    other = build({**STACK, "attention": {"heads": 1}}, width=32)
    model.decoder.layers[1].attention = other.decoder.layers[0].attention
    found = paths(model)
    reason = "decoder.layers.1.attention: attention.heads 1, but 2 before: layers that differ have no kernel yet"
    assert found["decoder.attention"] == ("kernels", f"modules ({reason})")
    model.decoder.layers[1].attention.mix.dropout = 1.0
    assert "decoder.attention" not in paths(model) and paths(model)["decoder.layers.0.attention"][0] == "kernels"


def test_a_model_that_reads():
    encoder = {**STACK, "attention": {"heads": 2, "dropout": 0.1}, "embedding_norm": True}
    found = paths(EncoderOnlyConfig(vocab=50, width=32, token_types=2, encoder=encoder).build())
    assert found["encoder.attention"][0] == found["encoder.norms"][0] == "kernels"


def test_a_language_model():
    found = paths(DecoderOnlyConfig(vocab=50, width=32, decoder={**STACK, "layers": 1}).build())
    assert found["decoder.attention"] == found["head"] == ("kernels", "kernels")
    assert found["decoder.position"][1] == "kernels"
    assert found["loss"] == ("kernels", "-")


def test_without_kernels(monkeypatch):
    monkeypatch.setattr(kernels, "NATIVE", None)
    monkeypatch.setattr(kernels, "MISSING", "HEEDFUL_KERNELS is off")
    off = "no kernels: HEEDFUL_KERNELS is off"
    for part, (training, decoding) in built({}).items():
        assert training == f"torch ({off})" and decoding == ("-" if part == "loss" else f"modules ({off})")
