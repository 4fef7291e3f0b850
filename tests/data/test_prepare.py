"""From files to stores: found again, split the same way every time, with no sentence on two sides."""

import json

import pytest

from heedful.data.columns import DOCUMENT
from heedful.data.digest import file_digest
from heedful.data.inputs import DataConfig, Inputs
from heedful.data.prepare import prepare
from heedful.text.tokenizer import TokenizerConfig
from tests.corpora import pairs

CHARACTERS = TokenizerConfig(kind="character")


def run(tmp_path, file, *, data=None, config=CHARACTERS, **splits):
    said = []
    inputs = Inputs(train=(file,), **splits)
    found = prepare(inputs, data or DataConfig(), config, cache=tmp_path / "cache", notify=said.append)
    return found, said


def test_a_second_start_finds_everything_done(tmp_path):
    file = pairs(tmp_path / "p.tsv")
    first, said = run(tmp_path, file)
    assert said == ["checking the corpus", "training the tokenizer", "tokenising the corpus"]
    moved = file.rename(tmp_path / "other-name.tsv")
    second, said = run(tmp_path, moved)
    assert said == [] and second.folder == first.folder and second.facts == first.facts


@pytest.mark.parametrize("change", ["content", "length", "tokenizer"])
def test_whatever_matters_makes_a_new_store(tmp_path, change):
    file = pairs(tmp_path / "p.tsv")
    first, _ = run(tmp_path, file)
    if change == "content":
        file.write_text(file.read_text() + "one more\terom eno\n")
    data = DataConfig(max_length=9) if change == "length" else None
    config = TokenizerConfig(vocab=300) if change == "tokenizer" else CHARACTERS
    second, said = run(tmp_path, file, data=data, config=config)
    assert second.folder != first.folder and "tokenising the corpus" in said


def test_held_out_sentences_are_on_one_side_only(tmp_path):
    file = pairs(tmp_path / "p.tsv", 2000, longest=4)  # short lines repeat
    found, _ = run(tmp_path, file, data=DataConfig(held_out=100))
    tokenizer = found.tokenizers[0]
    import numpy as np

    train = {tuple(row) for row in found.store("train").rows(0, np.arange(len(found.store("train"))))}
    sides = {split: {source for source, _ in found.texts(split)} for split in ("valid", "test")}
    assert sides["valid"] and sides["test"] and not sides["valid"] & sides["test"]
    for split in sides.values():
        assert not {tuple(row) for row in tokenizer.encode(sorted(split))} & train


def test_the_split_does_not_depend_on_the_order_of_lines(tmp_path):
    file = pairs(tmp_path / "p.tsv")
    first, _ = run(tmp_path, file)
    file.write_text("".join(reversed(file.read_text().splitlines(keepends=True))))
    second, _ = run(tmp_path, file)
    assert sorted(first.texts("valid")) == sorted(second.texts("valid"))


def test_given_files_are_used_and_nothing_is_held_out(tmp_path):
    file, valid = pairs(tmp_path / "p.tsv"), pairs(tmp_path / "v.tsv", 30, seed=1)
    found, _ = run(tmp_path, file, valid=(valid,))
    assert found.facts["rows"] == {"train": 300, "valid": 30, "test": 0}


def test_too_long_pairs_are_left_out_and_counted(tmp_path):
    file = pairs(tmp_path / "p.tsv")
    file.write_text(file.read_text() + f"{'x ' * 200}\tlong\n")
    found, _ = run(tmp_path, file, data=DataConfig(max_length=50))
    assert found.facts["too_long"] == 1
    with pytest.raises(ValueError, match="no rows are left to train on: .* have more than 1 tokens in a text; raise"):
        run(tmp_path, file, data=DataConfig(max_length=1))


def test_a_file_without_a_usable_line(tmp_path):
    file = tmp_path / "p.tsv"
    file.write_text("one\ntwo\n\n")
    with pytest.raises(ValueError, match=r"p\.tsv: no usable line among 3 \(2 only one column, 1 empty line\)"):
        run(tmp_path, file)
    file.write_text("")
    with pytest.raises(ValueError, match=r"p\.tsv: no usable line among 0 \(empty\)"):
        run(tmp_path, file)


