"""Raw text in, raw text out: translate with a trained model.

>>> translator = heedful.load("runs/my-model")
>>> translator.translate("a b c").text
'c b a'
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from heedful.alignment import Aligner, Links, align_by_average
from heedful.bank import choosing
from heedful.bank import numbers as numbered_adapters
from heedful.bounded import read_object
from heedful.checkpoint import load_model, open_adapters, open_tokenizers, read_config
from heedful.config import parse
from heedful.data.batches import cut
from heedful.data.inputs import DataConfig
from heedful.data.languages import Direction, Languages
from heedful.data.padding import pad
from heedful.decoding.beam import Found, History, Hypothesis
from heedful.decoding.before import Before
from heedful.decoding.from_source import FromSource
from heedful.decoding.generation import GenerationConfig, with_options
from heedful.decoding.non_autoregressive import AtOnce
from heedful.decoding.runner import Request, Runner
from heedful.decoding.shortlist import Shortlist
from heedful.decoding.stops import until
from heedful.decoding.streams import cores
from heedful.model.architecture import ParallelSequenceToSequence, SequenceToSequence
from heedful.model.int8 import quantize_int8
from heedful.text.parts import join, words_of_parts
from heedful.text.parts import split as split_long
from heedful.text.sentences import sentences
from heedful.text.tokenizer import Tokenizer

SEVERAL = 0.1  # share of multi-sentence lines in a corpus from which on its model translates them unsplit
CHUNK = 1024  # sentences sorted by length together; also how far a stream reads ahead


@dataclass(frozen=True)
class Alternative:
    """One possible translation. `score` is what it is ranked by. `fertilities`: of a non-autoregressive model, how many
    target tokens it wrote for each source token, </s> included. `alignment`, if requested: the source word of each
    target word."""

    text: str
    score: float
    tokens: list[int]
    token_log_probs: list[float]
    ended: bool = True  # by itself; False if the length limit cut it off
    fertilities: list[int] | None = None
    alignment: Links | None = None


@dataclass(frozen=True)
class Translation(Alternative):
    """The best translation, and the alternatives if requested. `warnings`: how a difficult input was handled.

    If requested: `history`, the candidates of each search step.
    """

    alternatives: list[Alternative] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    history: History | None = None


class Translator:
    """One model, or several with the same vocabulary whose probabilities are averaged; or one that writes all words at
    once, whose `teacher` chooses among noisy results. `aligner`: the alignment head; `shortlist`: the target tokens to
    consider for each source token; `streams`: batches translated in parallel; `split`: whether texts are translated
    sentence by sentence; `language`: the source language, for splitting. `cuts`: of a text that is too long for the
    model only the beginning is read; otherwise it is translated in parts. `context`: how many sentences before it the
    model sees when it translates one; `languages`: those that a model of several languages knows; `adapters`: the names
    of those that requests may choose."""

    def __init__(
        self,
        models: Sequence[SequenceToSequence | ParallelSequenceToSequence],
        tokenizers: Sequence[Tokenizer],
        *,
        limit: int = 256,
        aligner: Aligner | None = None,
        shortlist: Shortlist | None = None,
        streams: int = 1,
        split: bool = False,
        language: str = "",
        cuts: bool = False,
        context: int = 0,
        languages: Languages | None = None,
        teacher: Callable[[], SequenceToSequence] | None = None,
        adapters: Sequence[str] = (),
    ) -> None:
        self.models = [model.eval() for model in models]
        self.languages = languages or Languages(tokenizers)
        self.writers = [model for model in self.models if isinstance(model, SequenceToSequence)]
        self.source, self.target = tokenizers[0], tokenizers[-1]
        self.limit = min([limit, *(model.source_limit or limit for model in models)])
        self.device = models[0].device
        self.aligner, self.adapters = aligner, tuple(adapters)
        self.folder: Path | None = None
        self.split, self.language, self.cuts, self.context = split, language, cuts, context
        self.starter: FromSource | AtOnce
        self.before: Before | None = None
        if isinstance(self.models[0], ParallelSequenceToSequence):
            self.starter = AtOnce(self.models[0], tokenizers, teacher=teacher)
        else:
            self.starter = FromSource(
                self.writers, tokenizers, shortlist=shortlist, languages=self.languages, adapters=adapters
            )
            self.before = Before(self.starter, context=context, limit=self.limit) if context else None
        self.runner = Runner(self.starter, streams=streams)

    @overload
    def translate(
        self, texts: str | Request, config: GenerationConfig | None = None, **options: Any
    ) -> Translation: ...

    @overload
    def translate(
        self, texts: Sequence[str | Request], config: GenerationConfig | None = None, **options: Any
    ) -> list[Translation]: ...

    def translate(
        self, texts: str | Request | Sequence[str | Request], config: GenerationConfig | None = None, **options: Any
    ) -> Translation | list[Translation]:
        """One text gives one translation, several give a list. Options are those of `GenerationConfig` (`num_beams=5`,
        or `beam_size=5`) and of `write`; `source` and `target` are the languages, for a model that knows several.

        >>> translator = heedful.load("runs/my-model")
        >>> [one.text for one in translator.translate(["a b", "a b c"], num_beams=2)]
        ['b a', 'c b a']
        >>> len(translator.translate("a b c", n_best=3).alternatives)
        2
        """
        config, others = with_options(config or GenerationConfig(), options)
        found = self.translate_all([texts] if isinstance(texts, str | Request) else texts, config, **others)
        return found[0] if isinstance(texts, str | Request) else found

    def translate_all(
        self,
        texts: Sequence[str | Request],
        config: GenerationConfig | None = None,
        *,
        split: bool | None = None,
        source: str = "",
        target: str = "",
        length: str = "",
        **options: Any,
    ) -> list[Translation]:
        """`split`: translate sentence by sentence, or not; by default as the model was trained. `source` and `target`:
        the languages, and `length` the length, of texts whose requests name none. For the other options see `write`."""
        requests = [Request(text) if isinstance(text, str) else text for text in texts]
        requests = [
            replace(one, source=one.source or source, target=one.target or target, length=one.length or length)
            for one in requests
        ]
        for asked in {(one.source, one.target, one.length) for one in requests if one.text.strip()}:
            self.languages.framing(*asked)  # what is unknown is an error before anything is translated
        return self.write(self.read(requests, split=split), config, **options)

    def translate_document(
        self,
        texts: Sequence[str | Request],
        config: GenerationConfig | None = None,
        *,
        context: Sequence[tuple[str, str]] = (),
        **options: Any,
    ) -> list[Translation]:
        """Consecutive texts of one document: each is translated in the context of those before it, if the model was
        trained with data.context. `context`: earlier texts and their translations."""
        first, *others = [Request(text) if isinstance(text, str) else text for text in texts] or [Request("")]
        document = [replace(first, context=context or first.context), *others]
        return self.translate_documents([document], config, **options)[0][: len(texts)]

    def translate_documents(
        self, documents: Sequence[Sequence[str | Request]], config: GenerationConfig | None = None, **options: Any
    ) -> list[list[Translation]]:
        """The same for several documents. Sentence i of all of them is one batch, since sentence i + 1 needs its
        translation. An empty text is no part of the context."""
        config, others = with_options(config or GenerationConfig(), options)
        every = [[Request(text) if isinstance(text, str) else text for text in texts] for texts in documents]
        if not self.context:
            flat = iter(self.translate_all([request for texts in every for request in texts], config, **others))
            return [[next(flat) for _ in texts] for texts in every]
        found: list[list[Translation]] = [[] for _ in every]
        before: list[list[tuple[str, str]]] = [[] for _ in every]
        for place in range(max(map(len, every), default=0)):
            going = [number for number, texts in enumerate(every) if len(texts) > place]
            for number in going:
                before[number] += every[number][place].context
            asked = [replace(every[number][place], context=tuple(before[number][-self.context :])) for number in going]
            for number, request, one in zip(going, asked, self.translate_all(asked, config, **others), strict=True):
                found[number].append(one)
                if request.text.strip():
                    before[number].append((request.text, one.text))
        return found

    def read(self, requests: Sequence[Request], *, split: bool | None = None) -> list["Reading"]:
        """Split and tokenise, once. A text with a prefix or required phrases is not split into sentences."""
        if not self.context and any(request.context for request in requests):
            raise ValueError("this model reads single sentences; leave out the context, or train with data.context=1")
        whole = self.split if split is None else split
        wanted = [whole and not request.prefix and not request.required for request in requests]
        spoken = [request.source or self.language for request in requests]
        parts = self._parts([request.text for request in requests], wanted, spoken)
        return [Reading(request, some) for request, some in zip(requests, parts, strict=True)]

    def write(
        self, readings: Sequence["Reading"], config: GenerationConfig | None = None, **options: Any
    ) -> list[Translation]:
        """The translations, in the order of the readings; for the options see `steps`."""
        found = dict(one for some in self.steps(readings, config, **options) for one in some)
        return [found[number] for number in range(len(readings))]

    def steps(
        self,
        readings: Sequence["Reading"],
        config: GenerationConfig | None = None,
        *,
        batch_tokens: int = 2048,
        batch_size: int | None = None,
        alignment: bool = False,
        links: bool = False,
        history: bool = False,
        replace_unknowns: bool = False,
        dropped: Callable[[int], bool] | None = None,
    ) -> Iterator[list[tuple[int, Translation]]]:
        """After each step, the translations that it finished, with their numbers. A batch has at most `batch_tokens`
        source tokens, times beams, and `batch_size` texts. `replace_unknowns`: replace each unknown word by the source
        word it attends to. `links`: align the alternatives, too, and whatever the model is: without an alignment head
        as well as can be. `dropped`: whether a text has been cancelled, asked while it is being translated; its
        translation is then incomplete."""
        if history and not self.stepwise:
            raise ValueError("a model that writes all words at once has no search history; leave history out")
        if (alignment or replace_unknowns) and self.aligner is None:
            raise ValueError("this model has no alignment.json: no alignment head has been chosen")
        config = config or GenerationConfig()
        requests = [request for reading in readings for request in reading.requests()]
        owners = [owner for owner, reading in enumerate(readings) for _ in reading.parts]
        rows = [part.tokens for reading in readings for part in reading.parts]
        histories: list[History] | None = [[] for _ in rows] if history else None

        def run(rows: Sequence[list[int]], requests: Sequence[Request]) -> Iterator[Found]:
            return self.runner.steps(
                self.starter.groups(rows, requests, config),
                batch_tokens=batch_tokens,
                batch_size=batch_size,
                histories=histories,
                dropped=None if dropped is None else lambda part: dropped(owners[part]),
            )

        def translation(owner: int) -> Translation:
            reading, numbers = readings[owner], range(firsts[owner], firsts[owner + 1])
            with choosing(numbered_adapters([reading.request.adapter], self.adapters)):
                each = [
                    self._alternatives(requests[number], written.get(number, []), config, replace_unknowns)
                    for number in numbers
                ]
                one = _join(each, reading.parts)
                if alignment or links:
                    one = self._with_links(reading, one, each, loose=links)
            return one if histories is None else replace(one, history=histories[numbers[0]])

        firsts = list(accumulate((len(reading.parts) for reading in readings), initial=0))
        written: dict[int, list[Hypothesis]] = {}
        left = [sum(bool(part.tokens) for part in reading.parts) for reading in readings]
        yield [(owner, translation(owner)) for owner, parts in enumerate(left) if not parts]
        for found in run(rows, requests) if self.before is None else self.before.steps(run, rows, requests, owners):
            ready = []
            for number, hypotheses in found:
                written[number] = hypotheses
                left[owners[number]] -= 1
                if not left[owners[number]]:
                    ready.append((owners[number], translation(owners[number])))
            yield ready

    @property
    def stepwise(self) -> bool:
        """Whether it writes word by word: only then is there a search, and a probability of a given text."""
        return isinstance(self.starter, FromSource)

    def repeatable(self, reading: "Reading") -> bool:
        """Whether it may be translated again after a failure."""
        return True

    def size(self, reading: "Reading", config: GenerationConfig) -> int:
        """How much of a batch's budget a text takes, in tokens."""
        return sum(self.starter.size(part.tokens, config) for part in reading.parts)

    def __repr__(self) -> str:
        parameters = sum(parameter.numel() for parameter in self.models[0].parameters())
        several = f"{len(self.models)} models of " if len(self.models) > 1 else ""
        return f"<Translator: {several}{parameters:,} parameters, vocabulary {self.target.vocab:,}, on {self.device}>"

    def predict(
        self, texts: Sequence[str], *, source: str = "", target: str = "", length: str = ""
    ) -> list[dict[str, Any]]:
        found = self.translate(texts, source=source, target=target, length=length)
        return [
            {"text": one.text, "score": one.score, **({"warnings": one.warnings} if one.warnings else {})}
            for one in found
        ]

    def close(self) -> None:
        """Stop the streams, if any; the next call restarts them."""
        self.runner.close()

    def align(self, pairs: Sequence[tuple[str, str]], *, source: str = "", target: str = "") -> list[Links]:
        """(source word, target word), counted from 0, for each pair."""
        if self.aligner is None:
            raise ValueError("this model has no alignment.json: no alignment head has been chosen")
        framings = [self.languages.framing(source, target)] * len(pairs)
        return self.aligner.align(self.writers[0], [self.source, self.target], pairs, framings)

    def align_loosely(
        self, pairs: Sequence[tuple[str, str]], *, source: str = "", target: str = ""
    ) -> list[Links] | None:
        """The same, without a chosen head by all heads of a layer; None if the model has no attention to look at."""
        if self.aligner is not None:
            return self.align(pairs, source=source, target=target)
        framings = [self.languages.framing(source, target)] * len(pairs)
        try:
            return align_by_average(self.writers[0], [self.source, self.target], pairs, framings)
        except (IndexError, ValueError):  # it writes all words at once, or has an attention without weights
            return None

    def _with_links(
        self, reading: "Reading", found: Translation, each: list[list[Alternative]], *, loose: bool
    ) -> Translation:
        """With the alignment; `loose`: as well as can be, and also that of the alternatives."""
        align = self.align_loosely if loose else self.align
        aligned = replace(found, alignment=self._align_parts(reading, found.text, each, 0, align))
        if not loose:
            return aligned
        others = [
            replace(other, alignment=self._align_parts(reading, other.text, each, rank, align))
            for rank, other in enumerate(found.alternatives, 1)
        ]
        return replace(aligned, alternatives=others)

    def _align_parts(
        self,
        reading: "Reading",
        written: str,
        each: list[list[Alternative]],
        rank: int,
        align: Callable[..., list[Links] | None],
    ) -> Links | None:
        """Part by part, as they were translated, with the words numbered as in the whole texts."""
        request = reading.request
        pairs = [
            (part.text, some[min(rank, len(some) - 1)].text)
            for part, some in zip(reading.parts, each, strict=True)
            if some
        ]
        aligned = align(pairs, source=request.source, target=request.target)
        if aligned is None:
            return None
        numbers = [
            words_of_parts(text, [pair[side] for pair in pairs]) for side, text in enumerate((request.text, written))
        ]
        links = [
            (source[one], target[other])
            for source, target, found in zip(*numbers, aligned, strict=True)
            for one, other in found
        ]
        return list(dict.fromkeys(links))

    def by_consensus(
        self,
        texts: Sequence[str | Request],
        config: GenerationConfig,
        *,
        batch_tokens: int = 2048,
        split: bool | None = None,
    ) -> list[Translation]:
        """Of `num_return_sequences` samples, the one most like the others (minimum Bayes risk with chrF)."""
        from heedful.evaluation import metrics

        config = config.model_copy(update={"do_sample": True})
        found = []
        for drawn in self.translate_all(texts, config, batch_tokens=batch_tokens, split=split):
            first = Alternative(drawn.text, drawn.score, drawn.tokens, drawn.token_log_probs, drawn.ended)
            every = [first, *drawn.alternatives]
            best = every[metrics.consensus([one.text for one in every])]
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
    def score(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        batch_tokens: int = 4096,
        source: str = "",
        target: str = "",
        places: Sequence[int] | None = None,
    ) -> list[list[float]]:
        """The log-probability of each token of each target, its end included, given its source; a language token that
        every target begins with is not counted. `source` and `target`: the languages; `places`: of the pairs in their
        documents, for models that read context."""
        if not self.stepwise:
            raise ValueError(
                "a model that writes all words at once gives no probability of a given text, which would be a sum over "
                "all fertilities; score it with the teacher"
            )
        framing = self.languages.framing(source, target)
        sources, targets = self.source.encode([s for s, _ in pairs]), self.target.encode([t for _, t in pairs])
        skipped = [0] * len(pairs)
        if self.before is not None and places is not None:
            for number, place in enumerate(places):
                before = pairs[number - min(place, self.context) : number]
                request, sources[number] = self.before.read(Request(pairs[number][0]), sources[number], before)
                (context,) = self.before.starter.written_before([request])
                skipped[number], targets[number] = len(context), [*context, *targets[number]]
        lengths = np.array([[len(s) + 1, len(t) + 1] for s, t in zip(sources, targets, strict=True)]).reshape(-1, 2)
        found: list[list[float]] = [[] for _ in pairs]
        for chosen in cut(np.arange(len(pairs)), lengths, batch_tokens) if len(pairs) else []:
            reading, valid = pad([framing.source(sources[index]) for index in chosen])
            writing, real = pad([framing.read(targets[index]) for index in chosen])
            wanted, _ = pad([framing.wanted(targets[index]) for index in chosen])
            log_probs = self._log_probs(reading.to(self.device), valid.to(self.device), writing.to(self.device))
            picked = log_probs.gather(-1, wanted.to(self.device)[..., None])[..., 0]
            for row, index in enumerate(chosen):
                given = len(framing.forced) + skipped[index]
                found[index] = picked[row, real[row].to(self.device)].tolist()[given:]
        return found

    def _log_probs(self, source: Tensor, valid: Tensor, target: Tensor) -> Tensor:
        """batch target vocab; for an ensemble, the mean of the probabilities."""
        each = [model(source, target, source_valid=valid).float().log_softmax(-1) for model in self.writers]
        return each[0] if len(each) == 1 else torch.stack(each).logsumexp(0) - math.log(len(each))

    def parts(self, text: str, *, split: bool | None = None) -> list[str]:
        """The text as it is translated: whole, or sentence by sentence, or in parts where it is too long for the
        model."""
        return [part.text for part in self._parts([text], [self.split if split is None else split], [self.language])[0]]

    def _parts(self, texts: Sequence[str], split: Sequence[bool], spoken: Sequence[str]) -> list[list["_Part"]]:
        """Each text as it is translated. `spoken`: its language."""
        whole = [
            sentences(text, language) if splits else [(text.strip(), "")]
            for text, splits, language in zip(texts, split, spoken, strict=True)
        ]
        rows = iter(self.source.encode([sentence for some in whole for sentence, _ in some]))
        return [
            [part for sentence, space in some for part in self._shortened(sentence, space, next(rows))]
            for some in whole
        ]

    def _shortened(self, sentence: str, space: str, tokens: list[int]) -> list["_Part"]:
        if len(tokens) < self.limit:
            return [_Part(sentence, space, tokens)]
        if self.cuts:
            return [_Part(sentence, space, tokens[: self.limit - 1], lost=len(tokens) - self.limit + 1)]
        parts = split_long(sentence, self._fits, most=self.limit // 2)
        spaces = [" "] * (len(parts) - 1) + [space]
        rows = self.source.encode(parts)
        return [_Part(*each, too_long=True) for each in zip(parts, spaces, rows, strict=True)]

    def _fits(self, text: str) -> bool:
        return len(self.source.encode([text])[0]) < self.limit

    def _alternatives(
        self, request: Request, hypotheses: list[Hypothesis], config: GenerationConfig, replace_unknowns: bool
    ) -> list[Alternative]:
        texts = self.target.decode([hypothesis.tokens for hypothesis in hypotheses])
        if replace_unknowns:
            texts = [
                self._with_copies(request, hypothesis.tokens) if self.target.unk in hypothesis.tokens else plain
                for plain, hypothesis in zip(texts, hypotheses, strict=True)
            ]
        return [
            Alternative(
                until(plain, config.stop_strings).strip(),
                hypothesis.score,
                hypothesis.tokens,
                hypothesis.token_log_probs,
                hypothesis.ended,
                hypothesis.fertilities,
            )
            for plain, hypothesis in zip(texts, hypotheses, strict=True)
        ]

    def _with_copies(self, request: Request, tokens: list[int]) -> str:
        """The text of these tokens, with each unknown one replaced by the source token it attends to most."""
        assert self.aligner is not None
        text, framing = request.text, self.languages.framing(request.source, request.target)
        pieces = self.source.pieces(text)
        read = [token for token, _, _ in pieces]
        weights = self.aligner.weights(self.writers[0], [self.source, self.target], read, tokens, framing)
        weights = weights[:, : len(pieces)]
        written, start = "", 0
        unknown = self.target.unk
        for place, token in enumerate([*tokens, unknown]):
            if token == unknown:
                written += self.target.decode([tokens[start:place]])[0]
                if place < len(tokens):
                    _, begin, end = pieces[int(weights[place].argmax())]
                    written += text[begin:end]
                start = place + 1
        return written


@dataclass(frozen=True)
class _Part:
    """A piece of a text that is translated by itself, and the white space after it."""

    text: str
    space: str
    tokens: list[int]
    too_long: bool = False
    lost: int = 0  # tokens cut off at the end


@dataclass(frozen=True)
class Reading:
    """A request whose text has been split and tokenised."""

    request: Request
    parts: list[_Part]

    def requests(self) -> list[Request]:
        """One per part. Prefix and required phrases apply to the first, which the context stands before."""
        first, *others = self.parts
        rest = [replace(self.request, text=part.text, prefix="", required=(), context=()) for part in others]
        return [replace(self.request, text=first.text), *rest]


def _join(parts: list[list[Alternative]], cuts: list[_Part]) -> Translation:
    """The translation of a text from those of its parts; its n-th alternative joins their n-th ones."""
    if len(parts) == 1 and parts[0]:
        best, *others = parts[0]
        lost, kept = cuts[0].lost, len(cuts[0].tokens)
        warnings = [f"too long for the model: cut to {kept:,} of {kept + lost:,} tokens"] if lost else []
        return Translation(**vars(best), alternatives=others, warnings=warnings)
    both = [(alternatives, part.space) for alternatives, part in zip(parts, cuts, strict=True) if alternatives]
    count = max((len(alternatives) for alternatives, _ in both), default=1)
    every = [_joined([(some[min(rank, len(some) - 1)], space) for some, space in both]) for rank in range(count)]
    long = sum(part.too_long for part in cuts)
    warnings = [f"too long for the model: translated in {long} parts"] if long > 1 else []
    return Translation(**vars(every[0]), alternatives=every[1:], warnings=warnings)


def _joined(parts: list[tuple[Alternative, str]]) -> Alternative:
    return Alternative(
        text=join([part.text for part, _ in parts], [space for _, space in parts]),
        score=sum(part.score for part, _ in parts),
        tokens=[token for part, _ in parts for token in part.tokens],
        token_log_probs=[value for part, _ in parts for value in part.token_log_probs],
        ended=all(part.ended for part, _ in parts),
    )


def load(
    folder: str | Path,
    *others: str | Path,
    quantize: str = "",
    shortlist: bool = False,
    streams: int | None = None,
    teacher: str | Path = "",
    adapters: Mapping[str, str | Path] | None = None,
) -> Translator:
    """The translator of a model folder; several give an ensemble. `quantize`: int8, for a quarter of the weight
    memory; `shortlist`: consider only likely target tokens; `streams`: batches in parallel, by default one per core;
    `teacher`: the model that chooses among noisy results of one that writes all words at once, by default the one that
    taught it, if its folder is still there; `adapters`: those that requests may choose, by name."""
    if quantize not in ("", "int8"):
        raise ValueError(f"unknown quantize {quantize!r}; known: int8")
    folders = [Path(name) for name in (folder, *others)]
    models: list[SequenceToSequence | ParallelSequenceToSequence] = []
    tokenizers = []
    for place in folders:
        model = load_model(place)
        if not isinstance(model, SequenceToSequence | ParallelSequenceToSequence):
            raise ValueError(
                f"{place}: a model of kind {model.config.kind} does not translate; use heedful predict or generate"
            )
        if adapters and (len(folders) > 1 or quantize):
            raise ValueError("adapters share one base in float32; leave out the other models and quantize")
        open_adapters(place, model, adapters or {})
        if quantize:
            quantize_int8(model)
        models.append(model)
        tokenizers.append(open_tokenizers(place, model, columns=2))
    if len({tuple(tokenizer.digest() for tokenizer in both) for both in tokenizers}) > 1:
        raise ValueError("models of an ensemble must share their tokenizer; these do not")
    at_once = [one for one in models if isinstance(one, ParallelSequenceToSequence)]
    if at_once and (len(models) > 1 or shortlist):
        what = "a shortlist" if shortlist else "an ensemble"
        raise ValueError(f"a model that writes all words at once cannot be part of {what}; leave it out")
    if teacher and not at_once:
        raise ValueError(f"{folders[0]} writes word by word and needs no teacher; leave it out")
    config = read_config(folders[0])
    task = config.get("task")
    taught_by = str(teacher or (task.get("teacher") if isinstance(task, dict) else "") or "")
    data = config.get("data", {})
    recipe = parse(DataConfig, {key: value for key, value in data.items() if key in DataConfig.model_fields})
    cuts = cuts_long(folders[0])
    aligner = Aligner.load(folders[0]) if (folders[0] / "alignment.json").exists() else None
    if aligner is not None:
        aligner.refuse_misfit(models[0], folders[0])
    words = Shortlist.load(folders[0]) if shortlist else None
    if words is not None:
        words.refuse_misfit(folders[0], source_vocab=tokenizers[0][0].vocab, vocab=tokenizers[0][-1].vocab)
    named = Direction(recipe.source_language, recipe.target_language)
    found = Translator(
        models,
        tokenizers[0],
        limit=recipe.max_length + cuts,  # as many tokens as in training, and the end
        aligner=aligner,
        shortlist=words,
        streams=cores() if streams is None else streams,
        # A prefix is for the whole text: no sentence can do without it.
        split=reads_sentences(folders[0]) and not any(corpus.prefix for corpus in recipe.corpora),
        language=recipe.source_language,
        cuts=cuts,
        context=recipe.context,
        languages=Languages(tokenizers[0], recipe.layout, recipe.directions if recipe.layout else [named]),
        teacher=(lambda: _teacher(Path(taught_by), tokenizers[0])) if taught_by else None,
        adapters=tuple(adapters or ()),
    )
    found.folder = folders[0]
    return found


def _teacher(folder: Path, tokenizers: Sequence[Tokenizer]) -> SequenceToSequence:
    model = load_model(folder)
    if not isinstance(model, SequenceToSequence):
        raise ValueError(f"teacher: {folder} holds a {model.config.kind} model; give one that writes word by word")
    theirs = open_tokenizers(folder, model, columns=2)
    if [tokenizer.digest() for tokenizer in theirs] != [tokenizer.digest() for tokenizer in tokenizers]:
        raise ValueError(f"teacher: {folder} has another tokenizer than the model, and would read its words as others")
    return model


def reads_sentences(folder: Path) -> bool:
    """Whether the lines it was trained on are mostly single sentences: see `tasks/translation.py`."""
    share = _sentence_facts(folder).get("several")
    return not isinstance(share, int | float) or share < SEVERAL  # a folder of an older version has no such fact


def cuts_long(folder: Path) -> bool:
    """Whether it was trained on the beginning of texts that are too long: see `tasks/summarisation.py`."""
    return bool(_sentence_facts(folder).get("cuts"))


def _sentence_facts(folder: Path) -> dict[str, Any]:
    try:
        found = read_object(folder / "sentences.json")
    except FileNotFoundError:
        return {}
    share = found.get("several", 0.0)
    if not isinstance(share, int | float) or not 0 <= share <= 1:
        raise ValueError(f"{folder / 'sentences.json'}: several must be a share from 0 to 1, not {share!r:.100}")
    return found
