"""Plain text: predict masked tokens from both sides, and optionally whether two segments belong together."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from heedful.data import batches
from heedful.data.columns import DOCUMENT, Columns
from heedful.data.masking import inner_blanks, is_special, masking_for
from heedful.data.padding import pad
from heedful.data.pieces import Packed, PairKind, Pairs, Pieces, Texts
from heedful.data.prepare import Prepared
from heedful.model.architecture import Model, Reader
from heedful.objectives import Loss, Term, cross_entropy
from heedful.tasks import Direction, Processes, Scores, Settings, State, TaskConfig
from heedful.tasks._filling import Filler
from heedful.tasks._labelled import opened
from heedful.tasks._reading import SPECIALS, framed, read
from heedful.text.tokenizer import Tokenizer
from heedful.text.whole_words import WholeWords, blank_tokens

HEAD, PAIR_HEAD = "masked_lm", "next_sentence"
PAIR_TERMS = {"next_sentence": "next_sentence", "sentence_order": "order"}
VALIDATED = 200  # batches at most
STATIC, FIXED = 0, 1  # the seeds of static masks and of validation
SAMPLED = 24  # tokens of a sample


class MaskedLmConfig(TaskConfig):
    """BERT's pre-training (Devlin et al. 2019), on windows of data.max_length tokens.

    mask          the share of tokens to predict: 80 % are masked, 10 % become a random token, 10 % stay as they are
    whole_words   all tokens of a word are predicted together
    fresh         masks (and pairs) are drawn anew in every epoch (RoBERTa); false = once, the same in every epoch
    pairs         none             windows of consecutive text, with a separator where a document ends (RoBERTa)
                  next_sentence    two segments of a document, or half the time of two documents: which? (BERT)
                  sentence_order   two consecutive segments, half the time swapped: which? (ALBERT)
    """

    trains: ClassVar[type[Model]] = Reader
    metrics: ClassVar[Mapping[str, Direction]] = {"loss": "lower", "accuracy": "higher", "perplexity": "lower"}
    specials: ClassVar[tuple[str, ...]] = SPECIALS
    note: ClassVar[str] = "Accuracy and perplexity are those of masked tokens; the masks of validation are fixed."
    mask: float = Field(0.15, gt=0, lt=1)
    whole_words: bool = False
    fresh: bool = True
    pairs: PairKind = "none"

    @property
    def columns(self) -> Columns:
        return DOCUMENT

    def positions(self, longest: int) -> dict[str, int]:
        return {"encoder": longest}

    def fitted(self, model: dict[str, Any], prepared: Prepared) -> dict[str, Any]:
        """The heads that the losses need, with the keys that the model has for them."""
        held = {head["kind"]: head for head in model.get("heads") or ()}
        heads = [held.get(HEAD, {"kind": HEAD})]
        model = {**model, "vocab": prepared.tokenizers[0].vocab}
        if self.pairs != "none":
            heads.append({"dropout": 0.0, **held.get(PAIR_HEAD, {}), "kind": PAIR_HEAD, "classes": 2})
            if model.get("token_types"):  # RoBERTa's presets have one only
                model["token_types"] = max(model["token_types"], prepared.tokenizers[0].frame.second_type + 1)
        return {**model, "heads": heads}

    def build(self, prepared: Prepared, settings: Settings) -> "MaskedLm":
        return MaskedLm(self, prepared, settings)

    def open(self, folder: Path, *others: Path, **options: Any) -> Filler:
        held = opened(folder, self.columns, others, options)
        return Filler(held, lambda texts: Examples(self, held.tokenizer, held.length).measure(held.model, texts))


@dataclass(frozen=True)
class MaskedBatch:
    """`places`: of the tokens to predict, in the batch as one row; `labels`: whether each pair is one."""

    tokens: Tensor  # batch length
    types: Tensor
    valid: Tensor
    places: Tensor  # masked
    wanted: Tensor  # masked
    labels: Tensor  # batch
    pair_term: str = ""

    @property
    def counts(self) -> dict[str, int]:
        return {"masked": len(self.wanted)} | ({self.pair_term: len(self.labels)} if self.pair_term else {})

    @property
    def tokens_read(self) -> int:
        return int(self.valid.sum())

    def to(self, device: torch.device) -> "MaskedBatch":
        moved = {name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)}
        return MaskedBatch(**moved, pair_term=self.pair_term)


class Examples:
    """Documents as masked batches, and the scores of a model on them."""

    def __init__(self, config: MaskedLmConfig, tokenizer: Tokenizer, length: int) -> None:
        self.kind, self.pair_term = config.pairs, PAIR_TERMS.get(config.pairs, "")
        self.tokenizer, self.frame = tokenizer, tokenizer.frame
        self.masking = masking_for(tokenizer, config.mask, whole_words=config.whole_words)
        self.words = self.masking.words or WholeWords(tokenizer)
        self.special, self.blank = is_special(tokenizer), blank_tokens(tokenizer)
        self.room = length - self.frame.size(2 if self.pair_term else 1)
        if self.room < 2:
            raise ValueError(f"windows of {length} tokens have no room for text; raise data.max_length")

    def pieces(self, texts: Texts) -> Pieces:
        if self.pair_term:
            return Pairs(texts, room=self.room, kind=self.kind, starts=self.words.starts)
        return Packed(texts, room=self.room, separator=self.frame.between[-1:] or self.frame.last[:1])

    def batch(self, pieces: Pieces, rows: np.ndarray, *, seed: tuple[int, ...]) -> MaskedBatch:
        """Everything random in a row comes from the seed and its number, so it does not depend on its company."""
        shown, types, places, wanted, labels = [], [], [], [], []
        for row in rows.tolist():
            chance = np.random.default_rng((*seed, row))
            piece = pieces.draw(row, chance)
            tokens, kinds = framed([text.tolist() for text in piece.texts], self.frame)
            whole = np.array(tokens, dtype=np.int64)
            kept = inner_blanks(whole, self.special, self.blank)
            whole = whole[kept]
            masked, chosen = self.masking(whole, chance)
            shown.append(masked)
            types.append(np.array(kinds)[kept])
            places.append(chosen)
            wanted.append(whole[chosen])
            labels.append(piece.label)
        padded, valid = pad(shown, fill=self.tokenizer.pad)
        flat = [chosen + number * padded.shape[1] for number, chosen in enumerate(places)]
        return MaskedBatch(
            padded,
            pad(types)[0],
            valid,
            torch.from_numpy(np.concatenate(flat)),
            torch.from_numpy(np.concatenate(wanted)),
            torch.tensor(labels),
            self.pair_term,
        )

    def loss(self, model: Reader, batch: MaskedBatch, smoothing: float = 0.0) -> Loss:
        logits, pairs = self.logits(model, batch)
        terms = {"masked": cross_entropy(logits, batch.wanted, smoothing=smoothing)}
        if pairs is not None:
            total = F.cross_entropy(pairs.float(), batch.labels, reduction="sum")
            terms[self.pair_term] = Term(total, len(batch.labels))
        return Loss(terms)

    def logits(self, model: Reader, batch: MaskedBatch) -> tuple[Tensor, Tensor | None]:
        """(masked vocab, batch 2): only the states of tokens to predict are projected to the vocabulary."""
        states = read(model, batch)
        words = model.predict(HEAD, states.flatten(0, 1)[batch.places])
        return words, model.predict(PAIR_HEAD, states) if self.pair_term else None

    @torch.inference_mode()
    def scores(self, model: Reader, parts: Iterator[MaskedBatch], world: Processes | None = None) -> dict[str, float]:
        """loss, accuracy and perplexity of masked tokens, and of pairs their accuracy."""
        sums = np.zeros(6)  # loss, right, count of masked tokens, and of pairs
        for part in parts:
            batch = part.to(model.device)
            words, pairs = self.logits(model, batch)
            sums[:3] += _sums(words, batch.wanted)
            sums[3:] += _sums(pairs, batch.labels) if pairs is not None else 0
        total, right, count, pair_total, pair_right, pair_count = (
            world.total(float(value)) if world is not None else float(value) for value in sums
        )
        masked = total / max(1, count)
        numbers = {"loss": masked, "accuracy": 100 * right / max(1, count), "perplexity": math.exp(min(700.0, masked))}
        if self.pair_term:
            numbers["loss"] += pair_total / max(1, pair_count)
            numbers[f"{self.pair_term}_accuracy"] = 100 * pair_right / max(1, pair_count)
        return numbers

    def measure(self, model: Reader, texts: Texts) -> dict[str, float]:
        """The scores on these texts, with the masks of validation."""
        pieces = self.pieces(texts)
        if not len(pieces):
            raise ValueError("the text has no document of two tokens or more; give a longer one")
        rows = batches.in_order(pieces, budget=2048)
        return self.scores(model, (self.batch(pieces, part, seed=(FIXED,)) for part in rows))


class MaskedLm:
    def __init__(self, config: MaskedLmConfig, prepared: Prepared, settings: Settings) -> None:
        self.fresh, self.smoothing, self.cost = config.fresh, settings.label_smoothing, settings.cost
        self.tokenizer = prepared.tokenizers[0]
        self.examples = Examples(config, self.tokenizer, settings.max_length)
        texts = Texts.of(prepared.store("train"))
        held_out = Texts.of(prepared.store("valid")) if prepared.has("valid") else texts
        self.notes: list[str] = []
        if config.pairs == "next_sentence" and len(texts) < 2:
            raise ValueError(
                "next_sentence needs at least two documents, and the text is one; separate documents with blank lines, "
                "give several files, or set task.pairs=sentence_order or none"
            )
        self.train, self.valid = self.examples.pieces(texts), self.examples.pieces(held_out)
        if not len(self.valid):
            self.valid, held_out = self.train, texts
        if not len(self.train):
            raise ValueError("the text has no document of two tokens or more; add text")
        if config.pairs == "next_sentence" and len(held_out) < 2:
            self.notes.append("the validation text is one document, so all its pairs belong together; give --valid")

    def epoch(self, number: int, *, budget: int, seed: int) -> Iterator[np.ndarray]:
        return batches.epoch(self.train, budget=budget, seed=seed, number=number, cost=self.cost)

    def worst(self, budget: int) -> np.ndarray:
        return batches.longest(self.train, budget=budget, cost=self.cost)

    def collate(self, rows: np.ndarray, *, seed: tuple[int, ...] = ()) -> MaskedBatch:
        return self.examples.batch(self.train, rows, seed=seed if self.fresh else (STATIC,))

    def loss(self, model: Reader, batch: MaskedBatch, *, state: State) -> Loss:
        return self.examples.loss(model, batch, self.smoothing)

    def evaluate(self, model: Reader, *, budget: int, samples: int, world: Processes) -> Scores:
        every = list(batches.in_order(self.valid, budget=budget, cost=self.cost))
        chosen = every[:: -(-len(every) // VALIDATED)][world.rank :: world.size]
        parts = (self.examples.batch(self.valid, rows, seed=(FIXED,)) for rows in chosen)
        numbers = self.examples.scores(model, parts, world)
        return Scores(numbers, [self._sample(model, row) for row in range(min(samples, len(self.valid)))])

    def finish(self, model: Reader, folder: Path) -> None:
        """Nothing to add: weights and tokenizer suffice."""

    @torch.inference_mode()
    def _sample(self, model: Reader, row: int) -> dict[str, str]:
        """The beginning of a piece of the validation text with its masks, and how the model fills them in."""
        batch = self.examples.batch(self.valid, np.array([row]), seed=(FIXED,)).to(model.device)
        words, _ = self.examples.logits(model, batch)
        shown, places = batch.tokens[0, :SAMPLED].tolist(), batch.places.tolist()
        filled = list(shown)
        masks = [place for place in places if place < SAMPLED]
        for place, best in zip(masks, words.argmax(-1).tolist(), strict=False):
            filled[place] = best
        hidden, start = [], 0
        for place in [place for place in masks if shown[place] == self.tokenizer.mask] + [len(shown)]:
            hidden.append(shown[start:place])
            start = place + 1
        return {"masked": " [MASK]".join(self.tokenizer.decode(hidden)), "filled": self.tokenizer.decode([filled])[0]}


def _sums(logits: Tensor, wanted: Tensor) -> np.ndarray:
    """(the sum of losses, how many are right, how many there are)"""
    total = float(F.cross_entropy(logits.float(), wanted, reduction="sum"))
    return np.array([total, int((logits.argmax(-1) == wanted).sum()), len(wanted)])
