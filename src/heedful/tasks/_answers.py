"""Answers to prompts, for models that write: a language model reads prompt and answer as one text, an encoder-decoder
encodes the prompt. What is padding is known by a mask, never by a token: </s> may stand anywhere.
"""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heedful.checkpoint import load_model, read_config
from heedful.config import part_config
from heedful.data import batches
from heedful.data.inputs import Inputs
from heedful.data.lines import Line
from heedful.data.padding import Row, pad
from heedful.data.preferences import PAIRED
from heedful.data.prepare import Prepared
from heedful.data.store import Store
from heedful.decoding.shortlist import NAME as SHORTLIST
from heedful.exchange import published
from heedful.generator import Generator
from heedful.generator import load as load_generator
from heedful.model.architecture import ArchitectureConfig, LanguageModel, Model, SequenceToSequence
from heedful.tasks import Settings
from heedful.tasks._pairs import fitted_pair
from heedful.text.chat import Chat, Message, TooLongError
from heedful.text.tokenizer import Tokenizer
from heedful.translator import Translator
from heedful.translator import load as load_translator

BUDGET = 4096  # tokens per batch, where no training says how many


@dataclass(frozen=True)
class AnswerBatch:
    """`read` is what the decoder reads, `wanted` the token after each, `valid` where that is one of the answer, its end
    included. Without a `source`, what is read begins with the prompt."""

    read: Tensor  # batch length
    wanted: Tensor
    valid: Tensor
    source: Tensor | None = None  # batch source
    source_valid: Tensor | None = None

    def __len__(self) -> int:
        return len(self.read)

    @property
    def tokens_read(self) -> int:
        return int(self.valid.sum())

    def to(self, device: torch.device) -> "AnswerBatch":
        return AnswerBatch(**{name: one.to(device) for name, one in self.tensors.items()})

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {name: one for name, one in vars(self).items() if one is not None}


class Writers:
    """How prompts and answers become batches for one kind of model. `joined`: for a language model."""

    def __init__(self, tokenizers: Sequence[Tokenizer], *, joined: bool) -> None:
        self.first, self.last, self.joined = tokenizers[0], tokenizers[-1], joined

    def batch(self, prompts: Sequence[Row], answers: Sequence[Row], ended: Sequence[bool] | None = None) -> AnswerBatch:
        """`ended`: whether each answer ends where its tokens do; otherwise it was cut off, and no end is wanted."""
        ended = ended or [True] * len(answers)
        if self.joined:
            # An empty prompt is the start token, as in `Generator`.
            before = [[*map(int, one)] or [self.last.start] for one in prompts]
        else:
            before = [[self.last.start]] * len(prompts)
        whole = [[*one, *map(int, other)] for one, other in zip(before, answers, strict=True)]
        read, valid = pad(whole, fill=self.last.pad)
        wanted, _ = pad([row[1:] for row in whole], last=self.last.eos, fill=self.last.pad)
        places = torch.arange(read.shape[1])
        starts = torch.tensor([len(one) - 1 for one in before])
        ends = torch.tensor([len(row) - (not end) for row, end in zip(whole, ended, strict=True)])
        valid = valid & (places >= starts[:, None]) & (places < ends[:, None])
        if self.joined:
            return AnswerBatch(read, wanted, valid)
        source, source_valid = pad([[*map(int, one)] for one in prompts], last=self.first.eos, fill=self.first.pad)
        return AnswerBatch(read, wanted, valid, source, source_valid)

    def whole(self, prompts: Sequence[Row], answers: Sequence[Row], ended: Sequence[bool] | None = None) -> AnswerBatch:
        """The same with the end of each answer read, too, for what is read off its last token: `valid` is what is
        real."""
        ended = ended or [True] * len(answers)
        ends = [[self.last.eos] if end else [] for end in ended]
        before: list[list[int]] = [[*map(int, one)] if self.joined else [self.last.start] for one in prompts]
        rows = [[*one, *map(int, two), *end] for one, two, end in zip(before, answers, ends, strict=True)]
        read, valid = pad([row or [self.last.start] for row in rows], fill=self.last.pad)
        if self.joined:
            return AnswerBatch(read, read, valid)
        source, source_valid = pad([[*map(int, one)] for one in prompts], last=self.first.eos, fill=self.first.pad)
        return AnswerBatch(read, read, valid, source, source_valid)


