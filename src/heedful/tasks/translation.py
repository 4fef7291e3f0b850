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
from heedful.data.languages import Framing, Languages, plain
from heedful.data.mixed import Mixed
from heedful.data.padding import Row, pad
from heedful.data.prepare import Prepared
from heedful.data.store import Store
from heedful.decoding.generation import GenerationConfig
from heedful.decoding.runner import Request
from heedful.decoding.shortlist import Shortlist, learn
from heedful.evaluation.metrics import one_score, quick_score, tokenization
from heedful.files import write_text
from heedful.model.architecture import Model, SequenceToSequence
from heedful.objectives import Loss, cross_entropy, vocabulary_cross_entropy
from heedful.tasks import Direction, Processes, Scores, Settings, State, TaskConfig
from heedful.text.bpe import MergingBpe
from heedful.text.sentences import sentences
from heedful.text.tokenizer import BYTES, Tokenizer
from heedful.translator import Translator
from heedful.translator import load as load_translator

SCORED = 200  # sentences translated per validation,
LEAST = 20  # but at least so many of each part of a mixture
LEXICON, ALIGNED = 20_000, 200  # pairs to count co-occurring words in, and to try the heads on
SPLIT = 2_000  # lines to check for several sentences
SHORTLISTED = 100_000  # pairs to learn a shortlist from
GREEDY = GenerationConfig(num_beams=1)

Rows = Store | Mixed | InContext


