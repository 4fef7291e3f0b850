"""The commands of docs/context.md run, in their order and in one process, on small files; trainings are cut short."""

import re
import shlex
from pathlib import Path

from heedful.commands.distill import Rules
from heedful.data.inputs import Inputs
from heedful.mini.corpus import make, write
from heedful.training.recipe import read_recipe
from heedful.training.run import train
from tests.commands.in_process import run
from tests.corpora import SMALL

PAGE = Path(__file__).parents[2] / "docs" / "context.md"
STEPS = ["training.steps=2", "training.validate_every=2", "training.save_every=2", "training.samples=0"]


def files(place: Path) -> None:
    write(place, "en-de", 40)
    (place / "chapter.txt").write_text("The boy sees a lamp.\nIt is old.\n\nA cat.\nIt sleeps.\n", encoding="utf-8")
    (place / "mono.de.txt").write_text("".join(f"{german}\n" for _, german in make("en-de", 30)["train"]))
    for name in ("teacher", "de-en"):
        recipe = read_recipe("tiny", [*SMALL, *STEPS])
        train(recipe, Inputs((place / "train.tsv",)), place / "runs" / name, cache=place / "cache")


def test_the_commands_of_the_page_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path / "cache"))
    files(tmp_path)
    # After two steps, no translation ends before its limit.
    monkeypatch.setattr(Rules, "reason", lambda self, source, target, score, ended: "" if target else "no translation")
    text = PAGE.read_text(encoding="utf-8")
    lines = [line for block in re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL) for line in block.splitlines()]
    assert len(lines) == 9
    for line in lines:
        _, *words = shlex.split(line)
        run(monkeypatch, capsys, *words, *([*SMALL, *STEPS] if words[0] == "train" else []))
    assert (tmp_path / "chapter.de.txt").read_text(encoding="utf-8").count("\n") == 5
    synthetic = (tmp_path / "synthetic.tsv").read_text(encoding="utf-8").split("\n")[:-1]
    assert synthetic and all(line.startswith("<bt> ") for line in synthetic)
    (snippet, expected) = re.findall(r"```py\n(.*?)```\n\n```text\n(.*?)```", text, flags=re.DOTALL)[0]
    capsys.readouterr()
    exec(compile(snippet, "snippet", "exec"), {})
    assert capsys.readouterr().out == expected
