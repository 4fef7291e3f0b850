"""A linear-chain conditional random field: the score of a tag depends on the tag before it, too."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Crf(nn.Module):
    """Scores of whole tag sequences.      Lafferty et al. 2001; Lample et al. 2016 for tagging

        score(y) = a_{y_1} + sum_i s_{i, y_i} + sum_i T_{y_i, y_{i+1}} + b_{y_n}
        log p(y) = score(y) - log sum_y' exp score(y')

    s are the scores of each word alone (batch words classes), `valid` (batch words) is True where there is a word;
    padding comes last.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.zeros(classes))
        self.last = nn.Parameter(torch.zeros(classes))
        self.transitions = nn.Parameter(torch.zeros(classes, classes))  # from to

    @torch.no_grad()
    def first_weights(self) -> None:
        """Zeros: at first, tags do not depend on each other."""
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def log_likelihood(self, scores: Tensor, tags: Tensor, valid: Tensor) -> Tensor:
        """log p of each sequence: batch."""
        return self._score(scores, tags, valid) - self._log_total(scores, valid)

    def _score(self, scores: Tensor, tags: Tensor, valid: Tensor) -> Tensor:
        ends = tags.gather(1, valid.sum(1, keepdim=True) - 1)[:, 0]
        words = scores.gather(2, tags[..., None])[..., 0] * valid
        steps = self.transitions[tags[:, :-1], tags[:, 1:]] * valid[:, 1:]
        return self.first[tags[:, 0]] + words.sum(1) + steps.sum(1) + self.last[ends]

    def _log_total(self, scores: Tensor, valid: Tensor) -> Tensor:
        """The forward algorithm: log sum over all sequences of exp(score)."""
        total = self.first + scores[:, 0]  # batch classes
        for place in range(1, scores.shape[1]):
            further = torch.logsumexp(total[:, :, None] + self.transitions, dim=1) + scores[:, place]
            total = torch.where(valid[:, place, None], further, total)
        return torch.logsumexp(total + self.last, dim=1)

    @torch.no_grad()
    def decode(self, scores: Tensor, valid: Tensor, allowed: "Allowed | None" = None) -> Tensor:
        """The best sequence of each row, by Viterbi's algorithm: batch words; 0 in padding. Transitions that are not
        `allowed` never occur."""
        first: Tensor = self.first
        transitions: Tensor = self.transitions
        if allowed is not None:
            first = first.masked_fill(~allowed.first.to(first.device), -torch.inf)
            transitions = transitions.masked_fill(~allowed.transitions.to(first.device), -torch.inf)
        best, before = first + scores[:, 0], []
        stay = torch.arange(scores.shape[2], device=scores.device)
        for place in range(1, scores.shape[1]):
            further, source = (best[:, :, None] + transitions).max(1)
            real = valid[:, place, None]
            best = torch.where(real, further + scores[:, place], best)
            before.append(torch.where(real, source, stay))  # in padding, each tag comes from itself
        tag = (best + self.last).argmax(1)
        found = [tag]
        for source in reversed(before):
            tag = source.gather(1, tag[:, None])[:, 0]
            found.append(tag)
        return torch.stack(found[::-1], dim=1) * valid


class Allowed:
    """Which tags may begin a text, and which may follow each other (from to), by IOB2: I-X only after B-X or I-X."""

    def __init__(self, tags: Sequence[str]) -> None:
        self.first = torch.tensor([not tag.startswith("I") for tag in tags])
        self.transitions = torch.tensor(
            [[after[0] != "I" or (tag[0] in "BI" and tag[1:] == after[1:]) for after in tags] for tag in tags]
        )
