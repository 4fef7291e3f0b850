"""The commands of docs/mixing.md run, in their order, on small files with the names that the page uses; trainings are
cut short, and their models are small."""

import os
import re
import subprocess
from pathlib import Path

import yaml

from tests.corpora import pairs
from tests.processes import path, python

PAGE = Path(__file__).parents[2] / "docs" / "mixing.md"
RECIPES = ("tasks.yaml", "domains.yaml", "many.yaml")
STEPS = (
    " training.steps=2 training.batch_tokens=256 tokenizer.vocab=300 training.samples=0 model.width=16"
    " model.encoder.layers=1 model.decoder.layers=1"
)


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)


def write(place: Path) -> None:
    for number, name in enumerate(("general", "medical", "translated-back", "news", "sentiment", "de-fr")):
        pairs(place / f"{name}.tsv", 200, seed=number)
    for name in ("en-de", "en-fr"):
        pairs(place / f"{name}.tsv", 200, change=str.upper)
    for name, text in zip(RECIPES, blocks("yaml"), strict=True):
        recipe = {"model": {"preset": "vaswani-tiny"}, **yaml.safe_load(text)}
        (place / name).write_text(yaml.safe_dump(recipe), encoding="utf-8")


def test_the_commands_of_the_page_run(tmp_path):
    write(tmp_path)
    environment = {**os.environ, "PATH": path(), "HEEDFUL_CACHE": str(tmp_path / "cache")}
    lines = [line for block in blocks("sh") for line in block.splitlines() if line.strip()]
    said = {}
    for line in lines:
        command = line + (STEPS if " train " in line else "")
        done = subprocess.run(command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True,
                              timeout=300)  # fmt: skip
        assert done.returncode == 0, (line, done.stderr[-800:])
        said[line] = done.stdout + done.stderr
    found = {line.partition(" ")[2]: text for line, text in said.items()}
    assert "rouge[summarize]" in found["train --recipe tasks.yaml --out runs/tasks"]
    assert "de-fr was not trained" in found['"Hallo." | heedful translate runs/many --from de --to fr']
    assert "2de" in (tmp_path / "hello.html").read_text(encoding="utf-8")
    (code,) = blocks("py")
    done = subprocess.run(python("-c", code), cwd=tmp_path, env=environment, capture_output=True, text=True,
                          timeout=300)  # fmt: skip
    assert done.stdout == "str\n", done.stderr[-800:]


def test_a_recipe_of_the_page_is_read_as_it_says(tmp_path):
    from heedful.training.recipe import read_recipe

    write(tmp_path)
    found = [read_recipe(str(tmp_path / name)).data for name in RECIPES]
    assert [one.scored for one in found] == [
        [("summarize", "rouge"), ("sentiment", "accuracy")],
        [("general", "bleu"), ("medical", "bleu"), ("BT", "bleu")],
        [(name, "bleu") for name in ("en-de", "de-en", "en-fr", "fr-en")],
    ]
    assert found[1].temperature == 5
