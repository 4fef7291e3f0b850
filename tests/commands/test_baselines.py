"""Recurrent and convolutional models through everything a user does with a model: train, resume, translate, evaluate,
align, inspect, plan, count, generate."""

import json
import sys

import pytest
import torch
from safetensors.torch import load_file

import heedful
from heedful.commands.main import main
from heedful.data.columns import DOCUMENT
from heedful.data.inputs import Inputs
from heedful.decoding.runner import Request
from heedful.exchange.hugging_face import save
from heedful.inspection.attention import look
from heedful.model.architecture.encoder_decoder import EncoderDecoderConfig
from heedful.model.create import create
from heedful.training import loop
from heedful.training.recipe import read_recipe
from heedful.training.run import train
from tests.commands.in_process import refused
from tests.corpora import pairs

SMALL = ["model.width=16", "tokenizer.kind=character", "training.batch_tokens=256", "training.warmup=10",
         "training.steps=30", "training.save_every=10", "training.validate_every=30", "training.samples=0"]  # fmt: skip
MODELS = {
    "recurrent": ["model.encoder=recurrent", "model.decoder=recurrent"],
    "recurrent-feeding": [
        *("model.encoder=recurrent", "model.encoder.cell=lstm", "model.decoder=recurrent"),
        *("model.decoder.cell=lstm", "model.decoder.attention=multiplicative", "model.decoder.input_feeding=true"),
    ],
    "recurrent-none": ["model.encoder=recurrent", "model.decoder=recurrent", "model.decoder.attention=none"],
    "convolutional": ["model.encoder=convolutional", "model.decoder=convolutional", "model.decoder.layers=2"],
    "mixed": ["model.encoder=convolutional", "model.decoder=recurrent"],
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("baselines")
    pairs(folder / "p.tsv", 200)
    (folder / "book.txt").write_text("the quick brown fox jumps over the lazy dog\n\n" * 60)
    return folder


def run(place, out, *changes):
    recipe = read_recipe("tiny", [*SMALL, *changes])
    result = train(recipe, Inputs((place / "p.tsv",)), place / out, cache=place / "cache")
    torch.set_grad_enabled(True)
    return result


@pytest.fixture(scope="module")
def folders(place):
    for name, changes in MODELS.items():
        run(place, name, *changes)
    return {name: place / name for name in MODELS}


def said(monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", ["heedful", *map(str, words)])
    try:
        main()
    except SystemExit as end:
        assert not end.code, capsys.readouterr().err
    return capsys.readouterr().out


@pytest.mark.parametrize("name", MODELS)
def test_resumed_training_equals_uninterrupted_training(place, folders, name, monkeypatch):
    plain = loop.Trainer._apply

    def dying(self, loss):
        if self.progress.step == 23:
            raise KeyError("killed")
        return plain(self, loss)

    with monkeypatch.context() as patch, pytest.raises(KeyError):
        patch.setattr(loop.Trainer, "_apply", dying)
        run(place, f"{name}-cut", *MODELS[name])
    run(place, f"{name}-cut", *MODELS[name])
    for file in ("model", "checkpoints/30/model", "checkpoints/30/optimizer"):
        first, second = (load_file(place / out / f"{file}.safetensors") for out in (name, f"{name}-cut"))
        assert first.keys() == second.keys()
        for key in first:
            assert torch.equal(first[key], second[key]), key


@pytest.mark.parametrize("name", MODELS)
def test_it_decodes_the_same_in_any_company(folders, name):
    translator = heedful.load(folders[name])
    lines = ["a b c d", "e", "f g h i j a b"]
    for beam in (1, 3):
        together = translator.translate(lines, beam_size=beam)
        alone = [translator.translate(line, beam_size=beam) for line in lines]
        assert [one.text for one in together] == [one.text for one in alone]
    assert "e" in translator.translate(Request("a b", required=("e",))).text
    assert "a" not in translator.translate(Request("a b", banned=("a",))).text


@pytest.mark.parametrize("name", MODELS)
def test_its_attention_is_shown_where_it_has_one(folders, name, monkeypatch, capsys, tmp_path):
    translator = heedful.load(folders[name])
    seen = look(translator, "a b c")
    page = tmp_path / "page.html"
    said(monkeypatch, capsys, "inspect", folders[name], "a b c", "--out", page)
    assert page.is_file()
    words = ("translate", folders[name], "-i", tmp_path / "lines.txt", "--format", "jsonl", "--alignment")
    (tmp_path / "lines.txt").write_text("a b c\n")
    if name == "recurrent-none":
        assert seen.kinds() == []
        assert "no alignment.json" in refused(monkeypatch, capsys, *words)
        return
    assert seen.kinds() == ["cross"]
    weights, queries, keys = seen.of("cross")
    assert weights.shape == (2 if name == "convolutional" else 1, 1, len(queries), len(keys))
    assert torch.allclose(weights.sum(-1), torch.ones(()), atol=1e-5)
    found = json.loads(said(monkeypatch, capsys, *words))
    assert len(found["alignment"]) == len(found["translation"].split())


@pytest.mark.parametrize("name", ["recurrent", "convolutional"])
def test_the_commands_take_it(place, folders, name, monkeypatch, capsys):
    folder = folders[name]
    scores = json.loads(said(monkeypatch, capsys, "evaluate", folder, place / "p.tsv", "--json"))
    assert scores
    assert "recurrent" in said(monkeypatch, capsys, "doctor", folder) or name == "convolutional"
    count = json.loads(said(monkeypatch, capsys, "params", folder / "config.yaml", "--json"))
    assert all(part["formula"] == part["counted"] for part in count["components"].values())
    quick = heedful.load(folder, quantize="int8")
    assert quick.translate("a b c").text is not None


@pytest.mark.parametrize("kind", ["recurrent", "convolutional"])
def test_a_budget_keeps_the_model_that_was_chosen(place, kind, tmp_path):
    recipe = read_recipe(kind, ["model.width=16", "tokenizer.kind=character", "training.samples=0"])
    train(recipe, Inputs((place / "p.tsv",)), tmp_path / "run", cache=place / "cache", budget="2s")
    torch.set_grad_enabled(True)
    written = read_recipe(str(tmp_path / "run" / "config.yaml"))
    assert written.model.encoder.kind == kind and written.model.width == 16


@pytest.mark.parametrize("kind", ["recurrent", "convolutional"])
def test_it_is_a_language_model_too(place, kind, tmp_path):
    changes = ["model.width=16", f"model.decoder={kind}", "task.context=32", "training.batch_tokens=128",
               "training.steps=30", "training.validate_every=30"]  # fmt: skip
    recipe = read_recipe("char-gpt", changes)
    result = train(recipe, Inputs((place / "book.txt",), columns=DOCUMENT), tmp_path / "run", cache=tmp_path / "cache")
    torch.set_grad_enabled(True)
    assert result.numbers["loss"] < 10
    writer = heedful.load(tmp_path / "run")
    texts = ["the quick", "a"]
    options = {"num_beams": 2, "do_sample": False, "max_new_tokens": 8}
    together = [found[0].text for found in writer.generate(texts, **options)]
    assert together == [writer.generate(text, **options)[0].text for text in texts]


@pytest.mark.parametrize("family", ["vaswani", "marian", "bart", "t5"])
def test_families_that_have_no_such_stack_refuse_it(family, tmp_path):
    model = create(EncoderDecoderConfig(vocab=23, width=32, encoder="recurrent", decoder="convolutional"))
    with pytest.raises(ValueError, match="Hugging Face's families have no (recurrent|convolutional) stack"):
        save(model, tmp_path, family)


def test_packed_documents_are_refused():
    with pytest.raises(ValueError, match="task causal_lm needs an attention that supports segments"):
        read_recipe("char-gpt", ["model.decoder=recurrent", "task.windows=documents"])
