"""`heedful distill`: pairs out of lines, filtered, resumed to the byte."""

import json
import os
import signal
import subprocess

import pytest

from heedful.commands import distill, lines
from heedful.commands.distill import Rules
from heedful.data.corpus import Line, read_pairs
from heedful.data.inputs import Inputs
from heedful.training.recipe import read_recipe
from heedful.training.run import train
from heedful.translator import load
from tests.commands.in_process import refused, run
from tests.corpora import SMALL, pairs
from tests.processes import python

KILLED = """
import os, signal, sys
import heedful.files
from heedful.commands import distill, main
distill.CHUNK, real, calls = 7, heedful.files.write_text, []
def write_text(path, text):
    calls.append(path)
    if len(calls) == {last}:  # the lines of this chunk are written, the note that counts them is not
        os.kill(os.getpid(), signal.SIGKILL)
    real(path, text)
heedful.files.write_text = write_text
sys.argv = ["heedful", *sys.argv[1:]]
main.main()
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Two models of one vocabulary, hardly trained, and texts."""
    folder = tmp_path_factory.mktemp("distill")
    corpus = pairs(folder / "p.tsv", 120, change=lambda text: text)
    for name, steps in (("a", 8), ("b", 4)):
        changes = [*SMALL, f"training.steps={steps}", "training.validate_every=100", "data.max_length=30"]
        train(read_recipe("tiny", changes), Inputs((corpus,)), folder / name, cache=folder / "cache")
    given = [line.split("\t")[0] for line in corpus.read_text(encoding="utf-8").splitlines()[:30]]
    given[4], given[9] = "", "a \x85 b c \u2028 d"
    (folder / "t.txt").write_text("".join(f"{line}\n" for line in given), encoding="utf-8")
    return folder


@pytest.fixture
def said(monkeypatch, capsys, place):
    monkeypatch.chdir(place)
    monkeypatch.setattr(distill, "CHUNK", 7)
    return lambda *arguments: run(monkeypatch, capsys, "distill", *arguments)


def test_one_line_out_for_each_line_in_and_the_teachers_words_beside_it(place, said):
    said("a", "t.txt", "-o", "all.tsv", "--keep-all", "-b", 2)
    texts = (place / "t.txt").read_text(encoding="utf-8").split("\n")[:-1]
    rows = [line.split("\t") for line in (place / "all.tsv").read_text(encoding="utf-8").split("\n")[:-1]]
    assert [source for source, _ in rows] == texts
    written = load(place / "a").translate(texts, num_beams=2)
    assert [target for _, target in rows] == [one.text for one in written] and rows[4] == ["", ""]
    note = json.loads((place / "all.tsv.json").read_text(encoding="utf-8"))
    assert note["finished"] and note["kept"] == note["lines"] == 30 and note["settings"]["num_beams"] == 2
    assert note["filtered"]["empty line"] == 1 and not (place / "all.tsv.filtered.tsv").exists()


def test_what_is_filtered_is_counted_and_listed_with_its_reason(place, said):
    printed = said("a", "t.txt", "-o", "some.tsv", "--min-score", -1.9)
    note = json.loads((place / "some.tsv.json").read_text(encoding="utf-8"))
    listed = [line.split("\t") for line in (place / "some.tsv.filtered.tsv").read_text(encoding="utf-8").split("\n")]
    counted = {reason: sum(row[1:2] == [reason] for row in listed) for reason in note["filtered"]}
    assert counted == note["filtered"] and sum(counted.values()) == 30 - note["kept"]
    assert ["5", "empty line", "0.0000", "", ""] in listed and "1 empty line" in printed
    held_out = {line.texts[0] for line in read_pairs([place / "a" / "test.tsv"]) if isinstance(line, Line)}
    assert {row[3] for row in listed if row[1:2] == ["held out for testing"]} <= held_out


def test_a_cell_stays_a_cell_whatever_a_model_writes():
    assert distill._cell("\0a\tb\nc\rd \u2028e ") == "a b c d \u2028e"


def test_progress_is_logged_with_the_time_that_is_left(tmp_path, monkeypatch, capsys):
    (tmp_path / "t.txt").write_text("x\n" * 50)
    monkeypatch.setattr(lines, "EVERY", 0)
    with lines.progress(str(tmp_path / "t.txt"), shown=True, done=10, logged=True) as advance:
        advance(20)
    said = capsys.readouterr().err
    assert said.startswith("heedful: 30 of 50 lines, ") and said.endswith(" minutes left\n")


