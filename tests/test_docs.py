"""Every command and snippet of the documentation works as it is written, and the reference is that of the code."""

import importlib.util
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.processes import path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))


def module(name):
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / f"{name}.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def commands(page):
    """(page, command, what it prints): a block of text right below a block with one command is its output."""
    text = (DOCS / page).read_text(encoding="utf-8")
    found = []
    for block in re.finditer(r"```sh\n(.*?)```\n(?:\n```text\n(.*?)```)?", text, flags=re.DOTALL):
        lines = [line for line in block[1].splitlines() if line.strip()]
        assert block[2] is None or len(lines) == 1, "the output of several commands stands below them"
        found += [(page, line, block[2]) for line in lines]
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("docs")


@pytest.mark.parametrize(
    ("page", "command", "printed"), [*commands("tutorial.md"), *commands("extending.md"), *commands("questions.md")]
)
def test_commands_run_in_their_order_and_print_what_stands_below_them(page, command, printed, place):
    environment = {**os.environ, "PATH": path(), "HEEDFUL_CACHE": str(place / "cache")}
    result = subprocess.run(
        command, shell=True, cwd=place, env=environment, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() and '"error"' not in result.stdout
    assert printed is None or result.stdout == printed


@pytest.mark.parametrize("page", [page.name for page in PAGES])
def test_snippets_print_what_stands_below_them(page, place, monkeypatch):
    monkeypatch.chdir(place)
    text = (DOCS / page).read_text(encoding="utf-8")
    assert module("fill").fill(text) == text


def test_the_notebook_runs_and_prints_what_stands_below_its_cells(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("MPLBACKEND", "agg")
    names: dict[str, object] = {"__name__": "notebook"}
    compared = 0
    for cell in json.loads((DOCS / "heedful.ipynb").read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            printed = module("fill").run("".join(cell["source"]), names)
            for output in cell["outputs"]:
                assert printed == "".join(output["text"])
                compared += 1
    assert compared >= 5 and (tmp_path / "cat.html").exists()


@pytest.mark.parametrize("page", [page.name.removesuffix(".zh.md") for page in PAGES if page.name.endswith(".zh.md")])
def test_both_languages_show_the_same_code(page):
    english, chinese = ((DOCS / name).read_text(encoding="utf-8") for name in (f"{page}.md", f"{page}.zh.md"))
    for pattern in (r"```(?:python|sh|text)\n.*?```", r"\]\(\.\./src/[^)]*\)", r"\]\(pictures/[^)]*\)"):
        assert re.findall(pattern, english, flags=re.DOTALL) == re.findall(pattern, chinese, flags=re.DOTALL)
    for heading in ("\n## ", "\n### "):
        assert english.count(heading) == chinese.count(heading)


def test_the_reference_is_that_of_the_code():
    reference = module("reference")
    for name, made in (("recipe.md", reference.recipe()), ("cli.md", reference.command_line())):
        assert (DOCS / "reference" / name).read_text(encoding="utf-8") == made, "run: python docs/reference.py"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        assert link.startswith("http") or (page.parent / link).exists(), link
