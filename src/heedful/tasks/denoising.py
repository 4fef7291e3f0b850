"""Plain text: read a text with something missing or out of order, write it as it was."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from pydantic import Field, field_validator

from heedful.data import batches, noise
from heedful.data.columns import DOCUMENT, Columns
from heedful.data.pieces import Packed, Texts
from heedful.data.prepare import Prepared
from heedful.decoding.generation import GenerationConfig
from heedful.model.architecture import Model, SequenceToSequence
from heedful.objectives import Loss, cross_entropy, vocabulary_cross_entropy
from heedful.tasks import Direction, Processes, Scores, Settings, State, TaskConfig
from heedful.tasks._denoiser import Denoiser, open_denoiser
from heedful.tasks._pairs import PairBatch, collate
from heedful.text.marks import Marked
from heedful.text.sentence_starts import SentenceStarts
from heedful.text.tokenizer import Tokenizer

Noise = Literal["permutation", "rotation", "deletion", "infilling", "masking", "spans"]
KINDS: tuple[Noise, ...] = get_args(Noise)  # in the order in which they are applied: what moves text comes first
MASKS = {"infilling", "masking"}  # need a mask token
SENTINELS = tuple(f"<extra_id_{number}>" for number in range(100))
DENSITY = {"spans": 0.15}
OTHERS = 0.3  # the density of the other kinds
VALIDATED = 200  # batches at most
FIXED = 0  # the seed of validation
SAMPLED = 24  # tokens of a sample


class DenoisingConfig(TaskConfig):
    """Pre-training of encoder-decoders, on windows of data.max_length tokens: documents are joined, so that all but the
    last are full. Noise is drawn anew in every epoch.

    noise     spans         spans are replaced by <extra_id_0>, <extra_id_1> ..., and only they are written (T5)
              infilling     spans with lengths from a Poisson distribution are replaced by one <mask> each; those of
                            length 0 insert one (BART). Here and below, the whole text is written
              masking       tokens are replaced by <mask>
              deletion      tokens are removed
              permutation   sentences are shuffled
              rotation      the text begins anywhere
              Several are combined, except spans: [infilling, permutation]. auto = spans; if training starts from a
              tokenizer that has a mask and no sentinels: infilling and permutation
    density   the share of tokens that are hidden or removed; by default 0.15 for spans and 0.3 for the others
    span      the mean length of a span; 1 = single tokens
    roll      every place is hidden equally often; false = T5's rule for spans, by which a window begins with kept text
              and ends with a hidden span
    """

    trains: ClassVar[type[Model]] = SequenceToSequence
    metrics: ClassVar[Mapping[str, Direction]] = {"loss": "lower", "accuracy": "higher"}
    note: ClassVar[str] = "Loss and accuracy are those of written tokens; the noise of validation is fixed."
    noise: tuple[Noise, ...] | Literal["auto"] = "auto"
    density: float | None = Field(None, gt=0, lt=1)
    span: float = Field(3.0, ge=1)
    roll: bool = True

    @field_validator("noise", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        return [value] if value in KINDS else value

    @field_validator("noise")
    @classmethod
    def _makes_sense(cls, value: Any) -> Any:
        if value == "auto":
            return value
        if not value:
            raise ValueError("noise [] leaves nothing to learn; name some, such as task.noise=[infilling, permutation]")
        if "spans" in value and len(value) > 1:
            others = ", ".join(kind for kind in value if kind != "spans")
            raise ValueError(
                f"with spans only what is hidden is written, so {others} could not be undone; set task.noise=spans, or "
                "use infilling in its place"
            )
        if twice := sorted({kind for kind in value if value.count(kind) > 1}):
            raise ValueError(f"noise {', '.join(twice)} is named twice; name it once, and raise task.density")
        return value

    @property
    def kinds(self) -> tuple[Noise, ...]:
        """The kinds of noise, in the order in which they are applied."""
        named = ("spans",) if self.noise == "auto" else self.noise
        return tuple(kind for kind in KINDS if kind in named)

    @property
    def specials(self) -> tuple[str, ...]:  # type: ignore[override]
        if "spans" in self.kinds:
            return SENTINELS
        return ("<mask>",) if MASKS & set(self.kinds) else ()

    @property
    def columns(self) -> Columns:
        return DOCUMENT

    def for_tokenizer(self, tokenizer: Tokenizer) -> "DenoisingConfig":
        has_mask = tokenizer.special("mask") is not None
        if self.noise == "auto":
            if not (tokenizer.sentinels or has_mask):
                raise ValueError(
                    "this tokenizer has neither sentinels (<extra_id_0>) nor a mask, which spans and infilling need; "
                    "set task.noise=[deletion, permutation]"
                )
            chosen = ("spans",) if tokenizer.sentinels else ("infilling", "permutation")
            return self.model_copy(update={"noise": chosen})
        if "spans" in self.kinds and not tokenizer.sentinels:
            raise ValueError(
                "noise spans needs sentinels (<extra_id_0> ...), which this tokenizer lacks; set task.noise="
                + ("infilling" if has_mask else "[deletion, permutation]")
            )
        if (masked := MASKS & set(self.kinds)) and not has_mask:
            raise ValueError(
                f"noise {', '.join(sorted(masked))} needs a mask, which this tokenizer lacks; set task.noise="
                + ("spans" if tokenizer.sentinels else "[deletion, permutation]")
            )
        return self

    def positions(self, longest: int) -> dict[str, int]:
        return {"encoder": longest + 1, "decoder": longest + 1}

    def fitted(self, model: dict[str, Any], prepared: Prepared) -> dict[str, Any]:
        own = {"source_vocab": None} if "source_vocab" in model else {}
        return {**model, **own, "vocab": prepared.tokenizers[0].vocab}

    def build(self, prepared: Prepared, settings: Settings) -> "Denoising":
        return Denoising(self, prepared, settings)

    def open(self, folder: Path, *others: Path, **options: Any) -> Denoiser:
        if others:
            raise ValueError("models trained by denoising cannot form an ensemble; give one folder")
        return open_denoiser(
            folder,
            lambda tokenizer, length: Examples(self, tokenizer, length).measure,
            lambda tokenizer: marked(self, tokenizer),
            **options,
        )


def marked(config: DenoisingConfig, tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer that reads and shows the marks of this noise."""
    if "spans" in config.kinds:
        return Marked(tokenizer, tokenizer.sentinels)
    return Marked(tokenizer, [tokenizer.mask]) if MASKS & set(config.kinds) else tokenizer


