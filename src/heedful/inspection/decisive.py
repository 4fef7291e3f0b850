"""Which words decided: how much each word of a text adds to what a classifier or regressor says about it.

gradient    sum over the tokens of a word of e . df/de, e the token's embedding and f the logit of the label (or the
            number that is predicted).      Gradient x input, Shrikumar et al. 2016
            Equals the exact contribution where f is linear in the embeddings; elsewhere it is a first-order estimate.
occlusion   p(text) - p(text with the word replaced by the mask token), p the probability of the label (or the number).
            Zeiler and Fergus 2014; Li et al. 2016, section 3

The model knows nothing of it: a hook on its embedding keeps the vectors that the gradient is taken of.
"""

import math
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from heedful.data.padding import Row
from heedful.model.architecture import Reader
from heedful.model.input import Input
from heedful.tasks._labelled import Opened
from heedful.tasks._reading import Windows, in_batches, read, windows
from heedful.tasks.classification import HEAD, Classifier
from heedful.tasks.regression import Regressor
from heedful.text.tokenizer import Tokenizer
from heedful.text.words import word_spans

MOST_OCCLUDED = 64  # words: each needs a pass of its own
BATCH = 512  # tokens at a time, between two looks at the clock


@dataclass(frozen=True)
class Target:
    """What is explained: a label or `score`. `logit` is what the gradient is taken of, `value` what occlusion compares;
    both take the head's output (texts classes) and give a number for each text."""

    name: str
    logit: Callable[[Tensor], Tensor]
    value: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Word:
    """`input`: which of the texts it is in; `tokens`: the numbers of its tokens, counted over all texts."""

    text: str
    input: int
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Weighed:
    """`occlusion` is None where it was left out; see `MOST_OCCLUDED`."""

    text: str
    input: int
    gradient: float
    occlusion: float | None


@dataclass(frozen=True)
class Decisive:
    """`value`: the probability of the label `target`, or the number. `special_tokens`: the part of the gradient view
    that falls on no word. `replacement`: the token that occluded words are replaced by."""

    target: str
    value: float
    words: list[Weighed]
    special_tokens: float
    replacement: str

    def as_data(self) -> dict[str, Any]:
        return asdict(self)


def decisive(
    use: Classifier | Regressor,
    texts: Sequence[str],
    *,
    label: str = "",
    most: int = MOST_OCCLUDED,
    until: float = math.inf,
) -> Decisive:
    """How each word of a text, or of a pair of texts, bears on the prediction. `label`: the one to explain; by default
    the most likely. If there are more than `most` words, only those with the largest gradients are occluded. `until`:
    when to give up, on the clock of time.monotonic()."""
    opened = use.opened
    rows, words = split(texts, opened.tokenizer)
    logits = outputs(opened, [rows])
    target = target_of(use, logits[0], label)
    by_token, special = gradients(opened, rows, target)
    slopes = [sum(by_token[place] for place in word.tokens) for word in words]
    order = sorted(range(len(words)), key=lambda place: -abs(slopes[place]))[:most]
    mask = _replacement(opened.tokenizer)
    values = target.value(outputs(opened, [_occluded(rows, words[place].tokens, mask) for place in order], until))
    value = float(target.value(logits))
    drops = {place: value - float(found) for place, found in zip(order, values, strict=True)}
    return Decisive(
        target.name,
        value,
        [
            Weighed(word.text, word.input, slope, drops.get(place))
            for place, (word, slope) in enumerate(zip(words, slopes, strict=True))
        ],
        special,
        opened.tokenizer.token(mask),
    )


def target_of(use: Classifier | Regressor, logits: Tensor, label: str = "") -> Target:
    """`logits`: those of the text (classes), which decide if no label is given."""
    if isinstance(use, Regressor):
        if label:
            raise ValueError(f"a regressor has no labels, such as {label!r}; leave it out")
        mean, deviation = use.scale.mean, use.scale.deviation
        return Target("score", lambda found: found[:, 0] * deviation, lambda found: found[:, 0] * deviation + mean)
    if label and label not in use.labels:
        raise ValueError(f"there is no label {label!r}; known: {', '.join(use.labels)}")
    index = use.labels.index(label) if label else int(logits.argmax())
    share = torch.sigmoid if use.several else lambda found: torch.softmax(found, -1)
    return Target(use.labels[index], lambda found: found[:, index], lambda found: share(found)[:, index])


