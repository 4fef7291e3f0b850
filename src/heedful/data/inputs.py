"""The user's files: their formats and columns, and a check of their content."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from heedful.config import Config, Size
from heedful.data.check import Report, check
from heedful.data.columns import PAIR, Columns, has_answers, has_messages, is_document
from heedful.data.corpus import Fault, Line, read_rows, row_format
from heedful.data.dialogues import read_dialogues
from heedful.data.digest import known_digest
from heedful.data.squad import read_questions

SPLITS = ("train", "valid", "test")


class DataConfig(Config):
    """`max_length`: pairs with more tokens on a side are skipped and counted. `held_out`: the number of pairs held out
    for validation, and as many for testing, if there is no --valid; 0 = about one in fifty (of labelled rows one in
    ten), at most 1,000. A source sentence never occurs in two splits. Of plain text, the last tenth is held out.
    Languages are codes such as `en`, for users of the model and for BLEU's tokenizer. `fields`: the names of the files'
    columns, as --fields gives them.
    """

    max_length: Size = 256
    held_out: int = Field(0, ge=0)
    source_language: str = ""
    target_language: str = ""
    fields: tuple[str, ...] = ()


@dataclass(frozen=True)
class Inputs:
    """The user's files and their columns. `strict`: a line that cannot be used is an error, where otherwise it is
    skipped and counted."""

    train: tuple[Path, ...]
    valid: tuple[Path, ...] = ()
    test: tuple[Path, ...] = ()
    columns: Columns = PAIR
    fields: tuple[str, ...] = ()  # the names of the columns in the files: see `layout`
    strict: bool = False

    def __post_init__(self) -> None:
        ours = [column.name for column in self.columns]
        if self.fields and len(self.fields) != len(ours) and not set(ours) <= set(self.fields):
            names = ",".join(ours)
            raise ValueError(f"--fields names {len(self.fields)} fields, but there are {len(self.columns)}: {names}")
        for file in (*self.train, *self.valid, *self.test):
            if not file.is_file():
                raise ValueError(f"there is no file {file}")
        for files in (self.train, self.valid, self.test):
            if files and not (is_document(self.columns) or has_answers(self.columns) or has_messages(self.columns)):
                row_format(files, self.columns)

    def read(self, split: str) -> Iterator[Line | Fault]:
        files: tuple[Path, ...] = getattr(self, split)
        if has_messages(self.columns):
            return read_dialogues(files, self.columns)
        read = read_questions if has_answers(self.columns) else read_rows
        lines = read(files, self.columns, self.fields)
        return refuse_faults(lines) if self.strict else lines

    def digests(self, cache: Path) -> dict[str, list[str]]:
        """Content digests of the files of each split: names and timestamps do not matter."""
        return {split: [known_digest(file, cache) for file in getattr(self, split)] for split in SPLITS}


def refuse_faults(lines: Iterable[Line | Fault]) -> Iterator[Line | Fault]:
    """The same lines, but one that cannot be used is an error."""
    for line in lines:
        if isinstance(line, Fault) and line.reason not in ("header row", "empty line"):
            raise ValueError(f"{line.place}: {line.reason}; correct or remove the {line.unit}")
        yield line


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
