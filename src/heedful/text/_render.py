"""Renders chat templates that other people wrote, in a process of its own: run as a script, it reads a JSON object a
line and answers with one. Jinja's sandbox keeps a template from Python's internals; the limits below keep it from
memory, files and processes; `chat.py`, which starts it, ends it if it takes too long. Imports nothing of ours.
"""

import json
import resource
import sys
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MEMORY = 512 << 20  # bytes
LONGEST = 4 << 20  # characters of a rendered prompt


class Generation(Extension):
    """{% generation %} ... {% endgeneration %} marks what a model writes; the text is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class Named(Namespace):
    """A namespace without private names."""

    def __init__(*args: Any, **given: Any) -> None:
        for name in dict(*args[1:], **given):
            _public(name)
        Namespace.__init__(*args, **given)

    def __setitem__(self, name: str, value: Any) -> None:
        _public(name)
        super().__setitem__(name, value)


def _public(name: object) -> None:
    if str(name).startswith("_"):
        raise TemplateError(f"a template may not use the name {name!r}")


def environment() -> ImmutableSandboxedEnvironment:
    """The functions that templates of transformers expect."""
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    made.filters["tojson"] = _to_json
    made.globals |= {"raise_exception": _refuse, "strftime_now": _now, "namespace": Named}
    return made


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def main() -> None:
    made = environment()
    held = {resource.RLIMIT_AS: MEMORY, resource.RLIMIT_FSIZE: 0, resource.RLIMIT_NPROC: 0}
    for kind, most in held.items():
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    template = None
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            template = template or made.from_string(asked["template"])
            text = template.render(asked["values"])
            found = {"text": text} if len(text) <= LONGEST else {"error": f"the prompt has {len(text):,} characters"}
        except MemoryError:
            found = {"error": "it takes too much memory"}
        except RecursionError:
            found = {"error": "it calls itself without end"}
        except Exception as error:  # whatever a template does wrong
            found = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
