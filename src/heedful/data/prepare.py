"""From the user's files to token stores: check them, hold out splits, train the tokenizer, tokenise once.

The stores are cached under a key made of everything they depend on: the content of the files, the columns, the
tokenizers, the settings. A second start with the same inputs reuses them.
"""

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field

from heedful.config import Config, Size
from heedful.data.check import Report, check
from heedful.data.columns import PAIR, Column, Columns, is_document
from heedful.data.corpus import Fault, Line, near, read_rows, row_format
from heedful.data.digest import known_digest
from heedful.data.store import Store, StoreWriter
from heedful.files import sync_folder, write_text
from heedful.text.tokenizer import Tokenizer, TokenizerConfig, train_tokenizer, vocab_for

CHUNK = 8192
TOKENIZER_LINES = 500_000  # more lines hardly improve a tokenizer
SPLITS = ("train", "valid", "test")
FORMAT = "3"
Notify = Callable[[str], None]
T = TypeVar("T")


class DataConfig(Config):
    """`max_length`: pairs with more tokens on a side are skipped and counted. `held_out`: the number of pairs held out
    for validation, and as many for testing, if there is no --valid; 0 = about one in fifty, at most 1,000. A source
    sentence never occurs in two splits. Of plain text, the last tenth is held out. Languages are codes such as `en`,
    for users of the model and for BLEU's tokenizer.
    """

    max_length: Size = 256
    held_out: int = Field(0, ge=0)
    source_language: str = ""
    target_language: str = ""


@dataclass(frozen=True)
class Inputs:
    """The user's files and their columns."""

    train: tuple[Path, ...]
    valid: tuple[Path, ...] = ()
    test: tuple[Path, ...] = ()
    columns: Columns = PAIR
    fields: tuple[str, ...] = ()  # JSONL field names of the columns

    def __post_init__(self) -> None:
        if self.fields and len(self.fields) != len(self.columns):
            names = ",".join(column.name for column in self.columns)
            raise ValueError(f"--fields names {len(self.fields)} fields, but there are {len(self.columns)}: {names}")
        for file in (*self.train, *self.valid, *self.test):
            if not file.is_file():
                raise ValueError(f"there is no file {file}")
        for files in (self.train, self.valid, self.test):
            if files and not is_document(self.columns):
                row_format(files, self.columns)

    def read(self, split: str) -> Iterator[Line | Fault]:
        files: tuple[Path, ...] = getattr(self, split)
        return read_rows(files, self.columns, self.fields)

    def digests(self, cache: Path) -> dict[str, list[str]]:
        """Content digests of the files of each split: names and timestamps do not matter."""
        return {split: [known_digest(file, cache) for file in getattr(self, split)] for split in SPLITS}


@dataclass(frozen=True)
class Prepared:
    """Stores and tokenizers, ready for use. `facts` describe what was found and done: see `prepare`."""

    folder: Path
    tokenizers: list[Tokenizer]  # one per text column; the same one twice if they are joint
    facts: dict[str, Any]
    columns: Columns = PAIR

    def store(self, split: str) -> Store:
        counted = [place for place, column in enumerate(self.columns) if column.kind != "raw"]
        return Store(
            self.folder, split, columns=len(self.columns), vocab=_largest(self.tokenizers), counted=tuple(counted)
        )

    @property
    def labels(self) -> dict[str, list[str]]:
        """The label names of each column of labels or tags, by number."""
        found: dict[str, list[str]] = self.facts["labels"]
        return found

    def has(self, split: str) -> bool:
        return bool(self.facts["rows"].get(split))

    def texts(self, split: str) -> list[tuple[str, ...]]:
        """The raw texts of a held-out split."""
        lines = (self.folder / f"{split}.jsonl").read_text(encoding="utf-8").split("\n")
        return [tuple(json.loads(line).values()) for line in lines if line]


