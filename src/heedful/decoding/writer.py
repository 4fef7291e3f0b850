"""Texts and what is asked of them to hypotheses: batches, rules, and the search that fits them."""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from heedful.data.batches import cut
from heedful.data.padding import pad
from heedful.decoding.beam import History, Hypothesis, search
from heedful.decoding.diverse import diverse_search
from heedful.decoding.generation import GenerationConfig
from heedful.decoding.greedy import greedy
from heedful.decoding.required import Phrase, Required
from heedful.decoding.rules import Rules
from heedful.decoding.sampling import sample
from heedful.decoding.shortlist import Shortlist
from heedful.decoding.stepper import EnsembleStepper, SourceStepper, Stepper
from heedful.decoding.stops import Stops
from heedful.decoding.streams import Streams
from heedful.model.architecture import SequenceToSequence
from heedful.model.cpu.decoding import lower
from heedful.text.tokenizer import Tokenizer
from heedful.text.words import is_unspaced

REQUIRED_BEAMS = 10


@dataclass(frozen=True)
class Request:
    """A text to translate, what its translation must begin with, and phrases it must and must not contain."""

    text: str
    prefix: str = ""
    required: Sequence[str] = ()
    banned: Sequence[str] = ()

    def __post_init__(self) -> None:
        for phrase in self.required:
            for other in self.banned:
                if other.strip() and other.strip() in phrase:
                    raise ValueError(f"the phrase {phrase!r} is required, but {other!r} is banned")


