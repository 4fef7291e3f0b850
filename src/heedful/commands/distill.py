"""`heedful distill`: training pairs written by a model, from a teacher's translations or by back-translation."""

import json
import math
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from heedful.commands.languages import From, To, check_languages
from heedful.commands.lines import chunks, progress, reading
from heedful.commands.options import Parts, generation_options

if TYPE_CHECKING:
    from heedful.data.lines import Fault, Line
    from heedful.decoding.generation import GenerationConfig
    from heedful.translator import Translator

CHUNK = 1024  # lines translated together; after each chunk, the progress is saved
SHORT = 10  # tokens; a pair whose sides are no longer than this may have any length ratio


@generation_options()
def distill(
    models: Annotated[
        list[Path],
        typer.Argument(
            metavar="TEACHER... TEXTS",
            help="Model folders (several make an ensemble), then the texts: one per line, or TSV or JSONL with pairs.",
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="TSV to write: source, tab, target.")],
    back: Annotated[
        bool, typer.Option("--back", help="Back-translation: the texts are targets, the model writes their sources.")
    ] = False,
    from_language: From = "",
    to_language: To = "",
    tag: Annotated[str, typer.Option(help='With --back: a prefix for the sources, such as "<bt> ".')] = "",
    min_score: Annotated[
        float, typer.Option(max=0, help="Minimum mean log-probability per token, such as -1.5.", show_default="off")
    ] = -math.inf,
    max_ratio: Annotated[
        float, typer.Option(min=1, help="Maximum ratio of the longer side's tokens to the shorter side's; inf = off.")
    ] = 3.0,
    keep_all: Annotated[
        bool, typer.Option("--keep-all", help="Filter nothing: one line out per line in, some of them empty.")
    ] = False,
    batch_tokens: Annotated[int, typer.Option(min=1, help="Source tokens per batch.")] = 2048,
    streams: Annotated[int, typer.Option(min=0, help="Batches translated in parallel; 0 = one per core.")] = 0,
    shortlist: Annotated[
        bool, typer.Option("--shortlist", help="Consider only likely target tokens: faster, slightly less exact.")
    ] = False,
    quantize: Annotated[str, typer.Option(help="int8: a quarter of the memory for weights; CPU only.")] = "",
    parts: Parts = None,
    *,
    generation: dict[str, Any],
) -> None:
    """Translate texts and write pairs to train on. If interrupted, rerun the same command to resume.

    Without --back, a student learns from the teacher's translations of the sources (sequence-level knowledge
    distillation, Kim and Rush 2016). With --back, a model of the reverse direction writes the sources of texts in the
    target language (Sennrich et al. 2016); --sample makes them more varied (Edunov et al. 2018), and --tag tells them
    from real ones (Caswell et al. 2019).

    Filtered lines are counted, and listed in OUTPUT.filtered.tsv with their numbers and reasons. OUTPUT.json notes the
    settings, the digests of texts and models, and the counts. Sentences that a teacher held out for its test are
    filtered too. Samples depend on --seed, which is 1 by default.

    For a model that knows several languages, --from is the one of the texts, and --to the one that it writes. Columns
    of a table, or fields of JSONL, that are named `from` and `to` say so for their rows.

    Examples:

      heedful distill runs/teacher train.tsv -o distilled.tsv

      heedful distill runs/de-en mono.de.txt --back --sample --tag "<bt> " -o synthetic.tsv

      heedful distill runs/many mono.de.txt --back --from de --to en -o synthetic.tsv
    """
    from heedful.bases import digest_of
    from heedful.checkpoint import read_config
    from heedful.config import parse
    from heedful.decoding.generation import GenerationConfig
    from heedful.files import locked
    from heedful.translator import load

    *folders, texts = models
    if not folders or texts.is_dir():
        raise ValueError("give a model folder, then a file, such as: heedful distill runs/teacher texts.txt -o out.tsv")
    if not texts.is_file():
        raise ValueError(f"there is no file {texts}")
    if tag and not back:
        raise ValueError("--tag marks sources that a model wrote; use it with --back")
    for folder in folders:
        read_config(folder)
    config = parse(GenerationConfig, generation)
    if config.num_return_sequences > 1:
        raise ValueError("distill writes one translation per line; leave out --num-return-sequences")
    if config.do_sample and config.seed is None:
        config = config.model_copy(update={"seed": 1})
    rules = Rules(-math.inf if keep_all else min_score, math.inf if keep_all else max_ratio)
    settings = {
        "texts": _digest(texts),
        "teachers": [digest_of(folder) for folder in folders],
        "back": back, "tag": tag, "keep_all": keep_all,
        "min_score": None if rules.min_score == -math.inf else rules.min_score,
        "max_ratio": None if rules.max_ratio == math.inf else rules.max_ratio,
        "shortlist": shortlist, "quantize": quantize, **config.model_dump(mode="json"),
        **({"languages": [from_language, to_language]} if from_language or to_language else {}),
    }  # fmt: skip
    paths = Paths(output)
    paths.refuse(texts)
    with locked(paths.lock, f"another distillation into {output.name}"):
        note = _resumed(paths, settings)
        if note["finished"]:
            print(f"heedful: {output} is finished already", file=sys.stderr)
        else:
            translator = load(*folders, quantize=quantize, shortlist=shortlist, streams=streams or None)
            if translator.context:
                print("heedful: the model reads context, but each line is translated by itself", file=sys.stderr)
            held_out = frozenset[str]() if keep_all else _held_out(folders)
            languages = (from_language, to_language)
            if all(languages) or not _names_languages(texts):
                check_languages(translator.languages, languages)
            writer = Writer(translator, config, rules, back, tag, held_out, batch_tokens, languages)
            _write(writer, texts, paths, note, keep_all)
    print(_summary(output, note, keep_all))


