"""Words with tags: CoNLL files, and the ways in which people mark entities.

A CoNLL file has a word per line, its tag in the last column, and a blank line after each sentence. It is read as a row
for each sentence: the words, separated by spaces, and as many tags.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from heedful.data.columns import Column
from heedful.data.lines import Fault, Line, read_lines

SUFFIXES = (".conll", ".conll03", ".bio", ".iob", ".iob2", ".bioes")
EXAMINED = 1000  # lines that are examined to tell whether a file is CoNLL
FILLER = "_"
MARKED = re.compile(r"O|[BI]|[BIESLU]-.+")  # of IOB1, IOB2, BIOES (IOBES) and BILOU
STARTS, CONTINUES = {"B": "B", "S": "B", "U": "B"}, {"I": "I", "E": "I", "L": "I"}
ORPHAN = "I- tags that continue nothing, read as B- (IOB1?)"
OTHER_SCHEME = "BIOES tags, read as IOB2"


def is_tagged(columns: Sequence[Column]) -> bool:
    return any(column.kind == "tags" for column in columns)


def is_conll(file: Path, columns: Sequence[Column]) -> bool:
    """By name; or by content: single words with something after them, and blank lines between sentences."""
    if not is_tagged(columns):
        return False
    if any(suffix in SUFFIXES for suffix in file.suffixes):
        return True
    if {".jsonl", ".csv"} & set(file.suffixes):
        return False
    lines = [line for _, line in islice(read_lines(file), EXAMINED) if isinstance(line, str)]
    while lines and _is_blank(lines[-1]):
        lines.pop()
    words = [line for line in lines if not _is_blank(line) and not line.startswith(("# ", "-DOCSTART-"))]
    if not words or words[0].startswith("{"):
        return False
    has_blank = any(map(_is_blank, lines))
    if "\t" not in words[0]:
        return ".tsv" not in file.suffixes and all(len(_cells(line, tabs=False)) > 1 for line in words)
    names = {name for column in columns for name in column.names}
    first = [cell.strip().casefold() for cell in words[0].split("\t")]
    single = all(" " not in cell.strip() for line in words for cell in (line.split("\t")[0], line.split("\t")[-1]))
    return single and (has_blank or ".tsv" not in file.suffixes) and not set(first) <= names


def read_conll(file: Path) -> Iterator[Line | Fault]:
    """A line for each sentence: (words, tags), numbered by the line of its first word. A sentence with a line that
    cannot be read gives that fault only."""
    shape = _shape(file)
    held: list[tuple[str, str]] = []
    first, broken = 0, False
    for number, line in read_lines(file):
        if isinstance(line, str) and (_is_blank(line) or line.startswith("-DOCSTART-")):
            if held and not broken:
                yield sentence(file.name, first, *zip(*held, strict=True))
            held, broken = [], False
            continue
        if isinstance(line, str) and line.startswith("# ") and not _has_tag(line, shape, inside=bool(held)):
            continue
        found = line if isinstance(line, Fault) else _word_and_tag(file.name, number, line, shape)
        if isinstance(found, Fault):
            yield found
            broken = True
            continue
        first = first if held else number
        held.append(found)
    if held and not broken:
        yield sentence(file.name, first, *zip(*held, strict=True))


def sentence(file: str, number: int, words: Sequence[str], tags: Sequence[str]) -> Line:
    read, note = to_iob2(tags)
    return Line(file, number, (" ".join(map(as_word, words)), " ".join(read)), note=note)


def as_word(word: str) -> str:
    """A word without white space: U+00A0, U+2028 and similar within it become `_`, so that words separated by spaces
    are as many as before. An empty word becomes `_`."""
    return re.sub(r"\s", FILLER, word.strip(" ")) or FILLER


def to_iob2(tags: Sequence[str]) -> tuple[list[str], str]:
    """The tags of a sentence in IOB2, and a note on what was changed: B- begins every entity, and I- continues it.

    BIOES (IOBES) and BILOU name the ends too: E- and L- become I-, S- and U- become B-. In IOB1, I- may begin an
    entity; an I- that continues nothing becomes B-. Tags of other kinds, such as parts of speech, stay as they are.
    """
    if not all(MARKED.fullmatch(tag) for tag in tags):
        return list(tags), ""
    found: list[str] = []
    orphans = False
    before = "O"
    for tag in tags:
        prefix, kind = tag[0], tag[1:]
        follows = before[0] in "BI" and before[1:] == kind
        if prefix in CONTINUES:
            orphans |= not follows
            tag = ("I" if follows else "B") + kind
        elif prefix in STARTS:
            tag = "B" + kind
        # After E-, L-, S- and U-, an entity is over: an I- there begins a new one.
        before = "O" if prefix in "ELSU" else tag
        found.append(tag)
    if orphans:
        return found, ORPHAN
    return found, OTHER_SCHEME if any(tag[0] in "ESLU" for tag in tags) else ""


def is_iob2(tags: Iterable[str]) -> bool:
    """Whether tags mark entities; otherwise they are names of their own, such as parts of speech."""
    found = set(tags)
    return all(re.fullmatch(r"O|[BI](-.+)?", tag) for tag in found) and found != {"O"}


def complete(tags: Iterable[str]) -> set[str]:
    """These tags and, if they mark entities, those that new texts may need: O, and B- and I- of each type."""
    found = set(tags)
    if not is_iob2(found):
        return found
    return {"O"} | {prefix + tag[1:] for tag in found - {"O"} for prefix in "BI"}


def _is_blank(line: str) -> bool:
    return not line.strip(" \t") or ("\t" not in line and not line.strip())


def _cells(line: str, *, tabs: bool) -> list[str]:
    return [cell.strip(" ") for cell in line.rstrip(" ").split("\t")] if tabs else line.strip(" ").split()


def _shape(file: Path) -> tuple[bool, int] | None:
    """Whether tabs separate the columns, and how many there are: as in the first line that has several. None = unknown,
    since no line has, or all look like comments."""
    for _, line in read_lines(file):
        if isinstance(line, str) and not line.startswith(("# ", "-DOCSTART-")):
            tabs = "\t" in line
            if not _is_blank(line) and len(_cells(line, tabs=tabs)) > 1:
                return tabs, len(_cells(line, tabs=tabs))
    return None


def _has_tag(line: str, shape: tuple[bool, int] | None, *, inside: bool) -> bool:
    """Whether a line that starts with "# " is a word with its tag, not a comment. It is, if it has the columns of the
    other lines; where only spaces separate them, it must also stand inside a sentence, or end like a tag."""
    if "\t" in line or (shape is not None and shape[0]):
        return "\t" in line
    cells = _cells(line, tabs=False)
    if len(cells) < 2 or (shape is not None and len(cells) != shape[1]):
        return False
    return inside or bool(MARKED.fullmatch(cells[-1])) or (shape is not None and cells[-1].isupper())


def _word_and_tag(file: str, number: int, line: str, shape: tuple[bool, int] | None) -> tuple[str, str] | Fault:
    tabs = "\t" in line if shape is None else shape[0]
    cells = _cells(line, tabs=tabs)
    if len(cells) < 2:
        return Fault(file, number, f"{line[:40]!r} has no tag; a line must have a word and, in its last column, a tag")
    if shape is not None and len(cells) != shape[1]:
        return Fault(file, number, f"{len(cells)} columns, where the first line has {shape[1]}")
    word, tag = cells[0], cells[-1]
    if not tag or len(tag.split()) > 1:
        return Fault(file, number, f"the tag {tag!r} of {word[:40]!r} is {'two words' if tag else 'empty'}")
    return word, tag