def split(texts: Sequence[str], tokenizer: Tokenizer) -> tuple[tuple[list[int], ...], list[Word]]:
    """The tokens of each text, and the words they make up."""
    rows: list[list[int]] = []
    words: list[Word] = []
    before = 0
    for number, text in enumerate(texts):
        spans, pieces = word_spans(text), tokenizer.pieces(text)
        starts = [start for start, _ in spans]
        own: list[list[int]] = [[] for _ in spans]
        for place, (_, start, end) in enumerate(pieces):
            while start < end - 1 and text[start].isspace():  # a token may begin with the space before its word
                start += 1
            if own:
                own[max(0, bisect_right(starts, start) - 1)].append(before + place)
        words += [Word(text[a:b], number, tuple(tokens)) for (a, b), tokens in zip(spans, own, strict=True)]
        rows.append([token for token, _, _ in pieces])
        before += len(pieces)
    return tuple(rows), words


@torch.inference_mode()
def outputs(opened: Opened, rows: Sequence[Sequence[Row]], until: float = math.inf) -> Tensor:
    """What the head says about each text or pair, given as tokens: texts classes."""

    def run(batch: list[int]) -> Sequence[object]:
        if time.monotonic() > until:
            raise TimeoutError("this took too long")
        shown = windows([rows[index] for index in batch], opened.tokenizer, length=opened.length)
        shown = shown.to(opened.model.device)
        return list(shown.mean(opened.model.predict(HEAD, read(opened.model, shown))).float().cpu())

    found = in_batches([sum(map(len, row)) for row in rows], run, budget=BATCH)
    return torch.stack(found)  # type: ignore[arg-type]


@torch.inference_mode(False)
def gradients(opened: Opened, rows: Sequence[Row], target: Target) -> tuple[list[float], float]:
    """Gradient x input of each token of the texts, and of all special tokens together. A token that is in several
    windows of a long text counts in each."""
    shown = windows([rows], opened.tokenizer, length=opened.length)
    by_place = contributions(opened.model, shown, lambda found: target.logit(shown.mean(found)).sum())
    # The same windows over the tokens' numbers, which are larger than any token, show which one is where.
    first, size = opened.tokenizer.vocab, sum(map(len, rows))
    numbers, start = [], first
    for row in rows:
        numbers.append(list(range(start, start + len(row))))
        start += len(row)
    places = windows([numbers], opened.tokenizer, length=opened.length).tokens - first
    ours = places >= 0
    found = torch.zeros(size, dtype=torch.float64).index_add(0, places[ours], by_place[ours])
    return found.tolist(), float(by_place[shown.valid & ~ours].sum())


def contributions(model: Reader, shown: Windows, score: Callable[[Tensor], Tensor]) -> Tensor:
    """e . dscore/de for every place: windows length. `score`: the head's output -> one number."""
    embedding = getattr(model, "embedding", None)
    if not isinstance(embedding, Input):
        raise ValueError(f"a model of kind {model.config.kind} has no embedding to take the gradient of")
    held: list[Tensor] = []
    mine = threading.get_ident()

    def keep(module: Any, given: Any, output: tuple[Tensor, Tensor | None]) -> tuple[Tensor, Tensor | None] | None:
        if threading.get_ident() != mine:  # another thread's pass
            return None
        held.append(output[0].detach().requires_grad_())
        return held[0], output[1]

    hook = embedding.register_forward_hook(keep)
    try:
        with torch.enable_grad():
            shown = shown.to(model.device)
            total = score(model.predict(HEAD, read(model, shown)))
            (slope,) = torch.autograd.grad(total, held)
    finally:
        hook.remove()
    return (slope * held[0].detach()).double().sum(-1).cpu()


def _replacement(tokenizer: Tokenizer) -> int:
    for role in ("mask", "unk"):
        if (found := tokenizer.special(role)) is not None:
            return found
    return tokenizer.pad


def _occluded(rows: Sequence[Row], hidden: Sequence[int], mask: int) -> tuple[Row, ...]:
    found, before, gone = [], 0, set(hidden)
    for row in rows:
        found.append([mask if before + place in gone else int(token) for place, token in enumerate(row)])
        before += len(row)
    return tuple(found)