class Writer:
    """One model, or several of the same vocabulary whose probabilities are averaged. `shortlist`: which words may come
    of which; `streams`: batches written at once."""

    def __init__(
        self,
        models: Sequence[SequenceToSequence],
        tokenizers: Sequence[Tokenizer],
        *,
        shortlist: Shortlist | None = None,
        streams: int = 1,
    ) -> None:
        self.models = models
        self.quick = [lower(model) or None for model in models]
        self.source, self.target = tokenizers[0], tokenizers[-1]
        self.device = models[0].device
        self.shortlist, self.streams = shortlist, streams
        self._several: tuple[object, Streams[_Batch, list[list[Hypothesis]]], Callable[[], object]] | None = None

    def write(
        self,
        requests: list[Request],
        config: GenerationConfig,
        *,
        batch_tokens: int,
        batch_size: int | None = None,
        histories: list[History] | None = None,
        dropped: Callable[[int], bool] | None = None,
        tokens: list[list[int]] | None = None,
    ) -> list[list[Hypothesis]]:
        """Of each request, the best first; of an empty text, none. `tokens`: of the texts, if they have been tokenised.
        For the rest see `Translator.translate_all`."""
        rows = self.source.encode([request.text for request in requests]) if tokens is None else tokens
        batches: list[_Batch] = []
        for demanding in (False, True):
            # Phrases that are required change the search, so they have batches of their own.
            asked = [i for i, row in enumerate(rows) if row and bool(requests[i].required) is demanding]
            if not asked:
                continue
            lengths = np.array([[len(rows[index]) + 1] for index in asked])
            now = config if not demanding else _for_required(config)
            beams = now.num_return_sequences if now.do_sample else now.num_beams
            for chosen in cut(np.array(asked), lengths, max(1, batch_tokens // beams)):
                step = batch_size or len(chosen)
                for start in range(0, len(chosen), step):
                    some = chosen[start : start + step].tolist()
                    batches.append(_Batch(now, [_Wanted(index, rows[index], requests[index]) for index in some]))
        batches.sort(key=lambda batch: -batch.size)  # the longest first, so that streams end together
        found: list[list[Hypothesis]] = [[] for _ in rows]
        for batch, hypotheses in zip(batches, self._search_all(batches, histories, dropped), strict=True):
            for wanted, some_hypotheses in zip(batch.wanted, hypotheses, strict=True):
                found[wanted.number] = some_hypotheses
        return found

    def _search_all(
        self, batches: list["_Batch"], histories: list[History] | None, dropped: Callable[[int], bool] | None
    ) -> list[list[list[Hypothesis]]]:
        if min(self.streams, len(batches)) > 1 and histories is None and dropped is None:
            try:
                return self._started().map(batches)
            except BaseException:  # some may still be at work
                self.close()
                raise
        return [self._search(batch, histories, dropped) for batch in batches]

    def _started(self) -> "Streams[_Batch, list[list[Hypothesis]]]":
        """The streams, with the weights as they are now."""
        held = [parameter for model in self.models for parameter in model.parameters()]
        weights = [(id(one), 0 if one.is_inference() else one._version) for one in held]
        now = (weights, self.streams, id(self.shortlist))
        if self._several is None or self._several[0] != now:
            self.close()
            for one in self.quick:
                if one is not None:
                    one.refresh()
            several = Streams(self._search, self.streams)
            self._several = (now, several, weakref.finalize(self, several.close))
        return self._several[1]

    def close(self) -> None:
        """End the streams, if there are any; the next text starts them anew."""
        if self._several is not None:
            self._several[2]()
            self._several = None

    def _search(
        self,
        together: "_Batch",
        histories: list[History] | None = None,
        dropped: Callable[[int], bool] | None = None,
    ) -> list[list[Hypothesis]]:
        config = together.config
        copies = config.num_return_sequences if config.do_sample else 1
        batch = [wanted for wanted in together.wanted for _ in range(copies)]
        stepper, limits, rules = self._prepared(batch, config)
        first = torch.full((len(batch),), self.target.start, device=self.device)
        eos = self.target.eos
        if config.do_sample:
            names = [wanted.number * copies + place % copies for place, wanted in enumerate(batch)]
            drawn = sample(stepper, first, config, eos=eos, limits=limits, rules=rules, names=names)
            groups = [drawn[start : start + copies] for start in range(0, len(drawn), copies)]
            return [sorted(group, key=lambda hypothesis: -hypothesis.score) for group in groups]
        if config.num_beam_groups > 1:
            return diverse_search(stepper, first, config, eos=eos, limits=limits, rules=rules)
        gone = (lambda sentence: False) if dropped is None else lambda sentence: dropped(batch[sentence].number)
        if config.num_beams == 1 and histories is None and not rules.look_back:
            return [[one] for one in greedy(stepper, first, limits=limits, rules=rules, dropped=gone)]
        into = None if histories is None else [histories[wanted.number] for wanted in batch]
        return search(stepper, first, config, eos=eos, limits=limits, rules=rules, histories=into, dropped=gone)

    def _prepared(self, batch: list["_Wanted"], config: GenerationConfig) -> tuple[Stepper, list[int], Rules]:
        """The models with these texts read, how long each translation may become, and what must hold of it."""
        prefixes = self.target.encode([wanted.request.prefix for wanted in batch])
        required = [self._required(wanted.request.required) for wanted in batch]
        limits = self._limits(batch, prefixes, required, config)
        eos, demands = self.target.eos, list[Required]()
        if any(required):
            demands = [Required(each, limit, eos, self.continues) for each, limit in zip(required, limits, strict=True)]
        rules = Rules(
            config=config,
            eos=eos,
            never=self.target.never,
            banned=self._banned(batch),
            prefixes=prefixes if any(prefixes) else (),
            required=demands,
            stops=Stops(self.target, config.stop_strings) if config.stop_strings else None,
        )
        rows = [wanted.tokens for wanted in batch]
        padded = pad(rows, last=self.source.eos, fill=self.source.pad)
        source, valid = (tensor.to(self.device) for tensor in padded)
        allowed = self._allowed(source, prefixes, required)
        steppers: list[Stepper] = [
            SourceStepper(model, source, valid, length=max(limits), allowed=allowed, quick=laid)
            for model, laid in zip(self.models, self.quick, strict=True)
        ]
        return steppers[0] if len(steppers) == 1 else EnsembleStepper(steppers), limits, rules

    def _limits(
        self, batch: list["_Wanted"], prefixes: list[list[int]], required: list[list[Phrase]], config: GenerationConfig
    ) -> list[int]:
        least = [
            len(prefix) + sum(len(phrase.inside) + len(phrase.opening) for phrase in phrases) + 1
            for prefix, phrases in zip(prefixes, required, strict=True)
        ]
        limits = [
            max(config.max_new_tokens or 2 * len(wanted.tokens) + 10, some)
            for wanted, some in zip(batch, least, strict=True)
        ]
        most = min([max(limits), *(model.limit or max(limits) for model in self.models)])
        if most < max(least):
            raise ValueError(f"what must be written takes {max(least)} tokens, but the model writes at most {most}")
        return [min(limit, most) for limit in limits]

    def _allowed(self, source: Tensor, prefixes: list[list[int]], required: list[list[Phrase]]) -> Tensor | None:
        """With a shortlist, the words each sentence may use: its own, and those it must; sentences vocab."""
        if self.shortlist is None:
            return None
        allowed = self.shortlist.allowed(source, self.models[0].vocab)
        for row, (prefix, phrases) in enumerate(zip(prefixes, required, strict=True)):
            allowed[row, [*prefix, *(token for phrase in phrases for form in phrase.forms for token in form)]] = True
        return allowed

    def _required(self, phrases: Sequence[str]) -> list[Phrase]:
        plain = [phrase.strip() for phrase in phrases if phrase.strip()]
        opening, inside = self.target.encode(plain), self.target.encode([" " + phrase for phrase in plain])
        return [
            Phrase(tuple(first), tuple(first if is_unspaced(text) else other), whole=not is_unspaced(text[-1]))
            for text, first, other in zip(plain, opening, inside, strict=True)
        ]

    def _banned(self, batch: list["_Wanted"]) -> list[list[list[int]]]:
        """As a phrase is cut at the start of a text, and after a space."""
        if not any(wanted.request.banned for wanted in batch):
            return []
        known: dict[tuple[str, ...], list[list[int]]] = {}
        for wanted in batch:
            phrases = tuple(phrase.strip() for phrase in wanted.request.banned if phrase.strip())
            if phrases not in known:
                known[phrases] = self.target.encode([form for phrase in phrases for form in (phrase, " " + phrase)])
        return [known[tuple(p.strip() for p in wanted.request.banned if p.strip())] for wanted in batch]

    @cached_property
    def continues(self) -> Tensor:
        """Whether a token goes on with a word: it begins with a letter or digit, without a space before it."""
        texts = self.target.decode([token] for token in range(self.target.vocab))
        return torch.tensor([not is_unspaced(text[:1]) for text in texts], device=self.device)


@dataclass(frozen=True)
class _Wanted:
    """A request on its way through the search: its number, the tokens of its text."""

    number: int
    tokens: list[int]
    request: Request


@dataclass(frozen=True)
class _Batch:
    """What is searched for together."""

    config: GenerationConfig
    wanted: list[_Wanted]

    @property
    def size(self) -> int:
        return len(self.wanted) * max(len(wanted.tokens) for wanted in self.wanted)


def _for_required(config: GenerationConfig) -> GenerationConfig:
    """Phrases that are required share out the beam, so it needs some width. The likeliest text with them is wanted, by
    the sum: an average would pay for adding words, since they thin out what the phrases cost."""
    if config.do_sample or config.num_beam_groups > 1:
        raise ValueError("required phrases go with beam search; leave out do_sample and num_beam_groups")
    width = max(config.num_beams, REQUIRED_BEAMS)
    return config.model_copy(update={"num_beams": width, "length_penalty": 0.0, "alpha": 0.0})