def states(model: Any, batch: AnswerBatch) -> Tensor:
    """batch length width. Padding comes last, where a causal model does not see it."""
    if batch.source is None:
        found: Tensor = model.decode(batch.read)
        return found
    return model.decode(batch.read, model.encode(batch.source, valid=batch.source_valid))


def log_probs(model: Any, batch: AnswerBatch, read: Tensor | None = None) -> Tensor:
    """log p of each token of the answers, 0 elsewhere: batch length. `read`: the states, if they are known."""
    return _picked(_logits(model, batch, read), batch)


def with_entropy(model: Any, batch: AnswerBatch, read: Tensor) -> tuple[Tensor, Tensor]:
    """The same, and the entropy of the model where it writes each token (nats, summed over all)."""
    logits = _logits(model, batch, read)
    with torch.no_grad():
        each = logits.log_softmax(-1)
        entropy = -(each.exp() * each).sum()
    return _picked(logits, batch), entropy


def _logits(model: Any, batch: AnswerBatch, read: Tensor | None) -> Tensor:
    """Of the tokens of the answers: tokens vocab."""
    found: Tensor = model.logits((states(model, batch) if read is None else read)[batch.valid])
    return found.float()


def _picked(logits: Tensor, batch: AnswerBatch) -> Tensor:
    found = logits.gather(-1, batch.wanted[batch.valid][:, None])[:, 0] - logits.logsumexp(-1)
    return found.new_zeros(batch.valid.shape).masked_scatter(batch.valid, found)


def rewards(model: Any, batch: AnswerBatch) -> Tensor:
    """What the reward head says at the last valid token of each row: batch."""
    places = torch.arange(batch.valid.shape[1], device=batch.valid.device)
    last = torch.where(batch.valid, places, -1).amax(1)
    read = states(model, batch)
    found: Tensor = model.heads["reward"](read[torch.arange(len(read), device=read.device), last]).float()
    return found


class Compared:
    """Rows of prompt, chosen and rejected, as long as what a model reads of both."""

    counted = (0,)

    def __init__(self, store: Store, *, joined: bool) -> None:
        self.store, self.joined, self.forget = store, joined, store.forget

    def __len__(self) -> int:
        return len(self.store)

    def lengths(self, column: int, start: int = 0, end: int | None = None) -> np.ndarray:
        prompt, *answers = (self.store.lengths(place, start, end) for place in range(self.store.columns))
        longest = np.max(answers, axis=0) if answers else 0 * prompt
        found: np.ndarray = len(answers) * (prompt + longest if self.joined else np.maximum(prompt, longest))
        return found

    def in_order(self, budget: int) -> Iterator[np.ndarray]:
        yield from batches.in_order(self, budget=budget)


def is_joined(config: ArchitectureConfig | None) -> bool:
    return config is not None and issubclass(config.gives, LanguageModel)


def fitted_writer(kind: str, model: dict[str, Any], prepared: Prepared) -> dict[str, Any]:
    """The model's keys for a task that trains models that write, word by word, of either kind. Without dropout: what is
    learned from is the difference of two log-probabilities, and dropout would make most of it."""
    gives = part_config(ArchitectureConfig, model["kind"]).gives
    if not issubclass(gives, SequenceToSequence | LanguageModel):
        raise ValueError(f"task {kind} trains models that write word by word, and {model['kind']} is not one")
    if issubclass(gives, LanguageModel) and prepared.tokenizers[0] is not prepared.tokenizers[-1]:
        raise ValueError("a language model reads prompts and answers as one text; set tokenizer.joint=true")
    found: dict[str, Any] = without_dropout(fitted_pair(model, prepared))
    return found


