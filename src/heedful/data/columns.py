"""The columns of a corpus: a task declares them, and reading, tokenising and batching follow."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["text", "document", "messages", "prompt", "label", "labels", "tags", "number", "answers", "raw"]


@dataclass(frozen=True)
class Turns:
    """Which messages of a dialogue are rows: those of the roles `learn`, each after up to `history` others (0 = all
    that came before). `speakers`: the roles of further names in the files. `whole`: whether a message and what came
    before it must fit data.max_length together, and what becomes of a row that does not."""

    learn: tuple[str, ...]
    history: int
    speakers: tuple[tuple[str, str], ...]
    whole: Literal["", "refuse", "skip"] = ""


@dataclass(frozen=True)
class Column:
    """A column of a table, or the JSONL field of that name. `also`: other names that people give it.

    text       tokenised
    document   plain text files, tokenised: documents separated by blank lines; must be the only column
    messages   what was said before a reply, as JSON; tokenised as a prompt (`text/chat.py`): see `dialogues`
    prompt     what an answer follows, as JSON: a text as it stands, or messages as above: see `preferences`
    label      one of a few names; a row stores the number of its label
    labels     any number of names, separated by commas, or a list in JSONL; may be empty
    tags       a label for each word of the first text, separated by spaces; a row stores a number for each token: 0, or
               where it is the first of a word, 1 + the number of the word's label
    number     a finite number, kept as its text
    answers    spans of the text before it, as SQuAD's JSON: see `squad`; a row stores the tokens of the first one as
               text, "first last", or nothing if there is no answer
    raw        kept as bytes: the path of an image or a sound, which the task itself reads

    What a list in JSONL is: `lists` sentences = joined by spaces; several = a row for each of its texts. `cuts`: of a
    text that is longer than data.max_length the beginning is kept, and the text counted; otherwise its row is skipped.
    """

    name: str
    kind: Kind = "text"
    also: tuple[str, ...] = ()
    lists: Literal["", "sentences", "several"] = ""
    cuts: bool = False
    turns: Turns | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.also)

    @property
    def is_text(self) -> bool:
        return self.kind in ("text", "document", "messages", "prompt")

    def plain(self, cell: str) -> str:
        """What is new in a text cell: of messages the last one, since the others are in other rows."""
        asked = json.loads(cell) if self.kind in ("messages", "prompt") else cell
        last: str = asked if isinstance(asked, str) else asked["messages"][-1]["content"]
        return last

    @property
    def is_labelled(self) -> bool:
        """Whether its cells hold labels, which the training files define."""
        return self.kind in ("label", "labels", "tags")

    def labels(self, cell: str) -> list[str]:
        """The labels in a cell."""
        if self.kind == "labels":
            return list(dict.fromkeys(name for name in map(str.strip, cell.split(",")) if name))
        return [cell] if self.kind == "label" else cell.split()


Columns = tuple[Column, ...]
PAIR: Columns = (Column("source"), Column("target"))
DOCUMENT: Columns = (Column("text", "document"),)


def is_document(columns: Sequence[Column]) -> bool:
    return any(column.kind == "document" for column in columns)


def has_answers(columns: Sequence[Column]) -> bool:
    """Whether rows are questions with answers in a context, which have files of their own: see `squad`."""
    return any(column.kind == "answers" for column in columns)


def has_messages(columns: Sequence[Column]) -> bool:
    """Whether rows are messages of dialogues, which have files of their own: see `dialogues`."""
    return any(column.kind == "messages" for column in columns)


def has_prompts(columns: Sequence[Column]) -> bool:
    """Whether rows are prompts, alone or with answers, which have files of their own: see `preferences`."""
    return any(column.kind == "prompt" for column in columns)


def is_pair(columns: Sequence[Column]) -> bool:
    """Whether the columns are two texts, which may also come as two parallel files."""
    return [column.kind for column in columns] == ["text", "text"]


def names_of(columns: Sequence[Column]) -> str:
    """source, tab, target"""
    return ", tab, ".join(column.name for column in columns)
