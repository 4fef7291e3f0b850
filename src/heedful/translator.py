"""Raw text in, raw text out: a model folder at work.

translator = load("runs/my-model")
translator.translate(["Hello."])[0].text
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from heedful.checkpoint import load_model, read_config
from heedful.data.batches import cut
from heedful.data.prepare import load_tokenizers
from heedful.decoding.beam import Hypothesis, search
from heedful.decoding.generation import GenerationConfig
from heedful.decoding.rules import Rules
from heedful.decoding.sampling import sample
from heedful.decoding.stepper import EncoderDecoderStepper, EnsembleStepper, Stepper
from heedful.evaluation.metrics import consensus
from heedful.model.encoder_decoder import EncoderDecoder
from heedful.text.tokenizer import BOS, EOS, PAD, Tokenizer

Row = Sequence[int] | np.ndarray
CHUNK = 1024  # sentences sorted by length together; also how far a stream reads ahead
SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])")


@dataclass(frozen=True)
class Alternative:
    """One way to say it. `score` is what it is ranked by."""

    text: str
    score: float
    tokens: list[int]
    token_log_probs: list[float]


@dataclass(frozen=True)
class Translation(Alternative):
    """The best way to say it, and the others that were asked for. `warnings`: what was done to a difficult input."""

    alternatives: list[Alternative] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


class Translator:
    """One model, or several of the same vocabulary whose probabilities are averaged."""

    def __init__(self, models: Sequence[EncoderDecoder], tokenizers: Sequence[Tokenizer], *, limit: int = 256) -> None:
        self.models = [model.eval() for model in models]
        self.source, self.target = tokenizers[0], tokenizers[-1]
        self.limit = min([limit, *(model.encoder.position.limit or limit for model in models)])
        self.device = next(models[0].parameters()).device

    def translate(
        self,
        texts: Sequence[str],
        config: GenerationConfig | None = None,
        *,
        batch_tokens: int = 2048,
        prefixes: Sequence[str] = (),
        banned: Sequence[str] = (),
    ) -> list[Translation]:
        """`prefixes`: what each translation must begin with. `banned`: phrases that none may contain."""
        config = config or GenerationConfig()
        pieces, owners = self._split(texts)
        written = self._write(pieces, config, batch_tokens, self._prefixes(prefixes, owners), self._phrases(banned))
        parts: list[list[list[Hypothesis]]] = [[] for _ in texts]
        for owner, hypotheses in zip(owners, written, strict=True):
            parts[owner].append(hypotheses)
        return [self._join(found) for found in parts]

    def by_consensus(
        self, texts: Sequence[str], config: GenerationConfig, *, batch_tokens: int = 2048
    ) -> list[Translation]:
        """Of `num_return_sequences` samples, the one most like the others (minimum Bayes risk with chrF)."""
        config = config.model_copy(update={"do_sample": True})
        found = []
        for drawn in self.translate(texts, config, batch_tokens=batch_tokens):
            every = [Alternative(drawn.text, drawn.score, drawn.tokens, drawn.token_log_probs), *drawn.alternatives]
            best = every[consensus([one.text for one in every])]
            found.append(Translation(**vars(best), warnings=drawn.warnings))
        return found

    def stream(
        self, texts: Iterable[str], config: GenerationConfig | None = None, *, batch_tokens: int = 2048
    ) -> Iterator[Translation]:
        """Translations in order, as soon as they are ready."""
        iterator = iter(texts)
        while chunk := list(islice(iterator, CHUNK)):
            yield from self.translate(chunk, config, batch_tokens=batch_tokens)

    @torch.inference_mode()
    def score(self, pairs: Sequence[tuple[str, str]], *, batch_tokens: int = 4096) -> list[list[float]]:
        """The log-probability of each token of each target, its end included, given its source."""
        sources, targets = self.source.encode([s for s, _ in pairs]), self.target.encode([t for _, t in pairs])
        lengths = np.array([[len(s) + 1, len(t) + 1] for s, t in zip(sources, targets, strict=True)]).reshape(-1, 2)
        found: list[list[float]] = [[] for _ in pairs]
        for chosen in cut(np.arange(len(pairs)), lengths, batch_tokens) if len(pairs) else []:
            source, valid = pad([sources[index] for index in chosen], last=EOS)
            target, real = pad([targets[index] for index in chosen], first=BOS)
            wanted, _ = pad([targets[index] for index in chosen], last=EOS)
            log_probs = self._log_probs(source.to(self.device), valid.to(self.device), target.to(self.device))
            picked = log_probs.gather(-1, wanted.to(self.device)[..., None])[..., 0]
            for row, index in enumerate(chosen):
                found[index] = picked[row, real[row].to(self.device)].tolist()
        return found

    def _log_probs(self, source: Tensor, valid: Tensor, target: Tensor) -> Tensor:
        """batch target vocab; of several models, the mean of their probabilities."""
        each = [model(source, target, source_valid=valid).float().log_softmax(-1) for model in self.models]
        return each[0] if len(each) == 1 else torch.stack(each).logsumexp(0) - math.log(len(each))

    def _write(
        self,
        texts: list[str],
        config: GenerationConfig,
        batch_tokens: int,
        prefixes: list[list[int]],
        banned: list[list[int]],
    ) -> list[list[Hypothesis]]:
        rows = self.source.encode(texts)
        found: list[list[Hypothesis]] = [[] for _ in rows]
        asked = np.array([index for index, row in enumerate(rows) if row], dtype=np.int64)
        lengths = np.array([[len(rows[index]) + 1] for index in asked]).reshape(-1, 1)
        beams = config.num_return_sequences if config.do_sample else config.num_beams
        for chosen in cut(asked, lengths, max(1, batch_tokens // beams)) if len(asked) else []:
            batch = [rows[index] for index in chosen]
            rules = Rules(
                config=config,
                eos=EOS,
                never=(PAD, BOS),
                banned=banned,
                prefixes=[prefixes[index] for index in chosen] if prefixes else [],
            )
            for index, hypotheses in zip(chosen, self._search(batch, config, rules, chosen.tolist()), strict=True):
                found[index] = hypotheses
        return found

    def _search(
        self, batch: list[list[int]], config: GenerationConfig, rules: Rules, numbers: list[int]
    ) -> list[list[Hypothesis]]:
        copies = config.num_return_sequences if config.do_sample else 1
        batch = [row for row in batch for _ in range(copies)]
        rules = replace(rules, prefixes=[prefix for prefix in rules.prefixes for _ in range(copies)])
        limits = [config.max_new_tokens or 2 * len(row) + 10 for row in batch]
        for row, prefix in enumerate(rules.prefixes):
            limits[row] = max(limits[row], len(prefix) + 1)
        most = min([max(limits), *(model.decoder.position.limit or max(limits) for model in self.models)])
        limits = [min(limit, most) for limit in limits]
        source, valid = pad(batch, last=EOS)
        length = max(limits)
        steppers: list[Stepper] = [
            EncoderDecoderStepper(model, source.to(self.device), valid.to(self.device), length=length)
            for model in self.models
        ]
        stepper = steppers[0] if len(steppers) == 1 else EnsembleStepper(steppers)
        first = torch.full((len(batch),), BOS, device=self.device)
        if not config.do_sample:
            return search(stepper, first, config, eos=EOS, limits=limits, rules=rules)
        names = [number * copies + copy for number in numbers for copy in range(copies)]
        drawn = sample(stepper, first, config, eos=EOS, limits=limits, rules=rules, names=names)
        groups = [drawn[start : start + copies] for start in range(0, len(drawn), copies)]
        return [sorted(group, key=lambda hypothesis: -hypothesis.score) for group in groups]

    def _split(self, texts: Sequence[str]) -> tuple[list[str], list[int]]:
        """Texts longer than the model has learned to read are cut at the ends of sentences, or else of words."""
        pieces, owners = [], []
        sizes = [len(row) for row in self.source.encode([text.strip() for text in texts])]
        for index, (text, size) in enumerate(zip(texts, sizes, strict=True)):
            parts = [text.strip()] if size < self.limit else self._parts(text.strip())
            pieces += parts
            owners += [index] * len(parts)
        return pieces, owners

    def _parts(self, text: str) -> list[str]:
        parts: list[str] = []
        for sentence in SENTENCE_END.split(text):
            units = [sentence] if self._fits(sentence) else re.split(r"(?<=\s)", sentence)
            for unit in units:
                while not self._fits(unit):  # no space either: cut by characters
                    size = max(1, self.limit // 2)
                    parts.append(unit[:size])
                    unit = unit[size:]
                if parts and len(units) > 1 and self._fits(parts[-1] + unit):
                    parts[-1] += unit
                else:
                    parts.append(unit)
        return [part.strip() for part in parts if part.strip()] or [""]

    def _fits(self, text: str) -> bool:
        return len(self.source.encode([text])[0]) < self.limit

    def _join(self, parts: list[list[Hypothesis]]) -> Translation:
        found = [self._alternatives(hypotheses) for hypotheses in parts]
        if len(found) == 1 and found[0]:
            best, *others = found[0]
            return Translation(**vars(best), alternatives=others)
        best_parts = [alternatives[0] for alternatives in found if alternatives]
        return Translation(
            text=" ".join(part.text for part in best_parts),
            score=sum(part.score for part in best_parts),
            tokens=[token for part in best_parts for token in part.tokens],
            token_log_probs=[value for part in best_parts for value in part.token_log_probs],
            warnings=[f"too long for the model: translated in {len(parts)} parts"] if len(parts) > 1 else [],
        )

    def _alternatives(self, hypotheses: list[Hypothesis]) -> list[Alternative]:
        texts = self.target.decode([hypothesis.tokens for hypothesis in hypotheses])
        return [
            Alternative(text.strip(), hypothesis.score, hypothesis.tokens, hypothesis.token_log_probs)
            for text, hypothesis in zip(texts, hypotheses, strict=True)
        ]

    def _prefixes(self, prefixes: Sequence[str], owners: list[int]) -> list[list[int]]:
        if not prefixes:
            return []
        rows = self.target.encode(list(prefixes))
        first = [place == 0 or owners[place - 1] != owner for place, owner in enumerate(owners)]
        return [rows[owner] if begins else [] for owner, begins in zip(owners, first, strict=True)]

    def _phrases(self, phrases: Sequence[str]) -> list[list[int]]:
        """As it is cut at the start of a text, and after a space."""
        forms = [form for phrase in phrases for form in (phrase.strip(), " " + phrase.strip()) if phrase.strip()]
        return self.target.encode(forms)


def load(folder: str | Path, *others: str | Path) -> Translator:
    """The translator of a model folder; of several, the ensemble of their models."""
    folders = [Path(name) for name in (folder, *others)]
    models, digests = [], set()
    for place in folders:
        model = load_model(place)
        if not isinstance(model, EncoderDecoder):
            raise ValueError(f"{place} holds a {model.config.kind} model, which does not translate")
        models.append(model)
        digests.add(tuple(tokenizer.digest() for tokenizer in load_tokenizers(place, columns=2)))
    if len(digests) > 1:
        raise ValueError("models of an ensemble must share their tokenizer; these do not")
    limit = read_config(folders[0]).get("data", {}).get("max_length", 256)
    return Translator(models, load_tokenizers(folders[0], columns=2), limit=limit)


def pad(rows: Sequence[Row], *, first: int | None = None, last: int | None = None) -> tuple[Tensor, Tensor]:
    """Rows of different lengths -> (tokens, valid), with a first or last token added, padded on the right."""
    before, after = int(first is not None), int(last is not None)
    lengths = np.array([len(row) for row in rows]) + before + after
    tokens = np.full((len(rows), int(lengths.max())), PAD, dtype=np.int64)
    for place, row in enumerate(rows):
        tokens[place, before : before + len(row)] = row
    if first is not None:
        tokens[:, 0] = first
    if last is not None:
        tokens[np.arange(len(rows)), lengths - 1] = last
    return torch.from_numpy(tokens), torch.from_numpy(np.arange(tokens.shape[1]) < lengths[:, None])