@dataclass(frozen=True)
class Example:
    source: np.ndarray
    target: np.ndarray


class Examples:
    """Documents as batches of pairs, and the scores of a model on them."""

    def __init__(self, config: DenoisingConfig, tokenizer: Tokenizer, length: int) -> None:
        self.kinds, self.tokenizer, self.room = config.kinds, tokenizer, length
        self.mean, self.roll = config.span, config.roll
        self.density = config.density or max(DENSITY.get(kind, OTHERS) for kind in self.kinds)
        self.starts = SentenceStarts(tokenizer) if "permutation" in self.kinds else None
        if "spans" in self.kinds:
            _, count = noise.span_counts(length, density=self.density, mean=self.mean)
            if count + self.roll > len(tokenizer.sentinels):
                raise ValueError(
                    f"windows of {length} tokens have up to {count + self.roll} hidden spans, but the tokenizer has "
                    f"{len(tokenizer.sentinels)} sentinels; lower data.max_length or task.density, or raise task.span"
                )

    def pieces(self, texts: Texts) -> Packed:
        return Packed(texts, room=self.room, separator=())

    def example(self, parts: Sequence[np.ndarray], chance: np.random.Generator) -> Example:
        """The noise on a window, given as the parts of documents that are in it."""
        text = source = np.concatenate(parts)
        if "spans" in self.kinds:
            return Example(
                *noise.spans(
                    text,
                    chance,
                    density=self.density,
                    mean=self.mean,
                    sentinels=self.tokenizer.sentinels,
                    roll=self.roll,
                )
            )
        for kind in self.kinds:
            if kind == "permutation":
                assert self.starts is not None
                source = noise.permutation(source, chance, starts=self.starts(parts))
            elif kind == "rotation":
                source = noise.rotation(source, chance)
            elif kind == "deletion":
                source = noise.deletion(source, chance, density=self.density)
            elif kind == "masking":
                source = noise.masking(source, chance, density=self.density, mask=self.tokenizer.mask)
            else:
                source = noise.infilling(source, chance, density=self.density, mean=self.mean, mask=self.tokenizer.mask)
        return Example(source, text)

    def batch(self, pieces: Packed, rows: np.ndarray, *, seed: tuple[int, ...]) -> PairBatch:
        """Everything random in a row comes from the seed and its number, so it does not depend on its company."""
        pairs = [self.example(pieces.parts(row), np.random.default_rng((*seed, row))) for row in rows.tolist()]
        return collate([pair.source for pair in pairs], [pair.target for pair in pairs], [self.tokenizer])

    @torch.inference_mode()
    def scores(
        self, model: SequenceToSequence, parts: Iterable[PairBatch], world: Processes | None = None
    ) -> dict[str, float]:
        """Loss and accuracy of written tokens."""
        sums = np.zeros(3)
        for part in parts:
            batch = part.to(model.device)
            memory = model.encode(batch.source, valid=batch.source_valid)
            logits = model.logits(model.decode(batch.target, memory)[batch.target_valid])
            wanted = batch.wanted[batch.target_valid]
            right = int((logits.argmax(-1) == wanted).sum())
            sums += np.array([float(cross_entropy(logits, wanted).total), right, len(wanted)])
        loss, hits, tokens = (world.total(float(value)) if world is not None else float(value) for value in sums)
        return {"loss": loss / max(1, tokens), "accuracy": 100 * hits / max(1, tokens)}

    def measure(self, model: SequenceToSequence, texts: Texts) -> dict[str, float]:
        """The scores on these texts, with the noise of validation."""
        pieces = self.pieces(texts)
        rows = batches.in_order(pieces, budget=2048)
        return self.scores(model, (self.batch(pieces, part, seed=(FIXED,)) for part in rows))


