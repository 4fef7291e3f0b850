"""`heedful embed`, `index`, `search`: from files to vectors and ranked documents."""

import json
import sys

import numpy as np
import pytest

from heedful.commands.exchange import import_model
from heedful.commands.main import main
from heedful.exchange.sentence_transformers import Pooling, write
from tests.commands.in_process import refused
from tests.exchange import folders

pytest.importorskip("bm25s")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A BERT with random weights, as sentence-transformers publishes it."""
    hf = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("model")
    folders.published(folder / "theirs", "bert")
    hf.BertModel.from_pretrained(folder / "theirs").save_pretrained(folder / "theirs")
    write(folder / "theirs", Pooling("mean", True, 20), width=32)
    import_model(folder / "theirs", folder / "ours")
    return folder / "ours"


@pytest.fixture
def run(monkeypatch, capsys):
    def run(*words):
        monkeypatch.setattr(sys, "argv", ["heedful", *map(str, words)])
        with pytest.raises(SystemExit) as caught:
            main()
        said = capsys.readouterr()
        assert caught.value.code in (0, None), said.err
        return said

    return run


def test_vectors_are_written_as_an_array_or_as_jsonl(run, model, tmp_path):
    (tmp_path / "lines.txt").write_text("the quick fox\n" + "the lazy dog " * 20 + "\n")
    said = run("embed", model, "-i", tmp_path / "lines.txt", "-o", tmp_path / "v.npy")
    assert "of 1 texts only the first 20 tokens were read" in said.err
    vectors = np.load(tmp_path / "v.npy")
    assert vectors.dtype == np.float32 and vectors.shape == (2, 32)
    first = json.loads(run("embed", model, "the quick fox").out)
    assert first["text"] == "the quick fox"
    np.testing.assert_allclose(first["embedding"], vectors[0], atol=1e-6)
    run("embed", model, "-i", tmp_path / "lines.txt", "-o", tmp_path / "v.jsonl", "--quantize", "int8")
    assert len((tmp_path / "v.jsonl").read_text().splitlines()) == 2


def test_from_documents_to_hits_and_figures(run, model, tmp_path):
    (tmp_path / "docs.tsv").write_text("a\tFox\tthe quick brown fox\nb\tDog\tthe lazy dog\nc\t\t\n")
    said = run("index", tmp_path / "docs.tsv", "--model", model, "--out", tmp_path / "index")
    assert "2 documents, by words and vectors of 32 numbers" in said.out and "1 documents without text" in said.err
    lines = run("search", tmp_path / "index", "lazy dog").out.splitlines()
    assert len(lines) == 2 and "b  Dog" in lines[0]
    hit = json.loads(run("search", tmp_path / "index", "fox", "--by", "words", "--json").out)
    assert hit["id"] == "a" and hit["rank"] == 1 and hit["text"] == "the quick brown fox"
    (tmp_path / "queries.tsv").write_text("1\tfox\n2\tdog\n")
    (tmp_path / "qrels.tsv").write_text("1\ta\t1\n2\tb\t1\n")
    measure = ["search", tmp_path / "index", "--queries", tmp_path / "queries.tsv", "--qrels", tmp_path / "qrels.tsv"]
    assert [line.split()[0] for line in run(*measure).out.splitlines()[2:]] == ["words", "vectors", "both"]
    assert json.loads(run(*measure, "--json").out)["words"]["ndcg@10"] == 1.0


def test_mistakes_are_one_line(monkeypatch, capsys, model, tmp_path):
    def said(*words):
        return refused(monkeypatch, capsys, *words)

    (tmp_path / "lines.txt").write_text("a\n\nb\n")
    assert "lines.txt:2: an empty line has no vector" in said("embed", model, "-i", tmp_path / "lines.txt")
    assert "there is no file or folder" in said("index", tmp_path / "none", "--out", tmp_path / "x")
    assert "text 1 is empty" in said("embed", model, " ")
    assert "is not an index" in said("search", tmp_path, "fox")
    assert "give a query" in said("search", tmp_path)
    assert "give both --queries" in said("search", tmp_path, "--queries", tmp_path / "lines.txt")