def prepare(
    inputs: Inputs,
    data: DataConfig,
    config: TokenizerConfig,
    *,
    cache: Path,
    given: list[Tokenizer] | None = None,
    words: int = 0,
    specials: Sequence[str] = (),
    report: Report | None = None,
    notify: Notify = lambda message: None,
) -> Prepared:
    """Tokenizers are trained unless `given`. A second call reuses the cached result. `words`: how many words training
    will see, if known, which limits the vocabulary. `specials`: the special tokens that the task needs beyond those of
    every tokenizer. `report`: the result of `look_over`, if it is known already."""
    cache.mkdir(parents=True, exist_ok=True)
    content = inputs.digests(cache)
    columns = [asdict(column) for column in inputs.columns]
    how = config.model_dump(exclude={"dropout", "file"})
    content = {**content, "fields": list(inputs.fields)} if inputs.fields else content
    tokenizers_key = _key(content, columns, how, data.held_out, words, list(specials))
    texts = sum(column.is_text for column in inputs.columns)
    if texts > 2 and not config.joint:
        raise ValueError(f"tokenizer.joint=false is for pairs, but rows have {texts} texts; use tokenizer.joint=true")
    if given is None and config.file:
        given = [Tokenizer.load(Path(config.file))] * texts
    if given is not None:
        _refuse_missing(specials, given)
    tokenizers = _load_tokenizers(cache / "tokenizers" / tokenizers_key, texts) if given is None and texts else given
    tokenizers = [] if not texts else tokenizers
    if tokenizers is None:
        if report is None:
            notify("checking the corpus")
            report = look_over(inputs)
        notify("training the tokenizer")
        tokenizers = _train_tokenizers(inputs, data, config, report, words, specials)
        _keep_tokenizers(cache / "tokenizers" / tokenizers_key, tokenizers)
    digests = [tokenizer.digest() for tokenizer in tokenizers]
    key = _key(content, columns, digests, data.max_length, data.held_out)
    folder = cache / key
    if not (folder / "facts.json").exists():
        notify("tokenising the corpus")
        _build(folder, inputs, content, data, tokenizers, report or look_over(inputs))
    facts = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
    return Prepared(folder=folder, tokenizers=tokenizers, facts=facts, columns=inputs.columns)


def look_over(inputs: Inputs) -> Report:
    """The report on the training files; an error if there is nothing usable."""
    others = []
    for split in SPLITS[1:]:
        found = list(inputs.read(split)) if getattr(inputs, split) else []
        if found and not any(isinstance(line, Line) for line in found):
            raise ValueError(f"{', '.join(file.name for file in getattr(inputs, split))}: no usable line")
        others += found
    report = check(inputs.read("train"), others=others, columns=inputs.columns)
    names = ", ".join(file.name for file in inputs.train)
    if not report.usable:
        why = ", ".join(f"{finding.count:,} {reason}" for reason, finding in report.skipped.items()) or "empty"
        raise ValueError(f"{names}: no usable line among {report.lines:,} ({why})")
    if report.usable < report.lines / 2:
        worst = max(report.skipped.items(), key=lambda pair: pair[1].count)
        raise ValueError(
            f"{names}: only {report.usable:,} of {report.lines:,} lines are usable ({worst[1].count:,} {worst[0]}, "
            f"such as {worst[1].where[0]}); is this the right file and format?"
        )
    return report


