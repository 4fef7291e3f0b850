"""`heedful params`, run as a person runs it."""

import json
import subprocess
import sys

import pytest

from tests.commands.in_process import refused
from tests.processes import program


def heedful(*arguments):
    return subprocess.run(program(*arguments), capture_output=True, text=True, timeout=120)


def test_it_prints_a_table():
    result = heedful("params", "vaswani-base")
    assert result.returncode == 0, result.stderr
    for piece in ("63,082,496", "by formula", "counted", "252,329,984", "FLOPs per target token", "per source token"):
        assert piece in result.stdout


def test_json_has_the_total():
    result = heedful("params", "vaswani-base", "vocab=8000", "decoder.layers=3", "--json")
    data = json.loads(result.stdout)
    assert data["total"] == sum(part["counted"] for part in data["components"].values())
    assert data["components"]["embedding"]["formula"] == 8000 * 512
    assert data["weight_bytes"]["bfloat16"] == 2 * data["total"]


def test_without_a_name_it_lists_the_presets():
    result = heedful("params")
    for name in ("vaswani-tiny", "marian-base", "gpt3-175b", "llama2-70b", "smollm2-135m"):
        assert name in result.stdout
    assert json.loads(heedful("params", "--json").stdout)["gpt2"] == 124_439_808


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["vaswani-bse"], "heedful: unknown preset 'vaswani-bse'; did you mean 'vaswani-base'?\n"),
        (["gpt2", "decoder.layer=3"], "heedful: decoder: unknown key 'layer'; did you mean 'layers'?\n"),
        (
            ["gpt2", "width=10"],
            "heedful: decoder: width 10 does not split into 12 heads; choose heads from [1, 2, 5, 10]\n",
        ),
    ],
)
def test_mistakes_get_one_line_and_exit_code_2(arguments, message, monkeypatch, capsys):
    assert refused(monkeypatch, capsys, "params", *arguments) == message


def test_help_answers_without_torch():
    code = "import sys; from heedful.commands.main import app; assert 'torch' not in sys.modules; print('quick')"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.stdout == "quick\n", result.stderr


def test_version_and_help():
    assert heedful("--version").stdout.startswith("heedful 0.")
    text = heedful("params", "--help").stdout
    assert "heedful params vaswani-base" in text and "--json" in text
