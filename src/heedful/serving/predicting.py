"""Models that read (labels, tags, answers, sentence vectors) as workers of the engine: what their tasks give as
`predict` and `embed`, with inputs that are checked before they are queued."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from heedful.decoding.generation import GenerationConfig
from heedful.serving.engine import Settings
from heedful.tasks import TaskConfig, Use
from heedful.text.tokenizer import Tokenizer
from heedful.text.words import words

PLAIN = Settings(GenerationConfig(num_beams=1))  # nothing is generated, and so nothing is chosen
LONGEST_EXAMPLE = 1000  # characters


@dataclass(frozen=True)
class Line:
    """A text to read, or several separated by tabs. `vector`: whether its embedding is wanted, not its prediction.
    `number`: which of a request's inputs it is, counted from 1, for errors."""

    text: str
    vector: bool = False
    number: int = 1


def lines_of(texts: Sequence[str], *, vector: bool = False) -> list[Line]:
    return [Line(text, vector, number) for number, text in enumerate(texts, start=1)]


@dataclass(frozen=True)
class ReadLine:
    line: Line
    tokens: int


class Predictor:
    """A model that reads, with the names of the texts it reads together: ("text",), ("question", "context")."""

    def __init__(self, use: Use, task: TaskConfig) -> None:
        self.use, self.task = use, task.kind
        self.embeds = callable(getattr(use, "embed", None))
        texts = tuple(column.name for column in task.columns if column.is_text)
        # A model of sentence vectors is trained on several texts per row, but reads them one by one.
        self.inputs = ("text",) if self.embeds or not texts else texts
        self.inputs = getattr(use, "inputs", self.inputs)  # a reward model compares answers, but reads one

    @property
    def tokenizer(self) -> Tokenizer | None:
        for holder in (self.use, getattr(self.use, "opened", None)):
            if isinstance(found := getattr(holder, "tokenizer", None), Tokenizer):
                return found
        return None

    def check(self, lines: Sequence[str]) -> None:
        """An error if some line has an empty text, or not as many as the model reads together."""
        count = len(self.inputs)
        for number, line in enumerate(lines, start=1):
            texts = line.split("\t") if count > 1 else [line]
            if len(texts) != count:
                names = ", ".join(self.inputs)
                given = "1 column" if len(texts) == 1 else f"{len(texts)} columns"
                raise ValueError(f"input {number} has {given}; give {count} texts ({names}), separated by a tab")
            if not all(text.strip() for text in texts):
                raise ValueError(f"input {number} has an empty text; give one to read")

    def count(self, texts: Sequence[str]) -> list[int]:
        """How many tokens each text has; words, if the model has no tokenizer of ours."""
        if self.tokenizer is None:
            return [len(words(text)) for text in texts]
        return [len(row) for row in self.tokenizer.encode(texts)]

    def read(self, requests: Sequence[Line]) -> list[ReadLine]:
        counts = self.count([line.text for line in requests])
        return [ReadLine(line, count) for line, count in zip(requests, counts, strict=True)]

    def size(self, reading: ReadLine, config: GenerationConfig) -> int:
        return reading.tokens + 2

    def repeatable(self, reading: ReadLine) -> bool:
        return True

    def steps(
        self,
        readings: Sequence[ReadLine],
        config: GenerationConfig,
        *,
        batch_tokens: int,
        dropped: Callable[[int], bool],
        **options: Any,
    ) -> Iterator[list[tuple[int, Any]]]:
        """A dict for each line, or a vector: predictions are one step, vectors another. Cancelled ones are not read."""
        for vector in (False, True):
            places = [place for place, one in enumerate(readings) if one.line.vector == vector and not dropped(place)]
            if places:
                answers = self._answers([readings[place].line for place in places], vector=vector)
                yield list(zip(places, answers, strict=True))

    def _answers(self, lines: Sequence[Line], *, vector: bool) -> Sequence[Any]:
        texts = [line.text for line in lines]
        try:
            if vector:
                return np.asarray(self.use.embed(texts), dtype=np.float32)  # type: ignore[attr-defined, return-value]
            return self.use.predict(texts)
        except ValueError as error:
            if len(lines) > 1:  # the engine tries each alone
                raise
            message = re.sub(r"^(line|text|input) 1\b", f"input {lines[0].number}", str(error))
            raise ValueError(message) from error

    def count_truncated(self, texts: Sequence[str]) -> int:
        """How many of these texts the model would read only the beginning of; most read long texts in windows."""
        count = getattr(self.use, "count_truncated", None)
        return int(count(texts)) if callable(count) else 0

    def example(self, folder: Path) -> str | None:
        """The first held-out row that is neither empty nor too long, if any: its texts, separated by tabs."""
        for row in islice(_held_out(folder, self.inputs), 100):
            if (
                all(map(str.strip, row))
                and sum(map(len, row)) <= LONGEST_EXAMPLE
                and not any("\t" in one for one in row)
            ):
                return "\t".join(row)
        return None


def _held_out(folder: Path, inputs: Sequence[str]) -> Iterator[list[str]]:
    """The texts of the held-out rows: of test.jsonl, or of test.tsv, where a header names them or there is just one."""
    for name in ("test.jsonl", "test.tsv"):
        if not (folder / name).is_file():
            continue
        with (folder / name).open(encoding="utf-8", errors="replace") as lines:
            if name == "test.jsonl":
                yield from (found for line in lines if (found := _fields(line, inputs)))
                continue
            header = next(lines, "").rstrip("\n").split("\t")
            rows = (line.rstrip("\n").split("\t") for line in lines)
            if set(inputs) <= set(header):
                places = [header.index(name) for name in inputs]
                yield from ([row[place] for place in places] for row in rows if len(row) == len(header))
            elif len(inputs) == 1:
                yield from ([row[0]] for row in chain([header], rows))


def _fields(line: str, inputs: Sequence[str]) -> list[str]:
    try:
        data = json.loads(line)
    except ValueError:
        return []
    found = [data[name] for name in inputs if isinstance(data.get(name), str)] if isinstance(data, dict) else []
    return found if len(found) == len(inputs) else []