class TranslationConfig(TaskConfig):
    trains: ClassVar[type[Model]] = SequenceToSequence
    metrics: ClassVar[Mapping[str, Direction]] = {
        "loss": "lower", "accuracy": "higher", "bleu": "higher", "chrf": "higher", "exact": "higher"
    }  # fmt: skip
    in_context: ClassVar[bool] = True
    sizes: ClassVar[tuple[str, ...]] = ("tiny", "small", "base", "big")
    mixes: ClassVar[bool] = True
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
        self.parts = prepared.parts
        self.train = self._store("train")
        self.valid = self._store("valid") if prepared.has("valid") else self.train
        directions = [part.direction for part in self.parts if part.direction is not None]
        self.languages = Languages(prepared.tokenizers, settings.layout, directions)
        self.framings = [self.languages.framing(*(part.direction or ())) for part in self.parts]
        self.context, self.limit = settings.context, settings.max_length
        # What batches are cut from.
        self.learnt: Rows = self._in_context("train") if self.context else self.train
        held_out = "valid" if prepared.has("valid") else "train"
        self.scored: Rows = self._in_context(held_out) if self.context else self.valid
        self.dropout = dropout
        self.samples = self._samples()
        references = [one.target for one in self.samples]
        cut = tokenization(references, language=language)
        quick_score(["a"], ["a"], tokenizer=cut.name)  # fails now if it is not installed
        self.tokenizer = cut.name
        self.notes = [] if cut.name == "13a" else [f"BLEU uses the tokenizer {cut.name}: {cut.why}"]
        if unscored := [part.name for part in self.parts if not part.texts("valid")]:
            self.notes.append(f"no rows are held out of {', '.join(unscored)}, so validation does not score it")
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
        numbers = {"loss": total / max(1, count), "accuracy": 100 * right / max(1, count)}
        limit = self.limit + 1 if self.context else 1 << 30
        translator = Translator(
            [model], self.prepared.tokenizers, limit=limit, languages=self.languages, context=self.context
        )
        mine = [one.request for one in self.samples][world.rank :: world.size]
        written = world.gather([found.text for found in translator.translate(mine, GREEDY, batch_tokens=budget)])
        numbers |= self._scored(written)
        shown = [
            {"source": one.request.text, "reference": one.target, "hypothesis": text}
            for one, text in zip(self.samples[:samples], written, strict=False)
        ]
        return Scores(numbers, shown)

    def _scored(self, written: Sequence[str]) -> dict[str, float]:
        """All samples together, and those of each part of a mixture by its own metric."""
        numbers = quick_score(written, [one.target for one in self.samples], tokenizer=self.tokenizer)
        for number, part in enumerate(self.parts):
            mine = [(text, one.target) for one, text in zip(self.samples, written, strict=True) if one.part == number]
            if mine:
                language = part.direction.target if part.direction else ""
                found = one_score(part.metric, *map(list, zip(*mine, strict=True)), language=language)
                numbers[f"{part.metric}[{part.name}]"] = found.value
        return numbers

    def finish(self, model: SequenceToSequence, folder: Path) -> None:
        """Save the alignment head, the shortlist, and the share of lines with several sentences."""
        aligner = self._choose_aligner(model)
        if aligner is not None:
            aligner.save(folder)
        self._learn_shortlist().save(folder)
        write_text(folder / "sentences.json", json.dumps({"several": self._several()}))

    def _several(self) -> float:
        """The share of training lines with more than one sentence."""
        rows = self._some(SPLIT)
        texts = self.prepared.tokenizers[0].decode(self.train.rows(0, rows))
        return sum(len(sentences(text)) > 1 for text in texts) / max(1, len(texts))

    def _choose_aligner(self, model: SequenceToSequence) -> Aligner | None:
        """By the validation pairs, with the words that co-occur in the first training pairs."""
        rows = self._some(LEXICON)
        sources, targets = (self.prepared.tokenizers[c].decode(self.train.rows(c, rows)) for c in (0, 1))
        lexicon = list(zip(sources, targets, strict=True))
        if self.parts:
            pairs = [(one.request.text, one.target) for one in self.samples]
            framings = [self.framings[one.part] for one in self.samples]
            return choose(model.eval(), self.prepared.tokenizers, pairs, lexicon=lexicon, framings=framings)
        held_out = self.prepared.texts("valid") if self.prepared.has("valid") else lexicon
        pairs = [(text[0], text[1]) for text in held_out]
        return choose(model.eval(), self.prepared.tokenizers, pairs[:ALIGNED], lexicon=lexicon)

    def _learn_shortlist(self) -> Shortlist:
        source, target = self.prepared.tokenizers
        rows = self._some(SHORTLISTED)
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

    def _store(self, split: str) -> Store | Mixed:
        return self.prepared.mixed(split) if self.parts else self.prepared.store(split)

    def _batch(self, rows: Rows, numbers: np.ndarray, read: Read) -> PairBatch:
        tokenizers = self.prepared.tokenizers
        if isinstance(rows, InContext):
            (sources, _), (targets, before) = (rows.rows(column, numbers, read) for column in (0, 1))
            return collate(sources, targets, tokenizers, before=before)
        owners = rows.owners(numbers).tolist() if isinstance(rows, Mixed) else []
        return collate(read(0, numbers), read(1, numbers), tokenizers, [self.framings[owner] for owner in owners])

    def _some(self, most: int) -> np.ndarray:
        """The first rows; of a mixture as many from all over it."""
        count = len(self.train)
        return np.arange(count)[:: -(-count // most)] if self.parts else np.arange(min(most, count))

    def _in_their_context(self) -> list["Sample"]:
        """Samples with the pairs before them: while training is monitored, the target's context is the true one, so
        that processes can share the sentences of a document."""
        texts = self._texts()
        places = self.scored.places.tolist() if isinstance(self.scored, InContext) else [0] * len(texts)
        before = [texts[row - min(place, self.context) : row] for row, place in enumerate(places[: len(texts)])]
        every = [
            Sample(Request(source, context=pairs), target)
            for (source, target), pairs in zip(texts, before, strict=True)
        ]
        return every[:: max(1, len(every) // SCORED)][:SCORED]

    def _texts(self) -> list[tuple[str, str]]:
        if self.prepared.has("valid"):
            return [(text[0], text[1]) for text in self.prepared.texts("valid")]
        rows = np.arange(min(SCORED, len(self.train)))
        decoded = [self.prepared.tokenizers[c].decode(self.train.rows(c, rows)) for c in (0, 1)]
        return list(zip(*decoded, strict=True))

    def _samples(self) -> list["Sample"]:
        """The texts to translate in validations, from all over the validation set; of a mixture, from each part's."""
        if self.context:
            return self._in_their_context()
        if not self.prepared.has("valid"):
            rows = self._some(SCORED)
            sources, targets = (self.prepared.tokenizers[c].decode(self.train.rows(c, rows)) for c in (0, 1))
            owners = self.train.owners(rows).tolist() if isinstance(self.train, Mixed) else [0] * len(rows)
            return [self._sample(*one) for one in zip(sources, targets, owners, strict=True)]
        groups = [part.texts("valid") for part in self.parts] or [self.prepared.texts("valid")]
        each = max(LEAST, SCORED // len(self.parts)) if self.parts else SCORED
        return [
            self._sample(text[0], text[1], number)
            for number, texts in enumerate(groups)
            for text in texts[:: max(1, len(texts) // each)][:each]
        ]

    def _sample(self, source: str, target: str, part: int) -> "Sample":
        languages = (self.parts[part].direction if self.parts else None) or ("", "")
        return Sample(Request(source, source=languages[0], target=languages[1]), target, part)

    def _rows(self, store: Store | Mixed, column: int, rows: np.ndarray, seed: tuple[int, ...]) -> list[np.ndarray]:
        found = store.rows(column, rows)
        if not self.dropout:
            return found
        texts = self.prepared.tokenizers[column].decode(found)
        merging = self.merging[column]
        return [
            np.array(merging.encode(text, dropout=self.dropout, chance=random.Random(f"{seed} {column} {row}")))
            for text, row in zip(texts, rows, strict=True)
        ]


@dataclass(frozen=True)
class Sample:
    """A text to translate in validations, its reference, and the part of a mixture that it comes from."""

    request: Request
    target: str
    part: int = 0


def collate(
    sources: Sequence[Row],
    targets: Sequence[Row],
    tokenizers: Sequence[Tokenizer],
    framings: Sequence[Framing] | None = None,
    *,
    before: np.ndarray | None = None,
) -> PairBatch:
    """`framings`: the special tokens of each row; by default no language tokens. `before`: how many tokens of each
    target are not to be learnt."""
    first, last = tokenizers[0], tokenizers[-1]
    framings = framings or [plain(tokenizers)] * len(sources)
    source, source_valid = pad([f.source(row) for f, row in zip(framings, sources, strict=True)], fill=first.pad)
    target, target_valid = pad([f.read(row) for f, row in zip(framings, targets, strict=True)], fill=last.pad)
    wanted, _ = pad([f.wanted(row) for f, row in zip(framings, targets, strict=True)], fill=last.pad)
    if before is not None:
        target_valid &= torch.arange(target.shape[1]) >= torch.from_numpy(before)[:, None]
    return PairBatch(source, source_valid, target, wanted, target_valid)
