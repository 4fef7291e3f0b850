"""`heedful train` and `heedful data check`, run as people run them: started, killed, stopped, started again."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
import yaml
from safetensors.torch import load_file

from tests.commands.in_process import refused
from tests.corpora import SMALL, pairs
from tests.processes import Started, program, programs

STEPS = ["training.steps=200", "training.save_every=10", "training.validate_every=100", "training.log_every=10"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return pairs(tmp_path_factory.mktemp("corpus") / "p.tsv")


def environment(corpus):
    return {**os.environ, "HEEDFUL_CACHE": str(corpus.parent / "cache"), "OMP_NUM_THREADS": "1"}


def heedful(corpus, *arguments, processes=1, **options):
    return subprocess.run(
        program(*arguments, processes=processes),
        capture_output=True,
        text=True,
        timeout=240,
        env=environment(corpus),
        **options,
    )


def train(corpus, out, *changes, **options):
    result = heedful(corpus, "train", corpus, "--out", out, *SMALL, *STEPS, *changes, **options)
    assert result.returncode == 0, result.stderr
    return result


def losses(out):
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def test_killed_at_random_moments_it_ends_as_if_left_alone(corpus, tmp_path):
    programs()  # what starts it once is not counted
    began = time.monotonic()
    train(corpus, tmp_path / "alone")
    whole = time.monotonic() - began
    chance, kills = random.Random(3), 0
    for _ in range(4):
        arguments = program("train", corpus, "--out", tmp_path / "killed", *SMALL, *STEPS)
        quiet = subprocess.DEVNULL
        with Started(arguments, stderr=quiet, stdout=quiet, env=environment(corpus)) as run:
            try:
                run.wait(timeout=chance.uniform(0.5, 0.95) * whole)
            except subprocess.TimeoutExpired:
                run.kill()
                kills += 1
    train(corpus, tmp_path / "killed")
    assert kills
    for name in ("model.safetensors", "checkpoints/200/model.safetensors", "checkpoints/200/optimizer.safetensors"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()
    assert losses(tmp_path / "killed") == losses(tmp_path / "alone")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_stop_it_saves_and_says_so(corpus, tmp_path, number):
    out = tmp_path / "run"
    arguments = program("train", corpus, "--out", out, *SMALL, *STEPS, "training.steps=100000")
    with Started(arguments, stderr=subprocess.PIPE, text=True, env=environment(corpus)) as run:
        for line in run.stderr:
            if line.startswith("step 20/"):
                run.send_signal(number)
                break
        said = run.stderr.read()
    assert run.returncode == 128 + number  # not a success: it is not through
    assert "saved; rerun the same command to resume" in said and "Traceback" not in said
    stopped = max(int(path.name) for path in (out / "checkpoints").iterdir())
    assert 20 <= stopped < 100000


def test_two_processes_give_the_loss_curve_of_one(corpus, tmp_path):
    dry = ["model.encoder.dropout=0", "model.decoder.dropout=0", "training.steps=30", "training.eps=0.001"]
    train(corpus, tmp_path / "one", *dry)
    train(corpus, tmp_path / "two", *dry, processes=2)
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), abs=1e-5)
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    for name, tensor in first.items():
        assert (tensor - second[name]).abs().max() < 1e-4, name


def test_a_batch_smaller_than_the_processes_still_counts_once(corpus, tmp_path):
    dry = ["model.encoder.dropout=0", "model.decoder.dropout=0", "training.steps=10", "training.batch_tokens=12"]
    train(corpus, tmp_path / "one", *dry)
    train(corpus, tmp_path / "two", *dry, "training.accumulate=2", processes=2)
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), abs=1e-5)


def test_standard_input(corpus, tmp_path):
    with corpus.open() as file:
        result = heedful(
            corpus, "train", "-", "--out", tmp_path / "run", *SMALL, "training.steps=5", "--json", stdin=file
        )
    assert result.returncode == 0, result.stderr
    assert set(json.loads(result.stdout)) == {"folder", "loss", "accuracy", "bleu", "chrf", "exact"}
    assert (tmp_path / "run" / "training.png").stat().st_size > 1000


def test_parallel_gzipped_files_with_validation(corpus, tmp_path):
    import gzip

    sides = list(zip(*(line.split("\t") for line in corpus.read_text().splitlines()), strict=True))
    for name, lines in zip(("t.en.gz", "t.de.gz"), sides, strict=True):
        with gzip.open(tmp_path / name, "wt") as file:
            file.write("\n".join(lines) + "\n")
    result = heedful(
        corpus,
        "train",
        tmp_path / "t.en.gz",
        tmp_path / "t.de.gz",
        "--valid",
        corpus,
        "--out",
        tmp_path / "run",
        *SMALL,
        "training.steps=5",
    )
    assert result.returncode == 0, result.stderr
    assert "also in validation or test" in result.stderr and "300 for validation" in result.stderr


def test_a_budget_may_keep_the_model_and_its_schedule(corpus, tmp_path):
    asked = ["train", corpus, *SMALL, "--out", tmp_path / "run", "--budget", "2s", "--keep-model"]
    asked += ["training.schedule=cosine", "training.learning_rate=0.002", "training.validate_every=7"]
    assert heedful(corpus, *asked).returncode == 0
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert config["model"]["width"] == 16 and config["training"]["schedule"] == "cosine"
    assert config["training"]["validate_every"] == 7 and config["training"]["steps"] != 10_000
    refusal = heedful(corpus, *asked[:-6], "--out", tmp_path / "other", "--keep-model", "training.steps=1")
    assert refusal.returncode == 2 and "give one with --budget" in refusal.stderr


def test_a_budget_makes_a_plan(corpus, tmp_path):
    result = heedful(corpus, "train", corpus, "--out", tmp_path / "run", "--budget", "2epochs", *SMALL)
    assert result.returncode == 0, result.stderr
    state = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert state[-1]["final"]
    result = heedful(corpus, "train", corpus, "--out", tmp_path / "timed", "--budget", "2s", "tokenizer.kind=character")
    assert result.returncode == 0, result.stderr
    assert "plan for 2s: tiny model" in result.stderr


MISTAKES = {
    "no file": (["train", "missing.tsv", "--out", "OUT"], "heedful: there is no file missing.tsv"),
    "unknown key": (["train", "CORPUS", "--out", "OUT", "training.stesp=3"], "did you mean 'steps'?"),
    "unknown recipe": (["train", "CORPUS", "--out", "OUT", "--recipe", "tny"], "did you mean 'tiny'?"),
    "bad budget": (["train", "CORPUS", "--out", "OUT", "--budget", "soon"], "budget 'soon' is not one of 20m"),
    "only keys": (["train", "seed=3", "--out", "OUT"], "heedful: no file to train on"),
    "plain text as pairs": (["train", "TEXT", "--out", "OUT"], "pairs must be TSV"),
    "no usable line": (["data", "check", "EMPTY"], "no usable line among 1 (1 only one column)"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_end_in_one_line_and_exit_code_2(corpus, tmp_path, name, monkeypatch, capsys):
    arguments, message = MISTAKES[name]
    (tmp_path / "text.txt").write_text("no tab here\n")
    (tmp_path / "empty.tsv").write_text("one column\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path / "cache"))
    places = {"OUT": tmp_path / "run", "CORPUS": corpus, "TEXT": tmp_path / "text.txt", "EMPTY": tmp_path / "empty.tsv"}
    said = refused(monkeypatch, capsys, *(places.get(word, word) for word in arguments))
    assert message in said.splitlines()[-1]


def test_data_check_prints_a_table_and_json(corpus):
    result = heedful(corpus, "data", "check", corpus)
    assert result.returncode == 0 and "usable" in result.stdout and "duplicate pairs" in result.stdout
    data = json.loads(heedful(corpus, "data", "check", corpus, "--json").stdout)
    assert data["usable"] == 300 and data["sides"][0]["quantiles"][-1] == 6


def test_nothing_connects_to_the_network(corpus, tmp_path):
    """Sockets are made to fail before anything else is imported."""
    code = (
        "import socket\n"
        "def refuse(*args, **kwargs): raise RuntimeError('network')\n"
        "socket.socket.connect = refuse; socket.create_connection = refuse\n"
        "from heedful.commands.main import main; main()"
    )
    arguments = ["train", str(corpus), "--out", str(tmp_path / "run"), *SMALL, "training.steps=3"]
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120, env=environment(corpus)
    )
    assert result.returncode == 0, result.stderr


def test_a_model_whose_checkpoints_are_gone_is_not_replaced(corpus, tmp_path):
    import shutil

    train(corpus, tmp_path / "run", "training.steps=20")
    before = (tmp_path / "run" / "model.safetensors").read_bytes()
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    result = heedful(corpus, "train", corpus, "--out", tmp_path / "run", *SMALL, *STEPS, "training.steps=20")
    assert result.returncode == 2 and "trained for 20 steps, but its checkpoints are gone" in result.stderr
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == before


def test_two_trainings_in_one_folder_are_one_too_many(corpus, tmp_path):
    out = tmp_path / "run"
    words = ["train", corpus, "--out", out, *SMALL, *STEPS, "training.steps=100000"]
    arguments = [sys.executable, "-m", "heedful", *map(str, words)]  # a process with a number of its own
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, env=environment(corpus)) as first:
        for line in first.stderr:
            if line.startswith("step 20/"):
                break
        second = heedful(corpus, *words)
        first.kill()
        first.stderr.read()
    assert second.returncode == 2
    assert f"another training is already running in {out} (process {first.pid})" in second.stderr
    train(corpus, out, "training.steps=30")  # a kill has freed it


def test_held_out_pairs_are_kept_for_evaluate_and_training_pairs_are_said_to_be_that(corpus, tmp_path):
    out = tmp_path / "run"
    train(corpus, out, "training.steps=10")
    kept = [line.split("\t") for line in (out / "test.tsv").read_text().splitlines()]
    assert kept and {tuple(row) for row in kept} <= {
        tuple(line.split("\t")) for line in corpus.read_text().splitlines()
    }
    result = heedful(corpus, "evaluate", out, "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["sentences"] == len(kept) and "training data" not in result.stderr
    result = heedful(corpus, "evaluate", out, corpus, "--json")
    assert f"{corpus} is the training data of {out}: these scores say nothing about new texts" in result.stderr
