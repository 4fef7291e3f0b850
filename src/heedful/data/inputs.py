"""The user's files: their formats and columns, and a check of their content."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import Field, model_validator

from heedful.config import Config, Size
from heedful.data.check import Report, check
from heedful.data.columns import PAIR, Columns, has_answers, has_messages, has_prompts, is_document
from heedful.data.corpora import CorpusConfig, names_of, part_names
from heedful.data.corpus import Fault, Line, read_rows, row_format
from heedful.data.dialogues import read_dialogues
from heedful.data.digest import known_digest
from heedful.data.documents import in_documents, refuse_without
from heedful.data.languages import Direction, Layout
from heedful.data.preferences import read_prompted
from heedful.data.squad import read_questions

SPLITS = ("train", "valid", "test")


class DataConfig(Config):
    """`max_length`: pairs with more tokens on a side are skipped and counted. `held_out`: the number of pairs held out
    for validation, and as many for testing, if there is no --valid; 0 = about one in fifty (of labelled rows one in
    ten), at most 1,000. A source sentence never occurs in two splits. Of plain text, the last tenth is held out.
    Languages are codes such as `en`, for users of the model and for BLEU's tokenizer. `fields`: the names of the files'
    columns, as --fields gives them. `context`: the number of sentences before that a translator sees, on both sides,
    of the same document (Tiedemann and Scherrer 2017): documents are rows with the same `document`, or rows between
    blank lines, and are never divided between splits.

    `corpora`: the corpora of a mixture, in place of files on the command line; their keys are below. `temperature`: how
    much their shares follow their sizes: 1 = in proportion, larger = more even. `language_tokens`: where the tokens of
    languages go: prefix (the target language before the source), m2m (the source language before the source, the target
    language first in the target) or mbart (the source language after the source, the target starts with its own).
    """

    max_length: Size = 256
    held_out: int = Field(0, ge=0)
    source_language: str = ""
    target_language: str = ""
    fields: tuple[str, ...] = ()
    context: int = Field(0, ge=0, le=16)
    corpora: tuple[CorpusConfig, ...] = ()
    temperature: float = Field(1.0, gt=0)
    language_tokens: Layout = ""

    @model_validator(mode="after")
    def _corpora_fit_together(self) -> "DataConfig":
        named = [corpus.source for corpus in self.corpora]
        if any(named) and not all(named):
            missing = names_of(self.corpora)[named.index("")]
            raise ValueError(f"corpora: {missing} has no languages, but others do; give it source and target")
        weights = [corpus.weight is not None for corpus in self.corpora]
        if any(weights) and not all(weights):
            missing = names_of(self.corpora)[weights.index(False)]
            raise ValueError(f"corpora: {missing} has no weight, but others do; give each a weight, or none")
        if any(weights) and self.temperature != 1:
            raise ValueError("weights already are the shares; leave out temperature or the weights")
        if self.language_tokens and self.corpora and not any(named):
            raise ValueError("language_tokens needs languages; give each corpus source and target")
        if self.context and self.corpora:
            raise ValueError("data.context reads the documents of one corpus; leave out corpora, or set data.context=0")
        names_of(self.corpora)
        return self

    @property
    def directions(self) -> list[Direction]:
        """The directions that a mixture is trained on."""
        return list(dict.fromkeys(one for corpus in self.corpora for one in corpus.directions))

    @property
    def layout(self) -> Layout:
        """Where language tokens go; empty where there are none."""
        return self.language_tokens or ("prefix" if self.directions else "")

    @property
    def scored(self) -> list[tuple[str, str]]:
        """(name, metric) of each part of a mixture."""
        return [(name, self.corpora[number].metric) for name, number, _ in part_names(self.corpora)]

    @property
    def longest(self) -> int:
        """The most tokens on a side of a pair, a language token included."""
        return self.max_length + bool(self.layout)


@dataclass(frozen=True)
class Inputs:
    """The user's files and their columns. `strict`: a line that cannot be used is an error, where otherwise it is
    skipped and counted. `documents`: rows belong to documents, which are kept together. `prefix`: text before each
    source."""

    train: tuple[Path, ...]
    valid: tuple[Path, ...] = ()
    test: tuple[Path, ...] = ()
    columns: Columns = PAIR
    fields: tuple[str, ...] = ()  # the names of the columns in the files: see `layout`
    strict: bool = False
    documents: bool = False
    prefix: str = ""

    def __post_init__(self) -> None:
        ours = [column.name for column in self.columns]
        if self.fields and len(self.fields) != len(ours) and not set(ours) <= set(self.fields):
            names = ",".join(ours)
            raise ValueError(f"--fields names {len(self.fields)} fields, but there are {len(self.columns)}: {names}")
        for file in (*self.train, *self.valid, *self.test):
            if not file.is_file():
                raise ValueError(f"there is no file {file}")
        for files in (self.train, self.valid, self.test):
            own = is_document, has_answers, has_messages, has_prompts
            if files and not any(has(self.columns) for has in own):
                row_format(files, self.columns)

    def read(self, split: str) -> Iterator[Line | Fault]:
        files: tuple[Path, ...] = getattr(self, split)
        if self.documents:
            return in_documents(read_rows(files, self.columns, self.fields, documents=True))
        if has_messages(self.columns):
            lines = read_dialogues(files, self.columns)
        else:
            read = read_questions if has_answers(self.columns) else read_rows
            read = read_prompted if has_prompts(self.columns) else read
            lines = read(files, self.columns, self.fields)
        if self.prefix:
            lines = (_prefixed(line, self.prefix) for line in lines)
        return refuse_faults(lines) if self.strict else lines

    def digests(self, cache: Path) -> dict[str, list[str]]:
        """Content digests of the files of each split: names and timestamps do not matter."""
        return {split: [known_digest(file, cache) for file in getattr(self, split)] for split in SPLITS}


def _prefixed(line: Line | Fault, prefix: str) -> Line | Fault:
    return line if isinstance(line, Fault) else replace(line, texts=(prefix + line.texts[0], *line.texts[1:]))


def refuse_faults(lines: Iterable[Line | Fault]) -> Iterator[Line | Fault]:
    """The same lines, but one that cannot be used is an error."""
    for line in lines:
        if isinstance(line, Fault) and line.reason not in ("header row", "empty line"):
            raise ValueError(f"{line.place}: {line.reason}; correct or remove the {line.unit}")
        yield line


def look_over(inputs: Inputs) -> Report:
    """The report on the training files; an error if there is nothing usable."""
    others = []
    if inputs.documents:
        refuse_without(inputs.read("train"), ", ".join(file.name for file in inputs.train))
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
