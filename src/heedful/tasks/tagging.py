"""A tag for each word: named entities (IOB2), parts of speech."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.data.build import unknown_label
from heedful.data.columns import Column, Columns
from heedful.data.conll import MARKED, ORPHAN, OTHER_SCHEME, complete, is_iob2, to_iob2
from heedful.data.prepare import Prepared
from heedful.data.store import Store
from heedful.evaluation.tags import count_entities, count_words, entities, shares_of
from heedful.model.architecture import Model, Reader
from heedful.model.cpu.reading import FastReader
from heedful.model.crf import Allowed, Crf
from heedful.model.heads import Token
from heedful.objectives import Loss, Term
from heedful.tasks import Direction, Processes, Scores, Settings, State, TaskConfig
from heedful.tasks._labelled import TEXT, Opened, Rows, opened
from heedful.tasks._reading import SPECIALS, by_length, read, shares
from heedful.tasks._words import Words, find_words
from heedful.tasks.classification import with_head

HEAD = "token_classification"
WORDS = ("tokens", "words", *TEXT)
TAGS = ("ner_tags", "pos_tags", "labels", "tag", "ner", "pos", "upos")


class TaggingConfig(TaskConfig):
    """`crf`: tags depend on their neighbours (see `model/crf.py`), and what IOB2 does not allow, such as I-PER after O,
    is never predicted. Otherwise each word has its best tag, whatever its neighbours have.

    Entities are scored as seqeval does with mode="strict" and scheme=IOB2. Where tags mark no entities, f1, precision
    and recall all are the accuracy: every word has one tag and gets one."""

    trains: ClassVar[type[Model]] = Reader
    metrics: ClassVar[Mapping[str, Direction]] = {
        "loss": "lower", "f1": "higher", "precision": "higher", "recall": "higher", "accuracy": "higher",
    }  # fmt: skip
    specials: ClassVar[tuple[str, ...]] = SPECIALS
    labelled: ClassVar[bool] = True
    note: ClassVar[str] = "An entity counts as found if its type, first and last word are right."
    crf: bool = False

    @property
    def columns(self) -> Columns:
        return (Column("text", also=WORDS), Column("tags", "tags", also=TAGS))

    def positions(self, longest: int) -> dict[str, int]:
        return {"encoder": longest}

    def fitted(self, model: dict[str, Any], prepared: Prepared) -> dict[str, Any]:
        found = with_head(model, prepared, HEAD, classes=len(prepared.labels["tags"]))
        return {**found, "heads": [{**head, "crf": self.crf} for head in found["heads"]]}

    def build(self, prepared: Prepared, settings: Settings) -> "Tagging":
        if self.crf and settings.label_smoothing:
            raise ValueError("training.label_smoothing has no meaning with task.crf=true; set it to 0")
        return Tagging(prepared, settings)

    def open(self, folder: Path, *others: Path, **options: Any) -> "Tagger":
        return Tagger(opened(folder, self.columns, others, options))


@dataclass(frozen=True)
class TaggedBatch:
    words: Words
    wanted: Tensor  # words: the number of each one's tag

    @property
    def counts(self) -> dict[str, float]:
        return {"tags": float(len(self.wanted))}

    @property
    def tokens_read(self) -> int:
        return self.words.texts.tokens_read

    def to(self, device: torch.device) -> "TaggedBatch":
        return TaggedBatch(self.words.to(device), self.wanted.to(device))


class Tagging:
    """The loss is on the first token of each word; a word's tag is what its first token says."""

    def __init__(self, prepared: Prepared, settings: Settings) -> None:
        self.rows, self.smoothing = Rows(prepared, settings), settings.label_smoothing
        self.tags = prepared.labels["tags"]
        if len(self.tags) < 2:
            raise ValueError(f"there is only one tag, {self.tags[0]!r}; a tagger needs at least two")
        self.marks_entities = is_iob2(self.tags)
        self.allowed = Allowed(self.tags) if self.marks_entities else None
        self.texts = prepared.texts("valid") if prepared.has("valid") else []
        self.notes = list(_notes(self.tags, self.marks_entities, prepared.facts["report"]))

    def epoch(self, number: int, *, budget: int, seed: int) -> Iterator[np.ndarray]:
        return self.rows.epoch(number, budget=budget, seed=seed)

    def worst(self, budget: int) -> np.ndarray:
        return self.rows.worst(budget)

    def collate(self, rows: np.ndarray, *, seed: tuple[int, ...] = ()) -> TaggedBatch:
        return self._batch(self.rows.train, rows)

    def loss(self, model: Reader, batch: TaggedBatch, *, state: State) -> Loss:
        total = self._total(model, _scores(model, batch.words), batch, self.smoothing)
        return Loss({"tags": Term(total, len(batch.wanted))})

    @torch.inference_mode()
    def evaluate(self, model: Reader, *, budget: int, samples: int, world: Processes) -> Scores:
        total, right, words = 0.0, 0, 0
        counts = np.zeros(3)  # entities that are right, wanted, found
        for rows in shares(self.rows.valid, budget=budget, world=world, cost=self.rows.cost):
            batch = self._batch(self.rows.valid, rows).to(model.device)
            scores = _scores(model, batch.words)
            total += float(self._total(model, scores, batch))
            found = choose(model, scores, batch.words, self.allowed)
            right += int((found == batch.wanted).sum())
            words += len(batch.wanted)
            truth, answers = (_named(numbers, batch.words, self.tags) for numbers in (batch.wanted, found))
            counted = (count_entities if self.marks_entities else count_words)(truth, answers)
            counts += [part.total() for part in (counted.right, counted.wanted, counted.found)]
        precision, recall, f1 = shares_of(*(world.total(float(count)) for count in counts))
        every = max(1.0, world.total(words))
        numbers = {"f1": f1, "precision": precision, "recall": recall, "accuracy": world.total(right) / every}
        percent = {name: 100 * number for name, number in numbers.items()}
        return Scores({"loss": world.total(total) / every, **percent}, self._samples(model, samples))

    def finish(self, model: Reader, folder: Path) -> None:
        """Nothing to add: the tags are saved with the tokenizer."""

    def _batch(self, store: Store, rows: np.ndarray) -> TaggedBatch:
        tokens, tags = (store.rows(place, rows) for place in (0, 1))
        firsts = [np.flatnonzero(row) for row in tags]
        wanted = np.concatenate([row[first] for row, first in zip(tags, firsts, strict=True)]).astype(np.int64) - 1
        words = find_words(tokens, firsts, self.rows.tokenizer, length=self.rows.length)
        return TaggedBatch(words, torch.from_numpy(wanted))

    def _total(self, model: Reader, scores: Tensor, batch: TaggedBatch, smoothing: float = 0.0) -> Tensor:
        crf = crf_of(model)
        if crf is None:
            return F.cross_entropy(scores, batch.wanted, reduction="sum", label_smoothing=smoothing)
        words = batch.words
        return -crf.log_likelihood(words.padded(scores), words.padded(batch.wanted), words.valid).sum()

    def _samples(self, model: Reader, count: int) -> list[dict[str, str]]:
        shown = min(count, len(self.rows.valid), len(self.texts))
        if not shown:
            return []
        batch = self._batch(self.rows.valid, np.arange(shown)).to(model.device)
        found = choose(model, _scores(model, batch.words), batch.words, self.allowed)
        return [
            {"text": text, "tags": tags, "predicted": " ".join(answer)}
            for (text, tags), answer in zip(self.texts, _named(found, batch.words, self.tags), strict=False)
        ]


