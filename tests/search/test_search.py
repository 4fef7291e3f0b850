"""Indexes: built, searched in every way, measured; and every mistake named."""

import gzip
import json
import sys

import numpy as np
import pytest

from heedful.search.documents import Document, parse_gains, read_documents, read_judgements, read_queries
from heedful.search.fusion import fuse, top
from heedful.search.index import Index, build
from heedful.search.measure import measured
from heedful.search.vectors import Vectors, unit
from heedful.search.words import Words, tokens
from tests.shared_data import shared

TEXTS = ["the cat sat on the mat", "a dog barked at the cat", "ships sail the sea", "the sea is blue", "数学很难"]
DOCUMENTS = [Document(f"d{number}", "", text) for number, text in enumerate(TEXTS)]
WIDTH = 17


class Letters:
    """Vectors that count letters: similar for texts with similar letters."""

    def embed(self, texts, *, progress=lambda done: None):
        found = np.zeros((len(texts), WIDTH), dtype=np.float32)
        for row, text in zip(found, texts, strict=True):
            for letter in text:
                row[ord(letter) % WIDTH] += 1
        progress(len(texts))
        return found


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("model.safetensors", "tokenizer.json"):
        (folder / name).write_text("weights")
    return folder


def opened(folder, **options):
    return Index(folder, load=lambda place: Letters(), **options)


@pytest.fixture
def index(tmp_path, model):
    pytest.importorskip("bm25s")
    build(DOCUMENTS, tmp_path / "index", embedder=Letters(), model=model)
    return opened(tmp_path / "index")


def names(hits):
    return [hit.document.id for hit in hits]


def test_every_way_finds_what_it_should(index):
    assert names(index.search("cat", by="words")) == ["d0", "d1"]  # only documents with the word
    assert names(index.search("学", by="words")) == ["d4"]
    assert index.search("zebra", by="words") == []
    query = unit(Letters().embed(["the sea is blue"]))[0]
    cosines = unit(Letters().embed(TEXTS)) @ query
    found = index.search("the sea is blue", 3, by="vectors")
    assert names(found) == [f"d{place}" for place in np.argsort(-cosines)[:3]]
    assert found[0].document.text == "the sea is blue" and found[0].score == pytest.approx(1.0)
    assert names(index.search("the sea is blue", 1)) == ["d3"]  # both
    assert index.ways == ("words", "vectors", "both")


def test_words_are_scored_by_bm25():
    """Lucene's formula, computed by hand."""
    pytest.importorskip("bm25s")
    counts = [tokens(text) for text in TEXTS]
    mean = sum(map(len, counts)) / len(counts)

    def score(document, word):
        having = sum(word in other for other in counts)
        idf = np.log(1 + (len(counts) - having + 0.5) / (having + 0.5))
        often = document.count(word)
        return idf * often / (often + 1.5 * (1 - 0.75 + 0.75 * len(document) / mean))

    wanted = [score(document, "cat") + score(document, "sea") for document in counts]
    np.testing.assert_allclose(Words.build(TEXTS).scores(["cat", "sea"]), wanted, rtol=1e-5)


def test_rankings_are_fused_by_rank():
    first, second = [(3, 9.0), (1, 8.0)], [(1, 0.2), (7, 0.1)]
    assert fuse([first, second], 9) == [
        (1, pytest.approx(1 / 62 + 1 / 61)),
        (3, pytest.approx(1 / 61)),
        (7, pytest.approx(1 / 62)),
    ]
    assert [place for place, _ in fuse([first, second], 1)] == [1]


def test_the_best_are_chosen_and_the_first_of_equals():
    assert top(np.array([0.1, 0.5, 0.5, 0.0, 0.5]), 2) == [(1, 0.5), (2, 0.5)]
    assert top(np.array([0.0, 0.3]), 9, above=0.0) == [(1, 0.3)]


def test_approximate_search_equals_exact_search_where_the_walk_sees_all():
    pytest.importorskip("faiss")
    chance = np.random.default_rng(3)
    rows = chance.normal(size=(101, WIDTH)).astype(np.float32)
    exact, graph = Vectors.build(rows), Vectors.build(rows, approximate=True)
    for query in chance.normal(size=(5, WIDTH)).astype(np.float32):
        (places, scores), (others, close) = (zip(*one.search(query, 7), strict=True) for one in (exact, graph))
        assert places == others
        assert scores == pytest.approx(close, abs=1e-5)


