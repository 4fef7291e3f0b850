"""Prompts, alone or with a chosen and a rejected answer: JSONL, tables, or for prompts alone a text file of lines.

A prompt is a text, which the answer follows as it stands, or messages, to which a model's chat template is applied:

    {"prompt": "Once upon", "chosen": " a time", "rejected": " the"}        a text; a space belongs to the answer
    {"prompt": [{"role": "user", "content": "Hello"}], "chosen": [{"role": "assistant", "content": "Hi"}], ...}
    {"chosen": [... messages ...], "rejected": [... the same, another last one ...]}
    {"instruction": "Add.", "input": "1 and 2", "chosen": "3", "rejected": "4"}       a message of the user

Tables have the columns in this order, or under their names: source, better, worse will do. Spaces around their cells
are dropped.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from heedful.data.columns import Column, Turns
from heedful.data.corpus import is_plain, read_rows
from heedful.data.dialogues import messages_of
from heedful.data.lines import Fault, Line, read_lines

PROMPT = ("source", "question", "query")
CHOSEN, REJECTED = ("better", "preferred", "chosen_response"), ("worse", "dispreferred", "rejected_response")
PAIRED = (Column("prompt", "prompt", also=PROMPT), Column("chosen", also=CHOSEN), Column("rejected", also=REJECTED))
ALONE = (Column("prompt", "prompt", also=("text", *PROMPT)),)
ANYBODY = Turns(("assistant",), 0, ())


def read_prompted(
    files: Sequence[Path], columns: Sequence[Column], fields: Sequence[str] = ()
) -> Iterator[Line | Fault]:
    """The rows; the cell of the prompt is JSON: a text, or an object of messages and who writes after them."""
    for file in files:
        if not file.is_file():
            raise ValueError(f"there is no file {file}")
        if _is_jsonl(file):
            for number, line in read_lines(file):
                yield line if isinstance(line, Fault) else _from_object(file.name, number, line, columns)
        elif is_plain(file) and len(columns) == 1:
            for number, line in read_lines(file):
                whole = line if isinstance(line, Fault) else _row(file.name, number, [line], columns)
                yield Fault(file.name, number, "empty line") if line == "" else whole
        else:
            plain = [Column(column.name, also=column.also) for column in columns]
            for found in read_rows([file], plain, fields):
                yield found if isinstance(found, Fault) else _row(found.file, found.number, found.texts, columns)


def as_jsonl(row: Sequence[str], columns: Sequence[Column]) -> str:
    """A row as an object that `read_prompted` reads."""
    prompt, *answers = row
    found: dict[str, Any] = {"prompt": prompt_of(prompt)}
    found |= {column.name: answer for column, answer in zip(columns[1:], answers, strict=True)}
    return json.dumps(found, ensure_ascii=False) + "\n"


def written(prompt: Any) -> str:
    """A prompt as the cell of its column."""
    asked = prompt if isinstance(prompt, str) else {"messages": prompt, "role": "assistant"}
    return json.dumps(asked, ensure_ascii=False)


def prompt_of(cell: str) -> str | list[dict[str, str]]:
    """The prompt of a cell: a text, or messages."""
    asked = json.loads(cell)
    found: str | list[dict[str, str]] = asked if isinstance(asked, str) else asked["messages"]
    return found


def shown(cell: str) -> str:
    """A prompt as people read it."""
    asked = prompt_of(cell)
    return asked if isinstance(asked, str) else "\n".join(one["content"] for one in asked)


def _is_jsonl(file: Path) -> bool:
    first = next((line for _, line in read_lines(file) if isinstance(line, str)), "")
    return ".jsonl" in file.suffixes or first.startswith("{")


def _from_object(file: str, number: int, line: str, columns: Sequence[Column]) -> Line | Fault:
    try:
        data = json.loads(line)
        json.dumps(data, ensure_ascii=False).encode()  # an unpaired surrogate is valid JSON, but not text
        if not isinstance(data, dict):
            raise ValueError("not a JSON object")
        prompt, answers = _parts(data, columns)
    except (ValueError, RecursionError) as error:
        known = isinstance(error, json.JSONDecodeError | UnicodeEncodeError | RecursionError)
        return Fault(file, number, ("not a JSON object" if known else str(error)) if line.strip() else "empty line")
    return _row(file, number, [prompt, *answers], columns)


def _parts(data: dict[str, Any], columns: Sequence[Column]) -> tuple[Any, list[str]]:
    """The prompt, a text or messages, and the answers."""
    answers = [_value(data, column) for column in columns[1:]]
    prompt = _value(data, columns[0])
    if isinstance(data.get("instruction"), str) and not isinstance(prompt, str | list):
        more = data.get("input")
        said = data["instruction"] + (f"\n{more}" if isinstance(more, str) and more else "")
        prompt = [{"role": "user", "content": said}]
    if prompt is None and not answers and isinstance(data.get("messages"), list):
        prompt = data["messages"]
    if prompt is None and answers and all(isinstance(one, list) and len(one) > 1 for one in answers):
        prompt = answers[0][:-1]
        if any(one[:-1] != prompt for one in answers):
            raise ValueError("the messages before the last one differ; chosen and rejected must answer the same")
        answers = [one[-1:] for one in answers]
    if isinstance(prompt, list):
        prompt = messages_of({"messages": prompt}, ANYBODY)
        if prompt[-1]["role"] == "assistant":
            raise ValueError("the last message of the prompt is the assistant's; end with one of the user")
    if not isinstance(prompt, str | list):
        wanted = " and ".join(column.name for column in columns)
        raise ValueError(f"no {wanted}; name them so, or give instruction in place of prompt")
    return prompt, [_text(one, column.name) for one, column in zip(answers, columns[1:], strict=True)]


def _value(data: dict[str, Any], column: Column) -> Any:
    return next((data[name] for name in column.names if name in data), None)


def _text(answer: Any, name: str) -> str:
    """An answer: a text, or a list of one message."""
    if isinstance(answer, list) and len(answer) == 1 and isinstance(answer[0], dict):
        answer = answer[0].get("content")
    if not isinstance(answer, str):
        raise ValueError(f"no {name}, or it is neither a text nor one message")
    return answer


def _row(file: str, number: int, cells: Sequence[Any], columns: Sequence[Column]) -> Line | Fault:
    for cell, column in zip(cells, columns, strict=True):
        if isinstance(cell, str) and not cell.strip():
            return Fault(file, number, f"empty {column.name}")
    if len(cells) == 3 and cells[1] == cells[2]:
        return Fault(file, number, "chosen and rejected are the same text")
    return Line(file, number, (written(cells[0]), *cells[1:]))