class Denoising:
    def __init__(self, config: DenoisingConfig, prepared: Prepared, settings: Settings) -> None:
        self.smoothing, self.cost = settings.label_smoothing, settings.cost
        self.tokenizer = prepared.tokenizers[0]
        self.shown = marked(config, self.tokenizer)
        self.examples = Examples(config, self.tokenizer, settings.max_length)
        self.train = self.examples.pieces(Texts.of(prepared.store("train")))
        self.valid = self.examples.pieces(Texts.of(prepared.store("valid"))) if prepared.has("valid") else self.train

    def epoch(self, number: int, *, budget: int, seed: int) -> Iterator[np.ndarray]:
        return batches.epoch(self.train, budget=budget, seed=seed, number=number, cost=self.cost)

    def worst(self, budget: int) -> np.ndarray:
        return batches.longest(self.train, budget=budget, cost=self.cost)

    def collate(self, rows: np.ndarray, *, seed: tuple[int, ...] = ()) -> PairBatch:
        return self.examples.batch(self.train, rows, seed=seed)

    def loss(self, model: SequenceToSequence, batch: PairBatch, *, state: State) -> Loss:
        """Only real positions are projected to the vocabulary."""
        memory = model.encode(batch.source, valid=batch.source_valid)
        written = model.decode(batch.target, memory)[batch.target_valid]
        wanted = batch.wanted[batch.target_valid]
        return Loss({"tokens": vocabulary_cross_entropy(*model.last_linear(written), wanted, smoothing=self.smoothing)})

    def evaluate(self, model: SequenceToSequence, *, budget: int, samples: int, world: Processes) -> Scores:
        every = list(batches.in_order(self.valid, budget=budget, cost=self.cost))
        chosen = every[:: -(-len(every) // VALIDATED)][world.rank :: world.size]
        parts = (self.examples.batch(self.valid, rows, seed=(FIXED,)) for rows in chosen)
        return Scores(self.examples.scores(model, parts, world), self._samples(model, samples))

    def finish(self, model: SequenceToSequence, folder: Path) -> None:
        """Nothing to add: weights and tokenizer suffice."""

    def _samples(self, model: SequenceToSequence, count: int) -> list[dict[str, str]]:
        """Beginnings of validation windows with their noise, and what the model writes."""
        pairs = []
        for row in range(min(count, len(self.valid))):
            text = np.concatenate(self.valid.parts(row))[:SAMPLED]
            pairs.append(self.examples.example([text], np.random.default_rng((FIXED, row))))
        if not pairs:
            return []
        sources, targets = (
            self.shown.decode(rows) for rows in zip(*((p.source, p.target) for p in pairs), strict=True)
        )
        denoiser = Denoiser(model, self.shown, limit=1 << 30, measure=self.examples.measure)
        found = denoiser.translate(sources, GenerationConfig(num_beams=1))
        return [
            {"source": source, "reference": target, "hypothesis": one.text}
            for source, target, one in zip(sources, targets, found, strict=True)
        ]