@dataclass(frozen=True)
class Rules:
    """Which pairs are kept. The score is the mean log-probability per token, </s> included."""

    min_score: float
    max_ratio: float

    def reason(self, source: int, target: int, score: float, *, ended: bool) -> str:
        """Why a pair with so many tokens on each side is filtered; empty if it is kept."""
        shorter, longer = sorted((source, target))
        if not target:
            return "no translation"
        if not ended:
            return "cut off at the length limit"
        if score < self.min_score:
            return f"score below {self.min_score:g}"
        if longer > SHORT and longer > self.max_ratio * shorter:
            return f"length ratio above {self.max_ratio:g}"
        return ""


@dataclass(frozen=True)
class Paths:
    """The output; it is written under another name until it is complete."""

    output: Path

    def _beside(self, ending: str) -> Path:
        return self.output.with_name(self.output.name + ending)

    @property
    def part(self) -> Path:
        return self._beside(".part")

    @property
    def filtered(self) -> Path:
        return self._beside(".filtered.tsv")

    @property
    def note(self) -> Path:
        return self._beside(".json")

    @property
    def lock(self) -> Path:
        return self.output.with_name(f".{self.output.name}.lock")

    def refuse(self, texts: Path) -> None:
        """Nothing is overwritten: neither the texts, nor a file that was not written here."""
        every = (self.output, self.part, self.filtered, self.note)
        if texts.resolve() in {path.resolve() for path in every}:
            raise ValueError("the input would be overwritten; give --output another name")
        written = every if not self.note.exists() else (self.output,) if self.part.exists() else ()
        for path in written:
            if path.exists():
                raise ValueError(f"{path} exists already, and was not written by this command; choose another -o")


@dataclass(frozen=True)
class Given:
    """A text, why it cannot be used, and its languages where its row names them."""

    number: int
    text: str
    unusable: str = ""
    source: str = ""
    target: str = ""


@dataclass(frozen=True)
class Written:
    """A pair, and why it is filtered."""

    number: int
    source: str
    target: str
    score: float
    tokens: int
    reason: str


