"""A task whose answers follow from the letters of a text, in the shapes that models that read give: for tests of the
server and its page, where what is shown must be known."""

import re
from typing import Any, ClassVar, Literal

import numpy as np

from heedful.data.columns import Column
from heedful.model.architecture import Model, Reader
from heedful.tasks import TaskConfig


class StandInConfig(TaskConfig):
    trains: ClassVar[type[Model]] = Reader
    gives: Literal["vectors", "tags", "answer", "masks", "labels"] = "vectors"

    @property
    def columns(self):
        if self.gives == "answer":
            return (Column("question"), Column("context"), Column("answer", "raw"))
        return (Column("anchor"), Column("positive")) if self.gives == "vectors" else (Column("text"),)

    def open(self, folder, *others, **options):
        return Vectors() if self.gives == "vectors" else StandIn(self.gives)


class Vectors:
    """How often each letter occurs in a text, as a vector of length 1."""

    def embed(self, texts):
        counts = np.array([[text.lower().count(letter) for letter in "abcdefghijklmnopqrstuvwxyz"] for text in texts])
        return (counts / np.maximum(1e-9, np.linalg.norm(counts, axis=1, keepdims=True))).astype(np.float32)

    def count_truncated(self, texts):
        return sum(len(text) > 1000 for text in texts)

    def predict(self, texts):
        return [{"text": "", "embedding": row} for row in self.embed(texts).tolist()]


class StandIn:
    def __init__(self, gives: str) -> None:
        self.give = getattr(self, f"_{gives}")

    def predict(self, texts):
        return [self.give(text) for text in texts]

    def _tags(self, text: str) -> dict[str, Any]:
        """A word that begins with a capital is a person, a number a date."""
        words, tags, entities = text.split(), [], []
        for word in re.finditer(r"\S+", text):
            kind = "PER" if word[0][0].isupper() else "DATE" if word[0].isdigit() else ""
            tags.append(f"B-{kind}" if kind else "O")
            if kind:
                entities.append({"type": kind, "text": word[0], "start": word.start(), "end": word.end()})
        return {"text": " ".join(tags), "words": words, "tags": tags, "entities": entities}

    def _answer(self, line: str) -> dict[str, Any]:
        """The longest word of the context."""
        context = line.split("\t")[1]
        if "nothing" in context:
            raise ValueError("line 1: the context holds no answer")
        first, *others = sorted(re.finditer(r"\S+", context), key=lambda word: -len(word[0]))[:3]
        spans = [{"text": word[0], "start": word.start(), "end": word.end(), "score": 0.1} for word in others]
        return {"text": first[0], "answer": first[0], "start": first.start(), "end": first.end(), "score": 0.75,
                "alternatives": spans}  # fmt: skip

    def _masks(self, text: str) -> dict[str, Any]:
        guesses = [{"token": 7, "text": "cat", "score": 0.6}, {"token": 8, "text": "<b>dog</b>", "score": 0.3}]
        return {"text": text.replace("<mask>", "cat"), "masks": [guesses] * text.count("<mask>")}

    def _labels(self, text: str) -> dict[str, Any]:
        scores = {"short": 0.9 if len(text) < 20 else 0.1, "loud": 0.8 if "!" in text else 0.2}
        labels = [label for label, score in scores.items() if score > 0.5]
        return {"text": ",".join(labels), "labels": labels, "scores": scores}
