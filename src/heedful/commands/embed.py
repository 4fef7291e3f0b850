"""`heedful embed`: a vector for each line."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heedful.commands.lines import reading, refuse_overwriting
from heedful.commands.options import Parts

if TYPE_CHECKING:
    from heedful.tasks._vectors import Embedder

CHUNK = 512  # lines at a time


def embed(
    model: Annotated[Path, typer.Argument(help="A folder of a model for embedding.")],
    text: Annotated[list[str] | None, typer.Argument(help="Texts. Default: the lines of --input.")] = None,
    source: Annotated[str, typer.Option("--input", "-i", help="File to read; - = standard input.")] = "-",
    output: Annotated[
        str,
        typer.Option(
            "--output", "-o", help="File to write: .npy = an array (lines x numbers), else JSONL; - = standard output."
        ),
    ] = "-",
    quantize: Annotated[str, typer.Option(help="int8: a quarter of the memory for weights; CPU only.")] = "",
    parts: Parts = None,
) -> None:
    """Turn each line into a vector, such that texts of similar meaning have similar vectors.

    Examples:

      heedful embed runs/minilm -i lines.txt -o vectors.npy

      heedful embed runs/minilm "a cat" "a dog"
    """
    import numpy as np

    import heedful
    from heedful.files import in_place
    from heedful.tasks._vectors import Embedder

    if not text:
        refuse_overwriting(source, output)
    texts = list(text) if text else _lines(source)
    embedder = heedful.load(model, expect=Embedder, **({"quantize": quantize} if quantize else {}))
    if output.endswith(".npy"):
        with in_place(Path(output)) as temporary, temporary.open("wb") as file:
            np.save(file, embedder.embed(texts), allow_pickle=False)
    elif output == "-":
        sys.stdout.writelines(_jsonl(embedder, texts))
    else:
        with in_place(Path(output)) as temporary, temporary.open("w", encoding="utf-8") as opened:
            opened.writelines(_jsonl(embedder, texts))
    if long := embedder.count_truncated(texts):
        print(f"heedful: of {long:,} texts only the first {embedder.pooling.max_length} tokens were read",
              file=sys.stderr)  # fmt: skip


def _lines(source: str) -> list[str]:
    """The lines of a file or of standard input; an empty one is an error, since vectors are matched to lines."""
    with reading(source) as opened:
        lines = list(opened)
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            name = "standard input" if source == "-" else source
            raise ValueError(f"{name}:{number}: an empty line has no vector; remove it or give it a text")
    return lines


def _jsonl(embedder: "Embedder", texts: list[str]) -> Iterator[str]:
    for start in range(0, len(texts), CHUNK):
        some = texts[start : start + CHUNK]
        for line, vector in zip(some, embedder.embed(some).tolist(), strict=True):
            yield json.dumps({"text": line, "embedding": vector}, ensure_ascii=False) + "\n"
