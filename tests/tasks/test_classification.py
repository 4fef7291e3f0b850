"""Classification beside transformers and torch: losses, gradients, weights; and from a file to labels."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import heedful
from heedful.model.cpu.kernels import NATIVE
from tests.commands.in_process import refused, run
from tests.tasks.labelled import SMALL, bert, built, sentences, word_gradients, write

SIZES = [{"width": 22, "hidden": 37, "heads": 2}, {"width": 64, "hidden": 128, "heads": 4}]


@pytest.mark.parametrize("size", SIZES, ids=["primes", "kernels"])
def test_loss_and_gradient_are_transformers(tmp_path, size):
    pytest.importorskip("transformers")
    task, data = built(write(tmp_path / "rows.tsv", sentences(60)), tmp_path / "cache", "classify")
    theirs, ours = bert(
        tmp_path / "bert", "BertForSequenceClassification", vocab=data.tokenizers[0].vocab, num_labels=2, **size
    )
    batch = task.collate(np.arange(13))
    loss = task.loss(ours, batch, state=None)
    found = loss.terms["labels"].total / loss.terms["labels"].count
    wanted = theirs(
        input_ids=batch.texts.tokens, attention_mask=batch.texts.valid.long(), token_type_ids=batch.texts.types,
        labels=batch.wanted,
    ).loss  # fmt: skip
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    found.backward()
    wanted.backward()
    torch.testing.assert_close(*word_gradients(theirs, ours), rtol=1e-4, atol=1e-5)


def test_class_weights_are_torchs_over_the_whole_batch(tmp_path):
    """A batch in two parts counts as one: the weighted mean is over all rows, not the mean of means."""
    pytest.importorskip("transformers")
    file = write(tmp_path / "rows.tsv", sentences(60))
    task, data = built(file, tmp_path / "cache", "classify", "task.class_weights={pos: 5.0}")
    _, ours = bert(
        tmp_path / "bert", "BertForSequenceClassification", vocab=data.tokenizers[0].vocab, num_labels=2, **SIZES[0]
    )
    parts = [task.collate(np.arange(0, 5)), task.collate(np.arange(5, 19))]
    losses = [task.loss(ours, part, state=None).terms["labels"] for part in parts]
    found = sum(loss.total for loss in losses) / sum(loss.count for loss in losses)
    whole = task.collate(np.arange(19))
    logits = ours.predict("sequence_classification", ours(whole.texts.tokens, token_types=whole.texts.types,
                                                          valid=whole.texts.valid))  # fmt: skip
    assert data.labels["label"] == ["neg", "pos"]
    torch.testing.assert_close(found, F.cross_entropy(logits, whole.wanted, weight=torch.tensor([1.0, 5.0])))


def test_balanced_weights_are_scikit_learns(tmp_path):
    rows = [("good film", "pos")] * 30 + [("bad film", "neg")] * 10
    task, _ = built(write(tmp_path / "rows.tsv", rows), tmp_path / "cache", "classify", "task.class_weights=balanced")
    counts = np.array(task._counts())
    np.testing.assert_allclose(task.weights.numpy(), counts.sum() / (2 * counts), rtol=1e-6)


def test_several_labels_are_binary_decisions(tmp_path):
    pytest.importorskip("transformers")
    rows = [(text, "happy,short" if label == "pos" and len(text) < 30 else "happy" if label == "pos" else "sad")
            for text, label in sentences(60)]  # fmt: skip
    task, data = built(write(tmp_path / "rows.tsv", rows), tmp_path / "cache", "classify", "task.multi_label=true")
    theirs, ours = bert(
        tmp_path / "bert", "BertForSequenceClassification", vocab=data.tokenizers[0].vocab, num_labels=3,
        problem_type="multi_label_classification", **SIZES[0],
    )  # fmt: skip
    batch = task.collate(np.arange(11))
    loss = task.loss(ours, batch, state=None).terms["labels"]
    wanted = theirs(
        input_ids=batch.texts.tokens, attention_mask=batch.texts.valid.long(), token_type_ids=batch.texts.types,
        labels=batch.wanted,
    ).loss  # fmt: skip
    torch.testing.assert_close(loss.total / loss.count, wanted, rtol=1e-5, atol=1e-6)


def test_a_long_text_counts_by_the_mean_of_its_windows(tmp_path):
    pytest.importorskip("transformers")
    rows = [(" ".join(["good film"] * 20), "pos"), ("bad day", "neg")] * 20
    task, data = built(write(tmp_path / "rows.tsv", rows), tmp_path / "cache", "classify", max_length=16)
    _, ours = bert(
        tmp_path / "bert", "BertForSequenceClassification", vocab=data.tokenizers[0].vocab, num_labels=2, **SIZES[0]
    )
    batch = task.collate(np.arange(4))
    assert batch.texts.tokens.shape[1] <= 16 and len(batch.texts.tokens) > 4
    states = ours(batch.texts.tokens, token_types=batch.texts.types, valid=batch.texts.valid)
    each = ours.predict("sequence_classification", states)
    owners = batch.texts.owner
    wanted = torch.stack([each[owners == text].mean(0) for text in range(4)])
    torch.testing.assert_close(batch.texts.mean(each), wanted)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Trained with the label first, as many files have it."""
    place = tmp_path_factory.mktemp("classifier")
    file = write(place / "rows.tsv", [(label, text) for text, label in sentences(400)])
    heedful.train(file, out=place / "run", recipe="classify", changes=SMALL)
    return place / "run"


