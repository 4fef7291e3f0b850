"""Messages -> one prompt, as text and as tokens: the same function for training, the terminal and the server.

A published model brings its own template (Jinja, as in transformers). Models that are trained here have `TEMPLATE`:

    <s><|user|>Hello!</s><|assistant|>Good morning.</s><|user|>Thanks.</s><|assistant|>

What people write is text: "</s>" within a message is four characters, and does not end it.
"""

import json
import subprocess
import sys
import threading
import weakref
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from select import select

from heedful.text.tokenizer import CHAT_ROLES, CHAT_TEMPLATE, Tokenizer

Message = Mapping[str, str]  # role, content
SECONDS = 5.0  # for a template
RENDERER = Path(__file__).with_name("_render.py")
HIDDEN = "\ue000"  # within a special token's name in a message, while the template is applied


@dataclass(frozen=True)
class Prompt:
    """What a model is to answer. `dropped`: how many of the oldest messages were left out to fit the model."""

    text: str
    tokens: list[int]
    dropped: int = 0


class TooLongError(ValueError):
    """A message does not fit the model even alone."""


class Chat:
    """How a tokenizer's model reads a conversation. `stops`: where its answer ends, besides its end token."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        template = tokenizer.chat_template
        self.ours = template == CHAT_TEMPLATE
        self.template = None if template is None or self.ours else _Renderer(template, tokenizer.special_texts)
        self.stops = ("\nuser:", "\nsystem:") if template is None else ()
        self.specials = [tokenizer.token(one) for one in sorted(tokenizer.specials)]

    def text(self, messages: Sequence[Message], *, role: str = "assistant") -> str:
        """The prompt after which `role` writes."""
        return self._rendered(messages, role).replace(HIDDEN, "")

    def prompt(self, messages: Sequence[Message], *, role: str = "assistant", limit: int | None = None) -> Prompt:
        """The prompt with as many of the messages as fit `limit` tokens: the oldest go first, until one of the user is
        the first; the system's message and the last one stay."""
        check(messages)
        system = [one for one in messages[:1] if one["role"] == "system"]
        rest = list(messages[len(system) :])

        @cache
        def made(first: int) -> tuple[str, list[int]]:
            text = self._rendered([*system, *rest[first:]], role)
            return text.replace(HIDDEN, ""), self._tokens(text)

        # Fewer messages take fewer tokens, so that halving finds the first place that fits.
        starts = self._starts(rest)
        place = 0 if limit is None else bisect_left(starts, True, key=lambda first: len(made(first)[1]) <= limit)
        if place == len(starts):
            size = len(made(starts[-1])[1])
            raise TooLongError(
                f"the last message takes {size:,} tokens, but the model reads {limit:,} at once; shorten it"
            )
        return Prompt(*made(starts[place]), starts[place])

    def _starts(self, rest: Sequence[Message]) -> list[int]:
        """Where a prompt may begin: at any message, but templates expect the user to begin."""
        last = max(0, len(rest) - 1)
        return [
            first
            for first, one in enumerate(rest or [{}])
            if first in (0, last) or one["role"] == "user" or self.template is None
        ]

    def _rendered(self, messages: Sequence[Message], role: str) -> str:
        shown = [{**one, "content": self._hidden(one["content"])} for one in messages]
        if self.template is not None:
            if role != "assistant":
                raise ValueError(f"this model's chat template writes only the assistant's messages, not the {role}'s")
            return self.template.render(shown)
        if not self.ours:
            return "".join(f"{one['role']}: {one['content']}\n" for one in shown) + f"{role}:"
        names = self.tokenizer.special_texts
        end = names.get("eos_token", "")
        turns = (f"<|{one['role']}|>{one['content']}{end}" for one in shown)
        return names.get("bos_token", "") + "".join(turns) + f"<|{role}|>"

    def _hidden(self, content: str) -> str:
        """A message in which the names of special tokens are not recognised."""
        for name in self.specials:
            if name in content:
                content = content.replace(name, name[0] + HIDDEN + name[1:])
        return content

    def _tokens(self, rendered: str) -> list[int]:
        plain, literal = "", set()
        for piece in rendered.split(HIDDEN):
            literal.add(len(plain) + len(piece) - 1)  # where a special token's name begins that is text
            plain += piece
        return self.tokenizer.encode_marked(plain, literal - {len(plain) - 1})


def check(messages: Sequence[Message]) -> None:
    if not messages:
        raise ValueError("messages is empty; send at least one, such as {role: user, content: Hello}")
    for number, one in enumerate(messages, start=1):
        if one.get("role") not in CHAT_ROLES:
            known = ", ".join(CHAT_ROLES)
            raise ValueError(f"message {number} has the role {one.get('role')!r}; known: {known}")


class _Renderer:
    """Applies a template in a process of its own, which is started when it is first needed."""

    def __init__(self, template: str, names: Mapping[str, str]) -> None:
        self.template, self.names = template, dict(names)
        self._turn = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def render(self, messages: Sequence[Message]) -> str:
        values = {**self.names, "messages": list(messages), "add_generation_prompt": True}
        values |= {"tools": None, "documents": None}
        asked = json.dumps({"template": self.template, "values": values}) + "\n"
        with self._turn:
            found = self._ask(asked)
        if "error" in found:
            raise ValueError(f"the model's chat template cannot be applied: {found['error']}")
        return found["text"]

    def _ask(self, asked: str) -> dict[str, str]:
        process = self._started()
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(asked)
            process.stdin.flush()
            if select([process.stdout], [], [], SECONDS)[0] and (line := process.stdout.readline()):
                found: dict[str, str] = json.loads(line)
                return found
        except BrokenPipeError:
            pass
        _end(process)
        return {"error": f"it takes more than {SECONDS:g} s, or too much memory"}

    def _started(self) -> "subprocess.Popen[str]":
        if self._process is None or self._process.poll() is not None:
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(
                [sys.executable, "-I", str(RENDERER)], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
            )
            weakref.finalize(self, _end, self._process)
        return self._process


def _end(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
