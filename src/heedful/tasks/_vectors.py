"""Texts as vectors: framed and truncated, read, pooled. And the finished model that does so."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.data.columns import Column, Columns
from heedful.data.corpus import Line, jsonl_start, table_start
from heedful.data.inputs import Inputs
from heedful.data.layout import guess, is_number
from heedful.data.padding import Row
from heedful.evaluation.classes import pearson, spearman
from heedful.evaluation.retrieval import ranks_of
from heedful.exchange.sentence_transformers import Pooling
from heedful.model.architecture import Reader
from heedful.model.cpu.reading import reader
from heedful.tasks._labelled import FIRST, SECOND
from heedful.tasks._reading import Windows, by_length, windows
from heedful.text.tokenizer import Tokenizer

QUERY = ("anchor", "question", *FIRST)
POSITIVE = ("pos", "answer", "document", "text", *SECOND)
SCORE = ("label", "similarity", "similarity_score", "rating", "value")
SCORED: Columns = (
    Column("first", also=QUERY),
    Column("second", also=("positive", *POSITIVE)),
    Column("score", "number", SCORE),
)
LOOKED_AT = 1000  # rows of a test file that are examined for scores
SHOWN = 4  # numbers of a vector in a line of text


def truncated(rows: Sequence[Row], tokenizer: Tokenizer, length: int) -> Windows:
    """Each text as one framed row of at most `length` tokens: what is longer is cut off, as sentence-transformers
    does."""
    room = length - tokenizer.frame.size(1)
    return windows([(row[: max(0, room)],) for row in rows], tokenizer, length=length)


def pooled(states: Tensor, valid: Tensor, kind: Literal["mean", "first", "last"]) -> Tensor:
    """States (texts length width) -> one vector for each text: the mean of its tokens, special ones included, or the
    state of its first or last one.      Reimers and Gurevych 2019, section 3"""
    if kind == "first":
        return states[:, 0]
    if kind == "last":
        last = valid.sum(1) - 1
        return states[torch.arange(len(states), device=states.device), last]
    weights = valid.to(states.dtype)[:, :, None]
    return (states * weights).sum(1) / weights.sum(1)


class Embedder:
    """A model that turns texts into vectors, ready to use: texts of similar meaning get similar vectors.

    >>> embedder = heedful.load("runs/vectors")
    >>> embedder.embed(["a cat", "a dog"]).shape
    (2, 384)
    """

    def __init__(
        self,
        model: Reader,
        tokenizer: Tokenizer,
        pooling: Pooling,
        *,
        columns: Columns = (),
        fields: tuple[str, ...] = (),
        quantize: str = "",
    ) -> None:
        if quantize not in ("", "int8"):
            raise ValueError(f"unknown quantize {quantize!r}; known: int8")
        self.model, self.tokenizer, self.pooling = model.eval(), tokenizer, pooling
        self.columns, self.fields = columns, fields
        self.width = model.config.width
        self.reader = reader(cast(Any, self.model), "int8" if quantize else False)

    def __repr__(self) -> str:
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        return f"<Embedder: {parameters:,} parameters, vectors of {self.width} numbers, on {self.model.device}>"

    def embed(
        self,
        texts: str | Sequence[str],
        *,
        budget: int = 2048,
        progress: Callable[[int], None] = lambda done: None,
    ) -> np.ndarray:
        """float32 vectors, texts width; for a single string, one vector. Texts of similar length are read together, at
        most `budget` tokens at once; `progress` is called with the number of texts that are done. Only the first
        `pooling.max_length` tokens of a text are read: see `count_truncated`."""
        if isinstance(texts, str):
            return np.asarray(self.embed([texts], budget=budget)[0])
        for number, text in enumerate(texts, start=1):
            if not text.strip():
                raise ValueError(f"text {number} is empty, so it has no vector; give a text or leave it out")
        rows = self.tokenizer.encode(list(texts))
        found, done = np.zeros((len(rows), self.width), dtype=np.float32), 0
        for batch in by_length([min(len(row), self.pooling.max_length) for row in rows], budget):
            found[batch] = self._vectors([rows[index] for index in batch]).float().cpu().numpy()
            done += len(batch)
            progress(done)
        return found

    def count_truncated(self, texts: Sequence[str]) -> int:
        """How many of these texts are longer than the model reads."""
        room = self.pooling.max_length - self.tokenizer.frame.size(1)
        return sum(len(row) > room for row in self.tokenizer.encode(list(texts)))

    def predict(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        """`embedding`: the vector as a list."""
        found = self.embed(texts) if texts else np.zeros((0, self.width))
        return [{"text": _short(vector), "embedding": vector} for vector in found.tolist()]

    def evaluate(self, test: Path) -> dict[str, Any]:
        """Of pairs, how often the vector nearest to a query's is its own text's (accuracy), and the mean reciprocal
        rank, among all texts of the file; of pairs with a score, its correlations with the cosine. Scores are
        recognised, whatever the model was trained on."""
        columns, fields = self._columns_of(test)
        inputs = Inputs((test,), columns=columns, fields=fields, strict=True)
        rows = [line.texts for line in inputs.read("train") if isinstance(line, Line)]
        if not rows:
            raise ValueError(f"{test}: no rows to evaluate on")
        texts = [place for place, column in enumerate(columns) if column.is_text]
        vectors = [_unit(self.embed([row[place] for row in rows])) for place in texts]
        if len(texts) < len(columns):
            cosines, scores = (vectors[0] * vectors[1]).sum(1), [float(row[-1]) for row in rows]
            return {"rows": len(rows), "pearson": pearson(cosines, scores), "spearman": spearman(cosines, scores)}
        ranks = ranks_of(vectors[0], np.concatenate(vectors[1:]))
        return {
            "rows": len(rows),
            "accuracy": 100 * float((ranks == 1).mean()),
            "mrr": float((1 / ranks).mean()),
        }

    def _columns_of(self, test: Path) -> tuple[Columns, tuple[str, ...]]:
        """Those that the model was trained on; but two texts and a number are a pair with its score."""
        if self.columns == SCORED or not test.is_file():
            return self.columns, self.fields
        rows = table_start(test, LOOKED_AT)
        cells = zip(*(row for row in rows[1:] if len(row) == len(SCORED)), strict=True)
        if any(all(map(is_number, column)) for column in cells) or jsonl_start(test) & {"score", *SCORE}:
            return SCORED, guess(rows[1:], SCORED)
        return self.columns, self.fields

    @torch.inference_mode()
    def _vectors(self, rows: Sequence[Row]) -> Tensor:
        texts = truncated(rows, self.tokenizer, self.pooling.max_length).to(self.model.device)
        types = texts.types if getattr(self.model, "token_types", None) is not None else None
        states = self.reader(texts.tokens, token_types=types, valid=texts.valid)
        vectors = pooled(states, texts.valid, self.pooling.kind)
        return F.normalize(vectors, dim=-1) if self.pooling.normalise else vectors


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def _short(vector: Sequence[float]) -> str:
    start = json.dumps([round(number, 4) for number in vector[:SHOWN]])
    return start if len(vector) <= SHOWN else f"{start[:-1]}, ... {len(vector)} numbers]"
