"""Runs the snippets of a page, in order and in one namespace, and writes what they print below them:

python docs/fill.py docs/inside.md ...
"""

import contextlib
import io
import re
import sys
from pathlib import Path

BLOCK = re.compile(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", re.DOTALL)


def run(code: str, names: dict[str, object]) -> str:
    """What the code prints. It sees and adds to `names`."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "snippet", "exec"), names)
    return printed.getvalue()


def fill(text: str) -> str:
    """The same text with the output of each snippet below it."""
    names: dict[str, object] = {"__name__": "snippet"}

    def filled(found: re.Match[str]) -> str:
        printed = run(found[1], names)
        return f"```python\n{found[1]}```\n" + (f"\n```text\n{printed}```\n" if printed else "")

    return BLOCK.sub(filled, text)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(fill(path.read_text(encoding="utf-8")), encoding="utf-8")
