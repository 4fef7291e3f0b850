"""`heedful translate`: lines in, lines out."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from heedful import startup
from heedful.commands.languages import From, Length, To, check_languages
from heedful.commands.lines import as_line, chunks, progress, reading, refuse_overwriting
from heedful.commands.options import Parts, generation_options

if TYPE_CHECKING:
    from heedful.data.languages import Languages
    from heedful.decoding.runner import Request
    from heedful.translator import Translation

FORMATS = ("plain", "nbest", "jsonl", "pharaoh", "words")
READ_AHEAD = 512  # lines read before translating; on a terminal, each line is translated at once


@generation_options()
def translate(
    models: Annotated[list[Path], typer.Argument(metavar="MODEL...", help="A model folder; several make an ensemble.")],
    source: Annotated[str, typer.Option("--input", "-i", help="File to translate; - = standard input.")] = "-",
    from_language: From = "",
    to_language: To = "",
    length: Length = "",
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
    (required phrases), `avoid` (banned phrases), `from` and `to` for a model that knows several languages, and `length`
    for one that knows several lengths. Other fields are passed through, and the output is JSONL too. A line that cannot
    be translated is reported, gives an empty line, and makes the exit code 1.

    A model that was trained with data.context sees the lines before, of the same document: a blank line begins a new
    one, as does another `document` in JSONL.

    Examples:

      echo "Hello." | heedful translate runs/my-model

      heedful translate runs/my-model -i test.en -o test.de --beam-size 5

      heedful translate runs/my-model --n-best 4 --format nbest < test.en

      echo "Hello." | heedful translate runs/many --from en --to de

      echo "The screw is loose." | heedful translate runs/my-model --required Schraube
    """
    startup.load("heedful.translator")
    from heedful.config import parse
    from heedful.decoding.generation import GenerationConfig
    from heedful.translator import load

    if form not in FORMATS:
        raise ValueError(f"format {form!r} is not one of {', '.join(FORMATS)}")
    config = parse(GenerationConfig, generation)
    if mbr and (required or history or alignment or config.num_beam_groups > 1 or form in ("pharaoh", "words")):
        raise ValueError("--mbr chooses among samples; leave out --required, --history, --num-beam-groups, alignments")
    refuse_overwriting(source, output)
    translator = load(*models, quantize=quantize, shortlist=shortlist, streams=streams or None, teacher=teacher)
    if input_format not in ("", "plain", "jsonl"):
        raise ValueError(f"input format {input_format!r} is not one of plain, jsonl")
    reads_json = input_format == "jsonl" or (not input_format and source.endswith((".jsonl", ".jsonl.gz")))
    as_json = form == "jsonl" or reads_json

    if mbr and translator.context:
        raise ValueError("--mbr chooses for each line by itself, but this model reads the lines before; leave it out")
    documents = _Documents(translator.context)
    known, languages = translator.languages, (from_language, to_language)
    if not reads_json:
        check_languages(known, languages, length)

    def answer(entries: list[dict[str, Any]]) -> "list[Translation]":
        requests = [_request(entry, required or [], banned or [], languages, known, length) for entry in entries]
        if mbr:
            drawn = config.model_copy(update={"num_return_sequences": mbr})
            return translator.by_consensus(requests, drawn, batch_tokens=batch_tokens, split=split)
        divided = documents.divided(entries, requests)
        found = translator.translate_documents(
            divided,
            config,
            batch_tokens=batch_tokens,
            alignment=form in ("pharaoh", "words") or (as_json and alignment),
            history=history and as_json,
            replace_unknowns=replace_unknowns,
            split=split,
        )
        documents.remember(divided, found)
        return [one for some in found for one in some]

    shown = not (output == "-" and sys.stdout.isatty()) and not (source == "-" and sys.stdin.isatty())
    with reading(source) as lines, _writing(output) as out, progress(source, shown=shown) as advance:
        number = failed = 0
        for chunk in chunks(lines, 1 if source == "-" and sys.stdin.isatty() else READ_AHEAD):
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
    if translator.context and number > 1 and not documents.follow:
        print("heedful: every line is a document of its own, so none was translated in context", file=sys.stderr)
    if failed:
        print(f"heedful: {failed} of {number} lines could not be translated", file=sys.stderr)
        raise typer.Exit(1)


