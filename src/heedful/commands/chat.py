"""`heedful chat`: talk with a model in the terminal."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heedful.commands.options import Parts, generation_options

if TYPE_CHECKING:
    from heedful.generator import Piece

HELP = "/reset forgets the conversation, /quit or end of input ends"


@generation_options(max_new_tokens=200, num_beams=1, do_sample=True, temperature=0.8, top_p=0.95)
def chat(
    model: Annotated[Path, typer.Argument(help="A model folder: trained on dialogues, or any language model.")],
    system: Annotated[str, typer.Option(help="What the model is told before the conversation.")] = "",
    greedy: Annotated[bool, typer.Option("--greedy", help="Always pick the most likely token.")] = False,
    quantize: Annotated[str, typer.Option(help="int8: a quarter of the memory for weights; CPU only.")] = "",
    parts: Parts = None,
    *,
    generation: dict[str, Any],
) -> None:
    """Talk with a model: each line is a message, and what was said before is kept.

    /reset forgets the conversation; /quit or the end of the input ends. Works with piped input, too.

    Examples:

      heedful chat runs/talk

      printf 'hello\\nand now?\\n' | heedful chat runs/talk --greedy
    """
    from heedful.chatter import load
    from heedful.config import parse
    from heedful.decoding.generation import GenerationConfig

    # Only samples are shown as they are written; of one candidate, a sample is the most likely token.
    likely = {"top_k": 1} if greedy else {}
    config = parse(GenerationConfig, {**generation, "do_sample": True, "num_beams": 1, **likely})
    chatter = load(model, streams=1, quantize=quantize)
    start = [{"role": "system", "content": system}] if system else []
    messages, dropped = list(start), 0
    for line in _lines():
        if line == "/quit":
            break
        if line == "/reset":
            messages, dropped = list(start), 0
            continue
        if not line:
            continue
        messages.append({"role": "user", "content": line})
        try:
            found = chatter.reply(messages, config, _show)
        except ValueError as error:  # such as a message that is too long
            print(f"heedful: {error}", file=sys.stderr)
            messages.pop()
            continue
        print(flush=True)
        if found.dropped > dropped:
            print(f"heedful: the oldest {found.dropped} messages no longer fit and are forgotten", file=sys.stderr)
        dropped = found.dropped
        messages.append({"role": "assistant", "content": found.text})


def _show(row: int, piece: "Piece") -> bool:
    if row == 0:
        print(piece.text, end="", flush=True)
    return True


def _lines() -> Iterator[str]:
    """What the user types, or the lines of a pipe; line editing where there is a terminal."""
    asks = sys.stdin.isatty()
    if asks:
        import readline  # noqa: F401  # input() then edits lines and remembers them

        print(HELP, file=sys.stderr)
    while True:
        try:
            yield input("> " if asks else "").strip()
        except EOFError:
            return
