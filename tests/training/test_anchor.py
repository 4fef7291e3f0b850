"""Old data replayed, and weights held where they were: what they change, and what they do not."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import heedful
from heedful.checkpoint import load_model
from heedful.training import anchor as anchoring
from heedful.training.anchor import Anchor, diagonal_fisher
from heedful.training.files import arranged, replayed
from heedful.training.recipe import read_recipe
from heedful.training.run import train
from tests.commands import in_process
from tests.corpora import SMALL, pairs
from tests.training.test_loop import StopError, interrupt

TUNED = ["training.steps=12", "training.warmup=2", "training.learning_rate=0.01", "training.validate_every=4",
         "training.save_every=4", "training.samples=0",
         "training.average=false", "training.batch_tokens=256"]  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Old data spell words backwards, new data in capitals; and a model of the old data."""
    place = tmp_path_factory.mktemp("anchor")
    pairs(place / "old.tsv", 300, seed=1)
    pairs(place / "new.tsv", 200, seed=2, change=str.upper)
    pairs(place / "few.tsv", 7, seed=3, change=str.upper)
    with (place / "old.tsv").open("a") as file:  # so that its characters include capitals
        file.write("A B C D E F G H I J\tA B C D E F G H I J\n" * 3)
    recipe = read_recipe("tiny", [*SMALL, *TUNED, "training.steps=100"])
    train(*arranged(recipe, [place / "old.tsv"]), place / "base", cache=place / "cache")
    return place


def tune(place, out, *changes, share=0.5):
    words = [*TUNED, f"start_from={place / 'base'}", *changes]
    if share:
        words.append(replayed("tiny", [str(place / "new.tsv")], [str(place / "old.tsv")], share))
    chosen, inputs = arranged(read_recipe("tiny", words), [] if share else [place / "new.tsv"])
    return train(chosen, inputs, place / out, cache=place / "cache")


def distance(place, out):
    first, second = (load_file(place / name / "model.safetensors") for name in ("base", out))
    return sum(float(((first[name] - second[name]) ** 2).sum()) for name in first)


def bytes_of(folder):
    names = ("model.safetensors", "checkpoints/12/model.safetensors", "checkpoints/12/optimizer.safetensors")
    return [(folder / name).read_bytes() for name in names]


def test_both_domains_are_scored_and_mixed_in_their_shares(place):
    numbers = tune(place, "mixed", share=0.3).numbers
    assert {"bleu[new]", "bleu[old]"} <= numbers.keys()
    config = read_recipe(str(place / "mixed" / "config.yaml"))
    found = [(Path(one.file[0]).name, one.weight, one.replay) for one in config.data.corpora]
    assert found == [("new.tsv", 0.7, False), ("old.tsv", 0.3, True)]
    assert (place / "mixed/test.new.tsv").exists() and (place / "mixed/test.old.tsv").exists()


def test_what_the_model_held_out_of_the_old_data_stays_held_out(place):
    tune(place, "mixed", share=0.3)
    first, second = ((place / file).read_text() for file in ("base/test.tsv", "mixed/test.old.tsv"))
    assert first == second and first


@pytest.mark.parametrize("key", ["toward_start", "elastic"])
def test_a_strength_of_zero_is_plain_training_to_the_byte(place, key):
    tune(place, "plain")
    tune(place, f"zero-{key}", f"training.{key}=0")
    assert bytes_of(place / "plain") == bytes_of(place / f"zero-{key}")
    assert not (place / f"zero-{key}" / anchoring.FISHER).exists()


@pytest.mark.parametrize(("key", "strengths"), [("toward_start", (0.1, 10)), ("elastic", (10, 10000))])
def test_the_stronger_the_closer_to_the_start(place, key, strengths):
    outs = [f"{key}-{strength}" for strength in strengths]
    for out, strength in zip(outs, strengths, strict=True):
        tune(place, out, f"training.{key}={strength}")
    tune(place, "plain")
    assert distance(place, outs[1]) < distance(place, outs[0]) < distance(place, "plain")


@pytest.mark.parametrize("key", ["toward_start=0.5", "elastic=100"])
def test_resumed_training_equals_uninterrupted_training(place, monkeypatch, key):
    tune(place, f"whole-{key}", f"training.{key}")
    with monkeypatch.context() as patch, pytest.raises(StopError):
        interrupt(patch, 9)
        tune(place, f"cut-{key}", f"training.{key}")
    files = {path.name for path in (place / f"cut-{key}" / "checkpoints" / "8").iterdir()}
    assert files == {"model.safetensors", "optimizer.safetensors", "state.json", "checksums.json"}  # no second copy
    assert tune(place, f"cut-{key}", f"training.{key}").finished
    assert bytes_of(place / f"whole-{key}") == bytes_of(place / f"cut-{key}")


def test_the_gradient_is_that_of_the_penalised_loss():
    torch.manual_seed(7)
    model = torch.nn.Linear(5, 3)
    fisher = {name: torch.rand_like(weight) for name, weight in model.named_parameters()}
    held = Anchor(model, toward_start=0.3, elastic=0.7, fisher=fisher)
    start = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight))
    data = torch.randn(11, 5)
    penalty = sum(
        0.5 * ((0.3 + 0.7 * fisher[name]) * (weight - start[name]) ** 2).sum()
        for name, weight in model.named_parameters()
    )
    wanted = torch.autograd.grad(model(data).pow(2).mean() + penalty, list(model.parameters()))
    model(data).pow(2).mean().backward()
    held.pull(model)
    for weight, gradient in zip(model.parameters(), wanted, strict=True):
        assert torch.allclose(weight.grad, gradient, atol=1e-6)


