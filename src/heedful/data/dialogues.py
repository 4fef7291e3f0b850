"""Dialogues: JSONL with `turns` (speaker, text; or just texts, by two speakers in turn) or, as OpenAI's clients write
them, `messages` (role, content); or with an instruction and its answer: see `instructions`. Each message to learn is a
row: what came before it, the message, its dialogue."""

import json
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from heedful.data.columns import Column, Turns
from heedful.data.corpus import near
from heedful.data.instructions import conversation
from heedful.data.lines import Fault, Line, read_lines
from heedful.text.tokenizer import CHAT_ROLES

# Who is who, where task.speakers does not say it. The system of `turns` is the machine, that of `messages` its orders.
SPEAKERS = {
    "user": "user", "human": "user", "customer": "user", "usr": "user", "assistant": "assistant", "bot": "assistant",
    "agent": "assistant", "gpt": "assistant", "model": "assistant", "system": "assistant",
}  # fmt: skip


def read_dialogues(files: Sequence[Path], columns: Sequence[Column]) -> Iterator[Line | Fault]:
    turns = next(column.turns for column in columns if column.turns is not None)
    for file in files:
        for number, line in read_lines(file):
            if isinstance(line, Fault):
                yield line
                continue
            try:
                data = conversation(json.loads(line))
                messages = messages_of(data, turns)
            except (ValueError, RecursionError) as error:
                said = "not a JSON object" if isinstance(error, json.JSONDecodeError) else str(error)
                yield Fault(file.name, number, said if line.strip() else "empty line", unit="line")
                continue
            found = list(_rows(file.name, number, messages, turns, last=bool(data.get("last"))))
            if not found:
                yield Fault(file.name, number, f"no message of {' or '.join(turns.learn)} after another one")
            yield from found


def messages_of(data: Any, turns: Turns) -> list[dict[str, str]]:
    """The messages of a JSON object, with our roles."""
    given = next((data[key] for key in ("messages", "turns") if isinstance(data.get(key), list)), None) if (
        isinstance(data, dict)
    ) else None  # fmt: skip
    if not given:
        has = f" (it has {', '.join(map(str, list(data)[:6]))})" if isinstance(data, dict) and data else ""
        raise ValueError(f"no messages, turns, or instruction and output{has}")
    known = {**SPEAKERS, **(dict.fromkeys(("system",), "system") if "messages" in data else {}), **dict(turns.speakers)}
    found = []
    for place, one in enumerate(given):
        if isinstance(one, str):
            one = {"role": ("user", "assistant")[place % 2], "content": one}
        speaker = next((one[key] for key in ("role", "speaker", "from") if key in one), None) if isinstance(one, dict) else None  # noqa: E501  # fmt: skip
        text = next((one[key] for key in ("content", "text", "value") if key in one), None) if speaker else None
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"message {place + 1} has no speaker, or no text")
        if str(speaker).casefold() not in known:
            raise ValueError(f"the speaker {speaker!r} is unknown; set task.speakers={{{speaker}: user}}, or assistant")
        found.append({"role": known[str(speaker).casefold()], "content": text.strip()})
    return found


def as_jsonl(row: Sequence[str]) -> str:
    """A row as a dialogue whose last message is the one to learn."""
    history, reply, _ = row
    asked = json.loads(history)
    said = [*asked["messages"], {"role": asked["role"], "content": reply}]
    return json.dumps({"messages": said, "last": True}, ensure_ascii=False) + "\n"


def _rows(file: str, number: int, messages: list[dict[str, str]], turns: Turns, *, last: bool) -> Iterator[Line]:
    whole = near("\n".join(one["content"] for one in messages))
    key = blake2b(whole.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    system = [one for one in messages[:1] if one["role"] == "system"]
    for place in range(len(system) + 1, len(messages)):
        one = messages[place]
        if one["role"] not in turns.learn or (last and place + 1 < len(messages)):
            continue
        first = max(len(system), place - turns.history) if turns.history else len(system)
        asked = {"messages": [*system, *messages[first:place]], "role": one["role"]}
        yield Line(file, number, (json.dumps(asked, ensure_ascii=False), one["content"], key))


def roles_known(roles: Sequence[str]) -> None:
    for role in roles:
        if role not in CHAT_ROLES[1:]:
            raise ValueError(f"{role!r} is no role to learn or speak; choose from {', '.join(CHAT_ROLES[1:])}")