def test_the_reasons():
    rules = Rules(min_score=-1.5, max_ratio=3)
    assert rules.reason(5, 0, -1.0, ended=True) == "no translation"
    assert rules.reason(5, 9, -1.0, ended=False) == "cut off at the length limit"
    assert rules.reason(5, 9, -1.6, ended=True) == "score below -1.5"
    assert rules.reason(4, 13, -1.0, ended=True) == rules.reason(13, 4, -1.0, ended=True) == "length ratio above 3"
    assert not rules.reason(4, 12, -1.0, ended=True) and not rules.reason(1, 10, -1.0, ended=True)


@pytest.mark.parametrize("last", [2, 4, 7])
def test_killed_anywhere_it_goes_on_to_the_byte(place, said, last):
    options = ["t.txt", "--min-score", -1.9, "--sample"]
    said("a", *options, "-o", "whole.tsv")
    command = python("-c", KILLED.format(last=last), "distill", "a", *options, "-o", f"k{last}.tsv")
    code = subprocess.run(command, cwd=place, env=os.environ, capture_output=True, timeout=60).returncode
    assert code == -signal.SIGKILL
    assert (place / f"k{last}.tsv").exists() == (last == 7)  # all is written, and only the note says it is not
    said("a", *options, "-o", f"k{last}.tsv")
    for ending in ("", ".json", ".filtered.tsv"):
        assert (place / f"k{last}.tsv{ending}").read_bytes() == (place / f"whole.tsv{ending}").read_bytes()
    assert not (place / f"k{last}.tsv.part").exists()


def test_back_translation_puts_the_text_on_the_target_side(place, said):
    said("a", "p.tsv", "--back", "--sample", "--tag", "<bt> ", "--keep-all", "-o", "bt.tsv")
    rows = [line.split("\t") for line in (place / "bt.tsv").read_text(encoding="utf-8").split("\n")[:-1]]
    given = [line.texts[1] for line in read_pairs([place / "p.tsv"]) if isinstance(line, Line)]
    assert [target for _, target in rows] == given
    drawn = load(place / "a").translate(given, do_sample=True, seed=1)
    assert [source for source, _ in rows] == ["<bt> " + one.text if one.text else "" for one in drawn]


def test_several_teachers_are_an_ensemble(place, said):
    said("a", "b", "t.txt", "-o", "both.tsv", "--keep-all")
    texts = (place / "t.txt").read_text(encoding="utf-8").split("\n")[:-1]
    found = [line.split("\t")[1] for line in (place / "both.tsv").read_text(encoding="utf-8").split("\n")[:-1]]
    assert found == [one.text for one in load(place / "a", place / "b").translate(texts)]


def test_mistakes_are_refused_with_what_to_do(place, said, monkeypatch, capsys):
    said("a", "t.txt", "-o", "done.tsv", "--keep-all")
    before = (place / "done.tsv").read_bytes()
    (place / "mine.tsv").write_text("x\ty\n")
    for arguments, text in (
        (["a", "t.txt", "-o", "done.tsv", "--keep-all", "-b", 2], "other settings (num_beams: 4 -> 2); use the same"),
        (["a", "b", "t.txt", "-o", "done.tsv", "--keep-all"], "other settings (teachers changed); use the same"),
        (["a", "t.txt", "-o", "t.txt"], "the input would be overwritten; give --output another name"),
        (["a", "t.txt", "-o", "mine.tsv"], "mine.tsv exists already, and was not written by this command"),
        (["a", "b", "-o", "x.tsv"], "give a model folder, then a file"),
        (["a", "none.txt", "-o", "x.tsv"], "there is no file none.txt"),
        (["none", "t.txt", "-o", "x.tsv"], "none is not a model folder"),
        (["a", "t.txt", "-o", "x.tsv", "--tag", "<bt> "], "--tag marks sources that a model wrote; use it with --back"),
        (["a", "t.txt", "-o", "x.tsv", "-n", 2], "one translation per line"),
    ):
        assert text in refused(monkeypatch, capsys, "distill", *arguments)
    said("a", "t.txt", "-o", "done.tsv", "--keep-all")  # finished already: nothing is written
    assert (place / "done.tsv").read_bytes() == before