def default_cache() -> Path:
    """HEEDFUL_CACHE, or heedful in the user's cache folder."""
    if named := os.environ.get("HEEDFUL_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "heedful"


def _key(*parts: object) -> str:
    return blake2b(json.dumps([FORMAT, *parts], sort_keys=True).encode(), digest_size=16).hexdigest()


class _Split:
    """Assigns each line to a split by its content alone: order and repetition do not matter."""

    def __init__(self, inputs: Inputs, data: DataConfig, usable: int, characters: int) -> None:
        wanted = data.held_out or min(1000, max(1, usable // 50))
        self.missing = [split for split in SPLITS[1:] if not getattr(inputs, split)]
        self.rows = not is_document(inputs.columns)
        self.texts = [place for place, column in enumerate(inputs.columns) if column.is_text][:1]
        if "valid" not in self.missing or (self.rows and usable < 20):  # nothing to hold out, or too few
            self.missing = []
        self.share = min(0.2, wanted / usable)
        self.characters, self.seen = characters, 0

    def deal(self, line: Line) -> list[tuple[str, Line]]:
        """The splits a line goes to: one, or two if a text is cut within it."""
        if self.rows:
            return [(self._of_row(line), line)]
        text, cut = line.texts[0], int(0.9 * self.characters) - self.seen if self.missing else self.characters
        self.seen += len(text)
        parts = (("train", text[: max(0, cut)]), ("valid", text[max(0, cut) :]))
        return [(split, Line(line.file, line.number, (part,))) for split, part in parts if part]

    def _of_row(self, line: Line) -> str:
        """Rows whose first texts differ only in case, spaces and punctuation stay together."""
        told = [line.texts[place] for place in self.texts] or ["\t".join(line.texts)]
        source = near(told[0]) or told[0]
        place = int.from_bytes(blake2b(source.encode(), digest_size=8).digest()) / 2**64
        index = int(place / self.share)
        return self.missing[index] if index < len(self.missing) else "train"


def _usable(lines: Iterable[Line | Fault]) -> Iterator[Line]:
    return (line for line in lines if isinstance(line, Line))


def _split_for(inputs: Inputs, data: DataConfig, report: Report) -> _Split:
    return _Split(inputs, data, report.usable, sum(side.characters for side in report.sides))


def _train_tokenizers(
    inputs: Inputs, data: DataConfig, config: TokenizerConfig, report: Report, limit: int, specials: Sequence[str]
) -> list[Tokenizer]:
    places = [place for place, column in enumerate(inputs.columns) if column.is_text]
    stride = -(-report.usable // TOKENIZER_LINES)
    split = _split_for(inputs, data, report)

    def texts(columns: Sequence[int]) -> Iterator[str]:
        dealt = (part for line in _usable(inputs.read("train")) for part in split.deal(line))
        lines = (line for place, line in dealt if place == "train")
        return (line.texts[places[column]] for line in islice(lines, 0, None, stride) for column in columns)

    def train(columns: Sequence[int]) -> Tokenizer:
        split.seen = 0
        words = sum(report.sides[column].total_words for column in columns)
        words = min(words, limit * len(columns) // len(report.sides)) if limit else words
        vocab = config.vocab or (0 if config.kind == "character" else vocab_for(words))
        return train_tokenizer(texts(columns), config, vocab=vocab, extra=specials)

    columns = range(len(report.sides))
    if config.joint:
        return [train(columns)] * len(columns)
    return [train([column]) for column in columns]


def _refuse_missing(specials: Sequence[str], tokenizers: Sequence[Tokenizer]) -> None:
    """A tokenizer that was not trained for the task may lack special tokens that the task needs."""
    for tokenizer in tokenizers:
        missing = [special for special in specials if not tokenizer.has(special)]
        if missing:
            raise ValueError(f"the task needs the special tokens {', '.join(missing)}, which this tokenizer lacks")


def _load_tokenizers(folder: Path, columns: int) -> list[Tokenizer] | None:
    if not (folder / "tokenizer.json").exists():
        return None
    return load_tokenizers(folder, columns=columns)


def _keep_tokenizers(folder: Path, tokenizers: list[Tokenizer]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_tokenizers(folder, tokenizers)


def save_tokenizers(folder: Path, tokenizers: list[Tokenizer]) -> None:
    """tokenizer.json is for the target, and for the source unless it has its own. It is written last, as a marker."""
    if not tokenizers:
        return
    if tokenizers[0] is not tokenizers[-1]:
        tokenizers[0].save(folder / "source_tokenizer.json")
    tokenizers[-1].save(folder / "tokenizer.json")


def load_tokenizers(folder: Path, *, columns: int) -> list[Tokenizer]:
    """One tokenizer per text column: the source's own, if there is one, for the first; the target's for the others."""
    if not columns:
        return []
    last = Tokenizer.load(folder / "tokenizer.json")
    own = folder / "source_tokenizer.json"
    return [Tokenizer.load(own) if own.exists() and columns > 1 else last, *[last] * (columns - 1)]


def _build(
    folder: Path,
    inputs: Inputs,
    content: dict[str, list[str]],
    data: DataConfig,
    tokenizers: list[Tokenizer],
    report: Report,
) -> None:
    """Write everything to a temporary folder, then move it into place atomically."""
    for left in folder.parent.glob(".building-*"):  # left by killed processes
        if time.time() - left.stat().st_mtime > 86400:
            shutil.rmtree(left, ignore_errors=True)
    temporary = Path(tempfile.mkdtemp(prefix=".building-", dir=folder.parent))
    try:
        facts = _Builder(temporary, inputs, data, tokenizers, report).build()
        facts["files"] = {
            split: dict(zip((file.name for file in getattr(inputs, split)), digests, strict=True))
            for split, digests in content.items()
        }
        write_text(temporary / "facts.json", json.dumps(facts, indent=2, ensure_ascii=False))
        if not (folder / "facts.json").exists():  # otherwise another process was faster
            shutil.rmtree(folder, ignore_errors=True)
            temporary.rename(folder)
            sync_folder(folder.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


class _Builder:
    """Tokenises line by line into the stores of the splits."""

    def __init__(
        self, folder: Path, inputs: Inputs, data: DataConfig, tokenizers: list[Tokenizer], report: Report
    ) -> None:
        self.folder, self.inputs, self.data, self.tokenizers, self.report = folder, inputs, data, tokenizers, report
        vocab, count = _largest(tokenizers), len(inputs.columns)
        self.writers = {split: StoreWriter(folder, split, columns=count, vocab=vocab) for split in SPLITS}
        self.texts = [place for place, column in enumerate(inputs.columns) if column.is_text]
        self.labels = {name: sorted(found) for name, found in report.labels.items()}
        self.numbers = {name: {label: n for n, label in enumerate(found)} for name, found in self.labels.items()}
        self.rows = dict.fromkeys(SPLITS, 0)
        self.tokens = [0] * len(self.texts)
        self.unknown_labels = 0
        self.too_long = 0
        self.raw = {split: (folder / f"{split}.jsonl").open("w", encoding="utf-8") for split in SPLITS[1:]}

    def build(self) -> dict[str, Any]:
        split = _split_for(self.inputs, self.data, self.report)
        for chunk in _chunks(_usable(self.inputs.read("train")), CHUNK):
            dealt = [part for line in chunk for part in split.deal(line)]
            for name in SPLITS:
                self._add(name, [line for place, line in dealt if place == name])
        for name in SPLITS[1:]:
            for chunk in _chunks(_usable(self.inputs.read(name)) if getattr(self.inputs, name) else (), CHUNK):
                self._add(name, chunk)
        for writer in self.writers.values():
            writer.close()
        for file in self.raw.values():
            file.close()
        if not self.rows["train"]:
            raise ValueError(
                f"no pairs are left to train on: {self.too_long:,} have more than {self.data.max_length} tokens "
                "on a side; raise data.max_length"
            )
        return {
            "report": self.report.as_data(),
            "rows": self.rows,
            "tokens": self.tokens,
            "too_long": self.too_long,
            "labels": self.labels,
            "unknown_labels": self.unknown_labels,
        }

    def _add(self, split: str, lines: list[Line]) -> None:
        if not lines:
            return
        known = [line for line in lines if self._has_known_labels(line)]
        self.unknown_labels += len(lines) - len(known)
        lines = known
        columns = self._encoded(lines)
        if self.texts and not is_document(self.inputs.columns):
            limit = None if split == "test" else self.data.max_length
            keep = [
                all(row and (limit is None or len(row) <= limit) for row in rows)
                for rows in zip(*(columns[place] for place in self.texts), strict=True)
            ]
            self.too_long += len(keep) - sum(keep)
            lines = [line for line, kept in zip(lines, keep, strict=True) if kept]
            columns = [[row for row, kept in zip(rows, keep, strict=True) if kept] for rows in columns]
        self.writers[split].add(columns)
        self.rows[split] += len(lines)
        if split == "train":
            counts = [sum(map(len, columns[place])) for place in self.texts]
            self.tokens = [total + count for total, count in zip(self.tokens, counts, strict=True)]
        else:
            names = [column.name for column in self.inputs.columns]
            for line in lines:
                text = json.dumps(dict(zip(names, line.texts, strict=True)), ensure_ascii=False)
                self.raw[split].write(text + "\n")

    def _encoded(self, lines: list[Line]) -> list[list[list[int]]]:
        """Each column as rows of numbers: tokens, label or tag numbers, or bytes."""
        tokenizers = iter(self.tokenizers)
        found: list[list[list[int]]] = []
        for place, column in enumerate(self.inputs.columns):
            cells = [line.texts[place] for line in lines]
            if column.is_text:
                found.append(next(tokenizers).encode(cells))
            elif column.kind == "raw":
                found.append([list(cell.encode()) for cell in cells])
            else:
                number = self.numbers[column.name]
                found.append([[number[label] for label in _labels(cell, column)] for cell in cells])
        return found

    def _has_known_labels(self, line: Line) -> bool:
        """Whether all labels of a row occur in the training files; rows of other files may have new ones."""
        return all(
            label in self.numbers[column.name]
            for cell, column in zip(line.texts, self.inputs.columns, strict=True)
            if column.kind in ("label", "tags")
            for label in _labels(cell, column)
        )


def _labels(cell: str, column: Column) -> list[str]:
    return [cell] if column.kind == "label" else cell.split()


def _largest(tokenizers: Sequence[Tokenizer]) -> int:
    return max((tokenizer.vocab for tokenizer in tokenizers), default=0)


def _chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
