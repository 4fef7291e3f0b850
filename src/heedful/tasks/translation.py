"""Pairs of texts: read one, write the other. Translation, and every other sequence-to-sequence task."""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from heedful.alignment import Aligner, choose
from heedful.data import batches
from heedful.data.columns import PAIR, Columns
from heedful.data.context import InContext, Read
from heedful.data.padding import Row, pad
from heedful.data.prepare import Prepared
from heedful.data.store import Store
from heedful.decoding.generation import GenerationConfig
from heedful.decoding.runner import Request
from heedful.decoding.shortlist import Shortlist, learn
from heedful.evaluation.metrics import quick_score, tokenization
from heedful.files import write_text
from heedful.model.architecture import Model, SequenceToSequence
from heedful.objectives import Loss, cross_entropy, vocabulary_cross_entropy
from heedful.tasks import Direction, Processes, Scores, Settings, State, TaskConfig
from heedful.text.bpe import MergingBpe
from heedful.text.sentences import sentences
from heedful.text.tokenizer import BYTES, Tokenizer
from heedful.translator import Translator
from heedful.translator import load as load_translator

SCORED = 200  # sentences translated per validation
LEXICON, ALIGNED = 20_000, 200  # pairs to count co-occurring words in, and to try the heads on
SPLIT = 2_000  # lines to check for several sentences
SHORTLISTED = 100_000  # pairs to learn a shortlist from
GREEDY = GenerationConfig(num_beams=1)


class TranslationConfig(TaskConfig):
    trains: ClassVar[type[Model]] = SequenceToSequence
    metrics: ClassVar[Mapping[str, Direction]] = {
        "loss": "lower", "accuracy": "higher", "bleu": "higher", "chrf": "higher", "exact": "higher"
    }  # fmt: skip
    in_context: ClassVar[bool] = True
    sizes: ClassVar[tuple[str, ...]] = ("tiny", "small", "base", "big")
    note: ClassVar[str] = (
        "BLEU and chrF are computed by sacreBLEU on greedy translations of at most 200 sentences, to monitor training; "
        "`heedful evaluate` gives the figures to report."
    )

    @property
    def columns(self) -> Columns:
        return PAIR

    def positions(self, longest: int) -> dict[str, int]:
        return {"encoder": longest + 1, "decoder": longest + 1}

    def fitted(self, model: dict[str, Any], prepared: Prepared) -> dict[str, Any]:
        source, target = prepared.tokenizers[0], prepared.tokenizers[-1]
        fitted = {**model, "vocab": target.vocab}
        if "source_vocab" in model:
            fitted["source_vocab"] = None if source is target else source.vocab
        elif source is not target:
            raise ValueError(f"{model['kind']} has one vocabulary; set tokenizer.joint=true")
        return fitted

    def build(self, prepared: Prepared, settings: Settings) -> "Translation":
        return Translation(prepared, settings)

    def open(self, folder: Path, *others: Path, **options: Any) -> Translator:
        return load_translator(folder, *others, **options)


@dataclass(frozen=True)
class PairBatch:
    """The decoder reads `target` (<s> first) and must predict `wanted` (</s> last), where `target_valid`: padding and
    the sentences before the one to learn are left out."""

    source: Tensor  # batch source
    source_valid: Tensor
    target: Tensor  # batch target
    wanted: Tensor
    target_valid: Tensor

    @property
    def counts(self) -> dict[str, int]:
        return {"tokens": int(self.target_valid.sum())}

    def to(self, device: torch.device) -> "PairBatch":
        return PairBatch(**{name: tensor.to(device) for name, tensor in vars(self).items()})