def _notes(tags: Sequence[str], marks_entities: bool, report: Mapping[str, Any]) -> Iterator[str]:
    if marks_entities:
        kinds = [tag[2:] or "entity" for tag in tags if tag.startswith("B")]
        yield f"{len(kinds)} types of entities: {', '.join(kinds[:20])}" + ", ..." * (len(kinds) > 20)
    else:
        yield f"{len(tags)} tags: {', '.join(tags[:20])}" + ", ..." * (len(tags) > 20) + "; f1 is the accuracy"
        if marked := [tag for tag in tags if "-" in tag and MARKED.fullmatch(tag)]:
            others = [tag for tag in tags if not MARKED.fullmatch(tag)]
            yield f"some tags mark entities ({marked[0]}) and others do not ({others[0]}): only words are scored"
    for name, found in report["noticed"].items():
        if name.startswith((ORPHAN, OTHER_SCHEME)):
            yield f"{found['count']:,} sentences have {name}, such as {found['where'][0]}"


def crf_of(model: Reader) -> Crf | None:
    return _head(model).crf


def _head(model: Reader) -> Token:
    found = model.get_submodule(f"heads.{HEAD}")
    assert isinstance(found, Token)
    return found


def _scores(model: Reader | FastReader, words: Words) -> Tensor:
    """words tags"""
    return model.predict(HEAD, words.states(read(model, words.texts))).float()


