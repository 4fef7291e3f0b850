"""Answers to questions, as spans of a text that contains them (SQuAD); or none, where the text does not say."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from heedful.bounded import read_object
from heedful.config import Size
from heedful.data import batches
from heedful.data.columns import Column, Columns
from heedful.data.prepare import Prepared
from heedful.data.squad import answers_in
from heedful.data.store import Store
from heedful.evaluation.squad import best_threshold, scores
from heedful.files import write_text
from heedful.model.architecture import Model, Reader
from heedful.objectives import Loss, Term
from heedful.tasks import Direction, Processes, Scores, Settings, State, TaskConfig
from heedful.tasks._labelled import Opened, Rows, opened
from heedful.tasks._reading import SPECIALS, Windows, by_length, read, shares, windows
from heedful.tasks._spans import Context, Found, search, targets
from heedful.tasks.classification import with_head
from heedful.text.tokenizer import Tokenizer

HEAD = "answer_span"
THRESHOLD = "answers.json"
BUDGET = 4096  # tokens of a batch


class QuestionAnsweringConfig(TaskConfig):
    """A window has the whole question and a part of the context. `overlap`: the tokens that neighbouring windows share
    (doc_stride); None = a quarter of the room. `max_answer`: the tokens of the longest answer that is considered.
    `null_threshold`: a question has no answer if the null score is higher than that of the best span by more than this;
    None = chosen on the validation data, if there are questions without an answer, else every question gets one."""

    trains: ClassVar[type[Model]] = Reader
    metrics: ClassVar[Mapping[str, Direction]] = {"loss": "lower", "em": "higher", "f1": "higher"}
    specials: ClassVar[tuple[str, ...]] = SPECIALS
    labelled: ClassVar[bool] = True
    note: ClassVar[str] = "em and f1: exact match and F1 of words in percent, as SQuAD's script computes them."
    overlap: int | None = Field(None, ge=0)
    max_answer: Size = 30
    null_threshold: float | None = None

    @property
    def columns(self) -> Columns:
        return (
            Column("question", also=("query",)),
            Column("context", also=("passage", "paragraph", "document")),
            Column("answers", "answers", also=("answer",)),
        )

    def positions(self, longest: int) -> dict[str, int]:
        return {"encoder": longest}

    def fitted(self, model: dict[str, Any], prepared: Prepared) -> dict[str, Any]:
        fitted = with_head(model, prepared, HEAD, classes=2)
        return {**fitted, "heads": [{"dropout": 0.0, **head} for head in fitted["heads"]]}  # BERT's has none

    def build(self, prepared: Prepared, settings: Settings) -> "QuestionAnswering":
        return QuestionAnswering(self, prepared, settings)

    def open(self, folder: Path, *others: Path, **options: Any) -> "Answerer":
        file, threshold = folder / THRESHOLD, self.null_threshold
        if threshold is None and file.is_file():
            threshold = read_object(file).get("null_threshold")
            if threshold is not None and not (isinstance(threshold, int | float) and math.isfinite(threshold)):
                raise ValueError(f"{file}: null_threshold must be a number or null, not {threshold!r:.100}")
        threshold = options.pop("null_threshold", threshold)
        return Answerer(opened(folder, self.columns, others, options), self, threshold)

    def refuse_overlap(self, length: int, tokenizer: Tokenizer) -> None:
        """A long question leaves half of a window, which must hold more than what it shares with the next one."""
        room = (length - tokenizer.frame.size(2) + 1) // 2
        if self.overlap is not None and self.overlap >= room:
            raise ValueError(
                f"task.overlap {self.overlap} leaves nothing new in a window of {length} tokens after a long question; "
                f"choose at most {room - 1}, or raise data.max_length"
            )


@dataclass(frozen=True)
class AnsweredBatch:
    """`first`, `last`: where in each window its answer starts and ends; 0 = it is not in it."""

    texts: Windows
    first: Tensor
    last: Tensor

    @property
    def counts(self) -> dict[str, float]:
        return {"spans": len(self.first)}

    @property
    def tokens_read(self) -> int:
        return self.texts.tokens_read

    def to(self, device: torch.device) -> "AnsweredBatch":
        return AnsweredBatch(self.texts.to(device), self.first.to(device), self.last.to(device))


def span_loss(logits: Tensor, batch: AnsweredBatch) -> Tensor:
    """The sum over windows of

        (-log p(first) - log p(last)) / 2,      p = softmax over the tokens of the window      Devlin et al. 2019

    Differs from `BertForQuestionAnswering` where windows are padded: padding has no probability here, so that a
    window's loss does not depend on the others.
    """
    logits = logits.float().masked_fill(~batch.texts.valid[..., None], torch.finfo(torch.float32).min)
    first, last = logits.unbind(-1)  # windows length
    return (
        F.cross_entropy(first, batch.first, reduction="sum") + F.cross_entropy(last, batch.last, reduction="sum")
    ) / 2


class QuestionAnswering:
    def __init__(self, config: QuestionAnsweringConfig, prepared: Prepared, settings: Settings) -> None:
        if settings.label_smoothing:
            raise ValueError("an answer's place is not smoothed; set training.label_smoothing to 0")
        if not prepared.has("valid"):
            raise ValueError("too few questions to hold any out for validation; name a file of others with --valid")
        self.config, self.rows = config, Rows(prepared, settings)
        config.refuse_overlap(self.rows.length, self.rows.tokenizer)
        self.place = len(prepared.columns) - 1
        self.texts = prepared.texts("valid")
        self.wanted = [[text for text, _ in answers_in(row[-1])] for row in self.texts]
        self.contexts = contexts_of([row[1] for row in self.texts], self.rows.tokenizer)
        without = int((self.rows.train.lengths(self.place) == 0).sum())
        self.has_null = bool(without) or not all(self.wanted)
        self.notes = [f"{len(self.rows.train):,} questions, {without:,} of them without an answer"]

    def epoch(self, number: int, *, budget: int, seed: int) -> Iterator[np.ndarray]:
        return self.rows.epoch(number, budget=budget, seed=seed)

    def worst(self, budget: int) -> np.ndarray:
        return self.rows.worst(budget)

    def collate(self, rows: np.ndarray, *, seed: tuple[int, ...] = ()) -> AnsweredBatch:
        return self._batch(self.rows.train, rows)

    def loss(self, model: Reader, batch: AnsweredBatch, *, state: State) -> Loss:
        logits = model.predict(HEAD, read(model, batch.texts))
        return Loss({"spans": Term(span_loss(logits, batch), len(batch.first))})

    @torch.inference_mode()
    def evaluate(self, model: Reader, *, budget: int, samples: int, world: Processes) -> Scores:
        share = shares(self.rows.valid, budget=budget, world=world, cost=self.rows.cost)
        found, total, count = self._read(model, share)
        if world.size > 1:  # rows of other processes are 0 here
            found = np.array([[world.total(float(cell)) for cell in row] for row in found])
        texts, threshold = self._texts(found), self._threshold(found)
        chosen = [_chosen(text, row[0], threshold) for text, row in zip(texts, found, strict=True)]
        numbers = {"loss": world.total(total) / max(1.0, world.total(count)), **scores(chosen, self.wanted)}
        shown = [
            {"question": row[0], "answer": " | ".join(dict.fromkeys(answers)), "predicted": text}
            for row, answers, text in zip(self.texts[:samples], self.wanted, chosen, strict=False)
        ]
        return Scores(numbers, shown)

    @torch.inference_mode()
    def finish(self, model: Reader, folder: Path) -> None:
        """The threshold for "no answer", chosen with the final weights."""
        rows = batches.in_order(self.rows.valid, budget=BUDGET, cost=self.rows.cost)
        threshold = self.config.null_threshold
        if threshold is None and self.has_null:
            threshold = self._threshold(self._read(model, rows)[0])
        write_text(folder / THRESHOLD, json.dumps({"null_threshold": threshold}))

    def _read(self, model: Reader, share: Iterable[np.ndarray]) -> tuple[np.ndarray, float, int]:
        """For each validation row the advantage of "no answer" and the best span's characters: rows 3; and the loss,
        summed over so many windows."""
        found, total, count = np.zeros((len(self.rows.valid), 3)), 0.0, 0
        for rows in share:
            batch = self._batch(self.rows.valid, rows).to(model.device)
            logits = model.predict(HEAD, read(model, batch.texts))
            total += float(span_loss(logits, batch))
            count += len(batch.first)
            last, longest = len(self.rows.tokenizer.frame.last), self.config.max_answer
            held = search(logits, batch.texts, [self.contexts[row] for row in rows], last=last, longest=longest)
            for row, one in zip(rows, held, strict=True):
                place = (one.spans[0].start, one.spans[0].end) if one.spans else (0, 0)
                found[row] = (one.advantage, *place)
        return found, total, count

    def _texts(self, found: np.ndarray) -> list[str]:
        return [row[1][int(start) : int(end)] for row, (_, start, end) in zip(self.texts, found, strict=True)]

    def _threshold(self, found: np.ndarray) -> float | None:
        """None: every question gets an answer. 0 where validation data has one kind of question only, which would
        choose the other kind away."""
        if self.config.null_threshold is not None or not self.has_null:
            return self.config.null_threshold
        if all(self.wanted) or not any(self.wanted):
            return 0.0
        return best_threshold(found[:, 0].tolist(), self._texts(found), self.wanted)

    def _batch(self, store: Store, rows: np.ndarray) -> AnsweredBatch:
        texts = self.rows.windows(store, rows, overlap=self.config.overlap, whole=0)
        cells = [bytes(row.astype(np.uint8)).split() for row in store.rows(self.place, rows)]
        spans = [(int(cell[0]), int(cell[1])) if cell else None for cell in cells]
        return AnsweredBatch(texts, *targets(texts, spans, len(self.rows.tokenizer.frame.last)))


def contexts_of(texts: Sequence[str], tokenizer: Tokenizer) -> list[Context]:
    """One for each text; a text that several questions are about is tokenised once."""
    distinct = list(dict.fromkeys(texts))
    held = {text: Context(text, spans) for text, spans in zip(distinct, tokenizer.offsets(distinct), strict=True)}
    return [held[text] for text in texts]


def _chosen(text: str, advantage: float, threshold: float | None) -> str:
    return "" if threshold is not None and advantage > threshold else text


class Answerer:
    """A model that answers questions, ready to use. `null_threshold`: None = every question gets an answer."""

    def __init__(self, held: Opened, config: QuestionAnsweringConfig, null_threshold: float | None) -> None:
        self.opened, self.config, self.null_threshold = held, config, null_threshold
        config.refuse_overlap(held.length, held.tokenizer)

    def predict(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        """For each "question, tab, context": `answer` (also as `text`; "" = none), its characters `start` and `end` in
        the context, `score` (its probability), and up to three `alternatives`."""
        pairs = []
        for number, line in enumerate(texts, start=1):
            question, tab, context = line.partition("\t")
            if not tab:
                raise ValueError(f"line {number} has no tab; give a question and a context, separated by a tab")
            if not question.strip() or not context.strip():
                raise ValueError(f"line {number} has an empty {'context' if question.strip() else 'question'}")
            pairs.append((question.strip(), context))
        return [self._answer(context, found) for (_, context), found in zip(pairs, self._find(pairs), strict=True)]

    def evaluate(self, test: Path) -> dict[str, Any]:
        """Exact match and F1 in percent, against the best of each question's answers; if some have none, also of
        questions with and without."""
        rows = [row.texts for row in self.opened.rows(test)]
        found = self._find([(question, context) for question, context, _ in rows])
        texts = [self._answer(row[1], one)["answer"] for row, one in zip(rows, found, strict=True)]
        return {"rows": len(rows), **scores(texts, [[text for text, _ in answers_in(row[2])] for row in rows])}

    def _answer(self, context: str, found: Found) -> dict[str, Any]:
        shown: list[dict[str, Any]] = [
            {
                "answer": context[span.start : span.end],
                "start": span.start,
                "end": span.end,
                "score": found.probability(span.score),
            }
            for span in found.spans
        ]
        if not shown or _chosen("answer", found.advantage, self.null_threshold) == "":
            none = {"answer": "", "start": None, "end": None, "score": found.probability(found.null)}
            shown = [none, *shown]
        return {"text": shown[0]["answer"], **shown[0], "alternatives": shown[1:4]}

    @torch.inference_mode()
    def _find(self, pairs: Sequence[tuple[str, str]]) -> list[Found]:
        held, tokenizer = self.opened, self.opened.tokenizer
        contexts = contexts_of([context for _, context in pairs], tokenizer)
        columns = [tokenizer.encode([pair[column] for pair in pairs]) for column in (0, 1)]
        rows = list(zip(*columns, strict=True))
        found: dict[int, Found] = {}
        for batch in by_length([len(question) + len(context) for question, context in rows], BUDGET):
            texts = windows(
                [rows[row] for row in batch], tokenizer, length=held.length, overlap=self.config.overlap, whole=0
            ).to(held.fast.device)
            logits = held.fast.predict(HEAD, read(held.fast, texts))
            each = [contexts[row] for row in batch]
            last = len(tokenizer.frame.last)
            found |= zip(batch, search(logits, texts, each, last=last, longest=self.config.max_answer), strict=True)
        return [found[row] for row in range(len(pairs))]
