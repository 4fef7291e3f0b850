"""Pairs of texts: read one, write the other. Translation, and every other sequence-to-sequence task."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from heedful.alignment import Aligner, choose
from heedful.data.columns import PAIR, Columns
from heedful.data.prepare import Prepared
from heedful.decoding.generation import GenerationConfig
from heedful.decoding.shortlist import Shortlist, learn
from heedful.evaluation.metrics import quick_score, tokenization
from heedful.files import write_text
from heedful.model.architecture import Model, SequenceToSequence
from heedful.objectives import Loss
from heedful.tasks import Direction, Processes, Scores, Settings, State, TaskConfig
from heedful.tasks._pairs import PairBatch, Pairs, fitted_pair
from heedful.text.sentences import sentences
from heedful.text.tokenizer import BYTES
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
        return fitted_pair(model, prepared)

    def build(self, prepared: Prepared, settings: Settings) -> "Translation":
        return Translation(prepared, settings)

    def open(self, folder: Path, *others: Path, **options: Any) -> Translator:
        return load_translator(folder, *others, **options)

    def figures(self, use: Any, test: Path, config: GenerationConfig) -> None:
        """Translators are scored and compared by the command itself."""


class Translation:
    def __init__(self, prepared: Prepared, settings: Settings | None = None) -> None:
        settings = settings or Settings()
        self.prepared, self.pairs = prepared, Pairs(prepared, settings)
        references = [target for _, target in self._references()]
        cut = tokenization(references, language=settings.language)
        quick_score(["a"], ["a"], tokenizer=cut.name)  # fails now if it is not installed
        self.tokenizer = cut.name
        self.notes = [] if cut.name == "13a" else [f"BLEU uses the tokenizer {cut.name}: {cut.why}"]

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
        texts = self._references()
        translator = Translator([model], self.prepared.tokenizers, limit=1 << 30)
        sources = [source for source, _ in texts][world.rank :: world.size]
        written = world.gather([found.text for found in translator.translate(sources, GREEDY, batch_tokens=budget)])
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
        rows = np.arange(min(SPLIT, len(self.pairs.train)))
        texts = self.prepared.tokenizers[0].decode(self.pairs.train.rows(0, rows))
        return sum(len(sentences(text)) > 1 for text in texts) / max(1, len(texts))

    def _choose_aligner(self, model: SequenceToSequence) -> Aligner | None:
        """By the validation pairs, with the words that co-occur in the first training pairs."""
        rows = np.arange(min(LEXICON, len(self.pairs.train)))
        sources, targets = (self.prepared.tokenizers[c].decode(self.pairs.train.rows(c, rows)) for c in (0, 1))
        lexicon = list(zip(sources, targets, strict=True))
        held_out = self.prepared.texts("valid") if self.prepared.has("valid") else lexicon
        pairs = [(text[0], text[1]) for text in held_out]
        return choose(model.eval(), self.prepared.tokenizers, pairs[:ALIGNED], lexicon=lexicon)

    def _learn_shortlist(self) -> Shortlist:
        source, target = self.prepared.tokenizers
        rows = np.arange(min(SHORTLISTED, len(self.pairs.train)))
        spelled = [target.token_ids()[token] for token in BYTES if token in target.token_ids()]
        return learn(
            self.pairs.train.rows(0, rows),
            self.pairs.train.rows(1, rows),
            source_vocab=source.vocab,
            vocab=target.vocab,
            always=[target.eos, *([] if target.unk is None else [target.unk]), *spelled],
            joint=source is target,
        )

    def _references(self) -> list[tuple[str, str]]:
        return [(text[0], text[1]) for text in self.pairs.references(SCORED)]
