"""What the tasks share that learn to reply to messages, dialogues and instructions: their batches, their loss, and the
figures of the replies. An encoder-decoder encodes the prompt, which is what was said before; a language model reads
prompt and reply as one text. Either learns the reply and its end alone: which tokens these are is known from where the
reply was put, and is never searched for.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heedful.chatter import GREEDY, Chatter
from heedful.chatter import load as load_chatter
from heedful.config import part_config
from heedful.data import batches
from heedful.data.lines import Line
from heedful.data.packing import packed
from heedful.data.padding import Row, pad
from heedful.data.prepare import Prepared
from heedful.data.store import Store
from heedful.decoding.generation import GenerationConfig
from heedful.evaluation.metrics import quick_score, score, tokenization
from heedful.generator import Generator
from heedful.generator import Prompt as Written
from heedful.model.architecture import ArchitectureConfig, LanguageModel, Model, SequenceToSequence
from heedful.objectives import Loss, cross_entropy, vocabulary_cross_entropy
from heedful.tasks import Processes, Scores, Settings, State
from heedful.tasks._pairs import PairBatch, collate, fitted_pair
from heedful.text.tokenizer import Tokenizer
from heedful.text.words import words

SHORT = GREEDY.model_copy(update={"max_new_tokens": 60})


@dataclass(frozen=True)
class ReplyBatch:
    """Prompts and replies as one text each, of which `learned` is where the next token is one of the reply; several in
    a row, told apart by their `segments`, if they are packed. And as pairs, for an encoder-decoder; not if packed.
    `tokens_read`: without padding, for the speed."""

    tokens: Tensor  # batch length
    wanted: Tensor
    learned: Tensor
    segments: Tensor | None
    pair: PairBatch | None
    tokens_read: int

    @property
    def counts(self) -> dict[str, int]:
        return {"tokens": int(self.learned.sum())}

    def to(self, device: torch.device) -> "ReplyBatch":
        tokens, wanted, learned = (part.to(device) for part in (self.tokens, self.wanted, self.learned))
        segments = None if self.segments is None else self.segments.to(device)
        pair = None if self.pair is None else self.pair.to(device)
        return ReplyBatch(tokens, wanted, learned, segments, pair, self.tokens_read)


class Joined:
    """Rows as long as prompt and reply together."""

    counted = (0,)

    def __init__(self, store: Store) -> None:
        self.store, self.forget = store, store.forget

    def __len__(self) -> int:
        return len(self.store)

    def lengths(self, column: int, start: int = 0, end: int | None = None) -> np.ndarray:
        found: np.ndarray = self.store.lengths(0, start, end) + self.store.lengths(1, start, end)
        return found


class Replies:
    """`window`: examples are packed into windows of so many tokens; 0 = each has a row of its own. `scored`: how many
    replies are written in a validation, for BLEU and distinct-n."""

    def __init__(self, prepared: Prepared, settings: Settings, *, window: int = 0, scored: int = 0) -> None:
        self.prepared, self.tokenizer = prepared, prepared.tokenizers[-1]
        self.smoothing, self.cost, self.limit = settings.label_smoothing, settings.cost, settings.max_length
        self.window, self.scored = window, scored
        self.train = prepared.store("train")
        self.valid = prepared.store("valid") if prepared.has("valid") else self.train
        self.cut_by = tokenization(self._held_out(scored)[1], language=settings.language).name if scored else ""
        cut = prepared.facts.get("cut", 0)
        said = f"{cut:,} histories are longer than {self.limit} tokens: their oldest messages are left out"
        self.notes = [said] if cut else []

    def epoch(self, number: int, *, budget: int, seed: int) -> Iterator[np.ndarray]:
        joined = Joined(self.train)
        return batches.epoch(joined, budget=budget, seed=seed, number=number, cost=self.cost, window=self.window)

    def worst(self, budget: int) -> np.ndarray:
        if self.window:  # all windows are about full
            return next(self.epoch(0, budget=budget, seed=0))
        return batches.longest(Joined(self.train), budget=budget, cost=self.cost)

    def collate(self, rows: np.ndarray, *, seed: tuple[int, ...] = ()) -> ReplyBatch:
        return together(self.train.rows(0, rows), self.train.rows(1, rows), self.tokenizer, window=self.window)

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
        prompts, references = self._held_out(self.scored or samples)
        generator = Generator(model, self.tokenizer)
        asked = [Written("", tokens=tokens) for tokens in prompts[world.rank :: world.size]]
        found = generator.write(generator.read(asked), SHORT)
        written = world.gather([best.text.strip() for best, *_ in found])
        if self.scored:
            numbers["bleu"] = quick_score(written, references, tokenizer=self.cut_by)["bleu"]
            numbers |= {f"distinct{n}": 100 * distinct(written, n) for n in (1, 2)}
        decoded = self.tokenizer.decode(prompts[:samples])
        shown = [
            {"history": history, "reference": reference, "reply": text}
            for history, reference, text in zip(decoded, references, written, strict=False)
        ]
        return Scores(numbers, shown)

    def finish(self, model: Model, folder: Path) -> None:
        """Nothing to add: the chat template is the tokenizer's."""

    def _held_out(self, most: int) -> tuple[list[list[int]], list[str]]:
        """Prompts as tokens, and the true replies."""
        rows = np.arange(len(self.valid))[:: max(1, len(self.valid) // max(1, most))][:most]
        prompts = [[*map(int, row)] for row in self.valid.rows(0, rows)]
        return prompts, self.tokenizer.decode(self.valid.rows(1, rows))


def fitted_writer(model: dict[str, Any], prepared: Prepared, task: str) -> dict[str, Any]:
    """The model's keys with its vocabulary, if it is one that writes."""
    gives = part_config(ArchitectureConfig, model["kind"]).gives
    if not issubclass(gives, SequenceToSequence | LanguageModel):
        raise ValueError(f"task {task} trains models that write, and {model['kind']} is not one")
    if prepared.tokenizers[0] is not prepared.tokenizers[-1]:
        raise ValueError("prompt and reply are one conversation; set tokenizer.joint=true")
    return fitted_pair(model, prepared)


def open_chatter(folder: Path, *others: Path, **options: Any) -> Chatter:
    if others or set(options) - {"streams", "adapters", "quantize"}:
        raise ValueError("a model that holds conversations takes no ensemble and no options of translators")
    return load_chatter(folder, **options)


def figures(use: Chatter, test: Path, lines: Sequence[Line], config: GenerationConfig) -> dict[str, Any]:
    """Perplexity of the true replies; BLEU and distinct-n of those written, one at a time from the true history."""
    if not lines:
        raise ValueError(f"{test} has no dialogue that can be used")
    every = [(line, json.loads(line.texts[0])) for line in lines]
    kept = [(line, one) for line, one in every if _fits(use, one, line.texts[1])]
    if not kept:
        raise ValueError(f"{test}: every example is longer than the model can read")
    lines, asked = [line for line, _ in kept], [one for _, one in kept]
    replies = [line.texts[1] for line in lines]
    roles = [one["role"] for one in asked]
    settings = config.model_copy(update={"max_new_tokens": GREEDY.max_new_tokens})
    found = use.replies([one["messages"] for one in asked], settings, roles=roles)
    texts, cut = [one.text for one in found], tokenization(replies)
    bleu = score(texts, [replies], tokenize=cut.name)["bleu"]
    prompts = [use.prompt(one["messages"], role=one["role"]).tokens for one in asked]
    rows = list(zip(prompts, use.tokenizer.encode(replies), strict=True))
    total, count, _ = _measured(use.generator.model, use.tokenizer, rows)
    return {
        "dialogues": len({line.texts[2] for line in lines}),
        "replies": len(replies),
        "left out, since they are longer than the model can read": len(every) - len(kept),
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


def _fits(use: Chatter, asked: dict[str, Any], reply: str) -> bool:
    """Whether a model can read a message, and a language model also the true reply after it."""
    if not use.fits(asked["messages"], role=asked["role"]):
        return False
    limit = use.generator.limit
    if limit is None or not isinstance(use.generator.model, LanguageModel):
        return True
    return (
        len(use.prompt(asked["messages"], role=asked["role"]).tokens) + len(use.tokenizer.encode([reply])[0]) <= limit
    )


def distinct(texts: Sequence[str], size: int) -> float:
    """Different n-grams, as a share of all in these texts.      Li et al. 2016, section 5.2"""
    found: Counter[tuple[str, ...]] = Counter()
    for text in texts:
        parts = words(text.lower())
        found.update(zip(*(parts[start:] for start in range(size)), strict=False))
    return len(found) / max(1, found.total())


def together(prompts: Sequence[Row], replies: Sequence[Row], tokenizer: Tokenizer, *, window: int = 0) -> ReplyBatch:
    """A batch of these examples: each in a row of its own, or packed into windows of so many tokens."""
    whole = [np.concatenate([prompt, reply]).astype(np.int64) for prompt, reply in zip(prompts, replies, strict=True)]
    following = [np.append(row[1:], tokenizer.eos) for row in whole]
    learned = [np.arange(len(row)) >= len(prompt) - 1 for row, prompt in zip(whole, prompts, strict=True)]
    segments = [np.full(len(row), 1 + index) for index, row in enumerate(whole)]
    groups = packed([len(row) for row in whole], window) if window else [[index] for index in range(len(whole))]
    tokens, wanted, learned_at, segment = (
        pad([np.concatenate([part[index] for index in group]) for group in groups], fill=fill)[0]
        for part, fill in ((whole, tokenizer.pad), (following, tokenizer.pad), (learned, 0), (segments, 0))
    )
    pair = None if window else collate(prompts, replies, [tokenizer])
    return ReplyBatch(tokens, wanted, learned_at.bool(), segment if window else None, pair, sum(map(len, whole)))


def _states(model: Any, batch: ReplyBatch) -> tuple[Tensor, Tensor]:
    """The states that predict the tokens of the replies, and these tokens: tokens width, tokens."""
    if isinstance(model, LanguageModel):
        return model.decode(batch.tokens, segments=batch.segments)[batch.learned], batch.wanted[batch.learned]
    pair = batch.pair
    assert pair is not None
    memory = model.encode(pair.source, valid=pair.source_valid)
    return model.decode(pair.target, memory)[pair.target_valid], pair.wanted[pair.target_valid]


@torch.inference_mode()
def _measured(
    model: Any, tokenizer: Tokenizer, rows: Sequence[tuple[Row, Row]], *, budget: int = 4096
) -> tuple[float, int, int]:
    """(sum of -log p, number, how many came first) of the tokens of these replies."""
    total, count, right = 0.0, 0, 0
    lengths = np.array([[len(prompt) + len(reply) + 1] for prompt, reply in rows])
    for chosen in batches.cut(np.arange(len(rows)), lengths, budget):
        prompts, replies = ([rows[index][side] for index in chosen] for side in (0, 1))
        batch = together(prompts, replies, tokenizer).to(model.device)
        states, wanted = _states(model, batch)
        logits = model.logits(states)
        total += float(cross_entropy(logits, wanted).total)
        right += int((logits.argmax(-1) == wanted).sum())
        count += len(wanted)
    return total, count, right
