"""A real server on a free port of the loopback, in a thread of this process."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from heedful.data.columns import DOCUMENT
from heedful.data.inputs import Inputs
from heedful.serving.connections import configured
from heedful.serving.context import Context, Options
from heedful.serving.limits import Keys
from heedful.serving.metrics import Metrics
from heedful.serving.models import EngineSettings, Models
from heedful.serving.server import create_app
from heedful.training.recipe import read_recipe
from heedful.training.run import train
from tests.corpora import SMALL, pairs


def small_models(folder: Path, *, trained: bool = True) -> tuple[Path, Path]:
    """A translator from letters to letters, and a language model. Untrained, they answer, but nothing sensible."""
    less = [] if trained else ["training.steps=2"]
    corpus = pairs(folder / "p.tsv", 500, change=lambda text: text)
    changes = [*SMALL, "model.width=32", "training.steps=120", "training.learning_rate=0.005", "data.max_length=40",
               "training.validate_every=200", "data.source_language=en", "data.target_language=de"]  # fmt: skip
    train(read_recipe("tiny", changes + less), Inputs((corpus,)), folder / "en-de", cache=folder / "cache")
    (folder / "book.txt").write_text("the quick brown fox\n\n" * 100)
    changes = ["model.width=16", "model.decoder.layers=2", "model.decoder.attention.heads=4", "training.steps=200",
               "task.context=32", "training.learning_rate=0.01", "training.validate_every=200"]  # fmt: skip
    inputs = Inputs((folder / "book.txt",), columns=DOCUMENT)
    train(read_recipe("char-gpt", changes + less), inputs, folder / "book", cache=folder / "cache")
    return folder / "en-de", folder / "book"


@contextmanager
def running(
    folders: list[Path],
    *,
    keys: tuple[str, ...] = (),
    options: Options | None = None,
    settings: EngineSettings | None = None,
    languages: tuple[str, str] = ("", ""),
    adapters: dict[str, Path] | None = None,
    **listening: Any,
) -> Iterator[tuple[str, Context]]:
    metrics = Metrics()
    models = Models(folders, settings or EngineSettings(streams=2), metrics.watch, languages, adapters)
    context = Context(models, Keys(keys), metrics, options or Options())
    with serving(uvicorn.Server(configured(create_app(context), **listening))) as port:
        yield f"http://127.0.0.1:{port}", context


@contextmanager
def serving(server: uvicorn.Server) -> Iterator[int]:
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.02)
    assert server.started
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(20)
