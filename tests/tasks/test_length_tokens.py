"""Trained length control of summaries: from the reference's length in training, as asked for afterwards."""

import json
import random

import httpx
import numpy as np
import pytest

import heedful
from heedful.data.lengths import bounds, length_token, number_of, numbers_of
from heedful.decoding.runner import Request
from tests.commands.in_process import refused, run
from tests.serving.running import running

pytest.importorskip("rouge_score")
LONGEST = {"short": 1, "medium": 3, "long": 5}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Summaries are the first one, three or five words, by chance: only the token tells."""
    folder, chance = tmp_path_factory.mktemp("lengths"), random.Random(3)
    lines = [" ".join(chance.choices("abcdefg", k=7)) for _ in range(500)]
    rows = "".join(f"{line}\t{' '.join(line.split()[: chance.choice((1, 3, 5))])}\n" for line in lines)
    (folder / "t.tsv").write_text(rows)
    keys = {"training.steps": 220, "training.warmup": 20, "training.learning_rate": 0.005, "training.batch_tokens": 700,
            "training.validate_every": 220, "training.save_every": 220, "tokenizer.kind": "word", "model.width": 32,
            "model.encoder.layers": 1, "model.decoder.layers": 1, "data.max_length": 7, "task.length_tokens": 3,
            "model.encoder.dropout": 0.0, "model.decoder.dropout": 0.0}  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEEDFUL_CACHE", str(folder / "cache"))
        heedful.train(folder / "t.tsv", out=folder / "out", recipe="summarise", changes=keys)
    return folder


@pytest.fixture(scope="module")
def model(place):
    return heedful.load(place / "out", expect=heedful.Translator)


TEXTS = ["a b c d e f g", "g f e d c b a", "b d f a c e g"]


@pytest.mark.parametrize("length", LONGEST)
def test_summaries_are_as_long_as_asked(model, length):
    for text, found in zip(TEXTS, model.translate(TEXTS, length=length), strict=True):
        assert found.text.split() == text.split()[: LONGEST[length]]


def test_names_are_numbers_and_the_middle_one_is_usual(model):
    for length, number in (("short", "1"), ("medium", "2"), ("long", "3"), ("", "2")):
        assert model.translate(TEXTS, length=length) == model.translate(TEXTS, length=number)
    mixed = model.translate([Request(TEXTS[0], length="long"), TEXTS[0]], length="short")
    assert [len(one.text.split()) for one in mixed] == [5, 1]


def test_a_document_that_is_cut_leaves_room_for_the_token(model):
    (found,) = model.translate(["a b c d e f g a b c d"], length="short")
    assert found.text == "a" and found.warnings == ["too long for the model: cut to 7 of 11 tokens"]


def test_from_the_command_line(place, model, monkeypatch, capsys):
    monkeypatch.chdir(place)
    (place / "t.txt").write_text(f"{TEXTS[0]}\n")
    assert run(monkeypatch, capsys, "translate", "out", "-i", "t.txt", "--length", "long") == "a b c d e\n"
    assert run(monkeypatch, capsys, "predict", "out", TEXTS[0], "--length", "1") == "a\n"
    rows = [{"text": TEXTS[0], "length": "long"}, {"text": TEXTS[0]}, {"text": TEXTS[0], "length": 2}]
    (place / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = run(monkeypatch, capsys, "translate", "out", "-i", "t.jsonl", "--length", "short")
    assert [len(json.loads(line)["translation"].split()) for line in said.splitlines()] == [5, 1, 3]
    unknown = "length 'huge' is not one of short, medium, long, or a number from 1 to 3"
    assert unknown in refused(monkeypatch, capsys, "translate", "out", "-i", "t.txt", "--length", "huge")
    assert unknown in refused(monkeypatch, capsys, "predict", "out", "a", "--length", "huge")


def test_over_http(place):
    with running([place / "out"]) as (url, _):
        for length, count in (("short", 1), ("long", 5), ("", 3)):
            asked = {"text": TEXTS[0], "length": length, "alignment": False}
            found = httpx.post(f"{url}/api/translate", json=asked, timeout=30).json()["translations"][0]
            assert len(found["text"].split()) == count
        answer = httpx.post(f"{url}/api/translate", json={"text": "a", "length": "huge"}, timeout=30)
        assert answer.status_code == 400 and "length 'huge' is not one of short" in answer.json()["error"]


def test_a_model_without_length_tokens_refuses_a_length(tmp_path, monkeypatch, capsys):
    from tests.security import fuzz

    fuzz.translator(tmp_path / "it")
    message = "this model was not trained with task.length_tokens; leave out the length"
    with pytest.raises(ValueError, match=message):
        heedful.load(tmp_path / "it").translate("ab", length="short")
    assert message in refused(monkeypatch, capsys, "predict", tmp_path / "it", "ab", "--length", "short")
    fuzz.classifier(tmp_path / "other")
    said = refused(monkeypatch, capsys, "predict", tmp_path / "other", "ab", "--length", "short")
    assert "--length is for summarisers; leave it out" in said


def test_what_goes_on_from_such_a_model_needs_the_same_lengths(place, tmp_path, monkeypatch):
    monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path / "cache"))
    changes = {"training.steps": 2, "task.length_tokens": 0, "data.max_length": 7}
    with pytest.raises(ValueError, match="this model was trained with task.length_tokens=3; set the same"):
        heedful.train(
            place / "t.tsv", out=tmp_path / "x", recipe="summarise", start_from=place / "out", changes=changes
        )


def test_the_parts_are_about_equally_large_and_by_length():
    lengths = np.array([1] * 30 + [3] * 35 + [5] * 35)
    assert bounds(lengths, 3).tolist() == [1, 3] and bounds(lengths, 2).tolist() == [3]
    assert numbers_of([[0], [0] * 3, [0] * 4, [0] * 9], bounds(lengths, 3)) == [1, 2, 3, 3]
    spread = np.arange(1, 101)
    assert [len([n for n in numbers_of([[0] * n for n in spread], bounds(spread, 5)) if n == k]) for k in
            range(1, 6)] == [20] * 5  # fmt: skip
    with pytest.raises(ValueError, match=r"do not have so many different lengths \(there are 3\); choose fewer"):
        bounds(lengths, 4)
    assert [number_of(name, 5) for name in ("short", "medium", "long", "4")] == [1, 3, 5, 4]
    assert length_token(2) == "<length_2>"
