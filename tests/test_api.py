"""The public API: its docstrings' examples run, its names exist, and type checkers know its types."""

import doctest
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import heedful
from heedful import generator, translator
from heedful.inspection.details import position_picture
from heedful.model.architecture.encoder_decoder import EncoderDecoderConfig
from heedful.model.create import create
from tests.corpora import pairs

ROOT = Path(__file__).parents[1]
MODELS = ROOT / "tests" / "fixtures" / "v0_1"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """What the examples name: two model folders and a file of pairs."""
    shutil.copytree(MODELS / "translator", tmp_path / "runs" / "my-model")
    shutil.copytree(MODELS / "generator", tmp_path / "runs" / "book")
    pairs(tmp_path / "pairs.tsv")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.parametrize("module", [heedful, translator, generator], ids=lambda module: module.__name__)
def test_examples_in_docstrings_print_what_they_say(module, place):
    found = doctest.testmod(module, globs={"heedful": heedful}, optionflags=doctest.IGNORE_EXCEPTION_DETAIL)
    assert found.failed == 0 and found.attempted >= 2


def test_a_folder_of_another_kind_than_expected_is_refused(place):
    with pytest.raises(ValueError, match="runs/book holds a Generator, not a Translator"):
        heedful.load("runs/book", expect=heedful.Translator)
    assert isinstance(heedful.load("runs/book", expect=heedful.Generator), heedful.Generator)
    with pytest.raises(AttributeError, match="module 'heedful' has no attribute 'Translater'"):
        heedful.Translater  # noqa: B018


def test_inspect_writes_the_page_and_returns_its_data(place):
    model = heedful.load("runs/my-model", expect=heedful.Translator)
    seen = heedful.inspect(model, "a b c", out="abc.html")
    assert seen["translation"]["text"] == "c b a"
    assert '"c b a"' in (place / "abc.html").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="the text is empty"):
        heedful.inspect("runs/my-model", " ")
    with pytest.raises(ValueError, match="holds a Generator, not a Translator, Chatter, Classifier or Regressor"):
        heedful.inspect("runs/book", "the")


@pytest.mark.parametrize(
    ("position", "acts"),
    [("sinusoidal", "embedding"), ("rotary", "rotation"), ("alibi", "bias"), ("relative_bias", "bias"), ("none", None)],
)
def test_the_picture_of_positions_is_that_of_the_model(position, acts):
    stack = {"layers": 1, "position": position, "attention": {"heads": 2}, "feedforward": {"hidden": 8}}
    model = create(EncoderDecoderConfig(vocab=11, width=8, encoder=stack, decoder=stack))
    seen = position_picture(model, 5)
    assert (seen["kind"], seen["acts"]) == (position, acts)
    rows = torch.tensor(seen["rows"])
    if position == "sinusoidal":
        assert torch.allclose(rows[:, 0], torch.arange(24).sin(), atol=2e-3)
    if position == "alibi":
        assert torch.allclose(rows, -(torch.arange(24)[:, None] - torch.arange(24)).abs() / 16, atol=2e-3)


def test_type_checkers_know_what_load_returns(tmp_path):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    snippets = "\n".join(re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL))
    expected = """
reveal_type(heedful.load("x", expect=heedful.Translator))
reveal_type(heedful.load("x", expect=heedful.Translator).translate("a").text)
reveal_type(heedful.load("x", expect=heedful.Translator).translate(["a"]))
reveal_type(heedful.load("x"))
"""
    (tmp_path / "snippets.py").write_text(snippets + expected)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--config-file",
        str(ROOT / "pyproject.toml"),
        str(tmp_path / "snippets.py"),
    ]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600).stdout
    assert "error" not in found
    assert re.findall(r'Revealed type is "([^"]*)"', found) == [
        "heedful.translator.Translator",
        "str",
        "list[heedful.translator.Translation]",
        "Any",
    ]
