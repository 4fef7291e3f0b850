"""`heedful translate`, `evaluate`, `score` and `generate`, run as people run them."""

import json
import os
import subprocess
import sys

import pytest

from heedful import generator, translator
from heedful.checkpoint import load_model
from heedful.commands.main import main
from heedful.commands.translate import _with_sources
from heedful.data.columns import DOCUMENT
from heedful.data.inputs import Inputs
from heedful.training.recipe import read_recipe
from heedful.training.run import train
from heedful.translator import Translation
from tests.commands.in_process import refused
from tests.corpora import SMALL, pairs
from tests.processes import program


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Two small translators and a language model."""
    folder = tmp_path_factory.mktemp("models")
    corpus = pairs(folder / "p.tsv", 400, change=lambda text: text)
    for name, steps in (("a", 60), ("b", 20)):
        changes = [*SMALL, f"training.steps={steps}", "training.validate_every=100", "data.max_length=30"]
        train(read_recipe("tiny", changes), Inputs((corpus,)), folder / name, cache=folder / "cache")
    (folder / "book.txt").write_text("the quick brown fox\n\n" * 100)
    changes = ["model.width=16", "model.decoder.layers=1", "training.steps=20", "task.context=32"]
    inputs = Inputs((folder / "book.txt",), columns=DOCUMENT)
    train(read_recipe("char-gpt", changes), inputs, folder / "lm", cache=folder / "cache")
    return folder


def heedful(place, *arguments, stdin=b""):
    command = program(*arguments)
    result = subprocess.run(command, cwd=place, input=stdin, capture_output=True, timeout=120, env=os.environ)
    return result.returncode, result.stdout.decode(), result.stderr.decode()


def test_as_many_lines_out_as_in_whatever_is_in_them(place):
    lines = b"a b c\n\nd e\r\nbad \xff byte\n   \n" + b"x " * 90 + b"\n\x00\xe2\x80\xa8f"
    code, out, said = heedful(place, "translate", "a", stdin=lines)
    assert code == 0, said
    assert out.count("\n") == 7 and out.split("\n")[1] == "" and out.split("\n")[4] == ""
    assert "line 4 is not valid UTF-8; invalid bytes are replaced" in said
    assert "line 6: too long for the model: translated in" in said


def test_files_beams_and_both_spellings(place):
    (place / "in.txt").write_text("a b\nc d e\n")
    code, _, said = heedful(place, "translate", "a", "-i", "in.txt", "-o", "out.txt", "--beam-size", 3, "--alpha", 0.6)
    assert code == 0, said
    first = (place / "out.txt").read_text()
    heedful(place, "translate", "a", "--input", "in.txt", "--output", "out.txt", "--num-beams", 3, "--alpha", 0.6)
    assert (place / "out.txt").read_text() == first and first.count("\n") == 2


def test_words_that_no_space_parts_are_shown_together():
    found = Translation("小狗看见iPhone。", 0.0, [], [], alignment=[(1, 0), (1, 1), (2, 2), (2, 3), (3, 4)])
    assert _with_sources("The dog sees iPhone.", found) == "小狗(dog) 看见(sees) iPhone。(iPhone.)"
    found = Translation("der der Hund", 0.0, [], [], alignment=[(0, 0), (0, 1), (1, 2)])
    assert _with_sources("the dog", found) == "der(the) der(the) Hund(dog)"
    found = Translation("狗 看 — —", 0.0, [], [], alignment=[(0, 0), (0, 1), (1, 2), (1, 3)])
    assert _with_sources("a b", found) == "狗(a) 看(a) —(b) —(b)"


def test_json_lines_carry_wishes_in_and_all_there_is_to_tell_out(place):
    asked = [{"text": "a b c", "id": 7}, {"text": "d e", "constraints": ["h g"], "avoid": ["d"]}, {"text": "f"}]
    options = ["--input-format", "jsonl", "--alignment", "--history", "--shortlist", "--stop", "zz", "--n-best", 2]
    odd = [{"text": "a", "avoid": "b"}, {"text": "a", "avoid": ["b"], "constraints": ["a b"]}]
    lines = "".join(json.dumps(line) + "\n" for line in [*asked, *odd])
    code, out, said = heedful(place, "translate", "a", *options, stdin=lines.encode())
    assert code == 1 and "heedful: line 4: avoid is not a list of phrases" in said
    assert "2 of 5 lines could not be translated" in said
    first, second, _, bad, torn = map(json.loads, out.splitlines())
    assert first["id"] == 7 and len(first["translations"]) == 2 and isinstance(first["alignment"], list)
    assert {"parent", "token", "log_prob", "score", "beam", "ended"} == set(first["history"][0][0])
    assert "h g" in second["translation"]
    assert torn["error"] == "the phrase 'a b' is required, but 'b' is banned" and not torn["translation"]
    assert bad["error"] == "avoid is not a list of phrases" and not bad["translation"]


def test_wishes_for_every_line(place):
    options = ["--required", "j", "--banned", "a", "--replace-unknowns"]
    code, out, said = heedful(place, "translate", "a", *options, stdin=b"a b c\nd e\n")
    assert code == 0 and not said, said
    assert all("j" in line.split() and "a" not in line.split() for line in out.splitlines())


def test_mistakes_in_wishes(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    said = refused(monkeypatch, capsys, "translate", "a", "--num-beam-groups", 2)
    assert "num_beam_groups and diversity_penalty go together" in said
    said = refused(monkeypatch, capsys, "translate", "a", "--mbr", 4, "--required", "x")
    assert "--mbr chooses among samples; leave out --required, --history, --num-beam-groups, alignments" in said
    assert "unknown quantize 'int4'; known: int8" in refused(
        monkeypatch, capsys, "evaluate", "a", "p.tsv", "--quantize", "int4"
    )


def test_int8_weights_translate_too(place):
    code, out, said = heedful(place, "translate", "a", "--quantize", "int8", stdin=b"a b c\nd e\n")
    assert code == 0 and not said, said
    assert out.count("\n") == 2


def test_alignments_in_pharaohs_format_and_in_json(place):
    code, out, said = heedful(place, "translate", "a", "--format", "pharaoh", stdin=b"a b c\n\nd\n")
    assert code == 0, said
    lines = out.split("\n")
    assert len(lines) == 4 and lines[1] == ""
    assert all(0 <= int(link.split("-")[0]) < 3 for link in lines[0].split())
    code, out, _ = heedful(place, "translate", "a", "--format", "jsonl", "--alignment", stdin=b"a b c\n")
    found = json.loads(out)  # the format is that of the output: what comes in is plain text
    assert code == 0 and isinstance(found["alignment"], list) and found["text"] == "a b c" and "error" not in found


def test_the_most_agreed_on_of_many_samples(place):
    twice = [heedful(place, "translate", "a", "--mbr", 5, "--seed", 1, stdin=b"a b c\nd e\n") for _ in range(2)]
    assert twice[0] == twice[1] and twice[0][0] == 0 and twice[0][1].count("\n") == 2


def test_moses_n_best(place):
    code, out, said = heedful(place, "translate", "a", "--n-best", 3, "--format", "nbest", stdin=b"a b c\nd\n")
    assert code == 0, said
    rows = [line.split(" ||| ") for line in out.splitlines()]
    assert [row[0] for row in rows] == ["0"] * 3 + ["1"] * 3 and all(len(row) == 4 for row in rows)
    assert float(rows[0][3]) >= float(rows[1][3]) >= float(rows[2][3])


def test_json_lines_pass_through_what_they_do_not_know(place):
    lines = '{"text": "a b", "id": 7, "target_prefix": "j"}\n{"text": "c d", "avoid": ["c"]}\nnot json\n'
    code, out, said = heedful(place, "translate", "a", "--input-format", "jsonl", stdin=lines.encode())
    assert code == 1 and "line 3: not a JSON object with a text field" in said
    first, second, third = (json.loads(line) for line in out.splitlines())
    assert first["id"] == 7 and first["sentence_id"] == 0 and first["translation"].startswith("j")
    assert "c" not in second["translation"] and third["error"]


def test_an_ensemble_of_models_with_different_words_is_refused(place):
    assert heedful(place, "translate", "a", "b", stdin=b"a b\n")[0] == 0
    code, _, said = heedful(place, "translate", "a", "lm", stdin=b"a b\n")
    assert code == 2 and "a model of kind decoder_only does not translate" in said


def test_evaluate_one_model(place):
    code, out, said = heedful(place, "evaluate", "a", "p.tsv", "--beam-size", 1, "--json")
    assert code == 0, said
    data = json.loads(out)
    scores = data["models"]["a"]
    assert data["sentences"] == 400 and "nrefs:1" in scores["bleu"]["signature"] and scores["perplexity"] > 1
    assert len(data["worst"]) == 5 and data["by_source_words"]


def test_evaluate_models_side_by_side(place):
    code, out, said = heedful(place, "evaluate", "a", "b", "p.tsv", "-b", 1, "--markdown")
    assert code == 0, said
    assert "| a |" in out and "| b |" in out and "p = " in out and "Signatures" in out


def test_evaluate_prints_a_table(place):
    code, out, _ = heedful(place, "evaluate", "a", "p.tsv", "-b", 1)
    assert code == 0 and "BLEU" in out and "version:" in out


@pytest.mark.parametrize(("folders", "test"), [(["a"], "two.tsv"), (["b", "a"], "two.tsv"), (["lm"], "book.txt")])
def test_evaluate_loads_each_model_once(place, monkeypatch, capsys, folders, test):
    (place / "two.tsv").write_text("a b\ta b\nc\tc d\n")
    loaded = []
    for user in (generator, translator):
        monkeypatch.setattr(user, "load_model", lambda folder: loaded.append(str(folder)) or load_model(folder))
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "argv", ["heedful", "evaluate", *folders, test, "--json"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert not caught.value.code and loaded == folders, capsys.readouterr().err


def test_score_adds_up(place):
    (place / "two.tsv").write_text("a b\ta b\nc\tc d\n")
    code, out, said = heedful(place, "score", "a", "two.tsv", "--json")
    assert code == 0, said
    for line in map(json.loads, out.splitlines()):
        assert line["log_prob"] == pytest.approx(sum(line["tokens"])) and line["log_prob"] < 0
    code, out, _ = heedful(place, "score", "a", "b", "two.tsv")
    assert code == 0 and len(out.splitlines()[0].split("\t")) == 4


def test_a_language_model_continues_and_is_measured(place):
    first = heedful(place, "generate", "lm", "the ", "--seed", 3, "--max-new-tokens", 20)
    assert (
        first[0] == 0
        and first[1].startswith("the ")
        and first == heedful(place, "generate", "lm", "the ", "--seed", 3, "--max-new-tokens", 20)
    )
    code, out, _ = heedful(place, "generate", "lm", "the ", "-n", 2, "--json", "--stop", "q", "--max-new-tokens", 9)
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and len(lines) == 2 and all("q" not in line["text"] for line in lines)
    code, out, _ = heedful(place, "evaluate", "lm", "book.txt", "--json")
    assert code == 0 and json.loads(out)["bits_per_byte"] > 0


MISTAKES = {
    "no model": (["translate", "nowhere"], "nowhere is not a model folder: there is no config.yaml in it"),
    "language model": (["translate", "lm"], "a model of kind decoder_only does not translate"),
    "translator": (["generate", "a", "x"], "a model of kind encoder_decoder does not continue texts"),
    "no input": (["translate", "a", "-i", "missing.txt"], "there is no file missing.txt"),
    "quantize": (["translate", "a", "--quantize", "int4"], "unknown quantize 'int4'; known: int8"),
    "format": (["translate", "a", "--format", "xml"], "format 'xml' is not one of plain, nbest, jsonl, pharaoh"),
    "too many": (["translate", "a", "--n-best", "9"], "num_return_sequences 9 is more than num_beams 4"),
    "no test": (["evaluate", "a", "missing.tsv"], "there is no file missing.tsv"),
    "only a model": (["evaluate", "p.tsv"], "give a model folder and a test file"),
    "only a model to score": (["score", "a"], "give one or two model folders and a file of pairs"),
    "empty test": (["evaluate", "a", "empty.tsv"], "empty.tsv has no usable pairs"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_end_in_one_line_and_exit_code_2(place, name, monkeypatch, capsys):
    (place / "empty.tsv").write_text("")
    monkeypatch.chdir(place)
    arguments, message = MISTAKES[name]
    assert message in refused(monkeypatch, capsys, *arguments)
