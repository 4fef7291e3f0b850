"""Long text in, short text out: a pair task that is scored by ROUGE and keeps long documents, cut, where translation
skips or divides them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field, model_validator

from heedful.data.columns import Column, Columns
from heedful.data.corpus import Fault, read_rows
from heedful.data.lengths import length_token
from heedful.data.prepare import Prepared
from heedful.decoding.generation import GenerationConfig
from heedful.evaluation.rouge import lead, rouge
from heedful.files import write_text
from heedful.model.architecture import Model, SequenceToSequence
from heedful.objectives import Loss
from heedful.tasks import Direction, Processes, Scores, Settings, State, TaskConfig
from heedful.tasks._pairs import PairBatch, Pairs, fitted_pair
from heedful.translator import Translator
from heedful.translator import load as load_translator

SCORED = 100  # documents summarised per validation
GREEDY = GenerationConfig(num_beams=1, no_repeat_ngram_size=3)
SOURCES = ("document", "article", "abstract", "text", "input")
TARGETS = ("summary", "highlights", "tldr", "output")


class SummarisationConfig(TaskConfig):
    """`stem`: compare Porter stems in ROUGE, as some published figures do (English only). `length_tokens`: so many
    lengths of summaries are told apart in training, by a token before the document, so that they can be asked for: see
    `data/lengths.py`. 0 = off."""

    trains: ClassVar[type[Model]] = SequenceToSequence
    metrics: ClassVar[Mapping[str, Direction]] = {
        "loss": "lower", "accuracy": "higher", "rouge1": "higher", "rouge2": "higher", "rougeL": "higher",
        "rougeLsum": "higher",
    }  # fmt: skip
    sizes: ClassVar[tuple[str, ...]] = ("tiny", "small", "base", "big")
    note: ClassVar[str] = (
        f"ROUGE is computed by rouge-score on greedy summaries of at most {SCORED} documents, to monitor training; "
        "`heedful evaluate` gives the figures to report, with the first sentences of the documents beside them."
    )
    stem: bool = False
    length_tokens: int = Field(0, ge=0, le=20)

    @model_validator(mode="after")
    def _lengths_differ(self) -> "SummarisationConfig":
        if self.length_tokens == 1:
            raise ValueError("task.length_tokens=1 tells nothing apart; choose 2 or more, or 0")
        return self

    @property
    def specials(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(length_token(number) for number in range(1, self.length_tokens + 1))

    @property
    def columns(self) -> Columns:
        return (
            Column("source", also=SOURCES, lists="sentences", cuts=True),
            Column("target", also=TARGETS, lists="several", cuts=True),
        )

    def positions(self, longest: int) -> dict[str, int]:
        return {"encoder": longest + 1 + bool(self.length_tokens), "decoder": longest + 1}

    def fitted(self, model: dict[str, Any], prepared: Prepared) -> dict[str, Any]:
        return fitted_pair(model, prepared)

    def build(self, prepared: Prepared, settings: Settings) -> "Summarisation":
        return Summarisation(self, prepared, settings)

    def open(self, folder: Path, *others: Path, **options: Any) -> Translator:
        return load_translator(folder, *others, **options)

    def figures(self, use: Any, test: Path, config: GenerationConfig) -> dict[str, Any]:
        """ROUGE of the model and of the first sentences of each document; how many summaries the length limit cut."""
        assert isinstance(use, Translator)
        documents, references = _read(test, self.columns)
        found = use.translate(documents, config)
        summaries = [one.text for one in found]
        rows = {"model": summaries} | {f"lead-{count}": [lead(text, count) for text in documents] for count in (1, 3)}
        scores = {name: rouge(texts, references, stem=self.stem) for name, texts in rows.items()}
        return {
            "documents": len(documents),
            **{name: {key: one.value for key, one in some.items()} for name, some in scores.items()},
            "signature": scores["model"]["rouge1"].signature,
            "words per summary": sum(len(text.split()) for text in summaries) / len(summaries),
            "summaries cut off by the length limit": sum(not one.ended for one in found),
            "documents cut to fit the model": sum(any("cut to" in word for word in one.warnings) for one in found),
        }


class Summarisation:
    def __init__(self, config: SummarisationConfig, prepared: Prepared, settings: Settings) -> None:
        self.config, self.prepared = config, prepared
        self.pairs = Pairs(prepared, settings, lengths=config.length_tokens)
        self.limit = settings.max_length
        rouge(["a"], [["a"]], stem=config.stem)  # fails now if it is not installed
        cut = prepared.facts.get("cut", 0)
        note = f"{cut:,} texts are longer than {self.limit} tokens (data.max_length): only their beginning is read"
        self.notes = [note] if cut else []
        if self.pairs.bounds is not None:
            longest = ", ".join(map(str, self.pairs.bounds))
            self.notes.append(f"summaries have {config.length_tokens} lengths: up to {longest} tokens, and longer")

    def epoch(self, number: int, *, budget: int, seed: int) -> Iterator[np.ndarray]:
        return self.pairs.epoch(number, budget=budget, seed=seed)

    def worst(self, budget: int) -> np.ndarray:
        return self.pairs.worst(budget)

    def collate(self, rows: np.ndarray, *, seed: tuple[int, ...] = ()) -> PairBatch:
        return self.pairs.collate(rows, seed)

    def loss(self, model: SequenceToSequence, batch: PairBatch, *, state: State) -> Loss:
        return self.pairs.loss(model, batch)

    @torch.inference_mode()
    def evaluate(self, model: SequenceToSequence, *, budget: int, samples: int, world: Processes) -> Scores:
        numbers = self.pairs.measure(model, budget=budget, world=world)
        documents, references = _grouped([(text[0], text[1]) for text in self.pairs.references(SCORED)])
        summariser = Translator([model], self.prepared.tokenizers, limit=self.limit + 1, cuts=True)
        found = summariser.translate(documents[world.rank :: world.size], GREEDY, batch_tokens=budget)
        written = world.gather([one.text for one in found])
        numbers |= {name: one.value for name, one in rouge(written, references, stem=self.config.stem).items()}
        shown = [
            {"source": document, "reference": some[0], "hypothesis": text}
            for document, some, text in zip(documents[:samples], references, written, strict=False)
        ]
        return Scores(numbers, shown)

    def finish(self, model: SequenceToSequence, folder: Path) -> None:
        """A document is read whole, and cut where it is too long."""
        write_text(folder / "sentences.json", json.dumps({"several": 1.0, "cuts": True}))


def _read(test: Path, columns: Columns) -> tuple[list[str], list[list[str]]]:
    lines = [line for line in read_rows([test], columns) if not isinstance(line, Fault)]
    if not lines:
        raise ValueError(f"{test} has no usable document with a summary")
    return _grouped([(line.texts[0], line.texts[1]) for line in lines])


def _grouped(pairs: Sequence[tuple[str, str]]) -> tuple[list[str], list[list[str]]]:
    """Each document once, and its references: those of neighbouring rows with the same document."""
    groups = [(document, [target for _, target in some]) for document, some in groupby(pairs, key=lambda pair: pair[0])]
    return [document for document, _ in groups], [some for _, some in groups]
