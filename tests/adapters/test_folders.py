"""An adapter's folder: what it holds, that it needs its base, that an interrupted training of it resumes."""

import json
import os
import shutil
import subprocess

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

import heedful
from heedful.bases import base_of
from heedful.checkpoint import load_model
from heedful.data.inputs import Inputs
from heedful.training.recipe import read_recipe
from heedful.training.run import train
from tests.adapters.models import FORMS
from tests.commands.in_process import refused
from tests.commands.in_process import run as command
from tests.corpora import SMALL, pairs
from tests.processes import program
from tests.training.test_loop import StopError, interrupt, same, weights

QUICK = ["training.save_every=5", "training.validate_every=5", "training.samples=0", "training.warmup=2",
         "training.learning_rate=0.01", "training.batch_tokens=256"]  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture(scope="module")
def corpus(place):
    return pairs(place / "p.tsv")


@pytest.fixture(scope="module")
def base(place, corpus):
    recipe = read_recipe("tiny", [*SMALL, *QUICK, "training.steps=20"])
    train(recipe, Inputs((corpus,)), place / "base", cache=place / "cache")
    return place / "base"


def keys(form):
    return [f"adapter={json.dumps(FORMS[form])}"]


def tune(corpus, base, out, *changes):
    recipe = read_recipe("tiny", [f"start_from={base}", *QUICK, "training.steps=15", *changes])
    return train(recipe, Inputs((corpus,)), out, cache=corpus.parent / "cache")


@pytest.fixture(scope="module")
def lora(place, corpus, base):
    tune(corpus, base, place / "lora", *keys("lora"))
    return place / "lora"


@pytest.mark.parametrize("form", FORMS)
def test_killed_it_ends_as_if_left_alone(form, corpus, base, tmp_path, monkeypatch):
    before = base.joinpath("model.safetensors").read_bytes()
    tune(corpus, base, tmp_path / "whole", *keys(form))
    with monkeypatch.context() as patch, pytest.raises(StopError):
        interrupt(patch, 8)
        tune(corpus, base, tmp_path / "cut", *keys(form))
    tune(corpus, base, tmp_path / "cut", *keys(form))
    same(weights(tmp_path / "whole"), weights(tmp_path / "cut"))
    held = set(weights(tmp_path / "whole" / "checkpoints" / "15"))
    assert held == set(weights(tmp_path / "whole"))
    assert base.joinpath("model.safetensors").read_bytes() == before
    model = load_model(tmp_path / "whole", beside=True)
    own = weights(tmp_path / "whole")
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in own.items())
    theirs = weights(base)
    assert all(torch.equal(model.state_dict()[name], theirs[name]) for name in theirs if name not in own)
    assert any(not torch.equal(own[name], theirs[name]) for name in own) if held <= set(theirs) else True


def test_two_processes_train_the_adapter_that_one_does(corpus, base, tmp_path):
    environment = {**os.environ, "HEEDFUL_CACHE": str(corpus.parent / "cache"), "OMP_NUM_THREADS": "1"}
    dry = ["--start-from", base, *QUICK, *keys("lora"), "training.steps=15", "training.eps=0.001",
           "model.encoder.dropout=0", "model.decoder.dropout=0"]  # fmt: skip
    for name, processes in (("one", 1), ("two", 2)):
        words = program("train", corpus, "--out", tmp_path / name, *dry, processes=processes)
        result = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=240, check=False)
        assert result.returncode == 0, result.stderr
    one, two = (weights(tmp_path / name) for name in ("one", "two"))
    assert one.keys() == two.keys()
    for name, tensor in one.items():
        assert tensor.abs().max() > 1e-3 and (tensor - two[name]).abs().max() < 1e-4, name


