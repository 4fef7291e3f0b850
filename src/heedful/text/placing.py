"""Where the elements within a sentence go in its translation, by word alignment.

Words and marks of punctuation are units. Each unit of the translation is linked to one of the source. An element goes
around those that are linked to its own, if they are together; else around the run with the most of them:

    the run of units with the largest (its own - others)

Elements stay within those they were in, beside those they were beside, and are neither lost nor repeated: whatever the
links are, what comes out is well-formed.
"""

import html
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from heedful.text.words import word_spans

Links = Sequence[tuple[int, int]]  # (source word, target word), from 0
NEAR = 8  # units around a place that are looked at
NO_SPACE_BEFORE = ".,;:!?…)]}»”’。，、！？：；"


@dataclass(frozen=True)
class Mark:
    """An element around text[start:end], with those within it; or a leaf, whose `before` is all of it. `spaced`:
    whether white space was before and after a leaf; `solid`: whether it can be seen, and so needs it."""

    start: int
    end: int
    before: str
    after: str = ""
    inside: tuple["Mark", ...] = ()
    leaf: bool = True
    spaced: tuple[bool, bool] = (False, False)
    solid: bool = False


@dataclass(frozen=True)
class Unit:
    """Part of a text. `source`: of the translation's units, the number of the source's."""

    start: int
    end: int
    word: int
    source: int = 0


@dataclass(frozen=True)
class Place:
    """Where a mark goes: around the units from `first` to `last`, without the last; none if they are equal."""

    mark: Mark
    first: int
    last: int
    inside: tuple["Place", ...] = ()


@dataclass(frozen=True)
class Tagged:
    """A text, and the marks that were in it."""

    text: str
    marks: tuple[Mark, ...] = ()

    def place(self, translation: str, links: Links | None = None) -> str:
        """The translation as HTML, with the marks. `links`: None = by position."""
        if not self.marks:
            return html.escape(translation, quote=False)
        source = _cut(units(self.text), sorted(_edges(self.marks)))
        target = _linked(self.text, source, translation, links)
        placed = _Placing(source, target).place(self.marks, (0, len(source)), (0, len(target)))
        writer = _Writer(translation, target)
        writer.write(placed, 0, len(translation))
        return "".join(writer.made)


def units(text: str) -> list[Unit]:
    """Runs of letters and digits, and single other characters, each with what combines with it."""
    found: list[Unit] = []
    for word, (begin, end) in enumerate(word_spans(text)):
        starts = [begin]
        for place in range(begin + 1, end):
            letters = text[place].isalnum() and text[starts[-1]].isalnum()
            if not letters and not _combines(text, place):
                starts.append(place)
        found += [Unit(*both, word) for both in zip(starts, [*starts[1:], end], strict=True)]
    return found


def _combines(text: str, place: int) -> bool:
    joins = "\u200d"  # the joiner of emoji
    return unicodedata.category(text[place]) in ("Mn", "Mc", "Me", "Cf") or text[place - 1] == joins


def _edges(marks: Sequence[Mark]) -> set[int]:
    found = {place for mark in marks for place in (mark.start, mark.end)}
    return found.union(*(_edges(mark.inside) for mark in marks))


def _cut(found: list[Unit], edges: list[int]) -> list[Unit]:
    """Cut where a mark begins or ends within a unit."""
    made = []
    for unit in found:
        inner = edges[bisect_left(edges, unit.start + 1) : bisect_left(edges, unit.end)]
        made += [Unit(*both, unit.word) for both in zip([unit.start, *inner], [*inner, unit.end], strict=True)]
    return made