@dataclass(frozen=True)
class Writer:
    """Pairs from texts. `held_out`: keys of texts that are for testing."""

    translator: "Translator"
    config: "GenerationConfig"
    rules: Rules
    back: bool
    tag: str
    held_out: frozenset[str]
    batch_tokens: int
    languages: tuple[str, str] = ("", "")  # of lines that name none

    def write(self, lines: Sequence[Given]) -> list[Written]:
        from heedful.decoding.runner import Request

        lines = [replace(one, source=one.source or self.languages[0], target=one.target or self.languages[1])
                 for one in lines]  # fmt: skip
        reasons = [one.unusable or self._unusable(one) for one in lines]
        asked = [
            Request("") if why else Request(one.text, source=one.source, target=one.target)
            for one, why in zip(lines, reasons, strict=True)
        ]
        readings = self.translator.read(asked)
        written = self.translator.write(readings, self.config, batch_tokens=self.batch_tokens)
        found = []
        for line, why, read, one in zip(lines, reasons, readings, written, strict=True):
            count, new = len(one.token_log_probs), sum(len(part.tokens) for part in read.parts)
            score = sum(one.token_log_probs) / max(1, count)
            ended = count == len(one.tokens) + len(read.parts)  # each part has its </s>
            why = why or self.rules.reason(new, len(one.tokens) if one.text else 0, score, ended=ended)
            given, made = _cell(line.text), _cell(one.text)
            pair = (self.tag + made if made else "", given) if self.back else (given, made)
            found.append(Written(line.number, *pair, score, count, why))
        return found

    def _unusable(self, line: Given) -> str:
        from heedful.data.corpus import near

        if not line.text.strip():
            return "empty line"
        try:
            self.translator.languages.framing(line.source, line.target)
        except ValueError:
            return f"the model does not translate from {line.source or '?'} to {line.target or '?'}"
        return "held out for testing" if near(line.text) in self.held_out else ""


def _cell(text: str) -> str:
    """The text as a cell of a table. A NUL, which bytes of a vocabulary allow a model to write, would make the file
    unreadable."""
    return text.translate({ord(mark): " " for mark in "\t\n\r\0"}).strip()


def _digest(file: Path) -> str:
    from heedful.data.digest import file_digest

    return file_digest(file)


def _held_out(folders: Sequence[Path]) -> frozenset[str]:
    """Keys of the sources that the models' trainings held out for testing."""
    from heedful.data.corpus import Line, near, read_pairs

    files = [file for folder in folders for file in (folder / "test.tsv", *folder.glob("test.*.tsv")) if file.is_file()]
    found = (near(line.texts[0]) for file in files for line in read_pairs([file]) if isinstance(line, Line))
    return frozenset(key for key in found if key)


def _resumed(paths: Paths, settings: dict[str, Any]) -> dict[str, Any]:
    """The note of an earlier run, or a new one."""
    from heedful.training.recipe import differences

    settings = json.loads(json.dumps(settings))
    if paths.note.exists():
        note: dict[str, Any] = json.loads(paths.note.read_text(encoding="utf-8"))
        if changed := differences(note.get("settings", {}), settings):
            shown = "; ".join(line if len(line) < 80 else line.partition(":")[0] + " changed" for line in changed)
            raise ValueError(
                f"{paths.output} was written with other settings ({shown}); use the same ones, or choose another -o"
            )
        if paths.part.exists() or paths.output.exists():
            return note
    counts = {"lines": 0, "kept": 0, "filtered": {}, "tokens": 0, "log_prob": 0.0, "bytes": [0, 0]}
    return {"settings": settings, "finished": False, **counts}


def _write(writer: Writer, texts: Path, paths: Paths, note: dict[str, Any], keep_all: bool) -> None:
    """Translate what is left, chunk by chunk. The note says how many bytes of each file are complete."""
    from heedful.files import write_text

    if not note["lines"]:
        paths.output.parent.mkdir(parents=True, exist_ok=True)
        write_text(paths.note, json.dumps(note, indent=2))
    begun = paths.part if paths.part.exists() or not note["lines"] else paths.output  # killed after it was renamed
    if note["lines"]:
        print(f"heedful: resuming after line {note['lines']:,}", file=sys.stderr)
    with ExitStack() as stack:
        names = [begun] if keep_all else [begun, paths.filtered]
        files = [stack.enter_context(_opened(path, size)) for path, size in zip(names, note["bytes"], strict=False)]
        advance = stack.enter_context(progress(str(texts), shown=True, done=note["lines"], logged=True))
        lines = stack.enter_context(_lines(texts, writer.back))
        for chunk in chunks(islice(lines, note["lines"], None), CHUNK):
            _add(files, writer.write(chunk), note, keep_all)
            write_text(paths.note, json.dumps(note, indent=2))
            advance(len(chunk))
    if not note["lines"]:
        raise ValueError(f"{texts} is empty")
    if paths.part.exists():
        paths.part.replace(paths.output)
    note["finished"] = True
    write_text(paths.note, json.dumps(note, indent=2))


