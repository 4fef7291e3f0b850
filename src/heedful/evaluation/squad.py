"""Exact match and F1 of answers, as SQuAD's official scripts compute them (Rajpurkar et al. 2016, 2018)."""

import re
import string
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, pairwise

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Lower case, without ASCII punctuation, articles and superfluous spaces."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def exact(found: str, wanted: str) -> float:
    return float(normalise(found) == normalise(wanted))


def f1(found: str, wanted: str) -> float:
    """F1 of the words that both have, each as often as both have it. If one side has no words left, 1 if neither has
    any, else 0 (SQuAD 2.0); the script of SQuAD 1.1 would give 0 for both."""
    ours, theirs = normalise(found).split(), normalise(wanted).split()
    if not ours or not theirs:
        return float(ours == theirs)
    common = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * common / (len(ours) + len(theirs))


def best(found: str, wanted: Sequence[str]) -> tuple[float, float]:
    """Exact match and F1 against the best of several answers. None wanted: "" is right."""
    every = [text for text in wanted if normalise(text)] or [""]
    return max(exact(found, text) for text in every), max(f1(found, text) for text in every)


def scores(found: Sequence[str], wanted: Sequence[Sequence[str]]) -> dict[str, float]:
    """The mean `em` and `f1` in percent; if there are questions with and without an answer, also of each kind:
    has_answer_em, has_answer_f1, no_answer_em (which is its F1 too)."""
    if not found:
        raise ValueError("there are no answers to score")
    each = [best(text, answers) for text, answers in zip(found, wanted, strict=True)]
    numbers = _means(each, "")
    has = [pair for pair, answers in zip(each, wanted, strict=True) if answers]
    none = [pair for pair, answers in zip(each, wanted, strict=True) if not answers]
    if has and none:
        numbers |= _means(has, "has_answer_") | {"no_answer_em": _means(none, "")["em"]}
    return numbers


def best_threshold(advantage: Sequence[float], found: Sequence[str], wanted: Sequence[Sequence[str]]) -> float:
    """The threshold with the best F1: a question has no answer if the advantage of saying so (null score - score of the
    best span) is greater. It lies halfway between two advantages; of equally good thresholds, the one nearest to 0.

    As `find_best_thresh` of SQuAD 2.0's script, whose thresholds are advantages themselves.
    """
    order = sorted(range(len(advantage)), key=advantage.__getitem__)
    # With the first n in order answered, the others are not: the gain is that of answering these n.
    gains = (best(found[row], wanted[row])[1] - best("", wanted[row])[1] for row in order)
    totals = [0.0, *accumulate(gains)]
    ranked = [advantage[row] for row in order]
    places = [ranked[0] - 1, *((left + right) / 2 for left, right in pairwise(ranked))]
    places.append(ranked[-1] + 1)
    choices = [
        (-round(total, 9), abs(place), place)
        for count, (total, place) in enumerate(zip(totals, places, strict=True))
        if not (0 < count < len(ranked) and ranked[count - 1] == ranked[count])  # nothing lies between equals
    ]
    return min(choices)[2]


def _means(pairs: Sequence[tuple[float, float]], prefix: str) -> dict[str, float]:
    return {
        f"{prefix}{name}": 100 * sum(pair[place] for pair in pairs) / len(pairs)
        for place, name in enumerate(("em", "f1"))
    }