@pytest.fixture(scope="module")
def classifier(folder):
    return heedful.load(folder)


def test_it_learns_which_word_decides(classifier, tmp_path):
    found = classifier.evaluate(write(tmp_path / "test.tsv", [(label, text) for text, label in sentences(100, seed=7)]))
    assert found["rows"] == 100
    assert found["accuracy"] > 90
    assert np.sum(found["confusion"]) == 100
    good, bad = classifier.predict(["this is a great day", "this is a dull day"])
    assert (good["label"], bad["label"]) == ("pos", "neg")
    assert sum(good["scores"].values()) == pytest.approx(1.0)
    assert good["score"] == max(good["scores"].values())


def test_answers_do_not_depend_on_the_company(classifier):
    texts = [text for text, _ in sentences(30, seed=2)]
    together = classifier.probabilities(texts)
    alone = np.concatenate([classifier.probabilities([text]) for text in texts])
    np.testing.assert_allclose(together, alone, atol=1e-5)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("pos", "a good day"), ("meh", "a day")], r"test.tsv:2: .*'meh'.*"),
        ([("pos", "a good day"), ("neg", "")], r"test.tsv:2: .*empty"),
        ([("pos", "a good day"), ("only one",)], r"test.tsv:2: .*column"),
    ],
)
def test_bad_rows_of_a_test_file_are_refused_by_line(classifier, tmp_path, rows, message):
    with pytest.raises(ValueError, match=message):
        classifier.evaluate(write(tmp_path / "test.tsv", rows))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("a good day", "pos")] * 9, "only one label, 'pos'"),
        ([("id7", "a good day", "pos", "x")] * 9, "4 columns and no header row.*--fields"),
        ([("a good day", "pos"), ("a bad day", "")] * 9, r"rows.tsv:2: .*empty"),
    ],
)
def test_bad_training_files_are_refused(tmp_path, rows, message):
    with pytest.raises(ValueError, match=message):
        built(write(tmp_path / "rows.tsv", rows), tmp_path / "cache", "classify")


def test_fields_of_jsonl_are_found_by_name(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"id": n, "category": label, "sentence": text}) + "\n"
                            for n, (text, label) in enumerate(sentences(40))), encoding="utf-8")  # fmt: skip
    _, data = built(file, tmp_path / "cache", "classify")
    assert data.labels["label"] == ["neg", "pos"]


@pytest.fixture
def tested(tmp_path):
    return write(tmp_path / "test.tsv", [(label, text) for text, label in sentences(50, seed=7)])


def test_evaluate_prints_figures_and_the_confusion_matrix(folder, classifier, tested, monkeypatch, capsys):
    found = classifier.evaluate(tested)
    printed = run(monkeypatch, capsys, "evaluate", folder, tested)
    assert f"accuracy: {found['accuracy']:.4g}" in printed and "rows: 50" in printed
    for label, row in zip(found["labels"], found["confusion"], strict=True):
        assert [label, *map(str, row)] in [line.replace("│", " ").split() for line in printed.splitlines()]
    assert json.loads(run(monkeypatch, capsys, "evaluate", folder, tested, "--json")) == {
        "test": "test.tsv", **found
    }  # fmt: skip


def test_the_confusion_matrix_is_drawn(folder, tested, monkeypatch, capsys, tmp_path):
    pytest.importorskip("matplotlib")
    out = tmp_path / "confusion.png"
    assert run(monkeypatch, capsys, "plot", "confusion", folder, tested, "--out", out).strip() == str(out)
    assert out.read_bytes().startswith(b"\x89PNG")
    assert "there is no file" in refused(monkeypatch, capsys, "plot", "confusion", folder, "nowhere.tsv")


@pytest.mark.skipif(NATIVE is None, reason="no kernels were compiled")
def test_our_kernels_read_as_the_modules_do(folder, classifier):
    texts = [(text,) for text, _ in sentences(30, seed=4)]
    assert classifier.opened.fast.reason is None
    plain = heedful.load(folder)
    plain.opened.fast.packed = None  # the modules
    found, wanted = (one.opened.logits(texts, "sequence_classification") for one in (classifier, plain))
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    rounded = heedful.load(folder, quantize="int8").opened.logits(texts, "sequence_classification")
    assert not torch.equal(rounded, found)
    assert (rounded.argmax(1) == found.argmax(1)).float().mean() > 0.9