class Translation:
    def __init__(self, prepared: Prepared, settings: Settings | None = None) -> None:
        settings = settings or Settings()
        dropout, language = settings.bpe_dropout, settings.language
        self.prepared, self.smoothing = prepared, settings.label_smoothing
        self.cost = settings.cost
        self.train = prepared.store("train")
        self.valid = prepared.store("valid") if prepared.has("valid") else self.train
        self.context, self.limit = settings.context, settings.max_length
        # What batches are cut from.
        self.learnt: Store | InContext = self._in_context("train") if self.context else self.train
        held_out = "valid" if prepared.has("valid") else "train"
        self.scored: Store | InContext = self._in_context(held_out) if self.context else self.valid
        self.dropout = dropout
        references = [target for _, target in self._references()]
        cut = tokenization(references, language=language)
        quick_score(["a"], ["a"], tokenizer=cut.name)  # fails now if it is not installed
        self.tokenizer = cut.name
        self.notes = [] if cut.name == "13a" else [f"BLEU uses the tokenizer {cut.name}: {cut.why}"]
        self.merging = [MergingBpe(tokenizer) for tokenizer in prepared.tokenizers] if dropout else []

    def epoch(self, number: int, *, budget: int, seed: int) -> Iterator[np.ndarray]:
        return batches.epoch(self.learnt, budget=budget, seed=seed, number=number, cost=self.cost)

    def worst(self, budget: int) -> np.ndarray:
        return batches.longest(self.learnt, budget=budget, cost=self.cost)

    def collate(self, rows: np.ndarray, *, seed: tuple[int, ...] = ()) -> PairBatch:
        return self._batch(self.learnt, rows, lambda column, some: self._rows(self.train, column, some, seed))

    def loss(self, model: SequenceToSequence, batch: PairBatch, *, state: State) -> Loss:
        """Only real positions are projected to the vocabulary."""
        memory = model.encode(batch.source, valid=batch.source_valid)
        written = model.decode(batch.target, memory)[batch.target_valid]
        wanted = batch.wanted[batch.target_valid]
        return Loss({"tokens": vocabulary_cross_entropy(*model.last_linear(written), wanted, smoothing=self.smoothing)})

    @torch.inference_mode()
    def evaluate(self, model: SequenceToSequence, *, budget: int, samples: int, world: Processes) -> Scores:
        total, count, right = 0.0, 0, 0
        for rows in list(batches.in_order(self.scored, budget=budget, cost=self.cost))[world.rank :: world.size]:
            batch = self._batch(self.scored, rows, self.valid.rows).to(model.device)
            memory = model.encode(batch.source, valid=batch.source_valid)
            logits = model.logits(model.decode(batch.target, memory)[batch.target_valid])
            wanted = batch.wanted[batch.target_valid]
            total += float(cross_entropy(logits, wanted).total)
            right += int((logits.argmax(-1) == wanted).sum())
            count += len(wanted)
        total, count, right = world.total(total), int(world.total(count)), int(world.total(right))
        texts = self._references()
        limit = self.limit + 1 if self.context else 1 << 30
        translator = Translator([model], self.prepared.tokenizers, limit=limit, context=self.context)
        sources = self._asked()[world.rank :: world.size]
        written = world.gather([found.text for found in translator.translate(sources, GREEDY, batch_tokens=budget)])
        numbers = {"loss": total / max(1, count), "accuracy": 100 * right / max(1, count)}
        numbers |= quick_score(written, [target for _, target in texts], tokenizer=self.tokenizer)
        shown = [
            {"source": source, "reference": target, "hypothesis": text}
            for (source, target), text in zip(texts[:samples], written, strict=False)
        ]
        return Scores(numbers, shown)

    def finish(self, model: SequenceToSequence, folder: Path) -> None:
        """Save the alignment head, the shortlist, and the share of lines with several sentences."""
        aligner = self._choose_aligner(model)
        if aligner is not None:
            aligner.save(folder)
        self._learn_shortlist().save(folder)
        write_text(folder / "sentences.json", json.dumps({"several": self._several()}))

    def _several(self) -> float:
        """The share of training lines with more than one sentence."""
        rows = np.arange(min(SPLIT, len(self.train)))
        texts = self.prepared.tokenizers[0].decode(self.train.rows(0, rows))
        return sum(len(sentences(text)) > 1 for text in texts) / max(1, len(texts))

    def _choose_aligner(self, model: SequenceToSequence) -> Aligner | None:
        """By the validation pairs, with the words that co-occur in the first training pairs."""
        rows = np.arange(min(LEXICON, len(self.train)))
        sources, targets = (self.prepared.tokenizers[c].decode(self.train.rows(c, rows)) for c in (0, 1))
        lexicon = list(zip(sources, targets, strict=True))
        held_out = self.prepared.texts("valid") if self.prepared.has("valid") else lexicon
        pairs = [(text[0], text[1]) for text in held_out]
        return choose(model.eval(), self.prepared.tokenizers, pairs[:ALIGNED], lexicon=lexicon)

    def _learn_shortlist(self) -> Shortlist:
        source, target = self.prepared.tokenizers
        rows = np.arange(min(SHORTLISTED, len(self.train)))
        spelled = [target.token_ids()[token] for token in BYTES if token in target.token_ids()]
        return learn(
            self.train.rows(0, rows),
            self.train.rows(1, rows),
            source_vocab=source.vocab,
            vocab=target.vocab,
            always=[target.eos, *([] if target.unk is None else [target.unk]), *spelled],
            joint=source is target,
        )

    def _in_context(self, split: str) -> InContext:
        tokenizers = self.prepared.tokenizers
        return InContext(
            self.prepared.store(split),
            self.prepared.places(split),
            context=self.context,
            limit=self.limit,
            breaks=[tokenizer.sentence_break for tokenizer in tokenizers],
        )

    def _batch(self, rows: Store | InContext, numbers: np.ndarray, read: Read) -> PairBatch:
        if not isinstance(rows, InContext):
            return collate(read(0, numbers), read(1, numbers), self.prepared.tokenizers)
        (sources, _), (targets, before) = (rows.rows(column, numbers, read) for column in (0, 1))
        return collate(sources, targets, self.prepared.tokenizers, before=before)

    def _references(self) -> list[tuple[str, str]]:
        texts = self._texts()
        return texts[:: max(1, len(texts) // SCORED)][:SCORED]

    def _asked(self) -> list[Request]:
        """Their sources, with the pairs before them: while training is monitored, the target's context is the true one,
        so that processes can share the sentences of a document."""
        texts = self._texts()
        places = self.scored.places.tolist() if isinstance(self.scored, InContext) else [0] * len(texts)
        before = [texts[row - min(place, self.context) : row] for row, place in enumerate(places[: len(texts)])]
        asked = [Request(source, context=pairs) for (source, _), pairs in zip(texts, before, strict=True)]
        return asked[:: max(1, len(texts) // SCORED)][:SCORED]

    def _texts(self) -> list[tuple[str, str]]:
        if self.prepared.has("valid"):
            return [(text[0], text[1]) for text in self.prepared.texts("valid")]
        rows = np.arange(min(SCORED, len(self.train)))
        decoded = [self.prepared.tokenizers[c].decode(self.train.rows(c, rows)) for c in (0, 1)]
        return list(zip(*decoded, strict=True))

    def _rows(self, store: Store, column: int, rows: np.ndarray, seed: tuple[int, ...]) -> list[np.ndarray]:
        found = store.rows(column, rows)
        if not self.dropout:
            return found
        texts = self.prepared.tokenizers[column].decode(found)
        merging = self.merging[column]
        return [
            np.array(merging.encode(text, dropout=self.dropout, chance=random.Random(f"{seed} {column} {row}")))
            for text, row in zip(texts, rows, strict=True)
        ]


def collate(
    sources: Sequence[Row],
    targets: Sequence[Row],
    tokenizers: Sequence[Tokenizer],
    *,
    before: np.ndarray | None = None,
) -> PairBatch:
    """`before`: how many tokens of each target are not to be learnt."""
    first, last = tokenizers[0], tokenizers[-1]
    source, source_valid = pad(sources, last=first.eos, fill=first.pad)
    target, target_valid = pad(targets, first=last.start, fill=last.pad)
    wanted, _ = pad(targets, last=last.eos, fill=last.pad)
    if before is not None:
        target_valid &= torch.arange(target.shape[1]) >= torch.from_numpy(before)[:, None]
    return PairBatch(source, source_valid, target, wanted, target_valid)