def choose(model: Reader, scores: Tensor, words: Words, allowed: Allowed | None) -> Tensor:
    """The number of each word's tag: words."""
    crf = crf_of(model)
    if crf is None:
        return scores.argmax(-1)
    return crf.decode(words.padded(scores), words.valid, allowed)[words.valid]


def _named(numbers: Tensor, words: Words, tags: Sequence[str]) -> list[list[str]]:
    """Numbers of words -> the tags of each text."""
    return [[tags[number] for number in text.tolist()] for text in numbers.cpu().split(words.counts.tolist())]


class Tagger:
    """A tagger ready to use."""

    def __init__(self, held: Opened) -> None:
        self.opened = held
        self.tags = held.labels["tags"]
        is_marked = all(MARKED.fullmatch(tag) for tag in self.tags)
        # A published model may mark entities in another way: its answers then are read as IOB2.
        self.converts = is_marked and complete(to_iob2([tag])[0][0] for tag in self.tags) != set(self.tags)
        self.marks_entities = is_iob2(self.tags) or self.converts
        self.allowed = Allowed(self.tags) if self.marks_entities and not self.converts else None

    @torch.inference_mode()
    def tag(self, texts: Sequence[Sequence[str]], *, budget: int = 2048) -> list[list[str]]:
        """A tag for each word of each text."""
        tokenizer, model = self.opened.tokenizer, self.opened.model
        found: list[list[str]] = [[] for _ in texts]
        held = [number for number, words in enumerate(texts) if words]
        pieces = [tokenizer.encode_words(texts[number]) for number in held]
        rows = [np.array([token for word in words for token in word]) for words in pieces]
        firsts = [np.cumsum([0, *map(len, words)])[:-1] for words in pieces]
        for batch in by_length(list(map(len, rows)), budget):
            words = find_words(
                [rows[place] for place in batch], [firsts[place] for place in batch], tokenizer,
                length=self.opened.length,
            ).to(model.device)  # fmt: skip
            numbers = choose(model, _scores(self.opened.fast, words), words, self.allowed)
            for place, tags in zip(batch, _named(numbers, words, self.tags), strict=True):
                found[held[place]] = to_iob2(tags)[0] if self.converts else tags
        return found

    def predict(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        """`tags` of the `words` of each line, which are separated by spaces; and the `entities` that they mark, with
        their characters [start, end) in the line."""
        spans = [[match.span() for match in re.finditer(r"\S+", line)] for line in texts]
        words = [[line[start:end] for start, end in places] for line, places in zip(texts, spans, strict=True)]
        found = []
        for line, places, split, tags in zip(texts, spans, words, self.tag(words), strict=True):
            marked = []
            for kind, first, after in entities(tags) if self.marks_entities else ():
                start, end = places[first][0], places[after - 1][1]
                marked.append({"type": kind, "text": line[start:end], "start": start, "end": end})
            found.append({"text": " ".join(tags), "words": split, "tags": tags, "entities": marked})
        return found

    def evaluate(self, test: Path) -> dict[str, Any]:
        """In percent: accuracy of the words' tags; precision, recall and F1 of entities, all and by type."""
        rows = self.opened.rows(test)
        texts, cells = self.opened.split(rows)
        truth = [cell.split() for cell in cells]
        known = complete(self.tags) if not self.converts else complete(to_iob2([tag])[0][0] for tag in self.tags)
        for row, tags in zip(rows, truth, strict=True):
            for tag in tags:
                if tag not in known:
                    raise unknown_label(row, "tag", tag, self.tags)
        answers = self.tag([text.split() for (text,) in texts])
        words = count_words(truth, answers)
        found: dict[str, Any] = {"rows": len(rows), "words": words.wanted.total(), "accuracy": 100 * words.scores()[1]}
        counts = words
        if self.marks_entities:
            counts = count_entities(truth, answers)
            names = ("precision", "recall", "f1")
            found |= {name: 100 * score for name, score in zip(names, counts.scores(), strict=True)}
            found["entities"] = counts.wanted.total()
        found["f1_by_type" if self.marks_entities else "f1_by_tag"] = {
            kind: 100 * counts.scores(kind)[2] for kind in counts.types
        }
        corrected = sum(bool(row.note) for row in rows)
        return {**found, "sentences_read_as_iob2": corrected} if corrected else found