class _Documents:
    """Divides lines into documents, and carries the end of the latest one over to the lines that follow. `context`:
    how many sentences before a model reads; if none, all lines are together. `follow`: how many lines follow another
    in their document."""

    def __init__(self, context: int) -> None:
        self.context, self.follow = context, 0
        self._before: list[tuple[str, str]] = []
        self._latest: Any = None

    def divided(self, entries: list[dict[str, Any]], requests: "list[Request]") -> "list[list[Request]]":
        from heedful.data.documents import NAMES

        if not self.context:
            return [requests]
        found: list[list[Request]] = [[]]
        for entry, request in zip(entries, requests, strict=True):
            name = next((entry[name] for name in NAMES if name in entry), None)
            if name != self._latest or not request.text.strip():
                found.append([])
            self._latest = name
            found[-1].append(request)
        if found[0]:
            found[0][0] = replace(found[0][0], context=tuple(self._before))
        return found

    def remember(self, asked: "list[list[Request]]", found: "list[list[Translation]]") -> None:
        if not self.context:
            return
        texts = [
            [(request.text, one.text) for request, one in zip(*both, strict=True) if request.text.strip()]
            for both in zip(asked, found, strict=True)
        ]
        self.follow += sum(len(some) - 1 for some in texts if some) + bool(texts[0] and self._before)
        self._before = [*(self._before if len(texts) == 1 else []), *texts[-1]][-self.context :]


def _request(
    entry: dict[str, Any],
    required: list[str],
    banned: list[str],
    languages: tuple[str, str],
    known: "Languages",
    length: str,
) -> "Request":
    """The request of a line. If it contradicts itself, it gets an error and comes out empty; others are unaffected."""
    from heedful.decoding.runner import Request

    wanted = [*required, *map(str, entry.get("constraints", ()))]
    unwanted = [*banned, *map(str, entry.get("avoid", ()))]
    given = [str(entry.get(key) or "") if known.layout else "" for key in ("from", "to")]
    source, target = (own or both for own, both in zip(given, languages, strict=True))
    given.append(str(entry.get("length") or "") if known.source.lengths else "")
    length = given[-1] or length
    try:
        if entry["text"]:
            known.framing(source, target, length)
        prefix = str(entry.get("target_prefix") or "")
        return Request(entry["text"], prefix, wanted, unwanted, source=source, target=target, length=length)
    except ValueError as error:
        if not (entry.get("constraints") or entry.get("avoid") or any(given)):  # the command line is at fault
            raise
        entry["error"] = str(error)
        return Request("")


def _object(line: str, as_json: bool) -> dict[str, Any]:
    if not as_json:
        return {"text": line}
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict) or not isinstance(data.get("text"), str):
        return {"text": "", "error": "not a JSON object with a text field"}
    for key in ("constraints", "avoid"):
        if not isinstance(data.get(key, []), list):
            return {"text": "", "error": f"{key} is not a list of phrases"}
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return {"text": "", "error": "an unpaired surrogate, which is no text"}
    return data


def _shown(number: int, given: dict[str, Any], found: "Translation", form: str) -> str:
    every = [found, *found.alternatives]
    if form == "pharaoh":
        return " ".join(f"{source}-{target}" for source, target in found.alignment or []) + "\n"
    if form == "words":
        return as_line(_with_sources(given["text"], found))
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
    if form == "nbest":
        return "".join(
            as_line(f"{number} ||| {one.text} ||| log_prob= {sum(one.token_log_probs):.6f} ||| {one.score:.6f}")
            for one in every
        )
    return "".join(as_line(one.text) for one in every)


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


@contextmanager
def _writing(name: str) -> Iterator[IO[str]]:
    """The output; lines that were written stay written if a later one fails."""
    if name == "-":
        yield sys.stdout
        return
    with Path(name).open("w", encoding="utf-8", newline="\n") as file:
        yield file
