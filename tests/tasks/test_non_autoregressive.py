"""Non-autoregressive translation: fertilities that fit, resumed and split trainings, what it learns, and errors."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import heedful
from heedful.data.inputs import Inputs
from heedful.data.prepare import prepare
from heedful.inspection.details import word_fertilities
from heedful.tasks import Settings
from heedful.tasks._fertilities import Teacher, count_evenly, limited, needed
from heedful.tasks.non_autoregressive import divergence
from heedful.text.tokenizer import TokenizerConfig, train_tokenizer
from heedful.training.recipe import read_recipe
from heedful.training.run import train
from tests.corpora import pairs
from tests.training.test_loop import StopError, interrupt, losses, same, weights

SIZES = ["model.width=32", "model.encoder.layers=1", "model.decoder.layers=1", "model.encoder.attention.heads=2",
         "model.decoder.attention.heads=2", "model.encoder.feedforward.hidden=48",
         "model.decoder.feedforward.hidden=48"]  # fmt: skip
QUICK = [*SIZES, "tokenizer.kind=character", "training.batch_tokens=200", "training.warmup=5", "training.steps=8",
         "training.save_every=4", "training.validate_every=4", "training.log_every=1",
         "training.samples=0"]  # fmt: skip
METHODS = ("fertility", "mask_predict")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A corpus, and a teacher who has hardly learned anything."""
    folder = tmp_path_factory.mktemp("parallel")
    pairs(folder / "p.tsv", 120)
    train(read_recipe("tiny", QUICK), Inputs((folder / "p.tsv",)), folder / "teacher", cache=folder / "cache")
    return folder


def run(place, out, *changes, taught=True):
    words = [*QUICK, *([f"task.teacher={place / 'teacher'}"] if taught else []), *changes]
    recipe = read_recipe("non-autoregressive", words)
    return train(recipe, Inputs((place / "p.tsv",)), out, cache=place / "cache")


@given(
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=12).map(np.array),
    room=st.integers(0, 5),
)
def test_fertilities_keep_their_sum_whatever_the_limit(counts, room):
    most = -(-int(counts.sum()) // len(counts)) + room
    found = limited(counts, most)
    assert found.sum() == counts.sum() and found.max(initial=0) <= most and (found >= 0).all()
    if counts.max(initial=0) <= most:
        assert (found == counts).all()


@given(source=st.integers(1, 30), target=st.integers(1, 60))
def test_an_even_spread_uses_up_the_target(source, target):
    (found,) = count_evenly([np.zeros(source)], [np.zeros(target)])
    assert len(found) == source + 1 and found.sum() == target and found[-1] == 0
    assert found[:-1].max() - found[:-1].min() <= 1


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(*[st.lists(st.integers(4, 60), min_size=1, max_size=9)] * 2), min_size=1, max_size=5))
def test_a_teachers_fertilities_sum_to_the_length_of_the_target(place, rows):
    from heedful.data.prepare import load_tokenizers

    teacher = Teacher(place / "teacher", load_tokenizers(place / "teacher", columns=2))
    sources, targets = ([np.array(row[side]) for row in rows] for side in (0, 1))
    found = teacher.count(sources, targets)
    assert [(len(one), one.sum()) for one in found] == [(len(s) + 1, len(t)) for s, t in rows]
    for source, target, one in zip(sources, targets, found, strict=True):  # whatever else is in the batch
        assert (teacher.count([source], [target])[0] == one).all()


def test_the_teachers_probabilities_are_a_divergence():
    torch.manual_seed(2)
    taught, logits = torch.randn(7, 11).log_softmax(-1), torch.randn(7, 11, requires_grad=True)
    p, q = taught.exp(), logits.softmax(-1)
    wanted = (p * (p / q).log()).sum()
    found = divergence(taught, logits)
    torch.testing.assert_close(found, wanted)
    equal = taught.clone().requires_grad_()
    found = divergence(taught, equal)
    found.backward()
    assert found.item() == pytest.approx(0, abs=1e-5) and equal.grad.abs().max() < 1e-6


@pytest.mark.parametrize("changes", [
    ["task.word_distillation=0.3", "task.teacher_encoder=true"], ["model.method=mask_predict"],
])  # fmt: skip
def test_resumed_training_equals_uninterrupted_training(place, tmp_path, monkeypatch, changes):
    run(place, tmp_path / "whole", *changes)
    with monkeypatch.context() as patch, pytest.raises(StopError):
        interrupt(patch, 6)
        run(place, tmp_path / "cut", *changes)
    run(place, tmp_path / "cut", *changes)
    same(weights(tmp_path / "whole"), weights(tmp_path / "cut"))
    assert losses(tmp_path / "whole") == losses(tmp_path / "cut")


@pytest.mark.parametrize("method", METHODS)
def test_micro_batches_equal_one_batch(place, tmp_path, method):
    words = [f"model.method={method}", "model.encoder.dropout=0", "model.decoder.dropout=0", "training.steps=4",
             "task.word_distillation=0.3"]  # fmt: skip
    run(place, tmp_path / "one", *words)
    run(place, tmp_path / "three", *words, "training.accumulate=3")
    logs = [[json.loads(line) for line in (tmp_path / one / "metrics.jsonl").read_text().splitlines()]
            for one in ("one", "three")]  # fmt: skip
    for first, second in zip(*logs, strict=True):
        for key in ("loss", "loss_tokens", "loss_fertility", "loss_teacher"):
            assert first.get(key) == pytest.approx(second.get(key), abs=1e-4), key


