"""From the user's files to token stores: check them, hold out splits, train the tokenizer, tokenise once.

The stores are cached under a key made of everything they depend on: the content of the files, the columns, the
tokenizers, the settings. A second start with the same inputs reuses them.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from heedful.bounded import read_object
from heedful.data.build import build, largest, split_for, usable
from heedful.data.check import Report
from heedful.data.columns import PAIR, Columns
from heedful.data.corpora import Metric
from heedful.data.digest import file_digest
from heedful.data.inputs import DataConfig, Inputs, look_over
from heedful.data.languages import Direction
from heedful.data.mixed import Mixed
from heedful.data.store import Store
from heedful.files import locked, write_text
from heedful.text.tokenizer import BREAK, CHAT_TOKENS, Tokenizer, TokenizerConfig, train_tokenizer, vocab_for

TOKENIZER_LINES = 500_000  # more lines hardly improve a tokenizer
FORMAT = "5"
DIGESTS = "digests.json"  # of the tokenizers, as they were when their model was trained
Notify = Callable[[str], None]


@dataclass(frozen=True)
class Part:
    """A part of a mixture: a corpus, or one direction of it. `share`: of the rows that are trained on; `rows`: how many
    there are."""

    name: str
    prepared: "Prepared"
    share: float
    direction: Direction | None = None
    swapped: bool = False  # the columns are read in the opposite order
    metric: Metric = "bleu"

    @property
    def rows(self) -> int:
        return int(self.prepared.facts["rows"]["train"])

    @property
    def columns(self) -> tuple[int, ...]:
        return (1, 0) if self.swapped else (0, 1)

    @property
    def tokens(self) -> tuple[float, ...]:
        """How many tokens of each column an epoch has on average per row."""
        return tuple(self.prepared.facts["tokens"][column] / max(1, self.rows) for column in self.columns)

    def texts(self, split: str) -> list[tuple[str, ...]]:
        return [tuple(row[column] for column in self.columns) for row in self.prepared.texts(split)]


@dataclass(frozen=True)
class Prepared:
    """Stores and tokenizers, ready for use. `facts` describe what was found and done: see `prepare`. `parts`: those of
    a mixture, whose rows follow each other; `extra`: how many language tokens are added to a row of each column."""

    folder: Path
    tokenizers: list[Tokenizer]  # one per text column; the same one twice if they are joint
    facts: dict[str, Any]
    columns: Columns = PAIR
    parts: tuple[Part, ...] = ()
    extra: tuple[int, ...] = (0, 0)

    def mixed(self, split: str) -> Mixed:
        """The rows of all parts of a mixture."""
        stores = [part.prepared.store(split) for part in self.parts]
        columns = [part.columns for part in self.parts]
        return Mixed(stores, columns, [part.share for part in self.parts], extra=self.extra)

    def store(self, split: str) -> Store:
        counted = [
            place for place, column in enumerate(self.columns) if column.kind not in ("raw", "number", "answers")
        ]
        return Store(
            self.folder, split, columns=len(self.columns), vocab=largest(self.tokenizers), counted=tuple(counted)
        )

    @property
    def labels(self) -> dict[str, list[str]]:
        """The label names of each column of labels or tags, by number."""
        found: dict[str, list[str]] = self.facts["labels"]
        return found

    def has(self, split: str) -> bool:
        return bool(self.facts["rows"].get(split))

    def places(self, split: str) -> np.ndarray:
        """How many rows before each one belong to its document, where rows belong to documents."""
        path = self.folder / f"{split}.places"
        return np.memmap(path, np.uint8, "r") if path.stat().st_size else np.empty(0, np.uint8)

    def texts(self, split: str) -> list[tuple[str, ...]]:
        """The raw texts of a held-out split."""
        if self.parts:
            return [row for part in self.parts for row in part.texts(split)]
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
    others: Sequence[Inputs] = (),
    notify: Notify = lambda message: None,
) -> Prepared:
    """Tokenizers are trained unless `given`. A second call reuses the cached result. `words`: how many words training
    will see, if known, which limits the vocabulary. `specials`: the special tokens that the task needs beyond those of
    every tokenizer. `report`: the result of `look_over`, if it is known already. `others`: other corpora of a mixture;
    what they hold out is not trained on here either."""
    cache.mkdir(parents=True, exist_ok=True)
    content = inputs.digests(cache)
    columns = [asdict(column) for column in inputs.columns]
    how = config.model_dump(exclude={"dropout", "file"})
    content = {**content, "fields": list(inputs.fields)} if inputs.fields else content
    content = {**content, "documents": []} if inputs.documents else content
    content = {**content, "prefix": [inputs.prefix]} if inputs.prefix else content
    tokenizers_key = cache_key(content, columns, how, data.held_out, words, list(specials))
    texts = sum(column.is_text for column in inputs.columns)
    if texts > 2 and not config.joint:
        raise ValueError(f"tokenizer.joint=false is for pairs, but rows have {texts} texts; use tokenizer.joint=true")
    if given is None and config.file:
        given = [Tokenizer.load(Path(config.file))] * texts
    if given is not None:
        refuse_missing(specials, given)
    tokenizers = cached_tokenizers(cache / "tokenizers" / tokenizers_key, texts) if given is None and texts else given
    tokenizers = [] if not texts else tokenizers
    if tokenizers is None:
        with locked(cache_lock(cache, tokenizers_key), "training the same tokenizer", wait=notify):
            tokenizers = cached_tokenizers(cache / "tokenizers" / tokenizers_key, texts)  # by the one waited for
            if tokenizers is None:
                if report is None:
                    notify("checking the corpus")
                    report = look_over(inputs)
                notify("training the tokenizer")
                tokenizers = _train_tokenizers(inputs, data, config, report, words, specials)
                keep_tokenizers(cache / "tokenizers" / tokenizers_key, tokenizers)
    digests = [tokenizer.digest() for tokenizer in tokenizers]
    parts = [content, columns, digests, data.max_length, data.held_out, inputs.strict]
    others = [other for other in others if not other.valid]
    known = [[other.digests(cache), list(other.fields), other.prefix] for other in others]
    key = cache_key(*parts, *([known] if known else []))
    folder = cache / key
    with locked(cache_lock(cache, key), "tokenising the same corpus", wait=notify):
        if not (folder / "facts.json").exists():
            notify("tokenising the corpus")
            build(folder, inputs, content, data, tokenizers, report or look_over(inputs), others)
    facts = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
    return Prepared(folder=folder, tokenizers=tokenizers, facts=facts, columns=inputs.columns)


def default_cache() -> Path:
    """HEEDFUL_CACHE, or heedful in the user's cache folder."""
    if named := os.environ.get("HEEDFUL_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "heedful"


def cache_lock(cache: Path, key: str) -> Path:
    return cache / "locks" / key


def cache_key(*parts: object) -> str:
    return blake2b(json.dumps([FORMAT, *parts], sort_keys=True).encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class _Reread:
    """Texts that can be read more than once without being held in memory."""

    read: Callable[[], Iterator[str]]

    def __iter__(self) -> Iterator[str]:
        return self.read()


def _train_tokenizers(
    inputs: Inputs, data: DataConfig, config: TokenizerConfig, report: Report, limit: int, specials: Sequence[str]
) -> list[Tokenizer]:
    places = [place for place, column in enumerate(inputs.columns) if column.is_text]
    stride = -(-report.usable // TOKENIZER_LINES)
    split = split_for(inputs, data, report)

    def texts(columns: Sequence[int]) -> Iterator[str]:
        split.seen = 0
        dealt = (part for line in usable(inputs.read("train")) for part in split.deal(line))
        lines = (line for place, line in dealt if place == "train")
        return (
            inputs.columns[places[column]].plain(line.texts[places[column]])
            for line in islice(lines, 0, None, stride)
            for column in columns
        )

    def train(columns: Sequence[int]) -> Tokenizer:
        words = sum(report.sides[column].total_words for column in columns)
        words = min(words, limit * len(columns) // len(report.sides)) if limit else words
        vocab = config.vocab or (0 if config.kind == "character" else vocab_for(words))
        return train_tokenizer(_Reread(lambda: texts(columns)), config, vocab=vocab, extra=specials)

    columns = range(len(report.sides))
    if config.joint:
        return [train(columns)] * len(columns)
    return [train([column]) for column in columns]


def refuse_missing(specials: Sequence[str], tokenizers: Sequence[Tokenizer]) -> None:
    """A tokenizer that was not trained for the task may lack special tokens that the task needs."""
    for tokenizer in tokenizers:
        told = CHAT_TOKENS if tokenizer.chat_template is not None else ()  # a template needs no tokens of ours
        missing = [special for special in specials if special not in told and not tokenizer.has(special)]
        if missing:
            remedy = "; train a tokenizer with the model, or set data.context=0" if BREAK in missing else ""
            raise ValueError(
                f"the task needs the special tokens {', '.join(missing)}, which this tokenizer lacks{remedy}"
            )


def cached_tokenizers(folder: Path, columns: int) -> list[Tokenizer] | None:
    if not (folder / "tokenizer.json").exists():
        return None
    return load_tokenizers(folder, columns=columns)


def keep_tokenizers(folder: Path, tokenizers: list[Tokenizer]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_tokenizers(folder, tokenizers)


def save_tokenizers(folder: Path, tokenizers: list[Tokenizer]) -> None:
    """tokenizer.json is for the target, and for the source unless it has its own. It is written last, as a marker."""
    if not tokenizers:
        return
    if tokenizers[0] is not tokenizers[-1]:
        tokenizers[0].save(folder / "source_tokenizer.json")
    tokenizers[-1].save(folder / "tokenizer.json")
    names = ["tokenizer.json"] + ["source_tokenizer.json"] * (tokenizers[0] is not tokenizers[-1])
    write_text(folder / DIGESTS, json.dumps({name: file_digest(folder / name) for name in names}, indent=2))


def load_tokenizers(folder: Path, *, columns: int) -> list[Tokenizer]:
    """One tokenizer per text column: the source's own, if there is one, for the first; the target's for the others."""
    if not columns:
        return []
    _refuse_exchanged(folder)
    last = Tokenizer.load(folder / "tokenizer.json")
    own = folder / "source_tokenizer.json"
    return [Tokenizer.load(own) if own.exists() and columns > 1 else last, *[last] * (columns - 1)]


def _refuse_exchanged(folder: Path) -> None:
    """A tokenizer other than the one that a model was trained with gives word salad. Folders of earlier versions do not
    say which one it was."""
    if not (folder / DIGESTS).is_file():
        return
    known = read_object(folder / DIGESTS)
    for name in ("tokenizer.json", "source_tokenizer.json"):
        if name in known and not (folder / name).is_file():
            raise ValueError(f"there is no {folder / name}, with which the model was trained")
        if (folder / name).is_file() and file_digest(folder / name) != known.get(name):
            raise ValueError(
                f"{folder / name} is not the one that the model was trained with; put that one back, or, if it was "
                f"changed on purpose, delete {DIGESTS}"
            )
