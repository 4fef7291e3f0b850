"""`heedful translate`: lines in, lines out."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from heedful.commands.options import Parts, generation_options

if TYPE_CHECKING:
    from heedful.decoding.runner import Request
    from heedful.translator import Translation

FORMATS = ("plain", "nbest", "jsonl", "pharaoh", "words")
READ_AHEAD = 512  # lines read before translating; on a terminal, each line is translated at once


@generation_options()
def translate(
    models: Annotated[list[Path], typer.Argument(metavar="MODEL...", help="A model folder; several make an ensemble.")],
    source: Annotated[str, typer.Option("--input", "-i", help="File to translate; - = standard input.")] = "-",
    output: Annotated[str, typer.Option("--output", "-o", help="File to write; - = standard output.")] = "-",
    form: Annotated[
        str,
        typer.Option(
            "--format", help="plain, nbest (Moses), jsonl, pharaoh (alignments) or words (words with source words)."
        ),
    ] = "plain",
    input_format: Annotated[
        str, typer.Option(help="plain or jsonl. Default: jsonl for a file named .jsonl, plain otherwise.")
    ] = "",
    banned: Annotated[list[str] | None, typer.Option("--banned", help="Phrase that must not occur.")] = None,
    required: Annotated[
        list[str] | None, typer.Option("--required", help="Phrase that must occur in every line.")
    ] = None,
    batch_tokens: Annotated[int, typer.Option(min=1, help="Source tokens per batch.")] = 2048,
    streams: Annotated[int, typer.Option(min=0, help="Batches translated in parallel; 0 = one per core.")] = 0,
    alignment: Annotated[bool, typer.Option("--alignment", help="Add word alignments to the JSONL.")] = False,
    history: Annotated[bool, typer.Option("--history", help="Add the search history to the JSONL.")] = False,
    replace_unknowns: Annotated[
        bool, typer.Option("--replace-unknowns", help="Replace unknown words by the aligned source word.")
    ] = False,
    shortlist: Annotated[
        bool, typer.Option("--shortlist", help="Consider only likely target tokens: faster, slightly less exact.")
    ] = False,
    split: Annotated[
        bool | None,
        typer.Option("--split/--no-split", help="Translate sentence by sentence. Default: as the model was trained."),
    ] = None,
    mbr: Annotated[int, typer.Option(min=0, help="Samples for minimum Bayes risk decoding; 0 = off.")] = 0,
    quantize: Annotated[str, typer.Option(help="int8: a quarter of the memory for weights; CPU only.")] = "",
    teacher: Annotated[
        str, typer.Option(help="Model that chooses among the results of --noisy. Default: the one that taught it.")
    ] = "",
    parts: Parts = None,
    *,
    generation: dict[str, Any],
) -> None:
    """Translate text line by line: one output line per input line, in the same order.

    JSONL input (a file named .jsonl, or --input-format jsonl) may contain `text`, `target_prefix`, `constraints`
    (required phrases) and `avoid` (banned phrases). Other fields are passed through, and the output is JSONL too. A
    line that cannot be translated is reported, gives an empty line, and makes the exit code 1.

    Examples:

      echo "Hello." | heedful translate runs/my-model

      heedful translate runs/my-model -i test.en -o test.de --beam-size 5

      heedful translate runs/my-model --n-best 4 --format nbest < test.en

      echo "The screw is loose." | heedful translate runs/my-model --required Schraube
    """
    from heedful.config import parse
    from heedful.decoding.generation import GenerationConfig
    from heedful.translator import load

    if form not in FORMATS:
        raise ValueError(f"format {form!r} is not one of {', '.join(FORMATS)}")
    config = parse(GenerationConfig, generation)
    if mbr and (required or history or alignment or config.num_beam_groups > 1 or form in ("pharaoh", "words")):
        raise ValueError("--mbr chooses among samples; leave out --required, --history, --num-beam-groups, alignments")
    if source != "-" and output != "-" and Path(source).resolve() == Path(output).resolve():
        raise ValueError("the input would be overwritten; give --output another name")
    translator = load(*models, quantize=quantize, shortlist=shortlist, streams=streams or None, teacher=teacher)
    if input_format not in ("", "plain", "jsonl"):
        raise ValueError(f"input format {input_format!r} is not one of plain, jsonl")
    reads_json = input_format == "jsonl" or (not input_format and source.endswith((".jsonl", ".jsonl.gz")))
    as_json = form == "jsonl" or reads_json

    def answer(entries: list[dict[str, Any]]) -> "list[Translation]":
        requests = [_request(entry, required or [], banned or []) for entry in entries]
        if mbr:
            drawn = config.model_copy(update={"num_return_sequences": mbr})
            return translator.by_consensus(requests, drawn, batch_tokens=batch_tokens, split=split)
        return translator.translate(
            requests,
            config,
            batch_tokens=batch_tokens,
            alignment=form in ("pharaoh", "words") or (as_json and alignment),
            history=history and as_json,
            replace_unknowns=replace_unknowns,
            split=split,
        )

    with _reading(source) as lines, _writing(output) as out, _progress(source, output == "-") as advance:
        number = failed = 0
        for chunk in _chunks(lines, 1 if source == "-" and sys.stdin.isatty() else READ_AHEAD):
            entries = [_object(line, reads_json) for line in chunk]
            for entry, found in zip(entries, answer(entries), strict=True):
                number += 1
                if "error" in entry:
                    failed += 1
                    print(f"heedful: line {number}: {entry['error']}", file=sys.stderr)
                for warning in found.warnings:
                    print(f"heedful: line {number}: {warning}", file=sys.stderr)
                out.write(_shown(number - 1, entry, found, "jsonl" if as_json else form))
            out.flush()
            advance(len(chunk))
    if failed:
        print(f"heedful: {failed} of {number} lines could not be translated", file=sys.stderr)
        raise typer.Exit(1)


def _request(entry: dict[str, Any], required: list[str], banned: list[str]) -> "Request":
    """The request of a line. If it contradicts itself, it gets an error and comes out empty; others are unaffected."""
    from heedful.decoding.runner import Request

    wanted = [*required, *map(str, entry.get("constraints", ()))]
    unwanted = [*banned, *map(str, entry.get("avoid", ()))]
    try:
        return Request(entry["text"], str(entry.get("target_prefix") or ""), wanted, unwanted)
    except ValueError as error:
        if not entry.get("constraints") and not entry.get("avoid"):  # the contradiction is in the command line
            raise
        entry["error"] = str(error)
        return Request("")


@contextmanager
def _progress(source: str, shown_too: bool) -> Iterator[Callable[[int], None]]:
    """A progress bar, if messages go to a terminal and the translations do not."""
    if not sys.stderr.isatty() or (shown_too and sys.stdout.isatty()) or (source == "-" and sys.stdin.isatty()):
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("translating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=_line_count(source))
        yield lambda count: bar.advance(task, count)


def _line_count(source: str) -> int | None:
    """The number of lines in a file; unknown for standard input."""
    from heedful.data.lines import open_bytes

    if source == "-":
        return None
    with open_bytes(Path(source)) as opened:
        return sum(1 for _ in opened)


def _object(line: str, as_json: bool) -> dict[str, Any]:
    if not as_json:
        return {"text": line}
    try:
        data = json.loads(line)
    except json.JSONDecodeError:
        data = None
    if not isinstance(data, dict) or not isinstance(data.get("text"), str):
        return {"text": "", "error": "not a JSON object with a text field"}
    for key in ("constraints", "avoid"):
        if not isinstance(data.get(key, []), list):
            return {"text": "", "error": f"{key} is not a list of phrases"}
    return data


def _shown(number: int, given: dict[str, Any], found: "Translation", form: str) -> str:
    every = [found, *found.alternatives]
    if form == "pharaoh":
        return " ".join(f"{source}-{target}" for source, target in found.alignment or []) + "\n"
    if form == "words":
        return _with_sources(given["text"], found) + "\n"
    if form == "jsonl":
        data = {**given, "sentence_id": number, "translation": found.text, "score": round(found.score, 6)}
        if found.alignment is not None:
            data["alignment"] = found.alignment
        if found.history is not None:
            data["history"] = [[vars(one) for one in step] for step in found.history]
        if found.alternatives:
            data["translations"] = [one.text for one in every]
            data["scores"] = [round(one.score, 6) for one in every]
        return json.dumps(data, ensure_ascii=False) + "\n"
    texts = [one.text.replace("\n", " ") for one in every]
    if form == "nbest":
        rows = [
            f"{number} ||| {text} ||| log_prob= {sum(one.token_log_probs):.6f} ||| {one.score:.6f}"
            for text, one in zip(texts, every, strict=True)
        ]
        return "\n".join(rows) + "\n"
    return "\n".join(texts) + "\n"


def _with_sources(text: str, found: "Translation") -> str:
    """Each word with its source word; adjacent words without a space between them and with one source are merged."""
    from heedful.text.words import word_spans, words

    sources, links = words(text), {target: source for source, target in found.alignment or []}
    shown: list[tuple[int, int, int | None]] = []
    for place, (start, end) in enumerate(word_spans(found.text)):
        link = links.get(place)
        if shown and shown[-1][1:] == (start, link):
            start = shown.pop()[0]
        shown.append((start, end, link))
    return " ".join(
        found.text[start:end] + ("" if link is None else f"({sources[link]})") for start, end, link in shown
    )


def _chunks(lines: Iterable[str], size: int) -> Iterator[list[str]]:
    chunk = []
    for line in lines:
        chunk.append(line)
        if len(chunk) >= size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


@contextmanager
def _reading(name: str) -> Iterator[Iterator[str]]:
    """Lines of text; invalid UTF-8 is replaced and reported with its line number."""
    from heedful.data.lines import open_bytes

    if name != "-" and not Path(name).is_file():
        raise ValueError(f"there is no file {name}")
    opened: IO[bytes] = sys.stdin.buffer if name == "-" else open_bytes(Path(name))
    try:
        yield _decoded(opened)
    finally:
        if name != "-":
            opened.close()


def _decoded(opened: IO[bytes]) -> Iterator[str]:
    for number, raw in enumerate(opened, start=1):
        raw = raw.rstrip(b"\n").removesuffix(b"\r")
        try:
            yield raw.decode("utf-8")
        except UnicodeDecodeError:
            print(f"heedful: line {number} is not valid UTF-8; invalid bytes are replaced", file=sys.stderr)
            yield raw.decode("utf-8", "replace")


@contextmanager
def _writing(name: str) -> Iterator[IO[str]]:
    """The output; lines that were written stay written if a later one fails."""
    if name == "-":
        yield sys.stdout
        return
    with Path(name).open("w", encoding="utf-8") as file:
        yield file
