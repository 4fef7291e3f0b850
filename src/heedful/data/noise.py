"""Noise for denoising: functions of a row of tokens and a random generator, and of nothing else.

    the cat sat . the dog ran .          the text
    the [0] . the dog [1] .              spans: the target is  [0] cat sat [1] ran
    the [M] . the dog [M] .              infilling: the target is the text, as in all of the following
    the [M] sat . the [M] ran .          masking
    the sat . the ran .                  deletion
    the dog ran . the cat sat .          permutation
    ran . the cat sat . the dog          rotation

T5's span corruption (Raffel et al. 2020, section 3.1.4) and the five kinds of noise of BART (Lewis et al. 2020,
section 2.2).
"""

from collections.abc import Sequence

import numpy as np

Chance = np.random.Generator


def spans(
    tokens: np.ndarray, chance: Chance, *, density: float, mean: float, sentinels: Sequence[int], roll: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """(source, target): each hidden span is one sentinel in the source, in order, and the target is each sentinel
    followed by its span. The target has no sentinel at its end (T5's figure has one, its code has none)."""
    noise = span_mask(len(tokens), chance, density=density, mean=mean, roll=roll)
    first = _starts(noise)
    marks = np.asarray(sentinels[: int(first.sum())], dtype=np.int64)
    target = np.insert(tokens[noise], np.flatnonzero(first[noise]), marks)
    return _marked(tokens, noise, marks), target


def span_counts(size: int, *, density: float, mean: float) -> tuple[int, int]:
    """(hidden tokens, spans) of a text of so many tokens: T5's numbers, the same for all texts of a length.

    hidden = round(density size), from 1 to size - 1;  spans = round(hidden / mean), from 1 to the tokens kept
    """
    hidden = max(0, min(max(round(size * density), 1), size - 1))
    return hidden, max(min(1, hidden), min(round(hidden / mean), size - hidden))


def span_mask(size: int, chance: Chance, *, density: float, mean: float, roll: bool = True) -> np.ndarray:
    """For each place, whether it is hidden: kept and hidden tokens are each cut into as many pieces as there are spans,
    uniformly at random, and alternate.

    By T5's rule (`roll` False) a text begins with a kept piece and ends with a hidden one, so in a short text only the
    end is ever hidden. With `roll`, the pieces are rotated by a random offset: every place is hidden with the same
    probability hidden / size, and a span that goes over the end becomes two.
    """
    hidden, count = span_counts(size, density=density, mean=mean)
    if not hidden:
        return np.zeros(size, dtype=bool)
    return _alternating(_pieces(hidden, count, chance), size, chance, roll=roll)


def infilling(tokens: np.ndarray, chance: Chance, *, density: float, mean: float, mask: int) -> np.ndarray:
    """Spans with lengths from a Poisson distribution are replaced by one mask each; those of length 0 insert a mask.

    Every place is hidden with probability `density`. Differs from fairseq: lengths count tokens, not words; spans do
    not touch; masks are never replaced by random tokens; and no more masks are inserted than keep the result as short
    as the text.
    """
    size = len(tokens)
    hidden = _share(size, density, chance)
    lengths = _poisson_lengths(hidden, mean, chance)
    empty = int((lengths == 0).sum())
    lengths = lengths[lengths > 0]
    if len(lengths):
        # As many spans as there are kept tokens to separate them; more are joined.
        count = max(1, min(len(lengths), size - hidden))
        lengths = np.bincount(np.arange(len(lengths)) % count, weights=lengths).astype(np.int64)
        noise = _alternating(lengths, size, chance, roll=True)
        tokens = _marked(tokens, noise, np.full(int(_starts(noise).sum()), mask))
    empty = min(empty, size - len(tokens))
    return np.insert(tokens, chance.integers(len(tokens) + 1, size=empty), mask)


def masking(tokens: np.ndarray, chance: Chance, *, density: float, mask: int) -> np.ndarray:
    """Tokens chosen at random are replaced by a mask each."""
    found = tokens.copy()
    found[_some(len(tokens), density, chance)] = mask
    return found


def deletion(tokens: np.ndarray, chance: Chance, *, density: float) -> np.ndarray:
    """Tokens chosen at random are removed: where, is for the model to find out."""
    return np.delete(tokens, _some(len(tokens), density, chance))


def permutation(tokens: np.ndarray, chance: Chance, *, starts: np.ndarray) -> np.ndarray:
    """The sentences in random order. `starts`: where they begin."""
    sentences = np.split(tokens, np.flatnonzero(starts[1:]) + 1)
    return np.concatenate([sentences[place] for place in chance.permutation(len(sentences))])


def rotation(tokens: np.ndarray, chance: Chance) -> np.ndarray:
    """The text begins at a token chosen at random; what was before it comes after the end."""
    return np.roll(tokens, -int(chance.integers(max(1, len(tokens)))))


def restored(source: Sequence[int], target: Sequence[int], sentinels: Sequence[int]) -> list[int]:
    """The text of a source and a target of `spans`: each sentinel of the source replaced by what follows it in the
    target, if it is there."""
    found: dict[int, list[int]] = {sentinel: [] for sentinel in sentinels}
    span: list[int] = []
    for token in target:
        if token in found:
            span = found[token]
        else:
            span.append(token)
    return [token for mark in source for token in found.get(mark, [mark])]


def _share(size: int, density: float, chance: Chance) -> int:
    """The number of tokens to hide: density * size on average exactly, rounded up or down at random."""
    return min(size, int(size * density + chance.random()))


def _some(size: int, density: float, chance: Chance) -> np.ndarray:
    return chance.choice(size, size=_share(size, density, chance), replace=False)


def _poisson_lengths(total: int, mean: float, chance: Chance) -> np.ndarray:
    """Lengths drawn until they make up the total; the last one is trimmed."""
    lengths = np.empty(0, dtype=np.int64)
    while lengths.sum() < total:
        lengths = np.append(lengths, chance.poisson(mean, size=2 + int(total / mean)))
    ends = np.cumsum(lengths)
    count = int(np.searchsorted(ends, total)) + 1 if total else 0
    lengths = lengths[:count]
    lengths[-1:] -= ends[count - 1 : count] - total
    return lengths


def _pieces(total: int, count: int, chance: Chance) -> np.ndarray:
    """The total cut into so many pieces of at least one, all ways being equally likely."""
    cuts = sorted((chance.choice(total - 1, count - 1, replace=False) + 1).tolist()) if count > 1 else []
    return np.diff([0, *cuts, total])


def _alternating(hidden: np.ndarray, size: int, chance: Chance, *, roll: bool) -> np.ndarray:
    """For each place, whether it is in one of the hidden pieces, between which are kept ones of random lengths."""
    kept = _pieces(size - int(hidden.sum()), len(hidden), chance)
    noise = np.repeat(np.tile([False, True], len(hidden)), np.stack([kept, hidden], axis=1).ravel())
    return np.roll(noise, int(chance.integers(size))) if roll else noise


def _starts(noise: np.ndarray) -> np.ndarray:
    """Where a hidden span begins."""
    found = noise.copy()
    found[1:] &= ~noise[:-1]
    return found


def _marked(tokens: np.ndarray, noise: np.ndarray, marks: np.ndarray) -> np.ndarray:
    """The tokens with each hidden span replaced by its mark."""
    first = _starts(noise)
    found = tokens.copy()
    found[first] = marks
    return found[~noise | first]