def test_the_fisher_information_is_the_mean_square_of_the_gradients_of_single_texts(place):
    from heedful.data.prepare import prepare
    from heedful.tasks import Settings

    recipe, inputs = arranged(read_recipe("tiny", [*SMALL]), [place / "old.tsv"])
    data = prepare(inputs, recipe.data, recipe.tokenizer, cache=place / "cache")
    task, model = recipe.task.build(data, Settings()), load_model(place / "base")
    model.requires_grad_(True)
    found = diagonal_fisher(model, task, [0, 3, 8])
    squares, tokens = {name: 0.0 for name, _ in model.named_parameters()}, 0
    for row in (0, 3, 8):
        batch = task.collate(np.array([row]))
        (term,) = task.loss(model.eval(), batch, state={}).terms.values()
        gradients = torch.autograd.grad(term.total, list(model.parameters()))
        squares = {name: squares[name] + one**2 for name, one in zip(squares, gradients, strict=True)}
        tokens += term.count
    for name, square in squares.items():
        assert torch.allclose(found[name], square / tokens, rtol=1e-4, atol=1e-9), name
    assert all(weight.grad is None for weight in model.parameters())


def test_the_fisher_information_is_of_the_old_data_and_is_not_taken_from_another_training(place, monkeypatch):
    asked = []
    plain = anchoring.diagonal_fisher
    monkeypatch.setattr(anchoring, "diagonal_fisher", lambda model, task, rows: asked.append(rows) or plain(model, task, rows))  # noqa: E501  # fmt: skip
    tune(place, "first", "training.elastic=1")
    assert len(asked) == 1 and 180 < min(asked[0]) <= 200  # rows of the new data come first
    tune(place, "other", "training.elastic=1", share=0.2)  # the same model and data
    (place / "third").mkdir()
    pairs(place / "more.tsv", 100, seed=9)
    (place / "third" / anchoring.FISHER).write_bytes((place / "first" / anchoring.FISHER).read_bytes())
    change = replayed("tiny", [str(place / "new.tsv")], [str(place / "more.tsv")], 0.5)
    words = [*TUNED, f"start_from={place / 'base'}", "training.elastic=1", change]
    train(*arranged(read_recipe("tiny", words), []), place / "third", cache=place / "cache")
    assert len(asked) == 3 and len(asked[2]) < len(asked[0])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["training.toward_start=1"], "training.toward_start pulls the weights toward those of a model; name it with"),
        (["training.toward_start=-1"], "training.toward_start: input should be greater than or equal to 0"),
        (["training.elastic=-1"], "training.elastic: input should be greater than or equal to 0"),
        (["training.toward_start=.nan"], "training.toward_start: input should be a finite number"),
    ],
)
def test_strengths_that_mean_nothing_are_refused(words, message):
    with pytest.raises(ValueError, match=message):
        read_recipe("tiny", words)


def test_a_domain_without_held_out_rows_cannot_choose_the_model(place):
    change = replayed("tiny", [str(place / "few.tsv")], [str(place / "old.tsv")], 0.5)
    words = [*TUNED, f"start_from={place / 'base'}", "training.metric=bleu[few]", change]
    with pytest.raises(
        ValueError, match=r"training.metric=bleu\[few\], but no rows are held out of few: it has too few"
    ):
        train(*arranged(read_recipe("tiny", words), []), place / "few", cache=place / "cache")


def test_replay_is_refused_where_it_means_nothing(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    monkeypatch.setenv("HEEDFUL_CACHE", str(place / "cache"))

    def refused(*words):
        return in_process.refused(monkeypatch, capsys, *words)

    base = ["--start-from", "base"]
    assert "replay is data that a model has learned; name the model to go on with: start_from" in refused(
        "train", "new.tsv", "--out", "x", "--replay", "old.tsv"
    )
    assert "replay share 1 is not between 0 and 1; 0.5 = as many old rows as new ones" in refused(
        "train", "new.tsv", "--out", "x", "--replay", "old.tsv", "--replay-share", "1", *base
    )
    for none in ([], ["-"]):
        assert "give a file of new data as well" in refused("train", *none, "--out", "x", "--replay", "old.tsv", *base)
    assert "training.elastic finds out which weights matter from data that the model has learned" in refused(
        "train", "new.tsv", "--out", "x", "training.elastic=1", *base
    )
    assert "task dialogue trains on one corpus; give its files on the command line, without --replay" in refused(
        "train", "new.tsv", "--out", "x", "--recipe", "dialogue", "--replay", "old.tsv", *base
    )  # fmt: skip
    assert "there is no file nothing.tsv" in refused("train", "new.tsv", "--out", "x", "--replay", "nothing.tsv", *base)


def test_python_replays_too(place, monkeypatch):
    monkeypatch.setenv("HEEDFUL_CACHE", str(place / "cache"))
    changes = dict(word.split("=") for word in TUNED) | {"training.metric": "bleu[new]"}
    changes = {
        key: json.loads(value) if value[0].isdigit() or value == "false" else value for key, value in changes.items()
    }
    translator = heedful.train(
        place / "new.tsv", out=place / "python", start_from=place / "base", replay=[place / "old.tsv"], changes=changes
    )
    assert isinstance(translator, heedful.Translator)
    assert read_recipe(str(place / "python" / "config.yaml")).training.metric == "bleu[new]"
