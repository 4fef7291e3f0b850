"""Heedful: train, evaluate, serve and inspect Transformer sequence-to-sequence models from your own text pairs.

The public API is `load`, `train`, `inspect`, `Translator`, `Generator`, `GenerationConfig` and what they return. It
does not change without a line in the changelog.
"""

from typing import TYPE_CHECKING, TypeVar, overload

from heedful import threads as threads  # first of all: it must come before torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from heedful.decoding.generation import GenerationConfig as GenerationConfig
    from heedful.generator import Generator as Generator
    from heedful.translator import Translator as Translator

__version__ = "0.2.0.dev0"

UseT = TypeVar("UseT")
# Imported when they are asked for: `import heedful` takes no time.
_NAMES = {
    "GenerationConfig": "heedful.decoding.generation",
    "Generator": "heedful.generator",
    "Translator": "heedful.translator",
}


@overload
def load(
    folder: "str | Path",
    *others: "str | Path",
    expect: type[UseT],
    parts: "str | Path | Sequence[str | Path]" = (),
    **options: "Any",
) -> UseT: ...


@overload
def load(
    folder: "str | Path", *others: "str | Path", parts: "str | Path | Sequence[str | Path]" = (), **options: "Any"
) -> "Any": ...


def load(
    folder: "str | Path",
    *others: "str | Path",
    expect: "type[Any] | None" = None,
    parts: "str | Path | Sequence[str | Path]" = (),
    **options: "Any",
) -> "Any":
    """Load a model folder, ready to use: a `Translator` (several folders form an ensemble), a `Generator`, or whatever
    its task provides. `expect`: the type it must be, for type checkers and for a clear error if it is another. `parts`:
    folders of custom components that it needs; naming them lets their code run.

    >>> translator = heedful.load("runs/my-model", expect=heedful.Translator)
    >>> translator
    <Translator: 30,656 parameters, vocabulary 271, on cpu>
    >>> heedful.load("runs/book", expect=heedful.Translator)
    Traceback (most recent call last):
    ValueError: runs/book holds a Generator, not a Translator
    """
    from pathlib import Path

    from heedful import busy
    from heedful import parts as own_parts
    from heedful.checkpoint import read_config
    from heedful.config import parse
    from heedful.tasks import TaskConfig

    busy.watch()
    for name in [parts] if isinstance(parts, str | Path) else parts:
        own_parts.use(str(name))
    task = parse(TaskConfig, read_config(Path(folder)).get("task") or "translation")
    found = task.open(Path(folder), *(Path(other) for other in others), **options)
    if expect is not None and not isinstance(found, expect):
        raise ValueError(f"{folder} holds a {type(found).__name__}, not a {expect.__name__}")
    return found


def train(
    data: "str | Path | Sequence[str | Path]" = (),
    *,
    out: "str | Path",
    recipe: str = "tiny",
    valid: "Sequence[str | Path]" = (),
    test: "Sequence[str | Path]" = (),
    budget: str = "",
    start_from: "str | Path" = "",
    replay: "Sequence[str | Path]" = (),
    replay_share: float = 0.5,
    changes: "Mapping[str, Any] | None" = None,
) -> "Any":
    """Train on a file, or on the corpora that the recipe lists, as `heedful train` does, and return what `load` gives.
    If `out` holds an interrupted training of the same recipe, it is resumed. `replay`: data that the model of
    `start_from` has learned, which get this share of the rows trained on.

    >>> changes = {"training.steps": 5, "model.width": 16, "tokenizer.vocab": 60}
    >>> translator = heedful.train("pairs.tsv", out="runs/new", changes=changes)
    >>> translator.translate("a b").text == heedful.load("runs/new").translate("a b").text
    True
    """
    import json
    from pathlib import Path

    from heedful import busy
    from heedful.data.prepare import default_cache
    from heedful.training.files import arranged, replayed
    from heedful.training.recipe import read_recipe
    from heedful.training.run import train as run

    busy.watch()
    words = [f"start_from={start_from}"] if start_from else []
    words += [f"{key}={json.dumps(value)}" for key, value in (changes or {}).items()]
    files, held_valid, held_test = (
        [Path(file) for file in ([given] if isinstance(given, str | Path) else given)] for given in (data, valid, test)
    )
    if replay:
        new, old, dev, other = (list(map(str, some)) for some in (files, replay, held_valid, held_test))
        words.append(replayed(recipe, new, old, replay_share, valid=dev, test=other))
        files, held_valid, held_test = [], [], []
    chosen, inputs = arranged(read_recipe(recipe, words), files, valid=held_valid, test=held_test)
    result = run(chosen, inputs, Path(out), cache=default_cache(), budget=budget)
    if not result.finished:
        raise KeyboardInterrupt(f"stopped before its end; call it again to resume in {out}")
    return load(out)


def inspect(
    model: "str | Path | Translator | Any",
    text: str,
    *,
    out: "str | Path | None" = None,
    num_beams: int = 4,
    target_prefix: str = "",
    label: str = "",
    source: str = "",
    target: str = "",
) -> "dict[str, Any]":
    """Translate a text and look inside: tokens, the attention of every head, the candidates of every step. `source` and
    `target`: the languages, for a model that knows several. With a classifier or regressor (two texts are separated by
    a tab), which words decided: `label` is the one to explain, by default the most likely. With a model of dialogues
    (messages are separated by tabs), its reply. `out`: also write the
    self-contained HTML page of `heedful inspect`.

    >>> seen = heedful.inspect("runs/my-model", "a b", out="ab.html")
    >>> sorted(seen["inspected"]["attention"])
    ['cross', 'decoder', 'encoder']
    """
    from pathlib import Path

    from heedful.chatter import Chatter
    from heedful.decoding.runner import Request
    from heedful.files import write_text
    from heedful.inspection import details, dialogue, reading
    from heedful.translator import Translator

    loaded = load(model) if isinstance(model, str | Path) else model
    if isinstance(loaded, reading.Judge):
        if target_prefix:
            raise ValueError("target_prefix is for translators; leave it out")
        if source or target:
            raise ValueError("languages are for translators; leave them out")
        data = reading.inspect(loaded, text, label=label)
    elif isinstance(loaded, Chatter):
        if source or target or target_prefix or label:
            raise ValueError("languages, target_prefix and label are not for dialogues; leave them out")
        data = dialogue.inspect(loaded, text)
    elif isinstance(loaded, Translator):
        if label:
            raise ValueError("label is for classifiers; leave it out")
        data = details.inspect(loaded, Request(text, target_prefix, source=source, target=target), num_beams=num_beams)
    else:
        raise ValueError(f"{model} holds a {type(loaded).__name__}, not a Translator, Chatter, Classifier or Regressor")
    if out is not None:
        from heedful.serving.page import one_file

        write_text(Path(out), one_file(data))
    return data


def __getattr__(name: str) -> "Any":
    if name not in _NAMES:
        raise AttributeError(f"module 'heedful' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_NAMES[name]), name)
