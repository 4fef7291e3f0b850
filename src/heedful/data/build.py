"""Building the stores of a corpus: assign each row to a split, tokenise it, write it; then move all into place."""

import json
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

from heedful.data.check import Report
from heedful.data.columns import Turns, has_answers, has_messages, has_prompts, is_document
from heedful.data.conll import complete, is_tagged
from heedful.data.corpus import Fault, Line, near
from heedful.data.inputs import SPLITS, DataConfig, Inputs
from heedful.data.squad import tokens_of
from heedful.data.store import StoreWriter
from heedful.files import sync_folder, write_text
from heedful.text.chat import Chat, TooLongError
from heedful.text.tokenizer import Tokenizer

CHUNK = 8192
PAIRS, LABELLED = 50, 10  # of so many rows one is held out for each split; of labelled ones, which are fewer, more
T = TypeVar("T")


def build(
    folder: Path,
    inputs: Inputs,
    content: dict[str, list[str]],
    data: DataConfig,
    tokenizers: list[Tokenizer],
    report: Report,
    others: Sequence[Inputs] = (),
) -> None:
    """Write everything to a temporary folder, then move it into place atomically. `others`: see `prepare`."""
    for left in folder.parent.glob(".building-*"):  # left by killed processes
        if time.time() - left.stat().st_mtime > 86400:
            shutil.rmtree(left, ignore_errors=True)
    temporary = Path(tempfile.mkdtemp(prefix=".building-", dir=folder.parent))
    try:
        taken = frozenset(source for other in others for source in held_out_sources(other, data))
        builder = Builder(temporary, inputs, data, tokenizers, report, taken)
        facts = builder.build()
        facts["files"] = {
            split: dict(zip((file.name for file in getattr(inputs, split)), digests, strict=True))
            for split, digests in content.items()
            if split in SPLITS
        }
        write_text(temporary / "facts.json", json.dumps(facts, indent=2, ensure_ascii=False))
        if not (folder / "facts.json").exists():  # otherwise another process was faster
            shutil.rmtree(folder, ignore_errors=True)
            temporary.rename(folder)
            sync_folder(folder.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


class Builder:
    """Tokenises line by line into the stores of the splits."""

    def __init__(
        self,
        folder: Path,
        inputs: Inputs,
        data: DataConfig,
        tokenizers: list[Tokenizer],
        report: Report,
        taken: frozenset[str] = frozenset(),
    ) -> None:
        self.taken = taken
        self.folder, self.inputs, self.data, self.tokenizers, self.report = folder, inputs, data, tokenizers, report
        vocab, count = largest(tokenizers), len(inputs.columns)
        self.writers = {split: StoreWriter(folder, split, columns=count, vocab=vocab) for split in SPLITS}
        self.texts = [place for place, column in enumerate(inputs.columns) if column.is_text]
        tags = {column.name for column in inputs.columns if column.kind == "tags"}
        self.labels = {
            name: sorted(complete(found) if name in tags else found) for name, found in report.labels.items()
        }
        self.numbers = {name: {label: n for n, label in enumerate(found)} for name, found in self.labels.items()}
        self.turns: Turns | None = next((column.turns for column in inputs.columns if column.turns is not None), None)
        chats = has_messages(inputs.columns) or has_prompts(inputs.columns)
        self.chats = [Chat(tokenizer) for tokenizer in tokenizers[:1] if chats]
        self.rows = dict.fromkeys(SPLITS, 0)
        self.tokens = [0] * len(self.texts)
        self.unknown_labels = 0
        self.too_long = self.cut = 0
        self.follows = dict.fromkeys(SPLITS, 0)  # how many rows of its document a next row would follow
        self.places = {split: (folder / f"{split}.places").open("wb") for split in SPLITS if inputs.documents}
        self.raw = {split: (folder / f"{split}.jsonl").open("w", encoding="utf-8") for split in SPLITS[1:]}

    def build(self) -> dict[str, Any]:
        split = split_for(self.inputs, self.data, self.report, self.taken)
        for chunk in _chunks(usable(self.inputs.read("train")), CHUNK):
            dealt = [part for line in chunk for part in split.deal(line)]
            for name in SPLITS:
                self._add(name, [line for place, line in dealt if place == name])
        for name in SPLITS[1:]:
            for chunk in _chunks(usable(self.inputs.read(name)) if getattr(self.inputs, name) else (), CHUNK):
                self._add(name, chunk)
        for writer in self.writers.values():
            writer.close()
        for file in (*self.raw.values(), *self.places.values()):
            file.close()
        if not self.rows["train"]:
            raise ValueError(
                f"no rows are left to train on: {self.too_long:,} have more than {self.data.max_length} tokens "
                "in a text; raise data.max_length"
            )
        return {
            "report": self.report.as_data(),
            "rows": self.rows,
            "tokens": self.tokens,
            "too_long": self.too_long,
            "cut": self.cut,
            "labels": self.labels,
            "unknown_labels": self.unknown_labels,
            **({"held_out_elsewhere": split.left_out} if self.taken else {}),
        }

    def _add(self, split: str, lines: list[Line]) -> None:
        if not lines:
            return
        known = [line for line in lines if self._has_known_labels(line, split)]
        self.unknown_labels += len(lines) - len(known)
        lines = known
        columns = self._encoded(lines)
        if self.texts and not is_document(self.inputs.columns):
            limit = None if split == "test" or self.inputs.strict else self.data.max_length
            if limit is not None:
                self._cut(columns, limit)
            texts = list(zip(*(columns[place] for place in self.texts), strict=True))
            keep = [all(row and (limit is None or len(row) <= limit) for row in rows) for rows in texts]
            if self.inputs.strict and not all(keep):
                line = lines[keep.index(False)]
                raise ValueError(f"{line.place}: a text without any token; correct or remove the {line.unit}")
            if self.turns is not None and self.turns.whole:
                keep = [self._fits(line, *rows) for line, rows in zip(lines, texts, strict=True)]
            if has_prompts(self.inputs.columns):
                self._refuse_unusable_answers(lines, columns)
            self.too_long += len(keep) - sum(keep)
            if self.places:
                self.places[split].write(bytes(self._places(split, lines, keep)))
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

    def _places(self, split: str, lines: list[Line], keep: list[bool]) -> Iterator[int]:
        """For each row that is kept, how many rows before it belong to its document, without a gap."""
        for line, kept in zip(lines, keep, strict=True):
            before = self.follows[split] if line.before else 0
            self.follows[split] = before + 1 if kept else 0
            if kept:
                yield min(before, 255)

    def _fits(self, line: Line, prompt: Sequence[int], reply: Sequence[int]) -> bool:
        """Whether a message to learn fits together with its prompt; an error if it must."""
        fits = len(prompt) + len(reply) < self.data.max_length  # and the end of the message
        if not fits and self.turns is not None and self.turns.whole == "refuse":
            raise ValueError(
                f"{line.place}: the prompt takes {len(prompt):,} tokens and the answer {len(reply) + 1:,}, more than "
                f"data.max_length={self.data.max_length} together; raise that, shorten the line, or leave out such "
                "lines with task.too_long=skip"
            )
        return fits

    def _prompts(self, lines: list[Line], place: int) -> list[list[int]]:
        """The tokens of messages, without the oldest ones where they are too long together."""
        limits = [self.data.max_length] * len(lines)
        if self.turns is not None and self.turns.whole:
            replies = self.tokenizers[0].encode([line.texts[place + 1] for line in lines])
            limits = [limit - len(reply) - 1 for limit, reply in zip(limits, replies, strict=True)]
        return [self._prompt(line.texts[place], limit) for line, limit in zip(lines, limits, strict=True)]

    def _prompt(self, cell: str, limit: int) -> list[int]:
        asked = json.loads(cell)
        messages: list[dict[str, str]] = asked["messages"]
        try:
            found = self.chats[0].prompt(messages, role=asked["role"], limit=limit)
        except TooLongError:
            shortest = [one for one in messages[:-1][:1] if one["role"] == "system"] + messages[-1:]
            return self.chats[0].prompt(shortest, role=asked["role"]).tokens
        self.cut += found.dropped > 0
        return found.tokens

    def _before_answers(self, cells: Sequence[str]) -> list[list[int]]:
        """The tokens of prompts: of messages without the oldest ones, of a text the end, where they are too long."""
        asked = [json.loads(cell) for cell in cells]
        texts = iter(self.tokenizers[0].encode([one for one in asked if isinstance(one, str)]))
        rows = [
            next(texts) if isinstance(one, str) else self._prompt(cell, self.data.max_length)
            for one, cell in zip(asked, cells, strict=True)
        ]
        self.cut += sum(len(row) > self.data.max_length for row in rows)
        return [row[-self.data.max_length :] for row in rows]

    def _refuse_unusable_answers(self, lines: list[Line], columns: list[list[list[int]]]) -> None:
        """Answers that would be cut off, and those that the model cannot tell from each other."""
        names = [column.name for column in self.inputs.columns]
        for row, line in enumerate(lines):
            for name, answers in zip(names[1:], columns[1:], strict=True):
                if len(answers[row]) > self.data.max_length:
                    raise ValueError(
                        f"{line.place}: {name} has {len(answers[row]):,} tokens, and data.max_length is "
                        f"{self.data.max_length:,}, so it would be cut off; raise data.max_length, or shorten or "
                        f"remove the {line.unit}"
                    )
            if len(columns) == 3 and columns[1][row] == columns[2][row]:
                raise ValueError(
                    f"{line.place}: {names[1]} and {names[2]} are the same tokens, so there is nothing to learn from "
                    f"them; remove the {line.unit}"
                )

    def _cut(self, columns: list[list[list[int]]], limit: int) -> None:
        """Keep the beginning of texts that are too long, in columns where that is better than to lose the row."""
        for place, column in enumerate(self.inputs.columns):
            if column.cuts:
                self.cut += sum(len(row) > limit for row in columns[place])
                columns[place] = [row[:limit] for row in columns[place]]

    def _encoded(self, lines: list[Line]) -> list[list[list[int]]]:
        """Each column as rows of numbers: tokens, label numbers, tags by token, or bytes."""
        tokenizers = iter(self.tokenizers)
        found: list[list[list[int]]] = []
        words: list[list[list[int]]] = []  # the tokens of each word of each row, where words have tags
        if is_tagged(self.inputs.columns):
            words = [self.tokenizers[0].encode_words(line.texts[self.texts[0]].split()) for line in lines]
        for place, column in enumerate(self.inputs.columns):
            cells = [line.texts[place] for line in lines]
            if column.is_text:
                tokenizer = next(tokenizers)
                if column.kind == "messages":
                    found.append(self._prompts(lines, place))
                    continue
                if column.kind == "prompt":
                    found.append(self._before_answers(cells))
                    continue
                first = words and place == self.texts[0]
                found.append([list(chain.from_iterable(row)) for row in words] if first else tokenizer.encode(cells))
            elif column.kind == "answers":
                found.append(tokens_of(lines, self.tokenizers[-1], context=place - 1, answers=place))
            elif column.kind in ("raw", "number"):
                found.append([list(cell.encode()) for cell in cells])
            else:
                number = self.numbers[column.name]
                labels = [[number[label] for label in column.labels(cell)] for cell in cells]
                found.append(list(map(by_token, labels, words)) if column.kind == "tags" else labels)
        return found

    def _has_known_labels(self, line: Line, split: str) -> bool:
        """Whether all labels of a row occur in the training files; rows of other files may have new ones."""
        for cell, column in zip(line.texts, self.inputs.columns, strict=True):
            if column.is_labelled:
                for label in column.labels(cell):
                    if label not in self.numbers[column.name]:
                        if self.inputs.strict:
                            raise unknown_label(line, column.name, label, self.labels[column.name])
                        return False
        return True


def by_token(tags: Sequence[int], words: Sequence[Sequence[int]]) -> list[int]:
    """For each token of these words 0, or where it is the first of a word, 1 + the number of the word's tag."""
    return [1 + tag if first else 0 for tag, word in zip(tags, words, strict=True) for first in _firsts(len(word))]


def _firsts(count: int) -> list[bool]:
    return [True] + [False] * (count - 1)


def unknown_label(line: Line, column: str, label: str, known: Sequence[str]) -> ValueError:
    shown = ", ".join(known[:10]) + (", ..." if len(known) > 10 else "")
    return ValueError(
        f"{line.file}:{line.number}: {column} {label!r} does not occur in the training data, which has {shown}; "
        "correct the line, or add examples of it for training"
    )


class Split:
    """Assigns each line to a split by its content alone: order and repetition do not matter. `taken`: sources that are
    not for training, since other corpora hold them out."""

    def __init__(
        self, inputs: Inputs, data: DataConfig, usable: int, characters: int, taken: frozenset[str] = frozenset()
    ) -> None:
        self.taken, self.prefix, self.left_out = taken, inputs.prefix, 0
        wanted = data.held_out or min(1000, max(1, usable // (LABELLED if inputs.strict else PAIRS)))
        self.missing = [split for split in SPLITS[1:] if not getattr(inputs, split)]
        self.rows, self.documents = not is_document(inputs.columns), inputs.documents
        texts = [place for place, column in enumerate(inputs.columns) if column.is_text]
        # Questions about the same context stay together: to have read it in training is half the answer.
        self.texts = texts[-1:] if has_answers(inputs.columns) else texts[:1]
        if has_messages(inputs.columns):  # a dialogue stays together
            self.texts = [place for place, column in enumerate(inputs.columns) if column.kind == "raw"]
        if "valid" not in self.missing or (self.rows and usable < 20):  # nothing to hold out, or too few
            self.missing = []
        self.share = min(0.2, wanted / max(1, usable))
        self.characters, self.seen = characters, 0

    def deal(self, line: Line) -> list[tuple[str, Line]]:
        """The splits a line goes to: one, or two if a text is cut within it."""
        if self.rows:
            split = self._of_row(line)
            if split == "train" and self.taken and self._source(line) in self.taken:
                self.left_out += 1
                return []
            return [(split, line)]
        text, cut = line.texts[0], int(0.9 * self.characters) - self.seen if self.missing else self.characters
        self.seen += len(text)
        parts = (("train", text[: max(0, cut)]), ("valid", text[max(0, cut) :]))
        return [(split, Line(line.file, line.number, (part,))) for split, part in parts if part]

    def _of_row(self, line: Line) -> str:
        """Rows whose deciding texts differ only in case, spaces and punctuation stay together, as do documents."""
        source = near(line.document) or line.document if self.documents else self._source(line)
        place = int.from_bytes(blake2b(source.encode(), digest_size=8).digest()) / 2**64
        index = int(place / self.share)
        return self.missing[index] if index < len(self.missing) else "train"

    def _source(self, line: Line) -> str:
        text = line.texts[self.texts[0]].removeprefix(self.prefix) if self.texts else "\t".join(line.texts)
        return near(text) or text


def held_out_sources(inputs: Inputs, data: DataConfig) -> set[str]:
    """The sources that a corpus holds out of its training file."""
    if inputs.valid:
        return set()
    split = Split(inputs, data, sum(1 for _ in usable(inputs.read("train"))), 0)
    return {split._source(line) for line in usable(inputs.read("train")) if split._of_row(line) != "train"}


def usable(lines: Iterable[Line | Fault]) -> Iterator[Line]:
    return (line for line in lines if isinstance(line, Line))


def split_for(inputs: Inputs, data: DataConfig, report: Report, taken: frozenset[str] = frozenset()) -> Split:
    return Split(inputs, data, report.usable, sum(side.characters for side in report.sides), taken)


def largest(tokenizers: list[Tokenizer]) -> int:
    """The size of the largest vocabulary."""
    return max((tokenizer.vocab for tokenizer in tokenizers), default=0)


def _chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
