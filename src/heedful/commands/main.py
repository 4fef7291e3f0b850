"""The `heedful` command: collects the subcommands, and turns a user error into one line and exit code 2.

Subcommands import heavy modules only when they run, so that `heedful --help` is instant.
"""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from heedful import __version__, busy
from heedful.commands.answer import answer
from heedful.commands.chat import chat
from heedful.commands.compare import compare
from heedful.commands.corpus import corpus
from heedful.commands.data import data
from heedful.commands.distill import distill
from heedful.commands.doctor import doctor
from heedful.commands.embed import embed
from heedful.commands.evaluate import evaluate, score
from heedful.commands.exchange import export_model, import_model
from heedful.commands.generate import generate
from heedful.commands.merge import merge
from heedful.commands.params import params
from heedful.commands.plot import plot
from heedful.commands.predict import predict
from heedful.commands.recipes import recipe, recipes
from heedful.commands.search import index, search
from heedful.commands.serve import inspect, serve
from heedful.commands.train import train
from heedful.commands.translate import translate
from heedful.commands.words import understood
from heedful.memory import keep_freed_memory

app = typer.Typer(
    name="heedful",
    help="Train, evaluate, serve and inspect Transformer sequence-to-sequence models from your own text pairs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(train)
app.command()(translate)
app.command()(distill)
app.command()(predict)
app.command()(evaluate)
app.command()(score)
app.command()(compare)
app.command()(generate)
app.command()(chat)
app.command()(embed)
app.command()(index)
app.command()(search)
app.command()(answer)
app.command()(merge)
app.command("import")(import_model)
app.command("export")(export_model)
app.add_typer(corpus)
app.add_typer(data)
app.command()(serve)
app.command()(inspect)
app.command()(params)
app.add_typer(plot)
app.command()(recipes)
app.add_typer(recipe)
app.command()(doctor)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"heedful {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    pass


def main() -> None:
    keep_freed_memory()
    busy.watch()
    _write_utf8()
    try:
        sys.argv[1:] = understood(sys.argv[1:])
        with _quiet_when_nobody_reads():
            app()
    except KeyboardInterrupt:
        sys.exit(130)
    except (ValueError, OSError) as error:
        if os.environ.get("HEEDFUL_DEBUG"):
            raise
        print(f"heedful: {_said(error)}", file=sys.stderr)
        sys.exit(2)


def _said(error: Exception) -> str:
    from pydantic import ValidationError

    from heedful.bounded import explain

    return explain(error) if isinstance(error, ValidationError) else str(error)


def _write_utf8() -> None:
    """Texts are UTF-8 and lines end in a line feed, whatever the terminal's settings."""
    for stream, errors in ((sys.stdout, "strict"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=errors, newline="\n")


@contextmanager
def _quiet_when_nobody_reads() -> Iterator[None]:
    """If the reader of a pipe stops reading (`| head -1`), so does the command, without a word: exit code 141, as that
    of a program that the system stops for it."""
    try:
        yield
    except SystemExit as ended:
        if type(sys.stdout).__name__ == "PacifyFlushWrapper":  # put there by typer, which ends with 1
            _stop_writing()
        if not ended.code:
            _flush()
        raise
    _flush()


def _flush() -> None:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _stop_writing()


def _stop_writing() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left in the buffer is written at the end
    sys.exit(141)
