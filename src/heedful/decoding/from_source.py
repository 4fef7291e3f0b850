"""How decoding starts for sequence-to-sequence models: the source is encoded, and constraints become rules."""

from collections.abc import Sequence
from functools import cached_property, partial

import torch
from torch import Tensor

from heedful.bank import ChosenStepper, numbers
from heedful.data.languages import Languages
from heedful.data.padding import pad
from heedful.decoding.generation import PARALLEL, GenerationConfig
from heedful.decoding.required import Phrase, Required
from heedful.decoding.rules import Rules, banned_forms
from heedful.decoding.runner import Job, Request, Start, numbered
from heedful.decoding.shortlist import Shortlist
from heedful.decoding.stepper import EnsembleStepper, SourceStepper, Stepper
from heedful.decoding.stops import Stops
from heedful.model.architecture import SequenceToSequence
from heedful.model.cpu.decoding import Lowered, lower
from heedful.text.tokenizer import Tokenizer
from heedful.text.words import is_unspaced

REQUIRED_BEAMS = 10


class FromSource:
    """One model, or several with the same vocabulary whose probabilities are averaged. `shortlist`: the target tokens
    to consider for each source token; `languages`: the language tokens, if the models have any; `adapters`: the names
    of those that texts may choose (see `bank.py`)."""

    def __init__(
        self,
        models: Sequence[SequenceToSequence],
        tokenizers: Sequence[Tokenizer],
        *,
        shortlist: Shortlist | None = None,
        languages: Languages | None = None,
        adapters: Sequence[str] = (),
    ) -> None:
        self.models, self.adapters = models, tuple(adapters)
        self.languages = languages or Languages(tokenizers)
        self.quick = [lower(model) or None for model in models]
        self.source, self.target = tokenizers[0], tokenizers[-1]
        self.device = models[0].device
        self.shortlist = shortlist

    def groups(
        self, rows: Sequence[list[int]], requests: Sequence[Request], config: GenerationConfig
    ) -> list[tuple[GenerationConfig, list[Job]]]:
        """The jobs of these texts, grouped by settings, since required phrases change the search, and by the tokens of
        the translations before them, which are read in one pass without padding."""
        config.refuse(PARALLEL, "is for models that write all words at once, and this one writes word by word")
        groups: dict[tuple[bool, int], list[Job]] = {}
        jobs = numbered(rows, requests)
        for job, before in zip(jobs, self.written_before([job.request for job in jobs]), strict=True):
            groups.setdefault((bool(job.request.required), len(before)), []).append(job)
        return [(_for_required(config) if required else config, some) for (required, _), some in groups.items()]

    def size(self, tokens: Sequence[int], config: GenerationConfig) -> int:
        return len(tokens) + 1

    @property
    def key(self) -> object:
        return id(self.shortlist)

    def refresh(self) -> None:
        for one in self.quick:
            if one is not None:
                one.refresh()

    def start(self, jobs: Sequence[Job], config: GenerationConfig) -> Start:
        asked = [job.request for job in jobs]
        framings = [self.languages.framing(one.source, one.target, one.length) for one in asked]
        before = self.written_before(asked)
        own = self.target.encode([one.prefix for one in asked])
        prefixes = [[*framing.forced, *prefix] for framing, prefix in zip(framings, own, strict=True)]
        required = [self._required(job.request.required) for job in jobs]
        limits = self._limits(jobs, len(before[0]), prefixes, required, config)
        eos, demands = self.target.eos, list[Required]()
        if any(required):
            demands = [Required(each, limit, eos, self.continues) for each, limit in zip(required, limits, strict=True)]
        rules = Rules(
            config=config,
            eos=eos,
            never=self.target.never,
            banned=banned_forms(self.target, [job.request.banned for job in jobs]),
            prefixes=prefixes if any(prefixes) else (),
            required=demands,
            stops=Stops(self.target, config.stop_strings) if config.stop_strings else None,
        )
        framed = [framing.source(job.tokens) for framing, job in zip(framings, jobs, strict=True)]
        padded = pad(framed, fill=self.source.pad)
        source, valid = (tensor.to(self.device) for tensor in padded)
        allowed = self._allowed(source, prefixes, required)
        length = len(before[0]) + max(limits)
        given = torch.tensor(
            [[framing.start, *some] for framing, some in zip(framings, before, strict=True)], device=self.device
        )

        def begun(model: SequenceToSequence, quick: Lowered | None) -> SourceStepper:
            found = SourceStepper(model, source, valid, length=length, allowed=allowed, quick=quick)
            if given.shape[1] > 1:
                found.steps.read(given[:, :-1])
            return found

        adapters = numbers([job.request.adapter for job in jobs], self.adapters)
        begins = [partial(begun, *both) for both in zip(self.models, self.quick, strict=True)]
        steppers: list[Stepper] = [one() if adapters is None else ChosenStepper(one, adapters) for one in begins]
        stepper = steppers[0] if len(steppers) == 1 else EnsembleStepper(steppers)
        return Start(stepper, given[:, -1], limits, rules)

    def written_before(self, requests: Sequence[Request]) -> list[list[int]]:
        """The tokens of the translations of the sentences before, each followed by a break."""
        texts = iter(self.target.encode([target for request in requests for _, target in request.context]))
        return [
            [token for _ in request.context for token in (*next(texts), self.target.sentence_break)]
            for request in requests
        ]

    def _limits(
        self,
        jobs: Sequence[Job],
        before: int,
        prefixes: list[list[int]],
        required: list[list[Phrase]],
        config: GenerationConfig,
    ) -> list[int]:
        least = [
            len(prefix) + sum(len(phrase.inside) + len(phrase.opening) for phrase in phrases) + 1
            for prefix, phrases in zip(prefixes, required, strict=True)
        ]
        limits = [
            max(config.max_new_tokens or 2 * self._own_length(job) + 10, some)
            for job, some in zip(jobs, least, strict=True)
        ]
        longest = before + max(limits)
        most = min([longest, *(model.limit or longest for model in self.models)]) - before
        if most < max(least):
            needed = max(least)
            raise ValueError(f"prefix and required phrases take {needed} tokens, but the model writes at most {most}")
        return [min(limit, most) for limit in limits]

    def _own_length(self, job: Job) -> int:
        """The tokens of a source, without the sentences before it."""
        if not job.request.context:
            return len(job.tokens)
        return job.tokens[::-1].index(self.source.sentence_break)

    def _allowed(self, source: Tensor, prefixes: list[list[int]], required: list[list[Phrase]]) -> Tensor | None:
        """With a shortlist, the tokens each sentence may use, those it must contain included: sentences vocab."""
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

    @cached_property
    def continues(self) -> Tensor:
        """Whether a token continues a word: it begins with a letter or digit, without a space before it."""
        texts = self.target.decode([token] for token in range(self.target.vocab))
        return torch.tensor([not is_unspaced(text[:1]) for text in texts], device=self.device)


def _for_required(config: GenerationConfig) -> GenerationConfig:
    """Required phrases divide the beam, so it needs some width. Hypotheses are ranked by total log-probability: an
    average would reward extra words, which dilute the cost of the phrases."""
    if config.do_sample or config.num_beam_groups > 1:
        raise ValueError("required phrases need plain beam search; leave out do_sample and num_beam_groups")
    width = max(config.num_beams, REQUIRED_BEAMS)
    return config.model_copy(update={"num_beams": width, "length_penalty": 0.0, "alpha": 0.0})
