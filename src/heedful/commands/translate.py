"""`heedful translate`: lines in, lines out."""

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from heedful.config import parse

if TYPE_CHECKING:
    from heedful.translator import Translation, Translator

READ_AHEAD = 512  # lines translated together; a person at a terminal is answered line by line


def translate(
    models: Annotated[list[Path], typer.Argument(metavar="MODEL...", help="A model folder; several make an ensemble.")],
    source: Annotated[str, typer.Option("--input", "-i", help="File to translate; - = standard input.")] = "-",
    output: Annotated[str, typer.Option("--output", "-o", help="File to write; - = standard output.")] = "-",
    form: Annotated[
        str, typer.Option("--format", help="plain, nbest (Moses), jsonl or pharaoh (alignments).")
    ] = "plain",
    num_beams: Annotated[int, typer.Option("--num-beams", "--beam-size", "-b", help="1 = greedy.")] = 4,
    num_return_sequences: Annotated[
        int, typer.Option("--num-return-sequences", "--n-best", "-n", help="How many translations of each line.")
    ] = 1,
    length_penalty: Annotated[float, typer.Option(help="Score / length^this. 1 = average, 0 = sum.")] = 1.0,
    alpha: Annotated[float, typer.Option(help="Score / ((5 + length) / 6)^this, as in Wu et al. 2016.")] = 0.0,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", "--max-length", help="0 = by the source.")] = 0,
    min_new_tokens: Annotated[int, typer.Option("--min-new-tokens", "--min-length", help="At least so many.")] = 0,
    no_repeat_ngram_size: Annotated[int, typer.Option(help="No run of so many tokens twice; 0 = off.")] = 0,
    repetition_penalty: Annotated[float, typer.Option(help="Above 1: repeat less.")] = 1.0,
    do_sample: Annotated[bool, typer.Option("--do-sample", help="Sample instead of searching.")] = False,
    temperature: Annotated[float, typer.Option(help="Above 1: wilder samples.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Sample from the k likeliest; 0 = all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Sample from the likeliest that make up p.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="Sample from what is at least p times as likely as the best.")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="Of the samples.")] = None,
    banned: Annotated[list[str] | None, typer.Option("--banned", help="A phrase never to write.")] = None,
    batch_tokens: Annotated[int, typer.Option(min=1, help="Source tokens translated together.")] = 2048,
    alignment: Annotated[bool, typer.Option("--alignment", help="Word alignments in the JSONL.")] = False,
    mbr: Annotated[int, typer.Option(min=0, help="Draw so many samples, give the one most like the others.")] = 0,
    quantize: Annotated[str, typer.Option(help="int8: weights in a quarter of the memory, on the CPU.")] = "",
) -> None:
    """Translate text, a line at a time: as many lines come out as go in, in the same order.

    JSONL (a file named .jsonl, or --format jsonl) may carry `text`, `target_prefix` and `avoid`; other fields are
    passed through.

    Examples:

      echo "Hello." | heedful translate runs/my-model

      heedful translate runs/my-model -i test.en -o test.de --beam-size 5

      heedful translate runs/my-model --n-best 5 --format nbest < test.en
    """
    from heedful.alignment import Aligner
    from heedful.decoding.generation import GenerationConfig
    from heedful.translator import load

    if quantize not in ("", "int8"):
        raise ValueError(f"quantize {quantize!r} is not known; known: int8")
    if form not in ("plain", "nbest", "jsonl", "pharaoh"):
        raise ValueError(f"format {form!r} is not one of plain, nbest, jsonl, pharaoh")
    given = locals()
    config = parse(GenerationConfig, {name: given[name] for name in GenerationConfig.model_fields if name in given})
    translator = load(*models)
    if quantize:
        from heedful.model.int8 import quantize_int8

        for model in translator.models:
            quantize_int8(model)
    as_json = form == "jsonl" or source.endswith(".jsonl")
    aligner = Aligner.load(models[0]) if form == "pharaoh" or (as_json and alignment) else None
    with _reading(source) as lines, _writing(output) as out:
        translations = _translate(translator, lines, config, as_json, banned or [], batch_tokens, mbr)
        for number, (line, found) in enumerate(translations):
            for warning in found.warnings:
                print(f"heedful: line {number + 1}: {warning}", file=sys.stderr)
            links = aligner.align(translator, [(line["text"].strip(), found.text)])[0] if aligner else None
            out.write(_shown(number, line, found, "jsonl" if as_json else form, links))
            out.flush()


def _translate(
    translator: "Translator",
    lines: Iterable[str],
    config: Any,
    as_json: bool,
    banned: list[str],
    batch_tokens: int,
    mbr: int,
) -> "Iterator[tuple[dict[str, Any], Translation]]":
    for chunk in _chunks(lines):
        given = [_object(line, as_json) for line in chunk]
        if mbr:
            drawn = config.model_copy(update={"num_return_sequences": mbr})
            texts = [entry["text"] for entry in given]
            yield from zip(given, translator.by_consensus(texts, drawn, batch_tokens=batch_tokens), strict=True)
            continue
        avoid = {tuple(entry.get("avoid", ())) for entry in given}
        found: list[Any] = [None] * len(given)
        for phrases in avoid:  # lines that avoid the same go together
            chosen = [index for index, entry in enumerate(given) if tuple(entry.get("avoid", ())) == phrases]
            prefixes = [str(given[index].get("target_prefix", "")) for index in chosen]
            translations = translator.translate(
                [given[index]["text"] for index in chosen],
                config,
                batch_tokens=batch_tokens,
                prefixes=prefixes if any(prefixes) else (),
                banned=[*banned, *phrases],
            )
            for index, translation in zip(chosen, translations, strict=True):
                found[index] = translation
        yield from zip(given, found, strict=True)


def _object(line: str, as_json: bool) -> dict[str, Any]:
    if not as_json:
        return {"text": line}
    try:
        data = json.loads(line)
    except json.JSONDecodeError:
        data = None
    if not isinstance(data, dict) or not isinstance(data.get("text"), str):
        return {"text": "", "error": "not a JSON object with a text"}
    return data


def _shown(
    number: int, given: dict[str, Any], found: "Translation", form: str, links: list[tuple[int, int]] | None
) -> str:
    every = [found, *found.alternatives]
    if form == "pharaoh":
        return " ".join(f"{source}-{target}" for source, target in links or []) + "\n"
    if form == "jsonl":
        data = {**given, "sentence_id": number, "translation": found.text, "score": round(found.score, 6)}
        if links is not None:
            data["alignment"] = links
        if found.alternatives:
            data["translations"] = [one.text for one in every]
            data["scores"] = [round(one.score, 6) for one in every]
        return json.dumps(data, ensure_ascii=False) + "\n"
    if form == "nbest":
        rows = [
            f"{number} ||| {one.text} ||| log_prob= {sum(one.token_log_probs):.6f} ||| {one.score:.6f}" for one in every
        ]
        return "\n".join(rows) + "\n"
    return "\n".join(one.text.replace("\n", " ") for one in every) + "\n"


def _chunks(lines: Iterable[str]) -> Iterator[list[str]]:
    size, chunk = 1 if sys.stdin.isatty() else READ_AHEAD, []
    for line in lines:
        chunk.append(line)
        if len(chunk) >= size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


@contextmanager
def _reading(name: str) -> Iterator[Iterator[str]]:
    """Lines of text; what is not UTF-8 is replaced, and said with its line number."""
    from heedful.data.corpus import open_bytes

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
            print(f"heedful: line {number} is not UTF-8; what cannot be read is replaced", file=sys.stderr)
            yield raw.decode("utf-8", "replace")


@contextmanager
def _writing(name: str) -> Iterator[IO[str]]:
    """What was written stays written, whatever happens next."""
    if name == "-":
        yield sys.stdout
        return
    with Path(name).open("w", encoding="utf-8") as file:
        yield file
