"""Heedful: train, evaluate, serve and inspect Transformer sequence-to-sequence models from your own text pairs.

The public API is `load`, `train` and what they return; it does not change without a line in the changelog.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Any

__version__ = "0.2.0.dev0"


def load(
    folder: "str | Path", *others: "str | Path", parts: "str | Path | Sequence[str | Path]" = (), **options: "Any"
) -> "Any":
    """Load a model folder, ready to use: a `Translator` (several folders form an ensemble), a `Generator`, or whatever
    its task provides. `parts`: folders of custom components that it needs; naming them lets their code run.

    heedful.load("runs/my-model").translate(["Hello."])[0].text
    """
    from pathlib import Path

    from heedful import parts as own_parts
    from heedful.checkpoint import read_config
    from heedful.config import parse
    from heedful.tasks import TaskConfig

    for name in [parts] if isinstance(parts, str | Path) else parts:
        own_parts.use(str(name))
    task = parse(TaskConfig, read_config(Path(folder)).get("task") or "translation")
    return task.open(Path(folder), *(Path(other) for other in others), **options)


def train(
    data: "str | Path | Sequence[str | Path]",
    *,
    out: "str | Path",
    recipe: str = "tiny",
    valid: "Sequence[str | Path]" = (),
    test: "Sequence[str | Path]" = (),
    budget: str = "",
    start_from: "str | Path" = "",
    changes: "Mapping[str, Any] | None" = None,
) -> "Any":
    """Train on a file, as `heedful train` does, and return what `load` gives. If `out` holds an interrupted training of
    the same recipe, it is resumed.

    heedful.train("pairs.tsv", out="runs/my-model", changes={"training.steps": 1000}).translate("Hello.").text
    """
    import json
    from pathlib import Path

    from heedful.data.inputs import Inputs
    from heedful.data.prepare import default_cache
    from heedful.training.recipe import read_recipe
    from heedful.training.run import train as run

    words = [f"start_from={start_from}"] if start_from else []
    words += [f"{key}={json.dumps(value)}" for key, value in (changes or {}).items()]
    chosen = read_recipe(recipe, words)
    files = [data] if isinstance(data, str | Path) else list(data)
    inputs = Inputs(
        train=tuple(map(Path, files)),
        valid=tuple(map(Path, valid)),
        test=tuple(map(Path, test)),
        columns=chosen.task.columns,
    )
    result = run(chosen, inputs, Path(out), cache=default_cache(), budget=budget)
    if not result.finished:
        raise KeyboardInterrupt(f"stopped before its end; call it again to resume in {out}")
    return load(out)
