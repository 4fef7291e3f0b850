"""Check a corpus before training on it. One pass, in memory that does not grow with the corpus."""

import heapq
import math
import re
import tempfile
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

import numpy as np

from heedful.data.columns import PAIR, Column, is_pair
from heedful.data.corpus import Fault, Line, near
from heedful.text.words import words

# UTF-8 that was decoded as Latin-1 or Windows-1252.
MOJIBAKE = re.compile(r"[ÃÂ][\u0080-\u00bfŒœŠšŸŽžƒˆ˜–—‘’‚“”„†‡•…‰‹›€™]|â€|ï»¿|\ufffd")
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
SHOWN = 5  # line numbers kept for each kind of finding
LONGEST = 10_000
MOST_LABELS = 10_000
TOLD, SURE = 20, 0.9  # characters from which on a language is recognised, and how sure one must be


@dataclass
class Side:
    """The lengths of one side, in words and characters."""

    words: Counter[int] = field(default_factory=Counter)
    characters: int = 0

    def add(self, text: str) -> None:
        self.words[min(LONGEST, len(words(text)))] += 1
        self.characters += len(text)

    @property
    def total_words(self) -> int:
        return sum(length * count for length, count in self.words.items())

    def quantiles(self, shares: Sequence[float] = (0.5, 0.9, 0.99, 1.0)) -> list[int]:
        lengths = sorted(self.words)
        counts = np.cumsum([self.words[length] for length in lengths])
        return [lengths[int(np.searchsorted(counts, share * counts[-1]))] for share in shares] if lengths else []


@dataclass
class Finding:
    count: int = 0
    where: list[str] = field(default_factory=list)

    def add(self, file: str, number: int) -> None:
        self.count += 1
        if len(self.where) < SHOWN:
            self.where.append(f"{file}:{number}")


@dataclass
class Report:
    """What a corpus contains. `skipped` lines are not used; `noticed` ones are, but look suspicious. `sides`: lengths
    for each text column; `labels`: how often each label occurs, for each column of labels or tags."""

    lines: int = 0
    usable: int = 0
    sides: list[Side] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    labels: dict[str, Counter[str]] = field(default_factory=dict)
    skipped: dict[str, Finding] = field(default_factory=dict)
    noticed: dict[str, Finding] = field(default_factory=dict)

    @property
    def words(self) -> int:
        return sum(side.total_words for side in self.sides)

    def as_data(self) -> dict[str, object]:
        return {
            "lines": self.lines,
            "usable": self.usable,
            "labels": {name: dict(sorted(found.items())) for name, found in self.labels.items()},
            "sides": [
                {"name": name, "words": side.total_words, "characters": side.characters, "quantiles": side.quantiles()}
                for name, side in zip(self.names, self.sides, strict=True)
            ],
            "skipped": {name: vars(finding) for name, finding in self.skipped.items()},
            "noticed": {name: vars(finding) for name, finding in self.noticed.items() if finding.count},
        }


def check(
    lines: Iterable[Line | Fault], *, others: Iterable[Line | Fault] = (), columns: Sequence[Column] = PAIR
) -> Report:
    """Check a corpus; `others` are the lines of validation and test files, which should not occur in it."""
    texts = [place for place, column in enumerate(columns) if column.is_text]
    labels = [(place, column) for place, column in enumerate(columns) if column.is_labelled]
    report = Report(
        sides=[Side() for _ in texts],
        names=[columns[place].name for place in texts],
        labels={column.name: Counter() for _, column in labels},
    )
    pairs = is_pair(columns)
    elsewhere = []
    for line in others:
        if isinstance(line, Line):
            elsewhere.append(line)
            if line.note:
                report.noticed.setdefault(f"{line.note}, in validation or test", Finding()).add(line.file, line.number)
        else:
            report.skipped.setdefault(f"{line.reason}, in validation or test", Finding()).add(line.file, line.number)
    exact = {line.texts for line in elsewhere}
    first = next((place for place, column in enumerate(columns) if column.is_text), 0)
    nearly = {near(line.texts[first]) for line in elsewhere}
    duplicates, ratios = _Distinct(), _Ratios()
    for line in lines:
        report.lines += 1
        if isinstance(line, Fault):
            report.skipped.setdefault(line.reason, Finding()).add(line.file, line.number)
            continue
        report.usable += 1
        for side, place in zip(report.sides, texts, strict=True):
            side.add(columns[place].plain(line.texts[place]))
        for place, column in labels:
            report.labels[column.name].update(column.labels(line.texts[place]))
            if len(report.labels[column.name]) > MOST_LABELS:
                raise ValueError(
                    f"column {place + 1} ({column.name}) has more than {MOST_LABELS:,} different labels; is it text?"
                )
        if line.more:
            report.noticed.setdefault(f"columns beyond the first {len(columns)}, not used", Finding()).add(
                line.file, line.number
            )
        if line.note:
            report.noticed.setdefault(line.note, Finding()).add(line.file, line.number)
        duplicates.add("\t".join(line.texts))
        if pairs:
            ratios.add(line)
        for name in _oddities(line, exact, nearly, pairs, first):
            report.noticed.setdefault(name, Finding()).add(line.file, line.number)
    repeated = duplicates.repeated()
    if pairs or repeated:
        report.noticed["duplicate pairs" if pairs else "duplicate rows"] = Finding(repeated)
    if pairs:
        report.noticed["unlikely length ratio (swapped or misaligned?)"] = ratios.suspects()
    return report


