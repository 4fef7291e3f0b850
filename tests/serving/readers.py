"""Models that read, for tests of the server: small trained ones, and stand-ins whose answers are known."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import heedful
from heedful import parts
from tests.tasks.labelled import SMALL, sentences, write

STAND_INS = Path(__file__).parent / "stand_ins"


def classifier(folder: Path, name: str = "mood") -> Path:
    """A text that holds a good word is `pos`, one that holds a bad one is `neg`."""
    file = write(folder / f"{name}.tsv", [(label, text) for text, label in sentences(400)])
    heedful.train(file, out=folder / name, recipe="classify", changes=SMALL)
    return folder / name


def of_pairs(folder: Path, name: str, labels: tuple[str, str] = ("no", "yes")) -> Path:
    """Whether two texts are of the same mood; trained for so few steps that it knows little."""
    both = zip(sentences(200), sentences(200, seed=5), strict=True)
    rows = [(first, second, labels[one == other]) for (first, one), (second, other) in both]
    file = write(folder / f"{name}.tsv", rows)
    heedful.train(file, out=folder / name, recipe="classify", changes={**SMALL, "training.steps": 10})
    return folder / name


def regressor(folder: Path, name: str = "rating") -> Path:
    rows = [(text, "5" if label == "pos" else "1") for text, label in sentences(300)]
    file = write(folder / f"{name}.tsv", rows)
    heedful.train(file, out=folder / name, recipe="regress", changes=SMALL)
    return folder / name


def stand_in(folder: Path, gives: str) -> Path:
    place = folder / gives
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.yaml").write_text(f"model: {{}}\ntask: {{kind: stand_in, gives: {gives}}}\n")
    return place


@contextmanager
def stand_ins() -> Iterator[None]:
    """While it lasts, the task `stand_in` is known."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "_packages", dict(parts._packages))
        parts.use(str(STAND_INS))
        yield
