"""Decoding for models that write all words at once: which fertilities or lengths to try, and which result to keep.

    fertilities argmax     the most likely fertility of each source token       Gu et al. 2018, section 3.4
    fertilities average    the expected one, rounded
    noisy n                besides, n samples; a teacher that writes word by word chooses among the results, which it
                           scores in a single pass (noisy parallel decoding)
    mask_predict           all words, then the least certain ones again, given the others      Ghazvininejad et al. 2019

A text's result depends on nothing but the text and the settings: samples are drawn from the seed and the text itself.
"""

import zlib
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from heedful.data.padding import pad
from heedful.decoding.beam import Hypothesis
from heedful.decoding.generation import GenerationConfig
from heedful.decoding.runner import Job, Request, numbered
from heedful.model.architecture import Encoded, ParallelSequenceToSequence, SequenceToSequence
from heedful.model.cpu.kernels import largest, log_softmax
from heedful.model.cpu.parallel import lower_parallel
from heedful.text.tokenizer import Tokenizer

STEPWISE = ("do_sample", "num_beam_groups", "diversity_penalty", "min_new_tokens", "no_repeat_ngram_size",
            "repetition_penalty", "early_stopping", "renormalize_logits", "temperature", "top_k", "top_p",
            "min_p", "stop_strings")  # fmt: skip
USUAL_BEAMS = GenerationConfig().num_beams
Teacher = Callable[[], SequenceToSequence]