@pytest.mark.parametrize("form", FORMS)
def test_a_trained_folder_translates_as_the_model_that_was_scored(form, corpus, base, tmp_path):
    result = tune(corpus, base, tmp_path / "a", *keys(form))
    ours = heedful.load(tmp_path / "a", streams=1)
    beside = load_model(tmp_path / "a", beside=True)
    source, target = torch.randint(5, 20, (3, 7)), torch.randint(5, 20, (3, 9))
    with torch.inference_mode():
        torch.testing.assert_close(ours.models[0](source, target), beside(source, target), rtol=1e-4, atol=1e-4)
    assert result.numbers["loss"] > 0 and ours.translate("a b").text is not None


def test_the_folder_holds_the_adapter_alone_and_names_its_base(lora, base):
    assert set(load_file(lora / "model.safetensors")) == {
        name for name in load_model(lora, beside=True).state_dict() if ".lora." in name
    }
    assert base_of(lora).folder == base.resolve()
    card = (lora / "README.md").read_text()
    assert "adapter (lora) of" in card and str(base.name) in card


def test_base_and_adapter_may_move_together_but_not_apart(lora, base, tmp_path):
    shutil.copytree(base, tmp_path / "there" / "base")
    shutil.copytree(lora, tmp_path / "there" / "lora")
    facts = json.loads((tmp_path / "there" / "lora" / "base.json").read_text())
    (tmp_path / "there" / "lora" / "base.json").write_text(json.dumps({**facts, "folder": "/nowhere"}))
    assert heedful.load(tmp_path / "there" / "lora", streams=1).translate("a b").text is not None
    shutil.rmtree(tmp_path / "there" / "base")
    with pytest.raises(
        ValueError, match="is an adapter, and its base /nowhere is not there; put the base back, or write"
    ):
        heedful.load(tmp_path / "there" / "lora")


def test_another_base_is_refused(lora, base, tmp_path):
    shutil.copytree(base, tmp_path / "base")
    shutil.copytree(lora, tmp_path / "lora")
    facts = json.loads((tmp_path / "lora" / "base.json").read_text())
    (tmp_path / "lora" / "base.json").write_text(json.dumps({**facts, "folder": str(tmp_path / "base")}))
    changed = load_file(base / "model.safetensors")
    changed["embedding.weight"] = changed["embedding.weight"] + 1
    save_file(changed, tmp_path / "base" / "model.safetensors")
    with pytest.raises(ValueError, match="is an adapter for another model than .*: its weights are not those"):
        heedful.load(tmp_path / "lora")


def _without_one(tensors):
    return dict(list(tensors.items())[1:])


def _with_nan(tensors):
    return {name: tensor * torch.nan for name, tensor in tensors.items()}


def _wider(tensors):
    return {name: torch.cat([tensor, tensor]) for name, tensor in tensors.items()}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_without_one, "does not fit the adapter in config.yaml"),
        (_wider, "does not fit the adapter in config.yaml"),
        (_with_nan, "values that are NaN or infinite"),
    ],
)
def test_weights_that_do_not_fit_are_refused_in_one_line(change, said, lora, tmp_path):
    shutil.copytree(lora, tmp_path / "lora")
    save_file(change(load_file(lora / "model.safetensors")), tmp_path / "lora" / "model.safetensors")
    with pytest.raises(ValueError, match=said) as caught:
        heedful.load(tmp_path / "lora")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("rank", [2_000_000_000, 0, "x", None])
def test_a_recipe_that_lies_about_sizes_is_refused_at_once(rank, lora, tmp_path):
    shutil.copytree(lora, tmp_path / "lora")
    recipe = yaml.safe_load((lora / "config.yaml").read_text())
    recipe["adapter"]["rank"] = rank
    (tmp_path / "lora" / "config.yaml").write_text(yaml.safe_dump(recipe))
    with pytest.raises(ValueError) as caught:
        heedful.load(tmp_path / "lora")
    assert "\n" not in str(caught.value)


