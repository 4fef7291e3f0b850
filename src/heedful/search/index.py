"""An index on disk, and searching it.

index.json          what it was built with: the number of documents, the model and the digest of its weights
documents.jsonl     id, title, text
words/              BM25 (bm25s' files: arrays and JSON)
vectors.npy         a vector for each document, if there is a model; vectors.faiss: the graph of approximate search
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from heedful.bounded import opening, read_object, regular
from heedful.data.digest import file_digest
from heedful.files import sync_folder, write_text
from heedful.search.documents import Document
from heedful.search.fusion import Ranking, fuse
from heedful.search.vectors import Vectors
from heedful.search.words import Words

By = Literal["words", "vectors", "both"]
FACTS = "index.json"
FUSED = 100  # documents of each ranking that are fused, at least


class Embeds(Protocol):
    """What gives vectors: `heedful.load` of a model of task embedding."""

    def embed(self, texts: Sequence[str], *, progress: Callable[[int], None] = ...) -> np.ndarray: ...


@dataclass(frozen=True)
class Hit:
    rank: int
    score: float
    document: Document


def build(
    documents: Sequence[Document],
    out: Path,
    *,
    embedder: Embeds | None = None,
    model: Path | None = None,
    approximate: bool = False,
    replace: bool = False,
    progress: Callable[[int], None] = lambda done: None,
) -> None:
    """Write an index, complete or not at all. Documents need a text; `model`: the folder of the embedder."""
    if not documents:
        raise ValueError("there are no documents with text, so there is nothing to index")
    if approximate and embedder is None:
        raise ValueError("approximate search is for vectors; name a model with --model")
    if out.exists() and not (replace and (out / FACTS).is_file()):
        raise ValueError(f"{out} already exists; choose another --out" + (
            ", or rebuild the index with --replace" if (out / FACTS).is_file() else ""))  # fmt: skip
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".tmp", dir=out.parent))
    try:
        facts: dict[str, object] = {"format": 1, "documents": len(documents), "model": None, "approximate": approximate}
        Words.build(document.content for document in documents).save(temporary / "words")
        if embedder is not None and model is not None:
            rows = embedder.embed([document.content for document in documents], progress=progress)
            Vectors.build(rows, approximate=approximate).save(temporary)
            facts["model"] = {"folder": os.fspath(model.resolve()), "digest": digest_of(model)}
            facts["width"] = rows.shape[1]
        with (temporary / "documents.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(asdict(document), ensure_ascii=False) + "\n" for document in documents)
        write_text(temporary / FACTS, json.dumps(facts, indent=2) + "\n")
        temporary.chmod(0o755)
        if out.exists():
            old = out.with_name(f".{out.name}.old-{os.getpid()}")
            out.rename(old)
            temporary.rename(out)
            shutil.rmtree(old)
        else:
            temporary.rename(out)
        sync_folder(out.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def digest_of(model: Path) -> str:
    """Of a model's weights and of how it reads texts."""
    return " ".join(file_digest(model / name) for name in ("model.safetensors", "tokenizer.json"))


class Index:
    """An index of a folder, opened. `embedder`: called when vectors are first asked for; it gives what embeds."""

    def __init__(self, folder: Path, *, model: Path | None = None, load: Callable[[Path], Embeds]) -> None:
        try:
            facts = read_object(folder / FACTS)
            self.size, known = int(facts["documents"]), facts["model"]
            self._where, self._digest = ("", "") if known is None else (str(known["folder"]), str(known["digest"]))
        except FileNotFoundError:
            raise ValueError(f"{folder} is not an index (it has no {FACTS}); build one with: heedful index DOCS --out "
                             f"{folder}") from None  # fmt: skip
        except (ValueError, LookupError, TypeError) as error:
            raise ValueError(f"{folder / FACTS} is damaged ({error}); build the index again") from None
        if not self.size:
            raise ValueError(f"{folder} holds no documents; build the index again from documents with text")
        self.folder, self._load = folder, load
        self.model = None if known is None else model or Path(self._where)
        self._lines: list[str] | None = None
        self._words: Words | None = None
        self._vectors: Vectors | None = None
        self._embedder: Embeds | None = None

    @property
    def ways(self) -> tuple[By, ...]:
        """How it can be searched."""
        return ("words",) if self.model is None else ("words", "vectors", "both")

    def search(self, query: str, k: int = 10, *, by: By | None = None) -> list[Hit]:
        """The k best documents; by default by words and vectors, if the index has vectors."""
        ranking = self.rank([query], k, by=by)[0]
        return [Hit(rank, score, self.document(place)) for rank, (place, score) in enumerate(ranking, start=1)]

    def rank(self, queries: Sequence[str], k: int, *, by: By | None = None) -> list[Ranking]:
        """The rankings of several queries, whose vectors are computed together."""
        by = by or self.ways[-1]
        if k < 1:
            raise ValueError(f"k is {k}, but at least one document must be asked for; choose k = 1 or more")
        if by not in self.ways:
            raise ValueError(f"{self.folder} was built without a model, so it has no vectors; search it by words, or "
                             "build it again with --model")  # fmt: skip
        for query in queries:
            if not query.strip():
                raise ValueError("the query is empty; give words to search for")
        deep = k if by != "both" else max(k, FUSED)
        by_words = [self.words.search(query, deep) for query in queries] if by != "vectors" else []
        if by == "words":
            return by_words
        by_vectors = [self.vectors.search(vector, deep) for vector in self.embedder.embed(list(queries))]
        if by == "vectors":
            return by_vectors
        return [fuse(pair, k) for pair in zip(by_words, by_vectors, strict=True)]

    def document(self, place: int) -> Document:
        with opening(self.folder / "documents.jsonl"):
            found = Document(**json.loads(self.lines[place]))
            if not all(isinstance(value, str) for value in vars(found).values()):
                raise ValueError("a document's id, title and text must be strings")
            return found

    @property
    def lines(self) -> list[str]:
        if self._lines is None:
            with opening(self.folder):
                text = regular(self.folder / "documents.jsonl").read_text(encoding="utf-8")
                self._lines = text.split("\n")[:-1]
            if len(self._lines) != self.size:
                raise ValueError(f"{self.folder / 'documents.jsonl'} has {len(self._lines):,} documents, but the index "
                                 f"{self.size:,}; build the index again")  # fmt: skip
        return self._lines

    @property
    def words(self) -> Words:
        self._words = self._words or Words.load(self.folder / "words", documents=len(self.lines))
        return self._words

    @property
    def vectors(self) -> Vectors:
        self._vectors = self._vectors or Vectors.load(self.folder, documents=len(self.lines))
        return self._vectors

    @property
    def embedder(self) -> Embeds:
        """The model that the documents' vectors were computed with; another one is an error."""
        if self._embedder is None and self.model is not None:
            if not (self.model / "model.safetensors").is_file():
                raise ValueError(f"the index was built with the model {self.model}, which is not there; name its new "
                                 "place with --model, or search by words")  # fmt: skip
            if digest_of(self.model) != self._digest:
                raise ValueError(f"the model {self.model} has changed since {self.folder} was built, so its vectors do "
                                 "not match; build the index again, or search by words")  # fmt: skip
            self._embedder = self._load(self.model)
        if self._embedder is None:
            raise ValueError(f"{self.folder} was built without a model, so it has no vectors")
        return self._embedder