def test_the_teachers_encoder_is_the_start(place, tmp_path):
    """Frozen, it is also the end."""
    run(
        place, tmp_path / "own", "task.teacher_encoder=true", "training.freeze=[embedding, encoder]", "training.steps=4"
    )
    theirs, ours = weights(place / "teacher"), weights(tmp_path / "own")
    taken = [name for name in ours if name.startswith(("embedding", "encoder"))]
    assert len(taken) > 10 and all(torch.equal(ours[name], theirs[name]) for name in taken)


def test_without_a_teacher_it_says_what_it_does(place, tmp_path, capsys):
    result = run(place, tmp_path / "own", "model.method=mask_predict", "training.steps=4", taught=False)
    assert "no task.teacher: fertilities spread each target evenly over its source" in capsys.readouterr().err
    assert {"loss", "accuracy", "fertility", "bleu", "chrf", "exact"} <= set(result.numbers)


def test_it_learns_to_insert_and_leave_out(tmp_path):
    """`a` is left out, `b` is said twice and the rest is copied: which word is missing is known from the fertilities.
    The teacher here is told, not trained: fertilities are those of the rule."""
    from heedful.tasks import non_autoregressive

    class Rule:
        name = "rule"

        def __init__(self, folder, tokenizers):
            self.tokenizer = tokenizers[0]

        def count(self, sources, targets):
            texts = [[self.tokenizer.decode([[token]])[0].strip() for token in row] for row in sources]
            return [np.array([{"a": 0, "b": 2}.get(word, 1) for word in words] + [0]) for words in texts]

    def said(text):
        return " ".join(word for one in text.split() for word in {"a": [], "b": ["b", "b"]}.get(one, [one])) or "c"

    corpus = pairs(tmp_path / "p.tsv", 1500, change=said)
    lines = [line for line in corpus.read_text().splitlines() if set(line.split("\t")[0].split()) - {"a"}]
    corpus.write_text("".join(line + "\n" for line in lines))
    words = [*SIZES, "tokenizer.kind=word", "tokenizer.vocab=60", "training.batch_tokens=512", "training.warmup=20",
             "training.steps=160", "training.learning_rate=0.005", "training.validate_every=160", "training.samples=0",
             "training.schedule=linear", "model.encoder.dropout=0", "model.decoder.dropout=0",
             "training.average=false"]  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(non_autoregressive, "Teacher", Rule)
        patch.setattr("heedful.training.run.digest_of", lambda folder: "rule")
        patch.setattr("heedful.training.run.tokenizers_of", lambda folder, texts: None)
        recipe = read_recipe("non-autoregressive", [*words, f"task.teacher={tmp_path}"])
        result = train(recipe, Inputs((corpus,)), tmp_path / "run", cache=tmp_path / "cache")
    assert result.numbers["exact"] >= 90 and result.numbers["fertility"] > 95, result.numbers
    translator = heedful.load(tmp_path / "run")
    found = translator.translate("d a b c")
    assert found.text == "d b b c" and found.fertilities == [1, 0, 2, 1, 0]
    assert word_fertilities(translator.source, "d a b c", found.fertilities) == [1, 0, 2, 1, 0]
    seen = heedful.inspect(translator, "d a b c")
    assert seen["translation"]["fertilities"] == [1, 0, 2, 1, 0] and not seen["translation"]["stepwise"]
    assert (
        seen["inspected"]["attention"]["decoder"]["queries"] == ["d", "▁b", "▁b", "▁c"]
        or len(seen["inspected"]["attention"]["decoder"]["queries"]) == 4
    )
    torch.set_grad_enabled(True)


@pytest.mark.parametrize(("changes", "text"), [
    (["tokenizer.dropout=0.1", "tokenizer.kind=bpe"], "tokenizer.dropout changes the tokens that fertilities count"),
    (["task.teacher=''", "task.teacher_encoder=true"], "task.teacher_encoder needs a teacher; set task.teacher to the"),
    (["task.teacher=''", "task.word_distillation=0.5"], "task.word_distillation needs a teacher"),
    (["model.width=16", "task.teacher_encoder=true"], r"task.teacher_encoder: embedding.weight of .* is \[\d+, 32\]"),
    (["task.teacher=nowhere"], "task.teacher: there is no folder nowhere"),
    (["model.kind=encoder_decoder"], "task non_autoregressive trains parallel-sequence-to-sequence models"),
    (["tokenizer.file={place}/other.json"], "the weights of task.teacher require its own tokenizer; remove"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(place, tmp_path, changes, text):
    train_tokenizer(["a b c"], TokenizerConfig(kind="word"), vocab=30).save(place / "other.json")
    with pytest.raises(ValueError, match=text):
        run(place, tmp_path / "out", *[change.replace("{place}", str(place)) for change in changes])


def test_a_pair_that_needs_a_high_fertility_gets_it(tmp_path):
    (tmp_path / "p.tsv").write_text("".join(f"{one}\t{one * 30}\n" for one in "abcdefghij" * 3))
    recipe = read_recipe("non-autoregressive", [*QUICK, "model.max_fertility=4"])
    data = prepare(Inputs((tmp_path / "p.tsv",)), recipe.data, recipe.tokenizer, cache=tmp_path / "cache")
    fitted = recipe.fitted(data)
    assert fitted.model.max_fertility == needed(data) > 4
    built = fitted.task.build(data, Settings(model=fitted.model))
    batch = built.collate(np.arange(len(built.train)))
    assert batch.fertilities.max() <= fitted.model.max_fertility
    assert torch.equal(batch.fertilities.sum(1), batch.target_valid.sum(1))
