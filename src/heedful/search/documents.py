"""The user's documents and queries: tables, JSONL, or a folder of text files."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from heedful.data.columns import Column, Columns
from heedful.data.corpus import Line, jsonl_start, read_rows, table_start
from heedful.data.inputs import refuse_faults

# Kept as they are: an empty title is none, and a document without text is skipped and counted.
ID = Column("id", "raw", ("_id", "doc_id", "docid", "document", "qid", "query_id", "name"))
TITLE = Column("title", "raw", ("heading", "headline"))
TEXT = Column("text", "raw", ("body", "content", "contents", "abstract", "passage", "query", "question"))
TEXT_FILES = (".txt", ".txt.gz")
START = 20  # rows of a table that are examined for their number of columns


@dataclass(frozen=True)
class Document:
    id: str
    title: str
    text: str

    @property
    def content(self) -> str:
        """What is searched: title and text."""
        return f"{self.title}\n{self.text}".strip()


def read_documents(place: Path) -> Iterator[Document]:
    """The documents of a file or folder, in order. A table has the columns id, title, text (named in a header row, or
    in this order), id and text, or only text; JSONL has these keys, `title` may be absent. Of a folder, each .txt file
    is a document, named by its path. A row that cannot be read and an id that occurs twice are errors."""
    seen: dict[str, str] = {}
    for where, document in _read_folder(place) if place.is_dir() else _read_file(place):
        if document.id in seen:
            raise ValueError(f"{where}: the id {document.id!r} occurs twice, first in {seen[document.id]}; make ids "
                             "unique")  # fmt: skip
        seen[document.id] = where
        yield document


def read_queries(file: Path) -> dict[str, str]:
    """Queries by id: a table or JSONL with id and text."""
    found: dict[str, str] = {}
    for where, document in _read_file(file):
        if not document.text:
            raise ValueError(f"{where}: query {document.id!r} is empty; give it a text or remove the line")
        if document.id in found:
            raise ValueError(f"{where}: the id {document.id!r} occurs twice; make ids unique")
        found[document.id] = document.text
    if not found:
        raise ValueError(f"{file}: no queries; give a table or JSONL with id and text")
    return found


def read_judgements(file: Path, gains: dict[str, float] | None = None) -> dict[str, dict[str, float]]:
    """Judgements by query and document: rows of query, document, code; or of TREC's query, 0, document, code. `gains`:
    what each code is worth, others nothing; without it, a code is its own worth, and what is below 0 nothing."""
    width = max((len(cells) for cells in table_start(_existing(file), START)), default=0)
    if width < 3:
        raise ValueError(f"{file}: judgements are rows of query, tab, document, tab, code; this has {width or 'no'} "
                         "columns")  # fmt: skip
    query, document, code = (
        Column("query", "raw", ("qid", "query_id", "query-id")),
        Column("document", "raw", ("docid", "doc", "doc_id", "corpus-id")),
        Column("code", "number", ("relevance", "rel", "score", "gain", "label")),
    )
    columns: Columns = (query, Column("iteration", "raw", ("iter", "q0")), document, code)
    columns = columns if width > 3 else (query, document, code)
    found: dict[str, dict[str, float]] = {}
    for line in refuse_faults(read_rows([file], columns)):
        if isinstance(line, Line):
            name, judged, said = line.texts[0].strip(), line.texts[-2].strip(), line.texts[-1]
            gain = max(0.0, float(said)) if gains is None else gains.get(said, 0.0)
            found.setdefault(name, {})[judged] = gain
    return found


def parse_gains(said: str) -> dict[str, float]:
    """ "1=4,2=3" -> {"1": 4.0, "2": 3.0}"""
    try:
        pairs = [part.split("=") for part in said.split(",")]
        return {code.strip(): float(gain) for code, gain in pairs}
    except ValueError:
        raise ValueError(f"gains {said!r} are not like 1=4,2=3,3=2,4=1: code=gain, separated by commas") from None


def _read_file(file: Path) -> Iterator[tuple[str, Document]]:
    columns = _columns(_existing(file))
    names = [column.name for column in columns]
    start = table_start(file, 1)
    wide = max(len(columns), len(start[0])) if start else 0
    for line in refuse_faults(read_rows([file], columns)):
        if isinstance(line, Line):
            if wide and line.more > wide:
                raise ValueError(f"{line.file}:{line.number}: {line.more} columns, but the first line has {wide}; "
                                 "remove tabs from the text")  # fmt: skip
            cells = dict(zip(names, map(str.strip, line.texts), strict=True))
            where = f"{line.file}:{line.number}"
            if cells.get("id") == "":
                raise ValueError(f"{where}: empty id; give the document one")
            document = Document(cells.get("id", str(line.number)), cells.get("title", ""), cells["text"])
            yield where, document


def _columns(file: Path) -> Columns:
    """Those of id, title and text that a file has."""
    if keys := jsonl_start(file):
        if not keys & set(TEXT.names):
            raise ValueError(f"{file.name}: its objects have {', '.join(sorted(keys))}, but no text; name the key text")
        return tuple(column for column in (ID, TITLE, TEXT) if keys & set(column.names))
    start = table_start(file, START)
    if not start:
        raise ValueError(f"{file}: documents must be a table (id, tab, title, tab, text), JSONL or a folder of .txt "
                         "files; this is none of them")  # fmt: skip
    header = {cell.strip().casefold() for cell in start[0]}
    if header & set(TEXT.names) and (len(header) == 1 or header & set(ID.names)):
        return tuple(column for column in (ID, TITLE, TEXT) if header & set(column.names))
    width = len(start[0])
    if width > 3:
        raise ValueError(f"{file.name} has {width} columns and no header row; name them in a first line: id, title, "
                         "text are read, others ignored")  # fmt: skip
    return {1: (TEXT,), 2: (ID, TEXT), 3: (ID, TITLE, TEXT)}[width]


def _read_folder(folder: Path) -> Iterator[tuple[str, Document]]:
    from heedful.data.lines import open_bytes

    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name.endswith(TEXT_FILES))
    if not files:
        raise ValueError(f"{folder} has no .txt files; give a folder of texts, a table or JSONL")
    for file in files:
        with open_bytes(file) as opened:
            data = opened.read()
        try:
            text = data.decode("utf-8-sig").strip()
        except UnicodeDecodeError as error:
            raise ValueError(f"{file}: not UTF-8 at byte {error.start}; save it as UTF-8") from None
        name = file.relative_to(folder).as_posix()
        yield name, Document(name, file.name.removesuffix(".gz").removesuffix(".txt"), text)


def _existing(file: Path) -> Path:
    if not file.is_file():
        raise ValueError(f"there is no file {file}")
    return file
