"""`heedful compare`: the same data, seeds and budget for all, and no difference is called one that may be luck."""

import json
import os
import subprocess

import pytest

from heedful.evaluation.compare import permutation_p_value, same_direction
from tests.commands.in_process import refused
from tests.corpora import SMALL, pairs
from tests.processes import program

SHARED = [*SMALL, "training.steps=30", "training.validate_every=30", "training.save_every=30", "data.max_length=30"]


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path / "cache"))
    return pairs(tmp_path / "p.tsv", 400)


def heedful(*arguments):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(program(*arguments), capture_output=True, text=True, env=environment, timeout=300)
    assert result.returncode == 0, result.stderr
    return result


def test_translators_are_compared_with_the_baseline(corpus, tmp_path):
    command = ["compare", str(corpus), *SHARED, "--out", str(tmp_path / "out"), "--seeds", "2", "--json"]
    command += ["-v", "plain: model.encoder.attention.mix=reference"]
    result = json.loads(heedful(*command).stdout)
    variants = result["variants"]
    assert result["metric"] == "bleu" and list(variants) == ["baseline", "plain"]
    assert variants["baseline"]["parameters"] == variants["plain"]["parameters"] > 0
    assert all(row["seconds"] > 0 and row["mebibytes"] > 50 and row["steps"] == 30 for row in variants.values())
    assert variants["baseline"]["p_value"] is None and 0 < variants["plain"]["p_value"] <= 1
    assert not variants["plain"]["differs"], "the same function cannot be better"
    assert json.loads((tmp_path / "out" / "compare.json").read_text()) == result
    changed = [word.replace("batch_tokens=256", "batch_tokens=128") for word in command]
    refusal = subprocess.run(program(*changed), capture_output=True, text=True, timeout=300)
    assert refusal.returncode == 2 and "training.batch_tokens" in refusal.stderr, refusal.stderr
    table = heedful(*(word for word in command if word != "--json"), "--markdown").stdout
    assert "| baseline |" in table and "± " in table
    again = json.loads((tmp_path / "out" / "compare.json").read_text())  # finished trainings are not repeated
    assert again == result


def test_mistakes_are_found_before_any_training(corpus, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    for variant, message in (
        ("model.encoder.attention.mix=softmix", "unknown attention 'softmix'; did you mean 'softmax'?"),
        ("narrow", "variant 'narrow' is not of the form KEY=VALUE or 'NAME: KEY=VALUE KEY=VALUE'"),
        ("baseline: model.width=8", "two variants are called 'baseline'"),
    ):
        said = refused(monkeypatch, capsys, "compare", corpus, *SHARED, "--out", out, "-v", variant)
        assert message in said and not out.exists()


def test_what_cannot_be_scored_is_refused_before_any_training(corpus, tmp_path, monkeypatch, capsys):
    asked = ["compare", corpus, *SHARED, "--out", tmp_path / "out", "-v", "model.width=8"]
    said = refused(monkeypatch, capsys, *asked, "--valid", corpus)
    assert "with --valid no test pairs are held out; give some with --test" in said
    asked = ["compare", corpus, "--recipe", "char-gpt", "--out", tmp_path / "out", "-v", "model.width=8"]
    assert "--test is for translators" in refused(monkeypatch, capsys, *asked, "--test", corpus)
    asked = ["compare", corpus, *SHARED, "--out", tmp_path / "out", "-v", "data.context=1"]
    assert "with and without data.context other pairs are held out" in refused(monkeypatch, capsys, *asked)
    assert not (tmp_path / "out").exists()


def test_luck_is_not_called_a_difference():
    assert permutation_p_value([1, 2, 3], [4, 5, 6]) == pytest.approx(0.1)
    assert permutation_p_value([1, 2, 3, 4], [5, 6, 7, 8]) == pytest.approx(2 / 70)
    assert permutation_p_value([1, 2], [1, 2]) == 1 == permutation_p_value([1, 2], [float("nan"), 2])
    assert 0 < permutation_p_value(list(range(12)), list(range(8, 20))) < 0.01  # drawn, not exact
    assert same_direction([1, 2], [2, 3]) and not same_direction([1, 2], [2, 1]) and not same_direction([1], [1])