def test_a_validation_file_without_a_usable_line(tmp_path):
    file = pairs(tmp_path / "p.tsv")
    (tmp_path / "v.tsv").write_text("nothing here\n")
    with pytest.raises(ValueError, match=r"v\.tsv: no usable line"):
        run(tmp_path, file, valid=(tmp_path / "v.tsv",))


def test_half_a_surrogate_pair_is_a_fault_not_a_crash(tmp_path):
    file = tmp_path / "p.jsonl"
    good = '{"source": "a", "target": "b"}\n' * 3
    file.write_text(good + '{"source": "\\ud800", "target": "b"}\n')
    found, _ = run(tmp_path, file)
    assert found.facts["rows"]["train"] == 3 and found.facts["report"]["skipped"]["not a JSON object"]["count"] == 1


def test_a_text_without_blank_lines_still_gives_a_validation_set(tmp_path):
    file = tmp_path / "book.txt"
    file.write_text("one line after another\n" * 200)
    found = prepare(Inputs((file,), columns=DOCUMENT), DataConfig(), CHARACTERS, cache=tmp_path / "cache")
    assert 0.08 < sum(len(text) for (text,) in found.texts("valid")) / 4600 < 0.12


def test_separate_vocabularies(tmp_path):
    file = pairs(tmp_path / "p.tsv", change=lambda text: text.upper())
    found, _ = run(tmp_path, file, config=TokenizerConfig(kind="character", joint=False))
    first, second = found.tokenizers
    assert "A" not in first.token_ids() and "A" in second.token_ids()
    again, said = run(tmp_path, file, config=TokenizerConfig(kind="character", joint=False))
    assert not said and [t.digest() for t in again.tokenizers] == [first.digest(), second.digest()]


def test_a_cut_off_start_leaves_nothing_that_looks_finished(tmp_path, monkeypatch):
    from heedful.data.store import StoreWriter

    file = pairs(tmp_path / "p.tsv")
    monkeypatch.setattr(StoreWriter, "close", lambda self: (_ for _ in ()).throw(OSError("No space left")))
    with pytest.raises(OSError, match="No space left"):
        run(tmp_path, file)
    monkeypatch.undo()
    found, said = run(tmp_path, file)
    assert said == ["tokenising the corpus"] and found.facts["rows"]["train"] > 200
    assert not list((tmp_path / "cache").glob(".building-*"))


def test_a_text_is_cut_once_at_its_last_tenth(tmp_path):
    file = tmp_path / "book.txt"
    file.write_text("\n\n".join(f"paragraph {number} of the book" for number in range(500)))
    found = prepare(Inputs((file,), columns=DOCUMENT), DataConfig(), CHARACTERS, cache=tmp_path / "cache")
    valid = "".join(text for (text,) in found.texts("valid"))
    assert (file.read_text() + "\n").endswith(valid)
    assert 0.08 < len(valid) / len(file.read_text()) < 0.12
    assert sum(found.facts["tokens"]) + len(valid) == len(file.read_text()) + 1


def test_the_facts_are_plain_json(tmp_path):
    file = pairs(tmp_path / "p.tsv")
    found, _ = run(tmp_path, file)
    assert json.loads((found.folder / "facts.json").read_text()) == found.facts
    assert found.facts["files"]["train"] == {"p.tsv": file_digest(file)}


def test_a_file_of_which_most_lines_cannot_be_used_is_refused(tmp_path):
    file = tmp_path / "p.tsv"
    file.write_text("one\teins\n" * 40 + "no tab here\n" * 60)
    with pytest.raises(
        ValueError, match="p.tsv: only 40 of 100 lines are usable .60 only one column, such as p.tsv:41"
    ):
        run(tmp_path, file)


def test_fields_must_be_as_many_as_columns(tmp_path):
    file = pairs(tmp_path / "p.tsv")
    with pytest.raises(ValueError, match="--fields names 1 fields, but there are 2: source,target"):
        run(tmp_path, file, fields=("en",))