def wrong_language(lines: Iterable[Line | Fault], languages: Sequence[str]) -> dict[str, Finding]:
    """Lines in another language than that of their column ("" = any), where py3langid is sure of it. Short texts say
    too little."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier  # type: ignore[import-untyped]

    model = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    wanted = [code.replace("_", "-").partition("-")[0].lower() for code in languages]
    for code in wanted:
        if code and code not in model.nb_classes:
            raise ValueError(f"py3langid does not know the language {code!r}; it knows: {', '.join(model.nb_classes)}")
    found: dict[str, Finding] = {}
    for line in lines:
        if not isinstance(line, Line):
            continue
        for side, code, text in zip(("source", "target"), wanted, line.texts, strict=False):
            if not code or len(text) < TOLD:
                continue
            guess, sure = model.classify(text)
            if guess != code and sure > SURE:
                found.setdefault(f"{side} is not {code}, but looks like {guess}", Finding()).add(line.file, line.number)
    return dict(sorted(found.items(), key=lambda pair: -pair[1].count))


def _oddities(line: Line, exact: set[tuple[str, ...]], nearly: set[str], pairs: bool, first: int) -> list[str]:
    text = "\n".join(line.texts)
    found = []
    if pairs and line.texts[0] == line.texts[1]:
        found.append("identical sides")
    if MOJIBAKE.search(text):
        found.append("mojibake")
    if CONTROL.search(text.replace("\n", "")):
        found.append("control characters")
    if line.texts in exact:
        found.append("also in validation or test")
    elif nearly and near(line.texts[first]) in nearly:
        found.append("source almost the same as in validation or test")
    return found


class _Distinct:
    """Counts repeated texts exactly; beyond a million, hashes are kept in files."""

    PARTS, HELD = 64, 1 << 20

    def __init__(self) -> None:
        self._held = array("Q")
        self._total = 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def add(self, text: str) -> None:
        self._held.append(int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()))
        self._total += 1
        if len(self._held) >= self.HELD:
            self._spill()

    def repeated(self) -> int:
        if self._folder is None:
            return self._total - len(np.unique(np.frombuffer(self._held, dtype=np.uint64)))
        self._spill()
        files = Path(self._folder.name).iterdir()
        distinct = sum(len(np.unique(np.fromfile(file, dtype=np.uint64))) for file in files)
        self._folder.cleanup()
        return self._total - distinct

    def _spill(self) -> None:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="heedful-")
        hashes = np.frombuffer(self._held, dtype=np.uint64)
        for part in range(self.PARTS):
            with (Path(self._folder.name) / str(part)).open("ab") as file:
                hashes[hashes % self.PARTS == part].tofile(file)
        self._held = array("Q")


class _Ratios:
    """Finds pairs whose length ratio is far from the median."""

    STEP, FAR, SHORT = 0.05, math.log(3), 15

    def __init__(self) -> None:
        self._histogram: Counter[int] = Counter()
        self._extremes: dict[int, list[tuple[float, int, str]]] = {1: [], -1: []}

    def add(self, line: Line) -> None:
        source, target = (len(text) for text in line.texts)
        if max(source, target) < self.SHORT:  # "Hi." may well be "Guten Tag zusammen"
            return
        ratio = math.log(target / source)
        self._histogram[round(ratio / self.STEP)] += 1
        for sign, heap in self._extremes.items():
            entry = (sign * ratio, line.number, line.file)
            if len(heap) < SHOWN:
                heapq.heappush(heap, entry)
            elif entry > heap[0]:
                heapq.heapreplace(heap, entry)

    def suspects(self) -> Finding:
        if not self._histogram:
            return Finding()
        places = sorted(self._histogram)
        counts = np.cumsum([self._histogram[place] for place in places])
        median = places[int(np.searchsorted(counts, counts[-1] / 2))] * self.STEP
        count = sum(n for place, n in self._histogram.items() if abs(place * self.STEP - median) > self.FAR)
        worst = sorted(
            (abs(sign * ratio - median), number, file)
            for sign, heap in self._extremes.items()
            for ratio, number, file in heap
        )
        far = [f"{file}:{number}" for distance, number, file in reversed(worst) if distance > self.FAR]
        return Finding(count, far[:SHOWN])