def _linked(text: str, source: list[Unit], translation: str, links: Links | None) -> list[Unit]:
    """The units of the translation, each with the number of the source's unit that it is a translation of."""
    plain, target = units(text), units(translation)
    if not plain or not target:
        return []
    counts = (1 + plain[-1].word, 1 + target[-1].word)
    known: dict[int, int] = {}
    for one, other in links or ():
        if 0 <= one < counts[0]:
            known.setdefault(other, one)
    theirs = _by_word(plain, counts[0])
    made: list[Unit] = []
    for word, some in enumerate(_by_word(target, counts[1])):
        linked = theirs[known.get(word, word * counts[0] // counts[1])]
        for unit, whole in zip(some, _matched(text, linked, translation, some), strict=True):
            made += _split(text, source, whole, translation, unit)
    final = plain[-1]
    if not (text[final.start].isalnum() or translation[made[-1].start].isalnum()):  # the full stops of both
        made[-1] = Unit(made[-1].start, made[-1].end, made[-1].word, len(source) - 1)
    return made


def _by_word(found: list[Unit], count: int) -> list[list[Unit]]:
    made: list[list[Unit]] = [[] for _ in range(count)]
    for unit in found:
        made[unit.word].append(unit)
    return made


def _matched(text: str, source: list[Unit], translation: str, target: list[Unit]) -> list[Unit]:
    """For each unit of a word, that of the word it is linked to: letters with letters in their order, and what is
    before, between and after them with the same."""
    letters = [place for place, unit in enumerate(source) if text[unit.start].isalnum()]
    own = [place for place, unit in enumerate(target) if translation[unit.start].isalnum()]
    if not letters or not own:
        return [source[min(place, len(source) - 1)] for place in range(len(target))]
    found = []
    for place in range(len(target)):
        seen = bisect_right(own, place)  # units of letters up to here
        number = (seen - 1) * len(letters) // len(own)
        near, known = (letters[number], own[seen - 1]) if seen else (-1, -1)
        following = letters[number + 1] if number + 1 < len(letters) else len(source)
        if place > own[-1]:  # counted from the end
            found.append(source[max(letters[-1], len(source) - len(target) + place)])
        else:
            found.append(source[max(0, min(near + place - known, following - 1))])
    return found


def _split(text: str, source: list[Unit], whole: Unit, translation: str, unit: Unit) -> list[Unit]:
    """A unit linked to one that marks cut, cut likewise as far as both have the same letters at the ends."""
    first = bisect_left(source, whole.start, key=lambda one: one.start)
    last = bisect_left(source, whole.end, key=lambda one: one.start)
    parts = [text[one.start : one.end] for one in source[first:last]]
    head, begin = 0, unit.start
    while head < len(parts) and translation.startswith(parts[head], begin, unit.end):
        begin, head = begin + len(parts[head]), head + 1
    tail, end = len(parts), unit.end
    while tail > head and translation.endswith(parts[tail - 1], begin, end):
        tail, end = tail - 1, end - len(parts[tail - 1])
    made, place = [], unit.start
    for number in range(head):
        made.append(Unit(place, place + len(parts[number]), unit.word, first + number))
        place += len(parts[number])
    if begin < end:
        longest = max(range(head, tail), key=lambda number: len(parts[number]), default=max(0, head - 1))
        made.append(Unit(begin, end, unit.word, first + longest))
    for number in range(tail, len(parts)):
        made.append(Unit(end, end + len(parts[number]), unit.word, first + number))
        end += len(parts[number])
    return made


class _Placing:
    def __init__(self, source: list[Unit], target: list[Unit]) -> None:
        self.starts = [unit.start for unit in source]
        self.linked: list[list[int]] = [[] for _ in source]
        for place, unit in enumerate(target):
            self.linked[unit.source].append(place)

    def place(self, marks: Sequence[Mark], source: tuple[int, int], target: tuple[int, int]) -> tuple[Place, ...]:
        """`source` and `target`: the units that the marks may be around."""
        ranges = [tuple(bisect_left(self.starts, at) for at in (mark.start, mark.end)) for mark in marks]
        own = [
            [] if mark.leaf or first == last else self._own(first, last, *target)
            for mark, (first, last) in zip(marks, ranges, strict=True)
        ]
        taken = [-1] * (target[1] - target[0])  # by which mark each unit is taken
        found: list[tuple[int, int]] = [(0, 0)] * len(marks)
        # Those with the most units choose first; leaves go between what the others have chosen.
        for number in sorted(range(len(marks)), key=lambda number: -len(own[number])):
            mark, (first, last) = marks[number], ranges[number]
            if (run := self._run(own[number], taken, target[0])) is None:
                gap = self._gap(first, mark.leaf and mark.spaced == (False, True), source, target)
                run = (gap, gap) if mark.leaf or first == last else self._free(gap, taken, target)
            if run[0] == run[1] and target[0] < run[0] < target[1]:
                owner = taken[run[0] - target[0]]
                if owner >= 0 and owner == taken[run[0] - 1 - target[0]]:  # out of another, on the side it was on
                    run = (found[owner][owner < number],) * 2
            found[number] = run
            for unit in range(*run):
                taken[unit - target[0]] = number
        return tuple(
            Place(mark, *run, self.place(mark.inside, both, run) if mark.inside else ())  # type: ignore[arg-type]
            for mark, run, both in zip(marks, found, ranges, strict=True)
        )

    def _own(self, first: int, last: int, begin: int, end: int) -> list[int]:
        """The units between begin and end that are linked to the source's from first to last."""
        return sorted(place for some in self.linked[first:last] for place in some if begin <= place < end)

    def _run(self, own: list[int], taken: list[int], offset: int) -> tuple[int, int] | None:
        """The best run: Kadane's algorithm over its own units, with a unit of another costing one."""
        best: tuple[int, int, int, int] | None = None  # value, length, first, last
        value = first = before = 0
        for place in own:
            if taken[place - offset] >= 0:
                continue
            between = place - before - 1
            if 0 < value >= between and all(one < 0 for one in taken[before + 1 - offset : place - offset]):
                value += 1 - between
            else:
                value, first = 1, place
            before = place
            if best is None or (value, place - first) > best[:2]:
                best = (value, place - first, first, place + 1)
        return None if best is None else best[2:]

    def _gap(self, number: int, joined: bool, source: tuple[int, int], target: tuple[int, int]) -> int:
        """The unit of the translation before which a mark goes that stands before this unit of the source: before what
        is linked to the next one, or, if it was joined to it, after what is linked to the one before."""
        begin, end = target
        if begin == end or number <= source[0]:
            return begin
        if number >= source[1]:
            return end
        for step in range(NEAR):
            after, before = number + step, number - 1 - step
            sides = [(after, 0), (before, 1)]
            for side, later in reversed(sides) if joined else sides:
                some = self._own(side, side + 1, begin, end) if source[0] <= side < source[1] else []
                if some:
                    return some[-1] + 1 if later else some[0]
        return begin + (number - source[0]) * (end - begin) // (source[1] - source[0])

    def _free(self, gap: int, taken: list[int], target: tuple[int, int]) -> tuple[int, int]:
        """A free unit near the gap, for an element whose words have no translation of their own; else none."""
        for step in range(NEAR):
            for place in (gap + step, gap - 1 - step):
                if target[0] <= place < target[1] and taken[place - target[0]] < 0:
                    return place, place + 1
        return gap, gap


class _Writer:
    def __init__(self, text: str, target: list[Unit]) -> None:
        self.text, self.target, self.made = text, target, list[str]()
        self.last, self.owed = "", False  # the last character that is shown; whether a space must follow

    def write(self, places: Sequence[Place], begin: int, end: int) -> None:
        """text[begin:end] with these marks."""
        spans = [(*self._span(one, begin, end), one) for one in places]
        for start, stop, one in sorted(spans, key=lambda span: span[:2]):
            start, stop = max(start, begin), max(stop, begin)
            self._show(self.text[begin:start])
            if one.mark.leaf:
                self._leaf(one.mark)
            else:
                self.made.append(one.mark.before)
                self.write(one.inside, start, stop)
                self.made.append(one.mark.after)
            begin = stop
        self._show(self.text[begin:end])

    def _span(self, one: Place, begin: int, end: int) -> tuple[int, int]:
        if one.first < one.last:
            return self.target[one.first].start, self.target[one.last - 1].end
        before = self.target[one.first - 1].end if one.first > 0 else begin
        after = self.target[one.first].start if one.first < len(self.target) else end
        glued = one.mark.leaf and one.mark.spaced == (False, True)
        place = min(end, max(begin, before if glued or after > end else after))
        return place, place

    def _show(self, text: str) -> None:
        if text:
            if self.owed and not text[0].isspace() and text[0] not in NO_SPACE_BEFORE:
                self.made.append(" ")
            self.made.append(html.escape(text, quote=False))
            self.last, self.owed = text[-1], False

    def _leaf(self, mark: Mark) -> None:
        if mark.solid and (self.owed or mark.spaced[0]) and self.last and not self.last.isspace():
            self.made.append(" ")
        self.made.append(mark.before)
        if mark.solid:
            self.last, self.owed = mark.before[-1], mark.spaced[1]
