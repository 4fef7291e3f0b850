"""Constraints on the output: applied to the log-probabilities before a search sees them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.decoding.generation import GenerationConfig
from heedful.decoding.required import Required
from heedful.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Rules:
    """The rules of one batch.

    never     tokens that are never written (padding, the start)
    banned    for each sentence the phrases that are never written, as token ids
    prefixes  for each sentence the tokens its text must begin with; empty = free
    required  for each sentence what its text must contain
    stops     whether a text, as tokens, ends here
    """

    config: GenerationConfig
    eos: int
    never: tuple[int, ...] = ()
    banned: Sequence[Sequence[Sequence[int]]] = ()
    prefixes: Sequence[Sequence[int]] = ()
    required: Sequence[Required] = ()
    stops: Callable[[list[int]], bool] | None = None

    @property
    def look_back(self) -> bool:
        """Whether the rules depend on which tokens were written, not only on how many."""
        again = self.config.repetition_penalty != 1.0 or self.config.no_repeat_ngram_size
        return bool(again or any(self.banned) or self.required or self.stops)

    def apply(self, log_probs: Tensor, written: Tensor, sentences: list[int]) -> Tensor:
        """log_probs: sentences beams vocab; written: sentences beams length; `sentences`: their numbers."""
        length = written.shape[2]
        banned = [*self.never, self.eos] if length < self.config.min_new_tokens else self.never
        if banned:
            log_probs.index_fill_(-1, torch.tensor(banned, device=log_probs.device), -torch.inf)
        if self.config.repetition_penalty != 1.0 and length:
            log_probs = _penalise_repetition(log_probs, written, self.config.repetition_penalty)
        if self.config.no_repeat_ngram_size and length >= self.config.no_repeat_ngram_size - 1:
            _ban_repeated(log_probs, written, self.config.no_repeat_ngram_size)
        for place, sentence in enumerate(sentences):
            for phrase in self.banned[sentence] if self.banned else ():
                _ban_phrase(log_probs[place], written[place], phrase)
            if self.required:
                for beam, tokens in enumerate(written[place].tolist()):
                    self.required[sentence].apply(log_probs[place, beam], tokens)
            if self.prefixes and length < len(self.prefixes[sentence]):
                _force(log_probs[place], self.prefixes[sentence][length])
        return log_probs.log_softmax(-1) if self.config.renormalize_logits else log_probs


def banned_forms(tokenizer: Tokenizer, banned: Sequence[Sequence[str]]) -> list[list[list[int]]]:
    """The banned phrases of each text as tokens, both as tokenised at the start of a text and after a space."""
    if not any(banned):
        return []
    wanted = [tuple(phrase.strip() for phrase in phrases if phrase.strip()) for phrases in banned]
    known = {
        phrases: tokenizer.encode([form for phrase in phrases for form in (phrase, " " + phrase)])
        for phrases in set(wanted)
    }
    return [known[phrases] for phrases in wanted]


def _penalise_repetition(log_probs: Tensor, written: Tensor, penalty: float) -> Tensor:
    """Keskar et al. 2019, section 4.1, on log-probabilities: all are negative, so all are multiplied."""
    seen = log_probs.gather(-1, written) * penalty
    return log_probs.scatter(-1, written, seen)


def _ban_repeated(log_probs: Tensor, written: Tensor, size: int) -> None:
    """Ban tokens that would repeat an n-gram of this size."""
    length = written.shape[2]
    if size == 1:
        log_probs.scatter_(-1, written, -torch.inf)
        return
    if length < size:
        return
    runs = written.unfold(2, size, 1)  # sentences beams runs size
    tail = written[..., length - size + 1 :]
    same = (runs[..., :-1] == tail[:, :, None]).all(-1)
    for sentence, beam, place in same.nonzero().tolist():
        log_probs[sentence, beam, runs[sentence, beam, place, -1]] = -torch.inf


def _ban_phrase(log_probs: Tensor, written: Tensor, phrase: Sequence[int]) -> None:
    """Ban the last token of a phrase whose other tokens have just been written. log_probs: beams vocab"""
    before = len(phrase) - 1
    if before > written.shape[1]:
        return
    tail = written[:, written.shape[1] - before :]
    starts = (tail == torch.tensor(phrase[:-1], device=written.device, dtype=written.dtype)).all(-1)
    log_probs[..., phrase[-1]] = log_probs[..., phrase[-1]].masked_fill(starts, -torch.inf)


def _force(log_probs: Tensor, token: int) -> None:
    """Allow only this token; it keeps its log-probability, so that scores remain the model's."""
    kept = log_probs[..., token].clone()
    log_probs.fill_(-torch.inf)
    log_probs[..., token] = torch.where(kept == -torch.inf, torch.zeros_like(kept), kept)
