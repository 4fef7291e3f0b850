"""Heedful: train, evaluate, serve and inspect Transformer sequence-to-sequence models from your own text pairs."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
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