def test_an_approximate_index_survives_the_disk(tmp_path, model):
    pytest.importorskip("faiss")
    build(DOCUMENTS, tmp_path / "index", embedder=Letters(), model=model, approximate=True)
    found = opened(tmp_path / "index").search("the sea is blue", by="vectors")
    assert found[0].document.id == "d3" and len(found) == len(TEXTS)


def test_without_a_model_words_are_searched(tmp_path):
    build(DOCUMENTS, tmp_path / "index")
    index = opened(tmp_path / "index")
    assert names(index.search("sea")) == ["d3", "d2"] or names(index.search("sea")) == ["d2", "d3"]
    with pytest.raises(ValueError, match="was built without a model, so it has no vectors; search it by words"):
        index.search("sea", by="vectors")


def test_mistakes_are_named(tmp_path, index, model, monkeypatch):
    with pytest.raises(ValueError, match="k is 0, but at least one document must be asked for; choose k = 1 or more"):
        index.search("cat", 0)
    with pytest.raises(ValueError, match="the query is empty; give words to search for"):
        index.search(" ")
    with pytest.raises(ValueError, match="there are no documents with text, so there is nothing to index"):
        build([], tmp_path / "none")
    with pytest.raises(ValueError, match=r"index already exists; choose another --out, or rebuild .* --replace"):
        build(DOCUMENTS, tmp_path / "index")
    with pytest.raises(ValueError, match=r"model already exists; choose another --out$"):
        build(DOCUMENTS, model, replace=True)
    with pytest.raises(ValueError, match=r"is not an index \(it has no index.json\); build one with: heedful index"):
        opened(tmp_path)
    with pytest.raises(ValueError, match="approximate search is for vectors; name a model with --model"):
        build(DOCUMENTS, tmp_path / "none", approximate=True)
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ValueError, match=r"approximate search needs faiss.*pip install 'heedful\[search\]', or leave"):
        build(DOCUMENTS, tmp_path / "none", embedder=Letters(), model=model, approximate=True)
    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(ValueError, match=r"search by words needs bm25s.*pip install 'heedful\[search\]'"):
        build(DOCUMENTS, tmp_path / "none")
    assert not (tmp_path / "none").exists() and not list(tmp_path.glob(".*.tmp"))


def test_an_index_of_no_documents_and_a_damaged_one_are_refused(tmp_path, index):
    facts = json.loads((tmp_path / "index" / "index.json").read_text())
    (tmp_path / "index" / "index.json").write_text(json.dumps({**facts, "documents": 9}))
    with pytest.raises(ValueError, match="has 5 documents, but the index 9; build the index again"):
        opened(tmp_path / "index").search("cat")
    (tmp_path / "index" / "index.json").write_text(json.dumps({**facts, "documents": 0}))
    with pytest.raises(ValueError, match="holds no documents; build the index again"):
        opened(tmp_path / "index")
    (tmp_path / "index" / "index.json").write_text("{")
    with pytest.raises(ValueError, match=r"index.json is damaged .*; build the index again"):
        opened(tmp_path / "index")


def test_a_changed_model_is_refused_and_a_moved_one_can_be_named(tmp_path, index, model):
    model.rename(tmp_path / "moved")
    with pytest.raises(ValueError, match="model, which is not there; name its new place with --model"):
        opened(tmp_path / "index").search("cat")
    assert opened(tmp_path / "index", model=tmp_path / "moved").search("cat")
    (tmp_path / "moved" / "model.safetensors").write_text("other weights")
    with pytest.raises(ValueError, match=r"has changed since .* was built, so its vectors do not match; build the"):
        opened(tmp_path / "index", model=tmp_path / "moved").search("cat")
    assert opened(tmp_path / "index").search("cat", by="words")  # which needs no model


def test_an_index_can_be_replaced(tmp_path, index, model):
    build(DOCUMENTS[:2], tmp_path / "index", replace=True)
    again = opened(tmp_path / "index")
    assert again.size == 2 and again.ways == ("words",)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index", "model"]