def without_dropout(keys: Any) -> Any:
    if isinstance(keys, list):
        return [without_dropout(one) for one in keys]
    if not isinstance(keys, dict):
        return keys
    return {name: 0.0 if name == "dropout" else without_dropout(one) for name, one in keys.items()}


def writer_positions(longest: int) -> dict[str, int]:
    """A language model reads prompt and answer."""
    return {"encoder": longest + 1, "decoder": 2 * longest + 1}


class Reading:
    """How prompts become tokens, as they do in training: of a long one the end, of messages the last ones."""

    def __init__(self, tokenizer: Tokenizer, length: int) -> None:
        self.tokenizer, self.length, self.chat = tokenizer, length, Chat(tokenizer)

    def tokens(self, prompt: str | Sequence[Message]) -> list[int]:
        if isinstance(prompt, str):
            return self.tokenizer.encode([prompt])[0][-self.length :]
        try:
            return self.chat.prompt(prompt, limit=self.length).tokens
        except TooLongError:
            return self.chat.prompt(prompt[-1:]).tokens[-self.length :]


class Writer:
    """A finished folder of a model that writes, with the base that it was trained from."""

    def __init__(self, use: Generator | Translator) -> None:
        assert use.folder is not None
        self.folder, config = use.folder, read_config(use.folder)
        if isinstance(use, Translator):
            self.model: Model = use.models[0]
            self.tokenizers = [use.source, use.target]
        else:
            self.model, self.tokenizers = use.model, [use.tokenizer, use.tokenizer]
        self.reading = Reading(self.tokenizers[0], int(config.get("data", {}).get("max_length", 256)))
        self.writers = Writers(self.tokenizers, joined=isinstance(self.model, LanguageModel))
        self.start = Path(config.get("start_from") or "")

    def base(self) -> Model:
        """The model that training started from."""
        if not self.start.name or not self.start.exists():
            raise ValueError(
                f"{self.folder} is compared with the model that it was trained from, and there is no {self.start}; put "
                "it back, or run the command from the folder that training ran in"
            )
        model = load_model(self.start) if (self.start / "config.yaml").is_file() else published.load(self.start).model
        return model.to(self.model.device).eval()


def open_writer(folder: Path, others: Sequence[Path], options: dict[str, Any]) -> Generator | Translator:
    """A translator, or what continues texts: as the model is."""
    kind = read_config(folder)["model"].get("kind", ArchitectureConfig.default)
    if issubclass(part_config(ArchitectureConfig, kind).gives, SequenceToSequence):
        return load_translator(folder, *others, **options)
    if others or set(options) - {"streams", "quantize"}:
        raise ValueError("a language model takes no ensemble and no options of translators; leave them out")
    return load_generator(folder, **options)


def finish_writer(settings: Settings, folder: Path) -> None:
    """Take over what a translator's folder has besides weights: its alignment head, its shortlist, how it reads."""
    for name in ("alignment.json", SHORTLIST, "sentences.json"):
        if (found := Path(settings.start_from) / name).is_file():
            shutil.copyfile(found, folder / name)


def cut_notes(prepared: Prepared, settings: Settings) -> list[str]:
    cut = prepared.facts.get("cut", 0)
    long = f"longer than {settings.max_length} tokens (data.max_length)"
    return [f"{cut:,} prompts are {long}: their beginning is left out"] if cut else []


def compared_rows(test: Path, fields: tuple[str, ...] = ()) -> list[Line]:
    """The rows of a test file; a bad one is an error."""
    inputs = Inputs((test,), columns=PAIRED, fields=fields, strict=True)
    rows = [line for line in inputs.read("train") if isinstance(line, Line)]
    if not rows:
        raise ValueError(f"{test}: no pairs to evaluate on")
    return rows
