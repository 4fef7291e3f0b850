"""What tasks with labelled texts share: batches of their rows, a finished folder opened, test files read in full."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heedful.bounded import read_json
from heedful.checkpoint import load_model, open_tokenizers, read_config
from heedful.data import batches
from heedful.data.columns import Columns
from heedful.data.corpus import Line
from heedful.data.inputs import Inputs
from heedful.data.padding import Row
from heedful.data.prepare import Prepared
from heedful.data.store import Store
from heedful.model.architecture import Reader
from heedful.model.cpu.reading import FastReader
from heedful.model.int8 import quantize_as
from heedful.tasks import Settings
from heedful.tasks._reading import Windows, by_length, read, windows
from heedful.text.tokenizer import Tokenizer

TEXT = ("sentence", "review", "content", "input", "document", "question", "query")
FIRST = ("sentence1", "premise", "question1", "text1", "text_a", "first", "query")
SECOND = ("sentence2", "hypothesis", "question2", "text2", "text_b", "second", "passage")


class Rows:
    """The rows of a prepared corpus: their batches, and their texts as windows."""

    def __init__(self, prepared: Prepared, settings: Settings) -> None:
        self.tokenizer, self.length, self.cost = prepared.tokenizers[0], settings.max_length, settings.cost
        self.train = prepared.store("train")
        self.valid = prepared.store("valid") if prepared.has("valid") else self.train
        self.places = [place for place, column in enumerate(prepared.columns) if column.is_text]

    def epoch(self, number: int, *, budget: int, seed: int) -> Iterator[np.ndarray]:
        return batches.epoch(self.train, budget=budget, seed=seed, number=number, cost=self.cost)

    def worst(self, budget: int) -> np.ndarray:
        return batches.longest(self.train, budget=budget, cost=self.cost)

    def windows(self, store: Store, rows: np.ndarray, *, overlap: int | None = None, whole: int = -1) -> Windows:
        texts = zip(*(store.rows(place, rows) for place in self.places), strict=True)
        return windows(list(texts), self.tokenizer, length=self.length, overlap=overlap, whole=whole)


@dataclass(frozen=True)
class Opened:
    """A finished folder: the model and what reads texts for it."""

    model: Reader
    tokenizer: Tokenizer
    columns: Columns
    fields: tuple[str, ...]
    length: int
    labels: dict[str, list[str]]

    @cached_property
    def fast(self) -> FastReader:
        """The model, by our kernels where they can do it."""
        return FastReader(self.model)

    @torch.inference_mode()
    def logits(self, texts: Sequence[Sequence[str]], head: str, *, budget: int = 2048) -> Tensor:
        """What a head says about each text (or pair): texts classes; the mean over the windows of a long one."""
        columns = [self.tokenizer.encode(list(column)) for column in zip(*texts, strict=True)]
        rows: list[tuple[Row, ...]] = list(zip(*columns, strict=True))
        found: list[Tensor] = [torch.empty(0)] * len(rows)
        for batch in by_length([sum(map(len, row)) for row in rows], budget):
            read_rows = windows([rows[index] for index in batch], self.tokenizer, length=self.length)
            read_rows = read_rows.to(self.fast.device)
            scores = read_rows.mean(self.fast.predict(head, read(self.fast, read_rows)))
            for index, score in zip(batch, scores.float().cpu(), strict=True):
                found[index] = score
        return torch.stack(found)

    def texts(self, lines: Sequence[str]) -> list[tuple[str, ...]]:
        """The texts of input lines, columns separated by tabs."""
        count = sum(column.is_text for column in self.columns)
        found = []
        for number, line in enumerate(lines, start=1):
            cells = tuple(cell.strip() for cell in line.split("\t")) if count > 1 else (line.strip(),)
            if len(cells) != count:
                raise ValueError(f"line {number} has {len(cells)} columns; give {count} texts, separated by a tab")
            if not all(cells):
                raise ValueError(f"line {number} has an empty text; give one to read")
            found.append(cells)
        return found

    def rows(self, test: Path) -> list[Line]:
        """The rows of a test file, which has the columns of the training files; a bad one is an error."""
        inputs = Inputs((test,), columns=self.columns, fields=self.fields, strict=True)
        rows = [line for line in inputs.read("train") if isinstance(line, Line)]
        if not rows:
            raise ValueError(f"{test}: no rows to evaluate on")
        return rows

    def split(self, rows: Sequence[Line]) -> tuple[list[tuple[str, ...]], list[str]]:
        """The texts of rows, and the cell of the column that is no text."""
        texts = [place for place, column in enumerate(self.columns) if column.is_text]
        (other,) = (place for place, column in enumerate(self.columns) if not column.is_text)
        return [tuple(row.texts[place] for place in texts) for row in rows], [row.texts[other] for row in rows]


def opened(folder: Path, columns: Columns, others: Sequence[Path], options: dict[str, Any]) -> Opened:
    """`quantize` int8 is the one option."""
    if others:
        raise ValueError("only translators form an ensemble; give one folder")
    quantize = options.pop("quantize", "")
    options.pop("streams", None)
    if options:
        raise ValueError(f"{', '.join(options)} is for translators; leave it out")
    model = load_model(folder)
    if not isinstance(model, Reader):
        raise ValueError(f"{folder}: a model of kind {model.config.kind} has no heads that read; train an encoder_only")
    quantize_as(model, quantize)
    data = read_config(folder).get("data", {})
    texts = sum(column.is_text for column in columns)
    known = folder / "labels.json"
    labels = read_json(known) if known.is_file() else _numbered(columns, model)
    if isinstance(labels, list):  # an imported model names its classes without a column
        labels = {columns[-1].name: labels}
    _check_labels(labels, columns, model, known)
    return Opened(
        model.eval(),
        open_tokenizers(folder, model, columns=texts)[0],
        columns,
        tuple(data.get("fields") or ()),
        int(data.get("max_length", 256)),
        labels,
    )


def _numbered(columns: Columns, model: Reader) -> dict[str, list[str]]:
    """The names that transformers gives to classes without any."""
    last, classes = columns[-1], _classes(model)
    return {last.name: [f"LABEL_{number}" for number in range(classes[0])]} if last.is_labelled and classes else {}


def _classes(model: Reader) -> list[int]:
    return [head.classes for head in getattr(model.config, "heads", ()) if getattr(head, "classes", None)]


def _check_labels(labels: Any, columns: Columns, model: Reader, file: Path) -> None:
    """ValueError unless the file has as many names for the labels of the last column as the model has classes."""
    lists = labels.values() if isinstance(labels, dict) else [None]
    if not all(isinstance(names, list) and all(isinstance(name, str) for name in names) for names in lists):
        raise ValueError(f"{file} must hold a list of names for each column of labels")
    classes, name = _classes(model), columns[-1].name
    if columns[-1].is_labelled and name not in labels:
        raise ValueError(f"{file} has no names for the column {name}")
    names = labels.get(name)
    if names is not None and classes and len(names) not in classes:
        raise ValueError(f"{file} names {len(names)} labels, but the model has {classes[0]} classes")
    if names is not None and len(set(names)) < len(names):
        raise ValueError(f"{file} names a label twice")
