"""Dialogues: read what was said, write the reply. By an encoder-decoder, which encodes the history, or by a language
model, which reads history and reply as one text and learns the reply alone."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from heedful.chatter import GREEDY, Chatter
from heedful.chatter import load as load_chatter
from heedful.config import part_config
from heedful.data import batches
from heedful.data.columns import Column, Columns, Turns
from heedful.data.dialogues import read_dialogues, roles_known
from heedful.data.lines import Line
from heedful.data.padding import Row, pad
from heedful.data.prepare import Prepared
from heedful.data.store import Store
from heedful.decoding.generation import GenerationConfig
from heedful.evaluation.metrics import quick_score, score, tokenization
from heedful.generator import Generator
from heedful.generator import Prompt as Written
from heedful.model.architecture import ArchitectureConfig, LanguageModel, Model, SequenceToSequence
from heedful.objectives import Loss, cross_entropy, vocabulary_cross_entropy
from heedful.tasks import Direction, Processes, Scores, Settings, State, TaskConfig
from heedful.tasks._pairs import PairBatch, collate, fitted_pair
from heedful.text.tokenizer import CHAT_TOKENS, Tokenizer
from heedful.text.words import words

SCORED = 100  # replies written per validation
SHORT = GREEDY.model_copy(update={"max_new_tokens": 60})


class DialogueConfig(TaskConfig):
    """learn      whose messages are learned: assistant, user, or both
    history    how many messages before a reply are read; 0 = all that fit data.max_length tokens
    speakers   who is who, for names in the files that are not known: {clerk: assistant}
    """

    trains: ClassVar[type[Model]] = Model  # a sequence-to-sequence or a language model: see `fitted`
    metrics: ClassVar[Mapping[str, Direction]] = {
        "loss": "lower", "accuracy": "higher", "perplexity": "lower", "bleu": "higher", "distinct1": "higher",
        "distinct2": "higher",
    }  # fmt: skip
    specials: ClassVar[tuple[str, ...]] = CHAT_TOKENS
    writes: ClassVar[bool] = True
    note: ClassVar[str] = (
        f"BLEU and distinct-n are those of greedy replies to at most {SCORED} histories, to monitor training; "
        "`heedful evaluate` gives the figures to report."
    )
    learn: tuple[str, ...] = ("assistant",)
    history: int = Field(0, ge=0)
    speakers: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _roles_are_known(self) -> "DialogueConfig":
        roles_known([*self.learn, *self.speakers.values()])
        if not self.learn:
            raise ValueError("task.learn names nobody; choose assistant, user, or both")
        return self

    @property
    def columns(self) -> Columns:
        names = tuple((name.casefold(), role) for name, role in sorted(self.speakers.items()))
        turns = Turns(self.learn, self.history, names)
        return (Column("history", "messages", turns=turns), Column("reply"), Column("dialogue", "raw"))

    def positions(self, longest: int) -> dict[str, int]:
        return {"encoder": longest + 1, "decoder": 2 * longest + 1}  # a language model reads history and reply

    def fitted(self, model: dict[str, Any], prepared: Prepared) -> dict[str, Any]:
        gives = part_config(ArchitectureConfig, model["kind"]).gives
        if not issubclass(gives, SequenceToSequence | LanguageModel):
            raise ValueError(f"task dialogue trains models that write, and {model['kind']} is not one")
        if prepared.tokenizers[0] is not prepared.tokenizers[-1]:
            raise ValueError("history and reply are one conversation; set tokenizer.joint=true")
        return fitted_pair(model, prepared)

    def build(self, prepared: Prepared, settings: Settings) -> "Dialogue":
        return Dialogue(prepared, settings)

    def open(self, folder: Path, *others: Path, **options: Any) -> Chatter:
        streams = options.pop("streams", None)
        if others or options:
            raise ValueError("a model of dialogues takes no ensemble and no options of translators")
        return load_chatter(folder, streams=streams)

    def figures(self, use: Any, test: Path, config: GenerationConfig) -> dict[str, Any]:
        """Perplexity of the true replies; BLEU and distinct-n of those written, one at a time from the true history."""
        assert isinstance(use, Chatter)
        lines = [line for line in read_dialogues([test], self.columns) if isinstance(line, Line)]
        if not lines:
            raise ValueError(f"{test} has no dialogue that can be used")
        every = [(line, json.loads(line.texts[0])) for line in lines]
        kept = [(line, one) for line, one in every if use.fits(one["messages"], role=one["role"])]
        if not kept:
            raise ValueError(f"{test}: every last message is longer than the model can read")
        lines, asked = [line for line, _ in kept], [one for _, one in kept]
        replies = [line.texts[1] for line in lines]
        roles = [one["role"] for one in asked]
        settings = config.model_copy(update={"max_new_tokens": GREEDY.max_new_tokens})
        found = use.replies([one["messages"] for one in asked], settings, roles=roles)
        texts, cut = [one.text for one in found], tokenization(replies)
        bleu = score(texts, [replies], tokenize=cut.name)["bleu"]
        histories = [use.prompt(one["messages"], role=one["role"]).tokens for one in asked]
        rows = list(zip(histories, use.tokenizer.encode(replies), strict=True))
        total, count, _ = _measured(use.generator.model, use.tokenizer, rows)
        return {
            "dialogues": len({line.texts[2] for line in lines}),
            "replies": len(replies),
            "left out, since their last message is too long": len(every) - len(kept),
            "perplexity": math.exp(total / count),
            "bleu": bleu.value,
            "distinct-1": 100 * distinct(texts, 1),
            "distinct-2": 100 * distinct(texts, 2),
            "distinct-1 of the references": 100 * distinct(replies, 1),
            "distinct-2 of the references": 100 * distinct(replies, 2),
            "signature": bleu.signature,
            "replies cut off by the length limit": sum(one.stopped == "length" for one in found),
            "histories that lost their oldest messages": sum(one.dropped > 0 for one in found),
        }


@dataclass(frozen=True)
class ReplyBatch:
    """Histories and replies, for either kind of model: as pairs, and as one text each, of which `learnt` is where the
    next token is one of the reply."""

    pair: PairBatch
    tokens: Tensor  # batch length
    wanted: Tensor
    learnt: Tensor

    @property
    def counts(self) -> dict[str, int]:
        return self.pair.counts

    def to(self, device: torch.device) -> "ReplyBatch":
        moved = (part.to(device) for part in (self.tokens, self.wanted, self.learnt))
        return ReplyBatch(self.pair.to(device), *moved)


class Joined:
    """Rows as long as history and reply together."""

    counted = (0,)

    def __init__(self, store: Store) -> None:
        self.store, self.forget = store, store.forget

    def __len__(self) -> int:
        return len(self.store)

    def lengths(self, column: int, start: int = 0, end: int | None = None) -> np.ndarray:
        found: np.ndarray = self.store.lengths(0, start, end) + self.store.lengths(1, start, end)
        return found


class Dialogue:
    def __init__(self, prepared: Prepared, settings: Settings) -> None:
        self.prepared, self.tokenizer = prepared, prepared.tokenizers[-1]
        self.smoothing, self.cost, self.limit = settings.label_smoothing, settings.cost, settings.max_length
        self.train = prepared.store("train")
        self.valid = prepared.store("valid") if prepared.has("valid") else self.train
        self.cut_by = tokenization(self._held_out()[1], language=settings.language).name
        cut = prepared.facts.get("cut", 0)
        said = f"{cut:,} histories are longer than {self.limit} tokens: their oldest messages are left out"
        self.notes = [said] if cut else []

    def epoch(self, number: int, *, budget: int, seed: int) -> Iterator[np.ndarray]:
        return batches.epoch(Joined(self.train), budget=budget, seed=seed, number=number, cost=self.cost)

    def worst(self, budget: int) -> np.ndarray:
        return batches.longest(Joined(self.train), budget=budget, cost=self.cost)

    def collate(self, rows: np.ndarray, *, seed: tuple[int, ...] = ()) -> ReplyBatch:
        return _batch(self.train.rows(0, rows), self.train.rows(1, rows), self.tokenizer)

    def loss(self, model: Any, batch: ReplyBatch, *, state: State) -> Loss:
        states, wanted = _states(model, batch)
        states, weight, bias = model.last_linear(states)
        return Loss({"tokens": vocabulary_cross_entropy(states, weight, bias, wanted, smoothing=self.smoothing)})

    @torch.inference_mode()
    def evaluate(self, model: Any, *, budget: int, samples: int, world: Processes) -> Scores:
        total, count, right = 0.0, 0, 0
        for rows in list(batches.in_order(Joined(self.valid), budget=budget, cost=self.cost))[world.rank :: world.size]:
            some = list(zip(self.valid.rows(0, rows), self.valid.rows(1, rows), strict=True))
            sums = _measured(model, self.tokenizer, some, budget=budget)
            total, count, right = total + sums[0], count + sums[1], right + sums[2]
        loss = world.total(total) / max(1.0, world.total(count))
        numbers = {"loss": loss, "accuracy": 100 * world.total(right) / max(1.0, world.total(count))}
        numbers["perplexity"] = math.exp(min(loss, 100.0))
        asked, references = self._held_out()
        generator = Generator(model, self.tokenizer)
        prompts = [Written("", tokens=tokens) for tokens in asked[world.rank :: world.size]]
        found = generator.write(generator.read(prompts), SHORT)
        written = world.gather([best.text.strip() for best, *_ in found])
        numbers["bleu"] = quick_score(written, references, tokenizer=self.cut_by)["bleu"]
        numbers |= {f"distinct{n}": 100 * distinct(written, n) for n in (1, 2)}
        shown = [
            {"history": history, "reference": reference, "reply": text}
            for history, reference, text in zip(
                self.tokenizer.decode(asked[:samples]), references, written, strict=False
            )
        ]
        return Scores(numbers, shown)

    def finish(self, model: Model, folder: Path) -> None:
        """Nothing to add: the chat template is the tokenizer's."""

    def _held_out(self) -> tuple[list[list[int]], list[str]]:
        """Prompts as tokens, and the true replies."""
        rows = np.arange(len(self.valid))[:: max(1, len(self.valid) // SCORED)][:SCORED]
        histories = [[*map(int, row)] for row in self.valid.rows(0, rows)]
        return histories, self.tokenizer.decode(self.valid.rows(1, rows))


def distinct(texts: Sequence[str], size: int) -> float:
    """Different n-grams, as a share of all in these texts.      Li et al. 2016, section 5.2"""
    found: Counter[tuple[str, ...]] = Counter()
    for text in texts:
        parts = words(text.lower())
        found.update(zip(*(parts[start:] for start in range(size)), strict=False))
    return len(found) / max(1, found.total())


def _batch(histories: Sequence[Row], replies: Sequence[Row], tokenizer: Tokenizer) -> ReplyBatch:
    whole = [[*map(int, one), *map(int, other)] for one, other in zip(histories, replies, strict=True)]
    tokens, valid = pad(whole, fill=tokenizer.pad)
    wanted, _ = pad([row[1:] for row in whole], last=tokenizer.eos, fill=tokenizer.pad)
    starts = torch.tensor([len(one) - 1 for one in histories])
    learnt = valid & (torch.arange(tokens.shape[1]) >= starts[:, None])
    return ReplyBatch(collate(histories, replies, [tokenizer]), tokens, wanted, learnt)


def _states(model: Any, batch: ReplyBatch) -> tuple[Tensor, Tensor]:
    """The states that predict the tokens of the replies, and these tokens: tokens width, tokens."""
    if isinstance(model, LanguageModel):
        return model.decode(batch.tokens)[batch.learnt], batch.wanted[batch.learnt]
    pair = batch.pair
    memory = model.encode(pair.source, valid=pair.source_valid)
    return model.decode(pair.target, memory)[pair.target_valid], pair.wanted[pair.target_valid]


@torch.inference_mode()
def _measured(
    model: Any, tokenizer: Tokenizer, rows: Sequence[tuple[Row, Row]], *, budget: int = 4096
) -> tuple[float, int, int]:
    """(sum of -log p, number, how many came first) of the tokens of these replies."""
    total, count, right = 0.0, 0, 0
    lengths = np.array([[len(history) + len(reply) + 1] for history, reply in rows])
    for chosen in batches.cut(np.arange(len(rows)), lengths, budget):
        histories, replies = ([rows[index][side] for index in chosen] for side in (0, 1))
        batch = _batch(histories, replies, tokenizer).to(model.device)
        states, wanted = _states(model, batch)
        logits = model.logits(states)
        total += float(cross_entropy(logits, wanted).total)
        right += int((logits.argmax(-1) == wanted).sum())
        count += len(wanted)
    return total, count, right