class AtOnce:
    """A starter for `Runner`. `teacher` loads the model that chooses among noisy results."""

    def __init__(
        self, model: ParallelSequenceToSequence, tokenizers: Sequence[Tokenizer], *, teacher: Teacher | None = None
    ) -> None:
        self.model, self.models = model, [model]
        self.quick = lower_parallel(model) or None
        self.source, self.target = tokenizers[0], tokenizers[-1]
        self.device = model.device
        self._load_teacher = teacher
        self.teacher: SequenceToSequence | None = None
        self.barred = torch.tensor([*self.target.never, self.target.eos], device=self.device)

    def groups(
        self, rows: Sequence[list[int]], requests: Sequence[Request], config: GenerationConfig
    ) -> list[tuple[GenerationConfig, list[Job]]]:
        """The jobs of these texts. What only a search word by word can do is refused."""
        self._check(config)
        for request in requests:
            if request.prefix or request.required or request.banned:
                raise ValueError(
                    "a model that writes all words at once takes no prefix and no required or banned phrases; leave "
                    "them out, or translate with a model that writes word by word"
                )
        if config.noisy and self.teacher is None:
            if self._load_teacher is None:
                raise ValueError("noisy decoding needs the teacher, which chooses among the results; give its folder: "
                                 "heedful.load(MODEL, teacher=FOLDER), --teacher FOLDER")  # fmt: skip
            self.teacher = self._load_teacher().to(self.device).eval()
        return [(config.model_copy(update={"num_beams": 1}), numbered(rows, requests))]

    def _check(self, config: GenerationConfig) -> None:
        config.refuse(STEPWISE, "is for models that write word by word, and this one writes all words at once")
        if config.num_beams > max(USUAL_BEAMS, config.num_return_sequences):
            more = "length_beam" if self.model.method == "mask_predict" else "noisy"
            raise ValueError(f"num_beams {config.num_beams}: this model writes all words at once and has no beam; "
                             f"leave it out, or raise {more}")  # fmt: skip
        if self.model.method == "fertility":
            config.refuse(("iterations", "length_beam"), "is for mask-predict, and this model copies by fertility")
        else:
            config.refuse(("fertilities", "noisy"), "is for models with fertilities, and this one predicts masks")

    def size(self, tokens: Sequence[int], config: GenerationConfig) -> int:
        """How much of a batch's budget a text takes, in tokens."""
        copies = 1 + config.noisy if self.model.method == "fertility" else config.length_beam
        return (len(tokens) + 1) * copies

    @property
    def key(self) -> object:
        return id(self.teacher)

    def refresh(self) -> None:
        if self.quick is not None:
            self.quick.refresh()

    @torch.inference_mode()
    def write(self, jobs: Sequence[Job], config: GenerationConfig) -> list[list[Hypothesis]]:
        """The hypotheses of each job, best first."""
        self.refresh()
        padded = pad([job.tokens for job in jobs], last=self.source.eos, fill=self.source.pad)
        source, valid = (tensor.to(self.device) for tensor in padded)
        encoded = (self.quick or self.model).encode(source, valid=valid)
        most = self.model.limit or source.shape[1] * 2 + 10
        limits = [min(config.max_new_tokens or 2 * len(job.tokens) + 10, most) for job in jobs]
        if self.model.method == "mask_predict":
            every = self._by_masks(encoded, valid, limits, config)
        else:
            every = self._by_fertilities(encoded, valid, limits, config, jobs)
            if config.noisy:
                every = self._chosen(source, valid, every, config)
        return [_best(some, config.num_return_sequences) for some in every]

    def _by_fertilities(
        self, encoded: Encoded, valid: Tensor, limits: list[int], config: GenerationConfig, jobs: Sequence[Job]
    ) -> list[list[Hypothesis]]:
        """One hypothesis, and one more for each sample."""
        counts = fertilities(encoded.fertilities, valid, config, [_name(job) for job in jobs])  # batch copies source
        most = torch.tensor(limits, device=counts.device)[:, None, None]
        cut = counts.cumsum(-1).clamp(max=most).diff(dim=-1, prepend=counts.new_zeros(*counts.shape[:2], 1))
        ended, rows = (counts.sum(-1) == cut.sum(-1)).flatten().tolist(), cut.flatten(0, 1)
        model = self.quick or self.model
        inputs, real = model.copied(encoded, rows)
        tokens, values = self._words(model.decode(inputs, encoded, valid=real), real)
        copies, copied = counts.shape[1], rows.tolist()
        found = [
            _hypothesis(
                tokens[row],
                values[row],
                config,
                ended=ended[row],
                fertilities=copied[row][: len(jobs[row // copies].tokens) + 1],
            )
            for row in range(len(tokens))
        ]
        return [found[start : start + copies] for start in range(0, len(found), copies)]

    def _by_masks(
        self, encoded: Encoded, valid: Tensor, limits: list[int], config: GenerationConfig
    ) -> list[list[Hypothesis]]:
        """One hypothesis for each length tried. In step t of T, a share of (T - t) / T of the words, those the model is
        least certain of, are masked and written again."""
        lengths = likely_lengths(encoded.fertilities, valid, limits, config.length_beam)  # batch lengths
        flat, model = lengths.flatten(), self.quick or self.model
        real = torch.arange(int(flat.max()), device=flat.device) < flat[:, None]
        tokens, sure = torch.zeros_like(real, dtype=torch.long), torch.zeros_like(real, dtype=torch.float32)
        for step in range(config.iterations):
            again = flat * (config.iterations - step) // config.iterations
            ranks = sure.masked_fill(~real, torch.inf).argsort(dim=1, stable=True).argsort(dim=1)
            hidden = ranks < again[:, None]
            if not bool(hidden.any()):
                break
            states = model.decode(model.masked(tokens, hidden), encoded, valid=real)
            sure[hidden], tokens[hidden] = self._likely(states[hidden])
        sizes = flat.tolist()
        found = [
            _hypothesis(row[:size], certain[:size], config)
            for row, certain, size in zip(tokens.tolist(), sure.tolist(), sizes, strict=True)
        ]
        return [found[start : start + lengths.shape[1]] for start in range(0, len(found), lengths.shape[1])]

    def _words(self, states: Tensor, real: Tensor) -> tuple[list[list[int]], list[list[float]]]:
        """The most likely token at each real position, and its log-probability, row by row."""
        values, tokens = (one.tolist() for one in self._likely(states[real]))
        ends = real.sum(1).cumsum(0).tolist()
        spans = list(zip([0, *ends[:-1]], ends, strict=True))
        return [tokens[start:end] for start, end in spans], [values[start:end] for start, end in spans]

    def _likely(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """(log-probability, token) of the most likely word of each state."""
        log_probs = log_softmax((self.quick or self.model).logits(states)).index_fill_(-1, self.barred, -torch.inf)
        values, tokens = largest(log_probs, 1)
        return values[:, 0], tokens[:, 0]

    def _chosen(
        self, source: Tensor, valid: Tensor, every: list[list[Hypothesis]], config: GenerationConfig
    ) -> list[list[Hypothesis]]:
        """Scored by the teacher, which reads all results at once and does not have to write them."""
        assert self.teacher is not None
        rows = [one.tokens for some in every for one in some]
        read, real = (one.to(self.device) for one in pad(rows, first=self.target.start, fill=self.target.pad))
        wanted = pad(rows, last=self.target.eos, fill=self.target.pad)[0].to(self.device)
        states = self.teacher.decode(read, self.teacher.encode(source, valid=valid))
        log_probs = torch.zeros_like(wanted, dtype=torch.float32)
        log_probs[real] = log_softmax(self.teacher.logits(states[real])).gather(1, wanted[real][:, None])[:, 0]
        scores = [config.rank(sum(values[: len(row) + 1]), len(row) + 1)
                  for row, values in zip(rows, log_probs.tolist(), strict=True)]  # fmt: skip
        judged = iter(scores)
        return [[Hypothesis(**{**vars(one), "score": next(judged)}) for one in some] for some in every]


def fertilities(scores: Tensor, valid: Tensor, config: GenerationConfig, names: Sequence[int]) -> Tensor:
    """The fertilities to try, of which at least one per text is not zero: batch (1 + noisy) source. scores: batch
    source (highest fertility + 1)"""
    probabilities = scores.double().softmax(-1)
    if config.fertilities == "average":
        first = (probabilities @ torch.arange(scores.shape[-1], device=scores.device).double()).round().long()
    else:
        first = scores.argmax(-1)
    found = [first[:, None]]
    if config.noisy:
        found.append(_sampled(probabilities, valid, config, names))
    counts = torch.cat(found, dim=1).masked_fill(~valid[:, None], 0)
    likely = probabilities[..., 1:].amax(-1).masked_fill(~valid, 0).argmax(-1)  # where a word is likeliest
    nothing = counts.sum(-1) == 0
    counts[nothing, likely[:, None].expand_as(nothing)[nothing]] = 1
    return counts


def _sampled(probabilities: Tensor, valid: Tensor, config: GenerationConfig, names: Sequence[int]) -> Tensor:
    """batch noisy source"""
    sums = probabilities.cumsum(-1).cpu().numpy()
    drawn = np.zeros((len(sums), config.noisy, sums.shape[1]), dtype=np.int64)
    for row, (name, length) in enumerate(zip(names, valid.sum(1).tolist(), strict=True)):
        chance = np.random.default_rng((config.seed or 0, name)).random((config.noisy, length, 1))
        drawn[row, :, :length] = (chance > sums[row, :length, :-1]).sum(-1)
    return torch.from_numpy(drawn).to(probabilities.device)


def likely_lengths(scores: Tensor, valid: Tensor, limits: Sequence[int], count: int) -> Tensor:
    """The most likely lengths of the target, the sum of independent fertilities: batch (at most count). The
    distribution of a sum is the convolution of theirs, which is a product of their Fourier transforms. scores: as
    above"""
    _, source, size = scores.shape
    probabilities = scores.double().softmax(-1).cpu()
    nothing = torch.zeros(size, dtype=torch.double)
    nothing[0] = 1
    probabilities = torch.where(valid.cpu()[..., None], probabilities, nothing)
    room = source * (size - 1) + 1
    sums = torch.fft.irfft(torch.fft.rfft(probabilities, n=room).prod(1), n=room)  # batch length
    most = torch.tensor(limits)[:, None]
    allowed = (torch.arange(room) >= 1) & (torch.arange(room) <= most)
    chosen = sums.masked_fill(~allowed, -1).topk(min(count, min(limits), room - 1)).indices
    return chosen.to(scores.device)


def _name(job: Job) -> int:
    """What a text's random numbers depend on besides the seed."""
    return zlib.crc32(np.array(job.tokens, dtype=np.int64).tobytes())


def _hypothesis(
    tokens: list[int],
    log_probs: list[float],
    config: GenerationConfig,
    *,
    ended: bool = True,
    fertilities: list[int] | None = None,
) -> Hypothesis:
    total = sum(log_probs)
    return Hypothesis(tokens, config.rank(total, max(1, len(tokens))), total, log_probs, ended, fertilities)


def _best(found: list[Hypothesis], count: int) -> list[Hypothesis]:
    """The best ones that differ."""
    order = sorted(found, key=lambda one: -one.score)
    return list({tuple(one.tokens): one for one in reversed(order)}.values())[::-1][:count]