def test_training_goes_on_from_a_merged_adapter_but_not_from_one_that_cannot_be_merged(corpus, base, lora, tmp_path):
    tune(corpus, lora, tmp_path / "next", "training.learning_rate=1e-9")
    merged = load_model(lora).state_dict()
    for name, tensor in load_model(tmp_path / "next").state_dict().items():
        torch.testing.assert_close(tensor, merged[name], atol=1e-5, rtol=0)
    tune(corpus, base, tmp_path / "prompt", *keys("prompt"))
    with pytest.raises(ValueError, match="holds an adapter .prompt. that cannot be merged into its base; use the base"):
        tune(corpus, tmp_path / "prompt", tmp_path / "nowhere")


def test_a_new_head_is_in_the_adapters_folder(base, tmp_path):
    rows = tmp_path / "labelled.tsv"
    rows.write_text("label\ttext\n" + "".join(f"{'ab'[n % 2]}\t{['good', 'bad'][n % 2]} {n % 7}\n" for n in range(80)))
    changes = {"training.steps": 20, "training.validate_every": 10, "training.save_every": 10, "model.width": 16}
    heedful.train(rows, out=tmp_path / "reader", recipe="classify", changes={**changes, "model.encoder.layers": 1})
    tuning = {"adapter": FORMS["lora"], "training.steps": 20, "task.multi_label": False}
    rows.write_text(rows.read_text().replace("a\t", "c\t") + "d\tugly\n" * 9)
    found = heedful.train(rows, out=tmp_path / "a", recipe="classify", start_from=tmp_path / "reader", changes=tuning)
    held = load_file(tmp_path / "a" / "model.safetensors")
    assert any(name.startswith("heads.") for name in held) and any(".lora." in name for name in held)
    before = found.predict(["good 1", "ugly"])
    assert [one["text"] for one in heedful.load(tmp_path / "a").predict(["good 1", "ugly"])] == [
        one["text"] for one in before
    ]


def test_commands_on_adapters(monkeypatch, capsys, lora, base, tmp_path):
    said = command(monkeypatch, capsys, "merge", lora, "--out", tmp_path / "merged")
    assert "merged and beside differ by at most" in said and "best tokens equal: 100.00%" in said
    ours, merged = heedful.load(lora, streams=1), heedful.load(tmp_path / "merged", streams=1)
    assert [one.text for one in ours.translate(["a b", "c d e"])] == [
        one.text for one in merged.translate(["a b", "c d e"])
    ]
    assert not (tmp_path / "merged" / "base.json").exists()
    command(monkeypatch, capsys, "merge", lora, lora, "--weights", "0.25,0.75", "--out", tmp_path / "twice")
    for name, tensor in load_model(tmp_path / "twice").state_dict().items():
        torch.testing.assert_close(tensor, load_model(lora).state_dict()[name], atol=1e-5, rtol=1e-5)


def test_mistakes_of_commands(monkeypatch, capsys, lora, base, tmp_path):
    for words, said in (
        (["merge", base, "--out", tmp_path / "x"], "is not the folder of an adapter"),
        (["merge", lora, "--out", base], "is not empty; choose another --out"),
        (
            ["merge", lora, lora, "--weights", "1", "--out", tmp_path / "x"],
            "--weights takes a number for each of the 2",
        ),
        (["export", base, "--to", "peft", "--out", tmp_path / "x"], "holds a whole model, not an adapter"),
        (["import", base, "--base", base, "--out", tmp_path / "x"], "holds no adapter of PEFT's"),
        (["train", "p.tsv", "--out", tmp_path / "x", "adapter=lora"], "name it: --start-from MODEL"),
        (["train", "p.tsv", "--out", tmp_path / "x", "--start-from", base, "adapter=lorra"], "did you mean 'lora'?"),
    ):
        assert said in refused(monkeypatch, capsys, *words)


def test_a_target_that_does_not_exist_is_named_before_training(corpus, base, tmp_path):
    with pytest.raises(ValueError, match="no linear map is called 'quary'; did you mean 'query'?"):
        tune(corpus, base, tmp_path / "x", "adapter=lora", "adapter.targets=[quary]")