def _add(files: Sequence[IO[bytes]], rows: Iterable[Written], note: dict[str, Any], keep_all: bool) -> None:
    """Append the pairs, and count them in the note."""
    reasons: Counter[str] = Counter()
    for row in rows:
        note["lines"] += 1
        if keep_all or not row.reason:
            files[0].write(f"{row.source}\t{row.target}\n".encode())
            note["kept"] += 1
            note["tokens"] += row.tokens
            note["log_prob"] += row.score * row.tokens
        else:
            listed = f"{row.number}\t{row.reason}\t{row.score:.4f}\t{row.source}\t{row.target}\n"
            files[1].write(listed.encode())
        if row.reason:
            reasons[row.reason] += 1
    note["filtered"] = dict(sorted((Counter(note["filtered"]) + reasons).items()))
    for file in files:
        file.flush()
        os.fsync(file.fileno())
    note["bytes"] = [file.tell() for file in files]


def _opened(path: Path, size: int) -> IO[bytes]:
    """The file, without what was written after the last note."""
    file = path.open("ab")
    if file.tell() < size:
        file.close()
        raise ValueError(f"{path} has become shorter since it was written; remove it and the files beside it")
    file.truncate(size)
    file.seek(size)
    return file


@contextmanager
def _lines(file: Path, back: bool) -> Iterator[Iterator[Given]]:
    """The lines of a text, or one side of the rows of a table or JSONL."""
    from heedful.data.corpus import is_plain, read_pairs

    if is_plain(file):
        with reading(str(file)) as lines:
            yield (Given(number, line) for number, line in enumerate(lines, start=1))
    elif _names_languages(file):
        yield _with_languages(file, side=int(back))
    else:
        yield (given for row in read_pairs([file]) for given in _given(row, int(back)))


def _names_languages(file: Path) -> bool:
    """Whether rows may name their languages: those of JSONL, and of a table with these columns."""
    from heedful.data.corpus import is_plain, jsonl_start, table_start

    if is_plain(file):
        return False
    header = {cell.strip() for cells in table_start(file, 1) for cell in cells}
    return bool({"from", "to"} & header) or bool(jsonl_start(file))


def _with_languages(file: Path, side: int) -> Iterator[Given]:
    """The texts and languages of these rows; either language, and the other side of a pair, may be missing."""
    from heedful.data.columns import PAIR, Column
    from heedful.data.corpus import PAIR_KEYS, Line, jsonl_start, read_rows, table_start

    if keys := jsonl_start(file):
        columns, side = ((Column("text"),), 0) if "text" in keys else (PAIR, side)
        named = _languages_of_jsonl(file)
        for row in read_rows([file], columns):
            _, source, target = next(one for one in named if one[0] == row.number)
            yield from (replace(given, source=source, target=target) for given in _given(row, side))
        return
    header = {cell.strip() for cells in table_start(file, 1) for cell in cells}
    text = Column(PAIR_KEYS[0][side], also=(*(names[side] for names in PAIR_KEYS[1:]), "text"))
    names = [name for name in ("from", "to") if name in header]
    for row in read_rows([file], (text, *(Column(name, "raw") for name in names))):
        found = dict(zip(names, row.texts[1:], strict=True)) if isinstance(row, Line) else {}
        for given in _given(row, 0):
            yield replace(given, source=found.get("from", ""), target=found.get("to", ""))


def _languages_of_jsonl(file: Path) -> Iterator[tuple[int, str, str]]:
    """Line number, `from` and `to` of each object."""
    from heedful.data.lines import Fault, read_lines

    for number, line in read_lines(file):
        try:
            data = {} if isinstance(line, Fault) else json.loads(line)
        except (ValueError, RecursionError):  # read_rows gives the reason
            data = {}
        found = [data.get(name) if isinstance(data, dict) else None for name in ("from", "to")]
        source, target = ("" if one is None else str(one) for one in found)
        yield number, source, target


def _given(row: "Line | Fault", side: int) -> Iterator[Given]:
    from heedful.data.corpus import Line

    if isinstance(row, Line):
        yield Given(row.number, row.texts[side])
    elif row.reason != "header row":
        yield Given(row.number, "", row.reason)


def _summary(output: Path, note: dict[str, Any], keep_all: bool) -> str:
    verb = "unusable, written as they are" if keep_all else "filtered"
    why = ", ".join(f"{count:,} {reason}" for reason, count in note["filtered"].items())
    left = f"; {sum(note['filtered'].values()):,} {verb} ({why})" if why else ""
    mean = f"mean log-probability {note['log_prob'] / max(1, note['tokens']):.3f} per token"
    return f"{output}: {note['kept']:,} pairs from {note['lines']:,} lines{left}; {mean}"
