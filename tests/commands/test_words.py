"""People arrive with other tools' words: these work, or the answer names what does."""

import socket

import pytest

from heedful.commands.words import REFUSED, understood
from heedful.training.recipe import read_recipe
from tests.commands.in_process import refused


@pytest.mark.parametrize(("given", "meant"), [
    ("train p.tsv --steps 10", "train p.tsv training.steps=10"),
    ("train p.tsv --lr=0.1 --seed 3", "train p.tsv training.learning_rate=0.1 seed=3"),
    ("train p.tsv --epochs 3", "train p.tsv --budget 3epochs"),
    ("train p.tsv --fp16", "train p.tsv training.precision=float16"),
    ("train p.tsv --config my.yaml --from en --to de",
     "train p.tsv --recipe my.yaml data.source_language=en data.target_language=de"),
    ("translate m --seed 3", "translate m --seed 3"),
    ("predict m -- --steps 3", "predict m -- --steps 3"),
    ("", ""),
])  # fmt: skip
def test_words_of_other_tools_are_understood(given, meant):
    assert understood(given.split()) == meant.split()


@pytest.mark.parametrize(("verb", "option"), [(verb, option) for verb in REFUSED for option in REFUSED[verb]])
def test_words_without_a_counterpart_are_answered_with_the_right_one(monkeypatch, capsys, verb, option):
    assert refused(monkeypatch, capsys, verb, "x", option, "3") == f"heedful: {option}: {REFUSED[verb][option]}\n"


def test_a_word_that_wants_a_value_says_so():
    with pytest.raises(ValueError, match="--lr needs a value"):
        understood(["train", "p.tsv", "--lr"])


def test_a_bare_key_is_found_in_its_section():
    assert read_recipe("tiny", ["steps=10", "max_length=99"]).training.steps == 10
    assert read_recipe("tiny", ["steps=10", "max_length=99"]).data.max_length == 99
    with pytest.raises(ValueError, match="unknown key 'stepz'"):
        read_recipe("tiny", ["stepz=10"])


def test_a_text_without_a_recipe_and_a_busy_port_say_what_to_do(monkeypatch, capsys, tmp_path):
    (tmp_path / "book.txt").write_text("just some words\n")
    said = refused(monkeypatch, capsys, "train", tmp_path / "book.txt", "--out", tmp_path / "run")
    assert "For a language model of plain text: --recipe char-gpt" in said


def test_a_busy_port_is_said(monkeypatch, capsys):
    from heedful.commands.serve import _bound

    class Config:
        host = "127.0.0.1"

    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        Config.port = holder.getsockname()[1]
        with pytest.raises(ValueError, match=f"port {Config.port} is in use; choose another with --port, or 0 for any"):
            _bound(Config)
