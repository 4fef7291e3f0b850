"""Pairs of texts: read one, write the other. Translation, and every other sequence-to-sequence task."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from heedful.alignment import Aligner, choose
from heedful.data.columns import PAIR, Columns
from heedful.data.context import InContext
from heedful.data.mixed import Mixed
from heedful.data.prepare import Prepared
from heedful.decoding.generation import GenerationConfig
from heedful.decoding.runner import Request
from heedful.decoding.shortlist import Shortlist, learn
from heedful.evaluation.metrics import one_score, quick_score, tokenization
from heedful.files import write_text
from heedful.model.architecture import Model, SequenceToSequence
from heedful.objectives import Loss
from heedful.tasks import Direction, Processes, Scores, Settings, State, TaskConfig
from heedful.tasks._pairs import PairBatch, Pairs, fitted_pair
from heedful.text.sentences import sentences
from heedful.text.tokenizer import BYTES
from heedful.translator import Translator
from heedful.translator import load as load_translator

SCORED = 200  # sentences translated per validation,
LEAST = 20  # but at least so many of each part of a mixture
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
    mixes: ClassVar[bool] = True
    translates: ClassVar[bool] = True
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


@dataclass(frozen=True)
class Sample:
    """A text to translate in validations, its reference, and the part of a mixture that it comes from."""

    request: Request
    target: str
    part: int = 0


class Translation:
    def __init__(self, prepared: Prepared, settings: Settings | None = None) -> None:
        settings = settings or Settings()
        self.prepared, self.parts, self.pairs = prepared, prepared.parts, Pairs(prepared, settings)
        self.samples = self._samples()
        references = [one.target for one in self.samples]
        cut = tokenization(references, language=settings.language)
        quick_score(["a"], ["a"], tokenizer=cut.name)  # fails now if it is not installed
        self.tokenizer = cut.name
        self.notes = [] if cut.name == "13a" else [f"BLEU uses the tokenizer {cut.name}: {cut.why}"]
        if unscored := [part.name for part in self.parts if not part.texts("valid")]:
            self.notes.append(f"no rows are held out of {', '.join(unscored)}, so validation does not score it")

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
        context, languages = self.pairs.context, self.pairs.languages
        limit = self.pairs.limit + 1 if context else 1 << 30
        translator = Translator([model], self.prepared.tokenizers, limit=limit, languages=languages, context=context)
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
        rows = self.pairs.some(SPLIT)
        texts = self.prepared.tokenizers[0].decode(self.pairs.train.rows(0, rows))
        return sum(len(sentences(text)) > 1 for text in texts) / max(1, len(texts))

    def _choose_aligner(self, model: SequenceToSequence) -> Aligner | None:
        """By the validation pairs, with the words that co-occur in the first training pairs."""
        lexicon = [(text[0], text[1]) for text in self.pairs.texts(self.pairs.some(LEXICON))]
        tokenizers = self.prepared.tokenizers
        if self.parts:
            pairs = [(one.request.text, one.target) for one in self.samples]
            framings = [self.pairs.framings[one.part] for one in self.samples]
            return choose(model.eval(), tokenizers, pairs, lexicon=lexicon, framings=framings)
        held_out = self.prepared.texts("valid") if self.prepared.has("valid") else lexicon
        pairs = [(text[0], text[1]) for text in held_out]
        return choose(model.eval(), tokenizers, pairs[:ALIGNED], lexicon=lexicon)

    def _learn_shortlist(self) -> Shortlist:
        source, target = self.prepared.tokenizers
        rows = self.pairs.some(SHORTLISTED)
        spelled = [target.token_ids()[token] for token in BYTES if token in target.token_ids()]
        return learn(
            self.pairs.train.rows(0, rows),
            self.pairs.train.rows(1, rows),
            source_vocab=source.vocab,
            vocab=target.vocab,
            always=[target.eos, *([] if target.unk is None else [target.unk]), *spelled],
            joint=source is target,
        )

    def _samples(self) -> list[Sample]:
        """The texts to translate in validations, from all over the validation set; of a mixture, from each part's."""
        if self.pairs.context:
            return self._in_context()
        if not self.parts:
            return [self._sample(text[0], text[1], 0) for text in self.pairs.references(SCORED)]
        if not self.prepared.has("valid"):
            rows, train = self.pairs.some(SCORED), self.pairs.train
            owners = train.owners(rows).tolist() if isinstance(train, Mixed) else [0] * len(rows)
            texts = zip(self.pairs.texts(rows), owners, strict=True)
            return [self._sample(text[0], text[1], owner) for text, owner in texts]
        each = max(LEAST, SCORED // len(self.parts))
        return [
            self._sample(text[0], text[1], number)
            for number, part in enumerate(self.parts)
            for text in part.texts("valid")[:: max(1, len(part.texts("valid")) // each)][:each]
        ]

    def _sample(self, source: str, target: str, part: int) -> Sample:
        languages = (self.parts[part].direction if self.parts else None) or ("", "")
        return Sample(Request(source, source=languages[0], target=languages[1]), target, part)

    def _in_context(self) -> list[Sample]:
        """Samples with the pairs before them: while training is monitored, the target's context is the true one, so
        that processes can share the sentences of a document."""
        held_out = self.prepared.has("valid")
        first = np.arange(min(SCORED, len(self.pairs.train)))
        texts = [(text[0], text[1]) for text in (self.prepared.texts("valid") if held_out else self.pairs.texts(first))]
        scored = self.pairs.scored
        places = scored.places.tolist() if isinstance(scored, InContext) else [0] * len(texts)
        before = [texts[row - min(place, self.pairs.context) : row] for row, place in enumerate(places[: len(texts)])]
        every = [
            Sample(Request(source, context=pairs), target)
            for (source, target), pairs in zip(texts, before, strict=True)
        ]
        return every[:: max(1, len(every) // SCORED)][:SCORED]
