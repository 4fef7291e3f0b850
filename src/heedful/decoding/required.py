"""Phrases that a text must contain, by dynamic beam allocation (Post and Vilar 2018).

The beam is divided among hypotheses by how much of the phrases they contain. Otherwise, hypotheses that have paid for
an unlikely phrase would lose to those that postpone it, until none is left. A hypothesis's progress follows from its
tokens alone, so no state has to be carried along.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Partial = tuple[int, int, int]  # phrase, form, how many of its tokens are written


@dataclass(frozen=True)
class Phrase:
    """The ways a phrase may be tokenised. `opening`: at the start of a text; `inside`: anywhere else.

    `whole`: it ends in a letter or digit, so the next token must not continue the word.
    """

    opening: tuple[int, ...]
    inside: tuple[int, ...]
    whole: bool = True

    @property
    def forms(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (self.opening, self.inside)


@dataclass(frozen=True)
class Progress:
    """How much of the phrases a text contains.

    left        the minimum number of tokens that complete the missing phrases
    begun       how many more it would be if the current phrase were abandoned
    advancing   tokens that bring it closer to completion
    useful      those, and tokens that begin a phrase or continue a less advanced one
    closing     it has just completed a phrase, and with it a word
    """

    left: int
    begun: int
    advancing: frozenset[int]
    useful: frozenset[int]
    closing: bool


@dataclass(frozen=True)
class Required:
    """What one sentence's text must contain, within `limit` tokens, </s> included. `continues` (vocab): whether a
    token continues the word before it."""

    phrases: Sequence[Phrase]
    limit: int
    eos: int
    continues: Tensor

    @property
    def total(self) -> int:
        return self.progress([]).left

    def progress(self, tokens: Sequence[int]) -> Progress:
        missing, partials, closing = set(range(len(self.phrases))), set[Partial](), False
        for place, token in enumerate(tokens):
            reached = {
                (phrase, form, written + 1)
                for phrase, form, written in (*partials, *self._starts(missing, place == 0))
                if self.phrases[phrase].forms[form][written] == token
            }
            ended = [partial for partial in reached if self._is_whole(partial)]
            closing = bool(ended) and self.phrases[ended[0][0]].whole
            if ended:
                missing.discard(min(ended)[0])
            partials = set() if ended else reached
        lengths = {phrase: self._length(phrase, not tokens) for phrase in missing}
        saved = {(p, f, n): lengths[p] - len(self.phrases[p].forms[f]) + n for p, f, n in partials}
        most = max(saved.values(), default=0)
        starts = self._starts(missing, not tokens)
        nearest = [partial for partial in partials if saved[partial] == most] or starts
        return Progress(
            left=sum(lengths.values()) - most,
            begun=max(0, most),
            advancing=self._next(nearest),
            useful=self._next([*partials, *starts]),
            closing=closing,
        )

    def apply(self, log_probs: Tensor, tokens: Sequence[int]) -> None:
        """Mask tokens that would leave a phrase incomplete. log_probs: vocab, of one hypothesis"""
        now = self.progress(tokens)
        room = self.limit - len(tokens)
        forced = [self.eos] if room == 1 else []
        if now.left and room - 1 <= now.left + now.begun:  # any other token might leave too little room
            forced = [token for token in now.useful if self.progress([*tokens, token]).left <= room - 2]
        if forced:
            kept = log_probs[forced]
            log_probs.fill_(-torch.inf)
            log_probs[forced] = torch.where(kept == -torch.inf, 0.0, kept)
        elif now.closing:
            log_probs[self.continues] = -torch.inf
        if now.left:
            log_probs[self.eos] = -torch.inf

    def choose(self, totals: Tensor, beams: Sequence[Sequence[int]], count: int) -> tuple[list[int], list[int]]:
        """The best continuations (totals: beams vocab) that end the text, and those that do not: at most `count` each,
        as indices into the flattened table."""
        vocab = totals.shape[1]
        best = totals.flatten().topk(min(count, totals.numel())).indices.tolist()
        wanted = set(best) | {beam * vocab + int(token) for beam, token in enumerate(totals.argmax(1))}
        for beam, tokens in enumerate(beams):
            now = self.progress(tokens)
            wanted |= {beam * vocab + token for token in now.advancing}
            if not now.left:
                wanted.add(beam * vocab + self.eos)
        scores = {place: float(totals.flatten()[place]) for place in wanted}
        ranked = sorted((place for place in wanted if scores[place] > -torch.inf), key=lambda place: -scores[place])
        left = {place: self.progress([*beams[place // vocab], place % vocab]).left for place in ranked}
        complete = [place for place in ranked if left[place] == 0][:count]
        ending = [place for place in complete if place % vocab == self.eos]
        going = [place for place in ranked if place % vocab != self.eos]
        return ending, share_out([(self.total - left[place], place) for place in going], self.total + 1, count)

    def _starts(self, missing: set[int], opening: bool) -> list[Partial]:
        return [(phrase, form, 0) for phrase in missing for form in ((0, 1) if opening else (1,))]

    def _next(self, partials: Sequence[Partial]) -> frozenset[int]:
        return frozenset(self.phrases[phrase].forms[form][written] for phrase, form, written in partials)

    def _is_whole(self, partial: Partial) -> bool:
        phrase, form, written = partial
        return written == len(self.phrases[phrase].forms[form])

    def _length(self, phrase: int, opening: bool) -> int:
        """In tokens; the upper bound where either form is possible."""
        return max(map(len, self.phrases[phrase].forms)) if opening else len(self.phrases[phrase].inside)


def share_out(ranked: Sequence[tuple[int, int]], banks: int, count: int) -> list[int]:
    """Pick `count` of these (bank, item), best first: equally many from each bank, the remainder from the last; slots
    that a bank cannot fill go to the best of the rest."""
    room = [count // banks] * banks
    room[-1] += count % banks
    chosen, rest = [], []
    for bank, item in ranked:
        if room[bank]:
            room[bank] -= 1
            chosen.append(item)
        else:
            rest.append(item)
    return chosen + rest[: count - len(chosen)]
