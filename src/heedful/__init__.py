"""Heedful: from a file of text pairs to a trained, measured, served and inspectable Transformer."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from heedful.generator import Generator
    from heedful.translator import Translator

__version__ = "0.1.0"


def load(folder: "str | Path", *others: "str | Path") -> "Translator | Generator":
    """What is in a model folder, ready to use: a `Translator` (of several folders, their ensemble) or a `Generator`.

    heedful.load("runs/my-model").translate(["Hello."])[0].text
    """
    from pathlib import Path

    from heedful import generator, translator
    from heedful.checkpoint import read_config

    kind = read_config(Path(folder))["model"].get("kind")
    return generator.load(folder) if kind == "decoder_only" else translator.load(folder, *others)
