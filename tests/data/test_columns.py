"""A task names its columns; rows of texts, labels, tags and raw cells go to the store and come back."""

import json

import numpy as np
import pytest

from heedful.data.columns import Column
from heedful.data.corpus import Fault, Line, read_rows
from heedful.data.inputs import DataConfig, Inputs
from heedful.data.prepare import prepare
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
    assert rows(file, TAGGED)[-1] == "3 words, but 2 tags; give one for each word"
    prepared = made(tmp_path, file, TAGGED)
    assert prepared.labels == {"tags": ["D", "N"]}
    tokens, tags = (prepared.store("train").rows(place, np.arange(2)) for place in (0, 1))
    assert [len(row) for row in tokens] == [len(row) for row in tags]
    assert [[tag - 1 for tag in row.tolist() if tag] for row in tags] == [[0, 1], [0, 1]]


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
    assert rows(file, LABELLED) == [("a", "x"), "only one column", "empty label", "empty text"]
    three = (*LABELLED, Column("other"))
    assert rows(file, three)[0] == ("a", "x", "more") and rows(file, three)[2] == "only 2 columns"


def test_plain_text_is_no_table(tmp_path):
    (tmp_path / "a.txt").write_text("just words\n")
    with pytest.raises(ValueError, match=r"a.txt: rows must be TSV \(text, tab, label\) or JSONL; this is neither"):
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


def test_held_out_rows_are_chosen_by_their_text_wherever_it_stands(tmp_path):
    columns = (Column("label", "label"), Column("text"))
    file = write(tmp_path / "l.tsv", [("ab"[n % 2], f"text number {n}") for n in range(400)])
    prepared = made(tmp_path, file, columns)
    assert prepared.has("valid") and prepared.has("test")
    assert {label for label, _ in prepared.texts("valid")} == {"a", "b"}


def test_tags_are_counted_against_the_text_wherever_it_stands(tmp_path):
    columns = (Column("label", "label"), Column("text"), Column("tags", "tags"))
    file = write(tmp_path / "t.tsv", [("x", "the cat", "D N"), ("x", "the cat", "D")])
    assert rows(file, columns) == [("x", "the cat", "D N"), "2 words, but 1 tags; give one for each word"]


def test_rows_without_any_text_are_prepared_too(tmp_path):
    columns = (Column("image", "raw"), Column("label", "label"))
    file = write(tmp_path / "i.tsv", [(f"pictures/{n}.png", "ab"[n % 2]) for n in range(400)])
    for _ in range(2):  # made, and found again
        prepared = made(tmp_path, file, columns)
        assert prepared.tokenizers == [] and prepared.has("valid")
        (row,) = prepared.store("train").rows(0, np.arange(1))
        assert bytes(row.tolist()).decode().startswith("pictures/")


def test_raw_cells_do_not_make_a_batch_small(tmp_path):
    from heedful.data import batches

    columns = (Column("text"), Column("span", "raw"))
    file = write(tmp_path / "r.tsv", [(f"t{n}", "x" * 400) for n in range(200)])
    store = made(tmp_path, file, columns).store("train")
    assert max(map(len, batches.epoch(store, budget=200, seed=0, number=0))) > 20


def test_three_texts_share_a_tokenizer(tmp_path):
    columns = (Column("a"), Column("b"), Column("c"))
    file = write(tmp_path / "t.tsv", [(f"x{n}", f"y{n}", f"z{n}") for n in range(30)])
    inputs = Inputs((file,), columns=columns)
    with pytest.raises(
        ValueError, match="tokenizer.joint=false is for pairs, but rows have 3 texts; use tokenizer.joint=true"
    ):
        prepare(inputs, DataConfig(), TokenizerConfig(kind="character", joint=False), cache=tmp_path / "cache")
    first, second = (prepare(inputs, DataConfig(), CHARACTERS, cache=tmp_path / "cache") for _ in range(2))
    assert first.folder == second.folder and len(second.tokenizers) == 3


def test_a_tokenizer_that_lacks_what_the_task_needs_is_refused(tmp_path):
    file = write(tmp_path / "l.tsv", [(f"text {n}", "ab"[n % 2]) for n in range(30)])
    given = made(tmp_path, file, LABELLED).tokenizers
    inputs = Inputs((file,), columns=LABELLED)
    with pytest.raises(ValueError, match="the task needs the special tokens <mask>, which this tokenizer lacks"):
        prepare(inputs, DataConfig(), CHARACTERS, cache=tmp_path / "c", given=given, specials=["<cls>", "<mask>"])
