"""Figures for tagged words: the entities that IOB2 tags mark, and how many of them were found."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


def entities(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """(type, first word, word after the last) of each entity: B-X and all I-X that follow it. An I-X that continues
    nothing is no entity: seqeval's mode="strict" with scheme=IOB2."""
    found: list[tuple[str, int, int]] = []
    for place, tag in enumerate(tags):
        kind = tag[1:].strip("-") or "_"
        if tag[0] == "B":
            found.append((kind, place, place + 1))
        elif tag[0] == "I" and found and found[-1][0] == kind and found[-1][2] == place:
            found[-1] = (kind, found[-1][1], place + 1)
    return found


@dataclass
class Counts:
    """How often each type is right, wanted and found."""

    right: Counter[str] = field(default_factory=Counter)
    wanted: Counter[str] = field(default_factory=Counter)
    found: Counter[str] = field(default_factory=Counter)

    @property
    def types(self) -> list[str]:
        return sorted({*self.wanted, *self.found})

    def scores(self, kind: str | None = None) -> tuple[float, float, float]:
        """(precision, recall, F1) of a type, or of all together."""
        parts = (self.right, self.wanted, self.found)
        return shares_of(*(part.total() if kind is None else part[kind] for part in parts))


def count_entities(truth: Iterable[Sequence[str]], answers: Iterable[Sequence[str]]) -> Counts:
    """Sentence by sentence; an entity is right if its type, beginning and end are."""
    counts = Counts()
    for wanted, found in zip(truth, answers, strict=True):
        first, second = set(entities(wanted)), set(entities(found))
        counts.wanted.update(kind for kind, *_ in first)
        counts.found.update(kind for kind, *_ in second)
        counts.right.update(kind for kind, *_ in first & second)
    return counts


def count_words(truth: Iterable[Sequence[str]], answers: Iterable[Sequence[str]]) -> Counts:
    """Word by word, for tags that mark no entities."""
    counts = Counts()
    for wanted, found in zip(truth, answers, strict=True):
        counts.wanted.update(wanted)
        counts.found.update(found)
        counts.right.update(tag for tag, answer in zip(wanted, found, strict=True) if tag == answer)
    return counts


def shares_of(right: float, wanted: float, found: float) -> tuple[float, float, float]:
    """(precision, recall, F1); 0/0 counts as 0."""
    return _share(right, found), _share(right, wanted), _share(2 * right, wanted + found)


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
