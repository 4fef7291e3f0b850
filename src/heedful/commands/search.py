"""`heedful index` and `heedful search`: documents by words, by meaning, or by both."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from heedful.commands.options import Parts

if TYPE_CHECKING:
    from heedful.search.index import Index

SHOWN = 100  # characters of a document in a line


def index(
    docs: Annotated[
        Path,
        typer.Argument(
            help="A table (id, title, text; or id, text), JSONL with these keys, or a folder of .txt files; optionally "
            "gzipped."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The index folder to write.")],
    model: Annotated[
        Path | None, typer.Option(help="A folder of a model for embedding. Default: search by words only.")
    ] = None,
    approximate: Annotated[
        bool, typer.Option("--approximate", help="Search vectors by a graph (HNSW of faiss): faster, may miss some.")
    ] = False,
    quantize: Annotated[str, typer.Option(help="int8: round the model's weights.")] = "",
    replace: Annotated[bool, typer.Option("--replace", help="Replace the index that --out holds.")] = False,
    parts: Parts = None,
) -> None:
    """Index documents, to search them by words (BM25) and, with a model, by meaning.

    Examples:

      heedful index docs.tsv --model runs/minilm --out runs/docs

      heedful index notes/ --out runs/notes
    """
    from heedful.search.documents import read_documents
    from heedful.search.index import build

    if not docs.exists():
        raise ValueError(f"there is no file or folder {docs}")
    found = list(read_documents(docs))
    documents = [document for document in found if document.content]
    if len(documents) < len(found):
        print(f"heedful: {len(found) - len(documents):,} documents without text are left out", file=sys.stderr)
    embedder = None if model is None else load_embedder(model, quantize)
    with _progress(len(documents), shown=embedder is not None) as progress:
        build(documents, out, embedder=embedder, model=model, approximate=approximate, replace=replace,
              progress=progress)  # fmt: skip
    long = 0 if embedder is None else embedder.count_truncated([document.content for document in documents])
    if embedder is not None and long:
        print(f"heedful: the vectors of {long:,} documents are of their first {embedder.pooling.max_length} tokens; "
              "words are all indexed", file=sys.stderr)  # fmt: skip
    ways = "words" if embedder is None else f"words and vectors of {embedder.width} numbers"
    print(f"{out}: {len(documents):,} documents, by {ways}")


def search(
    folder: Annotated[Path, typer.Argument(metavar="INDEX", help="An index folder.")],
    query: Annotated[str, typer.Argument(help="What to search for.", show_default=False)] = "",
    k: Annotated[int, typer.Option("-k", help="Number of documents.")] = 10,
    by: Annotated[
        Literal["vectors", "words", "both"] | None,
        typer.Option(help="Default: both, fused by rank, if the index has vectors."),
    ] = None,
    queries: Annotated[
        Path | None, typer.Option(help="Measure instead: a table or JSONL of queries (id, text).")
    ] = None,
    qrels: Annotated[Path | None, typer.Option(help="Judgements: a table of query, document, code.")] = None,
    gains: Annotated[
        str, typer.Option(help="What the codes are worth: 1=4,2=3,3=2,4=1. Default: as much as they say.")
    ] = "",
    model: Annotated[Path | None, typer.Option(help="The model's folder, if it was moved.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: a line per document, or all figures.")] = False,
    parts: Parts = None,
) -> None:
    """Search an index; or measure the search on judged queries: nDCG@10, MRR@10, recall@100.

    Examples:

      heedful search runs/docs "heat transfer in slip flow"

      heedful search runs/docs --queries queries.tsv --qrels qrels.tsv
    """
    if bool(queries) != bool(qrels):
        raise ValueError("to measure, give both --queries (id, text) and --qrels (query, document, code)")
    if bool(query) == bool(queries):
        raise ValueError('give a query, such as: heedful search INDEX "heat transfer"; or --queries and --qrels')
    opened = open_index(folder, model)
    if queries is not None and qrels is not None:
        _measure(opened, queries, qrels, gains, as_json)
        return
    for hit in opened.search(query, k, by=by):
        document = hit.document
        if as_json:
            said = {"rank": hit.rank, "score": hit.score, **vars(document)}
            print(json.dumps(said, ensure_ascii=False))
        else:
            shown = " ".join((document.title or document.text).split())
            shown = shown if len(shown) <= SHOWN else shown[: SHOWN - 3] + "..."
            print(f"{hit.rank:>3}  {hit.score:.4f}  {document.id}  {shown}")


def open_index(folder: Path, model: Path | None = None) -> "Index":
    from heedful.search.index import Index

    return Index(folder, model=model, load=load_embedder)


def load_embedder(model: Path, quantize: str = "") -> Any:
    import heedful
    from heedful.tasks._vectors import Embedder

    return heedful.load(model, expect=Embedder, **({"quantize": quantize} if quantize else {}))


def _measure(opened: "Index", queries: Path, qrels: Path, gains: str, as_json: bool) -> None:
    from heedful.search.documents import parse_gains, read_judgements, read_queries
    from heedful.search.measure import measured

    judgements = read_judgements(qrels, parse_gains(gains) if gains else None)
    found = measured(opened, read_queries(queries), judgements)
    judged = sum(any(gain > 0 for gain in row.values()) for row in judgements.values())
    if as_json:
        print(json.dumps({"queries": judged, "documents": opened.size, **found}, indent=2))
        return
    print(f"{judged:,} queries with a relevant document, {opened.size:,} documents")
    names = list(next(iter(found.values())))
    print(f"{'by':<9}" + "".join(f"{name:>12}" for name in names))
    for way, numbers in found.items():
        print(f"{way:<9}" + "".join(f"{numbers[name]:>12.4f}" for name in names))


@contextmanager
def _progress(total: int, *, shown: bool) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal."""
    if not shown or not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("computing vectors", total=total)
        yield lambda done: bar.update(task, completed=done)