def test_documents_come_as_tables_jsonl_or_folders(tmp_path):
    wanted = [Document("7", "Cats", "they purr"), Document("8", "", "they bark")]
    rows = "7\tCats\tthey purr\n8\t\tthey bark\n"
    (tmp_path / "plain.tsv").write_text(rows)
    (tmp_path / "named.tsv").write_text("text\tid\ttitle\nthey purr\t7\tCats\nthey bark\t8\t\n")
    (tmp_path / "docs.tsv.gz").write_bytes(gzip.compress(rows.encode()))
    lines = [{"_id": 7, "title": "Cats", "text": "they purr"}, {"_id": 8, "title": "", "text": "they bark"}]
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "more.tsv").write_text("id\tby\ttext\ttitle\n7\tme\tthey purr\tCats\n8\tme\tthey bark\t\n")
    for name in ("more.tsv", "plain.tsv", "named.tsv", "docs.tsv.gz", "docs.jsonl"):
        assert list(read_documents(tmp_path / name)) == wanted, name
    (tmp_path / "two.tsv").write_text("7\tthey purr\n8\tthey bark\n")
    assert [document.text for document in read_documents(tmp_path / "two.tsv")] == ["they purr", "they bark"]
    assert read_queries(tmp_path / "two.tsv") == {"7": "they purr", "8": "they bark"}
    folder = tmp_path / "notes"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.txt").write_text("they purr\n")
    (folder / "deep" / "b.txt.gz").write_bytes(gzip.compress(b"they bark"))
    assert list(read_documents(folder)) == [Document("a.txt", "a", "they purr"), Document("deep/b.txt.gz", "b",
                                                                                          "they bark")]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("7\tCats\tpurr\n7\tDogs\tbark\n", r"d.tsv:2: the id '7' occurs twice, first in d.tsv:1; make ids unique"),
        ("7\tCats\tpurr\n8\n", r"d.tsv:2: only one column; correct or remove"),
        ("7\tpurr\n8\tbark\tagain\n", r"d.tsv:2: 3 columns, but the first line has 2; remove tabs from the text"),
        ("7\tCats\tpurr\tx\n", r"d.tsv has 4 columns and no header row; name them in a first line: id, title, text"),
        ("\tCats\tpurr\n", r"d.tsv:1: empty id; give the document one"),
    ],
)
def test_documents_that_cannot_be_read_are_named_by_line(tmp_path, content, message):
    (tmp_path / "d.tsv").write_text(content)
    with pytest.raises(ValueError, match=message):
        list(read_documents(tmp_path / "d.tsv"))


def test_other_files_of_documents_are_refused(tmp_path):
    (tmp_path / "d.jsonl").write_text('{"id": 1, "words": "a"}\n')
    with pytest.raises(ValueError, match=r"d.jsonl: its objects have id, words, but no text; name the key text"):
        list(read_documents(tmp_path / "d.jsonl"))
    (tmp_path / "d.txt").write_text("plain text\n")
    with pytest.raises(ValueError, match=r"documents must be a table .* JSONL or a folder of .txt files"):
        list(read_documents(tmp_path / "d.txt"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"has no .txt files"):
        list(read_documents(tmp_path / "empty"))
    with pytest.raises(ValueError, match="there is no file"):
        list(read_documents(tmp_path / "absent.tsv"))


def test_judgements_have_gains(tmp_path):
    (tmp_path / "q.tsv").write_text("1\ta\t1\n1\tb\t4\n1\tc\t-1\n")
    assert read_judgements(tmp_path / "q.tsv") == {"1": {"a": 1.0, "b": 4.0, "c": 0.0}}
    gains = parse_gains("1=4,2=3,3=2,4=1")
    assert read_judgements(tmp_path / "q.tsv", gains) == {"1": {"a": 4.0, "b": 1.0, "c": 0.0}}
    (tmp_path / "trec.tsv").write_text("1\t0\ta\t2\n")
    assert read_judgements(tmp_path / "trec.tsv") == {"1": {"a": 2.0}}
    (tmp_path / "bad.tsv").write_text("1\ta\tmuch\n")
    with pytest.raises(ValueError, match=r"bad.tsv:1: code 'much' is not a number"):
        read_judgements(tmp_path / "bad.tsv")
    (tmp_path / "short.tsv").write_text("1\ta\n")
    with pytest.raises(ValueError, match="judgements are rows of query, tab, document, tab, code; this has 2 columns"):
        read_judgements(tmp_path / "short.tsv")
    with pytest.raises(ValueError, match="gains '1:4' are not like 1=4,2=3"):
        parse_gains("1:4")


def test_cranfield_by_words(tmp_path):
    """Code 1 is the best and worth 4, code 4 is worth 1; -1, which the source does not explain, is worth nothing."""
    pytest.importorskip("bm25s")
    folder = shared("cranfield")
    documents = [document for document in read_documents(folder / "docs.tsv.gz") if document.content]
    assert len(documents) == 1398
    build(documents, tmp_path / "index")
    judgements = read_judgements(folder / "qrels.tsv", parse_gains("1=4,2=3,3=2,4=1"))
    found = measured(opened(tmp_path / "index"), read_queries(folder / "queries.tsv"), judgements)
    assert found["words"]["ndcg@10"] > 0.3 and found["words"]["recall@100"] > 0.65
