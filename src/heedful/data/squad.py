"""Questions whose answers are spans of a context: SQuAD's JSON (Rajpurkar et al. 2016, 2018), or JSONL; gzipped or not.

    {"data": [{"paragraphs": [{"context": ..., "qas": [{"id": ..., "question": ..., "is_impossible": false,
                                                        "answers": [{"text": ..., "answer_start": 7}]}]}]}]}
    {"question": ..., "context": ..., "answers": [{"text": ..., "answer_start": 7}]}

In JSONL, `answers` may also be a list of strings, which are looked up in the context, or {"text": [...],
"answer_start": [...]}; and there may be one `answer` instead. No answer at all (an empty list, or "") means that the
context does not say.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unicodedata import combining

from heedful.data.columns import Column
from heedful.data.lines import UNREADABLE, Fault, Line, open_bytes
from heedful.text.tokenizer import Tokenizer

WANTED = "SQuAD's JSON, or JSONL with question, context and answers"
SQUAD = (("question",), ("context",), ("answers",))
Names = Sequence[Sequence[str]]  # the keys that a question, its context and its answers may have
Answers = list[tuple[str, int]]  # text, and where in the context it starts, in characters


class UnusableError(Exception):
    """Why a question cannot be used."""


def read_questions(
    files: Sequence[Path], columns: Sequence[Column], fields: Sequence[str] = ()
) -> Iterator[Line | Fault]:
    """All questions of these files: question, context, and answers as a JSON list of {text, answer_start}. Contexts are
    kept as they are, spaces included, since an answer is a place in them. `fields`: the keys in JSONL."""
    ours = [column.names for column in columns]
    # The task's own names in some order are that of a table's columns, which says nothing here.
    in_order = {column.name for column in columns} <= set(fields)
    names = [(field,) for field in fields] if fields and not in_order else ours
    for file in files:
        if ".jsonl" in file.suffixes:
            yield from _from_lines(file, names)
            continue
        content = _bytes(file)
        try:
            data = json.loads(content)
        except ValueError as error:
            if _loaded(content.partition(b"\n")[0]) is None:
                raise ValueError(f"{file} is not {WANTED}: {error}") from None
            yield from _from_lines(file, names)
            continue
        if isinstance(data, dict) and "data" not in data:  # JSONL of one line
            yield from _from_lines(file, names)
        elif isinstance(data, dict):
            yield from _from_squad(file, data["data"])
        else:
            raise ValueError(f"{file} is not {WANTED}: it holds a {type(data).__name__}, not an object with 'data'")


def answers_in(cell: str) -> Answers:
    """The answers of a cell that `read_questions` made."""
    return [(answer["text"], answer["answer_start"]) for answer in json.loads(cell)]


def as_jsonl(row: Sequence[str]) -> str:
    """A row (question, context, answers) as a line of a file that `read_questions` reads."""
    question, context, cell = row
    data = {"question": question, "context": context, "answers": json.loads(cell)}
    return json.dumps(data, ensure_ascii=False) + "\n"


def tokens_of(lines: Sequence[Line], tokenizer: Tokenizer, *, context: int, answers: int) -> list[list[int]]:
    """For each row the first and last token of its first answer, as the bytes of "first last"; none if there is no
    answer. `context`, `answers`: the places of these columns."""
    contexts = dict.fromkeys(line.texts[context] for line in lines)  # a context has several questions
    offsets = dict(zip(contexts, tokenizer.offsets(list(contexts)), strict=True))
    found: list[list[int]] = []
    for line in lines:
        held = answers_in(line.texts[answers])
        if not held:
            found.append([])
            continue
        text, start = held[0]
        span = token_span(offsets[line.texts[context]], start, start + len(text))
        if span is None:
            raise ValueError(
                f"{line.place}: the tokenizer drops every character of the answer {text!r}; correct or remove the "
                f"{line.unit}, or use another tokenizer"
            )
        found.append(list(f"{span[0]} {span[1]}".encode()))
    return found


def token_span(offsets: Sequence[tuple[int, int]], start: int, end: int) -> tuple[int, int] | None:
    """The first and last token that share a character with [start, end); None if no token does."""
    shared = [place for place, (begin, stop) in enumerate(offsets) if begin < end and stop > start]
    return (shared[0], shared[-1]) if shared else None


def text_span(offsets: Sequence[tuple[int, int]], context: str, first: int, last: int) -> tuple[int, int]:
    """The characters [start, end) from the first to the last token, without spaces at the ends. A letter keeps its
    accents, which are characters of their own in some texts, and which some tokenizers drop."""
    start, end = offsets[first][0], offsets[last][1]
    text = context[start:end]
    start, end = start + len(text) - len(text.lstrip()), end - (len(text) - len(text.rstrip()))
    while 0 < start < len(context) and combining(context[start]):
        start -= 1
    while 0 < end < len(context) and combining(context[end]):
        end += 1
    return start, end


def _from_squad(file: Path, articles: Any) -> Iterator[Line | Fault]:
    number = 0
    for article in _list(articles, f"{file}: 'data'"):
        for paragraph in _list(_get(article, "paragraphs"), f"{file}, after question {number}: 'paragraphs'"):
            shared = {"context": paragraph["context"]} if "context" in paragraph else {}
            for one in _list(_get(paragraph, "qas"), f"{file}, after question {number}: 'qas'"):
                number += 1
                data = {**one, **shared} if isinstance(one, dict) else shared
                yield _row(file.name, number, data, SQUAD, unit="question")


def _from_lines(file: Path, names: Names) -> Iterator[Line | Fault]:
    try:
        with open_bytes(file) as opened:
            for number, raw in enumerate(opened, start=1):
                data = _loaded(raw)
                if data is None:
                    reason = f"not a JSON object, but {WANTED} is read" if raw.strip() else "empty line"
                    yield Fault(file.name, number, reason)
                else:
                    yield _row(file.name, number, data, names)
    except UNREADABLE as error:
        raise ValueError(f"{file} cannot be read: {error}") from None


def _row(file: str, number: int, data: dict[str, Any], names: Names, *, unit: str = "line") -> Line | Fault:
    try:
        question, context = (_text(data, keys) for keys in names[:2])
        answers = [_located(text, start, context) for text, start in _given(data, names[2])]
        cell = json.dumps([{"text": text, "answer_start": start} for text, start in answers], ensure_ascii=False)
        f"{question}{context}".encode()
        return Line(file, number, (question.strip(), context, cell), unit=unit)
    except UnusableError as error:
        reason = str(error)
    except UnicodeEncodeError:
        reason = "an unpaired surrogate, which is no text"
    return Fault(file, number, f"id {data['id']}: {reason}" if "id" in data else reason, unit)


def _text(data: dict[str, Any], names: Sequence[str]) -> str:
    key = next((name for name in names if name in data), None)
    if key is None:
        raise UnusableError(f"no {names[0]} (it has {', '.join(map(str, list(data)[:6])) or 'nothing'})")
    text = data[key]
    if not isinstance(text, str):
        raise UnusableError(f"{key} is {text!r:.40}, which is no text")
    if not text.strip():
        raise UnusableError(f"empty {key}")
    return text


def _given(data: dict[str, Any], names: Sequence[str]) -> list[tuple[Any, Any]]:
    """The answers as they are written: each text, and its place or None."""
    impossible = data.get("is_impossible")
    key = next((name for name in names if name in data), None)
    if key is None and not impossible:
        raise UnusableError(f'no {" or ".join(names)}; if the context does not answer it, write "{names[0]}": []')
    value = None if key is None else data[key]
    if value is None or value == "":
        value = []
    if isinstance(value, dict) and isinstance(value.get("text"), list):  # as the `datasets` library writes them
        starts = value.get("answer_start") or [None] * len(value["text"])
        if len(starts) != len(value["text"]):
            raise UnusableError(f"{len(value['text'])} answers, but {len(starts)} answer_start")
        found = list(zip(value["text"], starts, strict=True))
    else:
        every = value if isinstance(value, list) else [value]
        found = [(one.get("text"), one.get("answer_start")) if isinstance(one, dict) else (one, None) for one in every]
    if impossible and found:
        raise UnusableError(f"is_impossible is true, but there is the answer {found[0][0]!r}")
    if impossible is False and not found:
        raise UnusableError("is_impossible is false, but there is no answer")
    return found


def _located(text: Any, start: Any, context: str) -> tuple[str, int]:
    """An answer with its place in the context, checked."""
    if not isinstance(text, str) or not text.strip():
        raise UnusableError(f"an answer must be a text, not {text!r:.40}")
    where = context.find(text)
    if start is None and where >= 0:
        return text, where
    if where < 0:
        said = "is not in its context"
        other = context.casefold().find(text.casefold())
        said += f", only {context[other : other + len(text)]!r} at character {other}" if other >= 0 else ""
        raise UnusableError(f"the answer {text!r} {said}; an answer must be an exact part of it")
    if not isinstance(start, int) or isinstance(start, bool):
        raise UnusableError(f"answer_start {start!r:.40} of {text!r} is no number; it is at character {where}")
    if start < 0 or context[start : start + len(text)] != text:
        here = context[max(0, start) : max(0, start) + len(text)]
        nearest = min(_all(text, context), key=lambda place: abs(place - start))
        raise UnusableError(f"the answer {text!r} is not at character {start} ({here!r} is), but at {nearest}")
    return text, start


def _all(text: str, context: str) -> Iterator[int]:
    place = context.find(text)
    while place >= 0:
        yield place
        place = context.find(text, place + 1)


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None


def _list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{what} is missing or no list; {WANTED} is read")
    return value


def _bytes(file: Path) -> bytes:
    try:
        with open_bytes(file) as opened:
            return opened.read()
    except UNREADABLE as error:
        raise ValueError(f"{file} cannot be read: {error}") from None


def _loaded(raw: bytes) -> dict[str, Any] | None:
    try:
        data = json.loads(raw)
    except ValueError:
        return None
    return data if isinstance(data, dict) else None
