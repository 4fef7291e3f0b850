"""Which span of a context answers a question: the best pair of a first and a last token, over all windows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from heedful.data.squad import text_span
from heedful.tasks._reading import Windows

KEPT = 50  # best spans of tokens, of which several may be the same characters
SHOWN = 4  # the answer and three alternatives


@dataclass(frozen=True)
class Context:
    """A context, and the character span of each of its tokens."""

    text: str
    offsets: Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Span:
    """Characters [start, end) of a context, and the score of its tokens: first logit + last logit."""

    score: float
    start: int
    end: int


@dataclass(frozen=True)
class Found:
    """The best spans, best first; none if no token of the context can be an answer. `null`: the score of "no answer",
    the lowest of all windows, since one that has no answer says nothing about the others. `total`: log of the sum of
    exp(score) over all spans and null."""

    spans: list[Span]
    null: float
    total: float

    @property
    def advantage(self) -> float:
        """How much better "no answer" is than the best span; 0 if there is none, which leaves no choice."""
        return self.null - self.spans[0].score if self.spans else 0.0

    def probability(self, score: float) -> float:
        """Among all spans and "no answer"."""
        return float(np.exp(score - self.total))


def contents(texts: Windows, last: int) -> Tensor:
    """How many tokens of its context each window has. `last`: the number of special tokens after them."""
    return texts.valid.sum(1) - texts.offset - last


def targets(texts: Windows, spans: Sequence[tuple[int, int] | None], last: int) -> tuple[Tensor, Tensor]:
    """Where in each window the answer of its text starts and ends; at the first token (null) if the window does not
    contain all of it.      Devlin et al. 2019, section 4.3

    `spans`: the first and last token of each text's answer in its context; None = no answer.
    """
    wanted = torch.tensor([span or (-1, -1) for span in spans], device=texts.owner.device)[texts.owner]
    inside = wanted - texts.start[:, None]  # windows 2
    held = (wanted[:, 0] >= 0) & (inside[:, 0] >= 0) & (inside[:, 1] < contents(texts, last))
    places = torch.where(held[:, None], inside + texts.offset[:, None], torch.zeros_like(inside))
    return places[:, 0], places[:, 1]


def search(logits: Tensor, texts: Windows, contexts: Sequence[Context], *, last: int, longest: int) -> Iterator[Found]:
    """What is found in each text, by the logits of its windows (windows length 2). Answers have at most `longest`
    tokens."""
    scores = logits.float().cpu().numpy()
    owner, start, offset, sizes = (
        part.cpu().numpy() for part in (texts.owner, texts.start, texts.offset, contents(texts, last))
    )
    for text, context in enumerate(contexts):
        seen = np.array([not context.text[begin:end].isspace() and begin < end for begin, end in context.offsets], bool)
        table = np.full((len(seen), longest), -np.inf)  # the score of each span, the best of all windows that have it
        null = np.inf
        for window in np.flatnonzero(owner == text):
            first, size = int(start[window]), int(sizes[window])
            held = scores[window, offset[window] : offset[window] + size]
            part = table[first : first + size]
            np.maximum(part, _table(held, seen[first : first + size], longest), out=part)
            null = min(null, float(scores[window, 0].sum()))
        spans: dict[tuple[int, int], float] = {}
        for score, begin, end in _highest(table):
            place = text_span(context.offsets, context.text, begin, end)
            spans[place] = max(score, spans.get(place, -np.inf))
        best = sorted((Span(score, *place) for place, score in spans.items()), key=lambda span: -span.score)
        yield Found(best[:SHOWN], null, _log_sum(np.append(table, null)))


def _table(scores: np.ndarray, seen: np.ndarray, longest: int) -> np.ndarray:
    """The score of each span that starts at a token (row) and has one token more than the column's number. A token
    without visible characters is neither the first nor the last."""
    scores = np.where(seen[:, None], scores, -np.inf).astype(np.float64)
    ends = np.concatenate([scores[:, 1], np.full(longest - 1, -np.inf)])
    if not len(scores):
        return np.zeros((0, longest))
    return scores[:, :1] + np.lib.stride_tricks.sliding_window_view(ends, longest)


def _highest(table: np.ndarray) -> Iterator[tuple[float, int, int]]:
    """The highest scores of a table, each with its first and last token."""
    flat = table.ravel()
    places = np.argpartition(-flat, KEPT)[:KEPT] if len(flat) > KEPT else np.arange(len(flat))
    for place in places:
        if np.isfinite(flat[place]):
            begin, more = divmod(int(place), table.shape[1])
            yield float(flat[place]), begin, begin + more


def _log_sum(scores: np.ndarray) -> float:
    top = scores.max(initial=-np.inf)
    return float(top + np.log(np.exp(scores - top).sum())) if np.isfinite(top) else -np.inf
