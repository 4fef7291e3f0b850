"""Translation that writes all words at once: fertilities (Gu et al. 2018), or masks (Ghazvininejad et al. 2019).

Train it on what a teacher wrote (`heedful distill`): a model whose words are chosen independently cannot mix several
good translations, and a teacher's are more alike than people's.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.config import Probability
from heedful.data import batches
from heedful.data.columns import PAIR, Columns
from heedful.data.padding import pad
from heedful.data.prepare import Prepared
from heedful.data.store import Store
from heedful.decoding.generation import GenerationConfig
from heedful.evaluation.metrics import quick_score
from heedful.files import write_text
from heedful.model.architecture import Model, ParallelSequenceToSequence
from heedful.model.architecture.non_autoregressive import NonAutoregressiveConfig
from heedful.objectives import Loss, Term, cross_entropy, vocabulary_cross_entropy
from heedful.tasks import Direction, Processes, Scores, Settings, State, TaskConfig
from heedful.tasks._fertilities import Fertilities, Teacher, needed
from heedful.tasks.translation import Translation, TranslationConfig
from heedful.translator import Translator
from heedful.translator import load as load_translator


class NonAutoregressiveTaskConfig(TaskConfig):
    """`teacher`: the folder of a translator of ours. Its tokenizer is used, and its attention aligns the corpus, which
    gives the fertilities; without one, each target is spread evenly over its source. `teacher_encoder`: start from the
    teacher's embeddings and encoder. `word_distillation`: how much of the loss asks for the teacher's probabilities of
    each word, given those before it, instead of the word itself (Kim and Rush 2016, section 3.1)."""

    trains: ClassVar[type[Model]] = ParallelSequenceToSequence
    translates: ClassVar[bool] = True
    metrics: ClassVar[Mapping[str, Direction]] = {
        "loss": "lower", "accuracy": "higher", "fertility": "higher", "bleu": "higher", "chrf": "higher",
        "exact": "higher",
    }  # fmt: skip
    note: ClassVar[str] = (
        "`loss` and `accuracy` are of words, given the right fertilities (with method mask_predict: the right length, "
        "and all words masked); `fertility` is how many fertilities are right. BLEU and chrF are computed by sacreBLEU "
        "on at most 200 sentences, to monitor training; `heedful evaluate` gives the figures to report."
    )
    teacher: str = ""
    teacher_encoder: bool = False
    word_distillation: Probability = 0.0

    @property
    def columns(self) -> Columns:
        return PAIR

    @property
    def tokenizers_from(self) -> str:
        return self.teacher

    def positions(self, longest: int) -> dict[str, int]:
        return {"encoder": longest + 1, "decoder": longest}

    def fitted(self, model: dict[str, Any], prepared: Prepared) -> dict[str, Any]:
        found = TranslationConfig().fitted(model, prepared)
        return {**found, "max_fertility": max(found["max_fertility"], needed(prepared))}

    def build(self, prepared: Prepared, settings: Settings) -> "NonAutoregressiveTranslation":
        return NonAutoregressiveTranslation(self, prepared, settings)

    def open(self, folder: Path, *others: Path, **options: Any) -> Translator:
        return load_translator(folder, *others, **options)


@dataclass(frozen=True)
class ParallelBatch:
    """`read` is what a teacher reads to predict `target`: the same, shifted by one. `hidden`: the words to predict."""

    source: Tensor  # batch source
    source_valid: Tensor
    fertilities: Tensor  # batch source
    target: Tensor  # batch target
    target_valid: Tensor
    hidden: Tensor
    read: Tensor
    taught: bool

    @property
    def counts(self) -> dict[str, int]:
        words = int(self.hidden.sum())
        return {
            "tokens": words,
            "fertility": int(self.source_valid.sum()),
            **({"teacher": words} if self.taught else {}),
        }

    @property
    def tokens_read(self) -> int:
        return int(self.target_valid.sum())

    def to(self, device: torch.device) -> "ParallelBatch":
        moved: dict[str, Any] = {name: one.to(device) for name, one in vars(self).items() if isinstance(one, Tensor)}
        return replace(self, **moved)


class NonAutoregressiveTranslation:
    def __init__(self, config: NonAutoregressiveTaskConfig, prepared: Prepared, settings: Settings) -> None:
        assert isinstance(settings.model, NonAutoregressiveConfig)
        if settings.bpe_dropout:
            raise ValueError("tokenizer.dropout changes the tokens that fertilities count; set it to 0")
        if not config.teacher and (config.teacher_encoder or config.word_distillation):
            key = "teacher_encoder" if config.teacher_encoder else "word_distillation"
            raise ValueError(f"task.{key} needs a teacher; set task.teacher to the folder of a translator")
        self.config, self.prepared, self.settings, self.model = config, prepared, settings, settings.model
        self.pairs = Translation(prepared, settings)  # its references and figures
        self.teacher = Teacher(Path(config.teacher), prepared.tokenizers) if config.teacher else None
        self.notes = [*self.pairs.notes]
        if self.teacher is None:
            self.notes.append(
                "no task.teacher: fertilities spread each target evenly over its source, which is no alignment"
            )
        self.train = prepared.store("train")
        self.valid = prepared.store("valid") if prepared.has("valid") else self.train
        self.fertilities = {
            split: Fertilities(prepared, split, self.teacher, most=self.model.max_fertility)
            for split in ("train", "valid")
            if prepared.has(split)
        }

    def epoch(self, number: int, *, budget: int, seed: int) -> Iterator[np.ndarray]:
        return batches.epoch(self.train, budget=budget, seed=seed, number=number, cost=self.settings.cost)

    def worst(self, budget: int) -> np.ndarray:
        return batches.longest(self.train, budget=budget, cost=self.settings.cost)

    def begin(self, model: ParallelSequenceToSequence) -> None:
        """Copy the teacher's embeddings and encoder."""
        if self.teacher is None or not self.config.teacher_encoder:
            return
        theirs = self.teacher.model.state_dict()
        for name, tensor in model.state_dict().items():
            if not name.startswith(("embedding.", "target_embedding.", "encoder.")):
                continue
            if name not in theirs or theirs[name].shape != tensor.shape:
                has = f"is {list(theirs[name].shape)}" if name in theirs else "is missing"
                raise ValueError(
                    f"task.teacher_encoder: {name} of {self.config.teacher} {has}, but this model's is "
                    f"{list(tensor.shape)}; give both the same sizes, or set task.teacher_encoder=false"
                )
            tensor.copy_(theirs[name])

    def collate(self, rows: np.ndarray, *, seed: tuple[int, ...] = ()) -> ParallelBatch:
        return self._collated(self.train, self.fertilities["train"], rows, seed)

    def loss(self, model: ParallelSequenceToSequence, batch: ParallelBatch, *, state: State) -> Loss:
        """Only the words to predict are projected to the vocabulary."""
        states, scores = self._written(model, batch)
        share, wanted = self.config.word_distillation, batch.target[batch.hidden]
        words = vocabulary_cross_entropy(*model.last_linear(states), wanted, smoothing=self.settings.label_smoothing)
        fertilities = cross_entropy(scores, batch.fertilities[batch.source_valid])
        terms = {"tokens": replace(words, weight=1 - share), "fertility": fertilities}
        if batch.taught:
            total = divergence(self._taught(batch, model.device), model.logits(states))
            terms["teacher"] = Term(total, len(wanted), weight=share)
        return Loss(terms)

    @torch.inference_mode()
    def evaluate(self, model: ParallelSequenceToSequence, *, budget: int, samples: int, world: Processes) -> Scores:
        sums = dict.fromkeys(("loss", "accuracy", "fertility"), 0.0)
        counts = dict(sums)
        every = list(batches.in_order(self.valid, budget=budget, cost=self.settings.cost))
        known = self.fertilities.get("valid", self.fertilities["train"])
        for rows in every[world.rank :: world.size]:
            batch = self._collated(self.valid, known, rows).to(model.device)
            states, scores = self._written(model, batch)
            logits, wanted = model.logits(states), batch.target[batch.hidden]
            found = {"loss": float(cross_entropy(logits, wanted).total)}
            found["accuracy"] = 100.0 * int((logits.argmax(-1) == wanted).sum())
            found["fertility"] = 100.0 * int((scores.argmax(-1) == batch.fertilities[batch.source_valid]).sum())
            for name, value in found.items():
                sums[name] += value
                counts[name] += batch.counts["fertility" if name == "fertility" else "tokens"]
        numbers = {name: world.total(value) / max(1, world.total(counts[name])) for name, value in sums.items()}
        texts = [(one.request.text, one.target) for one in self.pairs.samples]
        translator = Translator([model], self.prepared.tokenizers, limit=1 << 30)
        sources = [source for source, _ in texts][world.rank :: world.size]
        written = world.gather(
            [one.text for one in translator.translate(sources, GenerationConfig(), batch_tokens=budget)]
        )
        numbers |= quick_score(written, [target for _, target in texts], tokenizer=self.pairs.tokenizer)
        shown = [
            {"source": source, "reference": target, "hypothesis": text}
            for (source, target), text in zip(texts[:samples], written, strict=False)
        ]
        return Scores(numbers, shown)

    def finish(self, model: ParallelSequenceToSequence, folder: Path) -> None:
        """Save the share of lines with several sentences."""
        write_text(folder / "sentences.json", json.dumps({"several": self.pairs._several()}))

    def _written(self, model: ParallelSequenceToSequence, batch: ParallelBatch) -> tuple[Tensor, Tensor]:
        """The states of the words to predict (words width), and a score for each fertility of each source token."""
        encoded = model.encode(batch.source, valid=batch.source_valid)
        if model.method == "fertility":
            inputs, valid = model.copied(encoded, batch.fertilities)
        else:
            inputs, valid = model.masked(batch.target, batch.hidden), batch.target_valid
        states = model.decode(inputs, encoded, valid=valid)
        return states[batch.hidden], encoded.fertilities[batch.source_valid]

    @torch.no_grad()
    def _taught(self, batch: ParallelBatch, device: torch.device) -> Tensor:
        """The teacher's log-probabilities of the words to predict, each given those before it: words vocab."""
        assert self.teacher is not None
        teacher = self.teacher.model.to(device)
        states = teacher.decode(batch.read, teacher.encode(batch.source, valid=batch.source_valid))
        return teacher.logits(states[batch.hidden]).float().log_softmax(-1)

    def _collated(
        self, store: Store, fertilities: Fertilities, rows: np.ndarray, seed: tuple[int, ...] | None = None
    ) -> ParallelBatch:
        """`seed`: for what is masked; None = every word."""
        first, last = self.prepared.tokenizers
        sources, targets = store.rows(0, rows), store.rows(1, rows)
        source, source_valid = pad(sources, last=first.eos, fill=first.pad)
        target, target_valid = pad(targets, fill=last.pad)
        hidden = target_valid
        if seed is not None and self.model.method == "mask_predict":
            chosen = [_masked(len(target), (*seed, int(row))) for target, row in zip(targets, rows, strict=True)]
            hidden = pad(chosen)[0].bool()
        read, _ = pad([target[:-1] for target in targets], first=last.start, fill=last.pad)
        counts, _ = pad(fertilities.rows(rows))
        taught = seed is not None and self.config.word_distillation > 0
        return ParallelBatch(source, source_valid, counts, target, target_valid, hidden, read, taught)


def _masked(length: int, seed: tuple[int, ...]) -> np.ndarray:
    """Which words of a text are masked: any number of them with equal probability.      Ghazvininejad et al. 2019,
    section 3.1"""
    chance = np.random.default_rng(seed)
    hidden = np.zeros(length, dtype=np.int64)
    hidden[chance.permutation(length)[: chance.integers(1, length + 1)]] = 1
    return hidden


def divergence(taught: Tensor, logits: Tensor) -> Tensor:
    """sum over words and vocabulary of p (log p - log q), p the teacher's and q the model's."""
    return F.kl_div(logits.float().log_softmax(-1), taught, log_target=True, reduction="sum")
