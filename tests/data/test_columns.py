"""A task names its columns; rows of texts, labels, tags and raw cells go to the store and come back."""

import json

import numpy as np
import pytest

from heedful.data.columns import Column
from heedful.data.corpus import Fault, Line, read_rows
from heedful.data.prepare import DataConfig, Inputs, prepare
from heedful.text.tokenizer import TokenizerConfig

LABELLED = (Column("text"), Column("label", "label"))
TAGGED = (Column("text"), Column("tags", "tags"))
CHARACTERS = TokenizerConfig(kind="character")


def write(path, rows):
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    return path


def rows(path, columns):
    return [line.texts if isinstance(line, Line) else line.reason for line in read_rows([path], columns)]


def made(tmp_path, file, columns, **splits):
    inputs = Inputs((file,), columns=columns, **splits)
    return prepare(inputs, DataConfig(), CHARACTERS, cache=tmp_path / "cache")


def test_labels_are_found_in_the_data_and_numbered(tmp_path):
    file = write(tmp_path / "l.tsv", [(f"text {number}", "cab"[number % 3]) for number in range(60)])
    prepared = made(tmp_path, file, LABELLED)
    assert prepared.labels == {"label": ["a", "b", "c"]}
    store = prepared.store("train")
    every = np.arange(len(store))
    texts = prepared.tokenizers[0].decode(store.rows(0, every))
    for text, row in zip(texts, store.rows(1, every), strict=True):
        assert row.tolist() == ["abc".index("cab"[int(text.split()[1]) % 3])]
    assert prepared.facts["report"]["labels"]["label"] == {"a": 20, "b": 20, "c": 20}
    assert len(prepared.tokenizers) == 1


def test_a_label_that_training_has_not_is_left_out_and_counted(tmp_path):
    file = write(tmp_path / "l.tsv", [(f"text {number}", "ab"[number % 2]) for number in range(30)])
    valid = write(tmp_path / "v.tsv", [("one", "a"), ("two", "zebra"), ("three", "b")])
    prepared = made(tmp_path, file, LABELLED, valid=(valid,))
    assert prepared.texts("valid") == [("one", "a"), ("three", "b")]
    assert prepared.facts["unknown_labels"] == 1


def test_tags_go_with_words_one_by_one(tmp_path):
    file = write(tmp_path / "t.tsv", [("the cat", "D N")] * 30 + [("a dog barks", "D N")])
    assert rows(file, TAGGED)[-1] == "not one of tags for each word"
    prepared = made(tmp_path, file, TAGGED)
    assert prepared.labels == {"tags": ["D", "N"]}
    assert [row.tolist() for row in prepared.store("train").rows(1, np.arange(2))] == [[0, 1], [0, 1]]


def test_raw_cells_come_back_as_they_were(tmp_path):
    columns = (Column("text"), Column("other"), Column("span", "raw"))
    lines = [{"text": f"text {n}", "other": "ä b", "span": [n, "é\t"]} for n in range(30)]
    file = tmp_path / "r.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    prepared = made(tmp_path, file, columns)
    store = prepared.store("train")
    every = np.arange(len(store))
    found = {
        (text, json.loads(bytes(raw.tolist()))[0])
        for text, raw in zip(prepared.tokenizers[0].decode(store.rows(0, every)), store.rows(2, every), strict=True)
    }
    assert found and found <= {(f"text {n}", n) for n in range(30)}
    assert len(prepared.tokenizers) == 2  # two columns of text


def test_jsonl_is_read_by_the_names_of_the_columns(tmp_path):
    file = tmp_path / "l.jsonl"
    lines = [{"label": "x", "text": "a"}, {"text": "b"}, {"text": "c", "label": 3}, {"text": 4, "label": "x"}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert rows(file, LABELLED) == [("a", "x"), "no text and label", ("c", "3"), "no text and label"]


def test_rows_that_cannot_be_used_are_told(tmp_path):
    file = write(tmp_path / "l.tsv", [("a", "x", "more"), ("alone",), ("b", " "), (" ", "y")])
    assert rows(file, LABELLED) == [("a", "x"), "only one column", "empty label", "empty side"]
    three = (*LABELLED, Column("other"))
    assert rows(file, three)[0] == ("a", "x", "more") and rows(file, three)[2] == "only 2 columns"


def test_plain_text_is_no_table(tmp_path):
    (tmp_path / "a.txt").write_text("just words\n")
    with pytest.raises(ValueError, match=r"a.txt: rows come as TSV \(text, tab, label\) or as JSONL; this is neither"):
        Inputs((tmp_path / "a.txt",), columns=LABELLED)


def test_a_column_of_sentences_is_not_taken_for_labels(tmp_path, monkeypatch):
    monkeypatch.setattr("heedful.data.check.MOST_LABELS", 20)
    file = write(tmp_path / "l.tsv", [(f"text {n}", f"sentence {n}") for n in range(30)])
    with pytest.raises(ValueError, match=r"column 2 \(label\) has more than 20 different labels; is it text"):
        made(tmp_path, file, LABELLED)


def test_faults_keep_their_line_numbers(tmp_path):
    file = write(tmp_path / "l.tsv", [("a", "x"), ("b",)])
    (fault,) = [line for line in read_rows([file], LABELLED) if isinstance(line, Fault)]
    assert (fault.file, fault.number) == ("l.tsv", 2)
