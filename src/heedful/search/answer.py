"""Answers from sources: a language model continues a prompt that holds the documents found for a question.
Lewis et al. 2020 (retrieval-augmented generation); here the documents stand in one prompt, and nothing is trained.

What a model writes is not proven by its sources. `support` says which share of its words they contain, no more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from heedful.data.columns import Column
from heedful.data.corpus import Line, read_rows, table_start
from heedful.data.inputs import refuse_faults
from heedful.decoding.generation import GenerationConfig
from heedful.generator import Generator
from heedful.search.documents import Document
from heedful.search.index import By, Hit, Index
from heedful.search.words import tokens
from heedful.text.tokenizer import Tokenizer

TEMPLATE = """Answer the question with the help of the sources.

{sources}

Question: {question}
Answer:"""
CONTEXT = 2048  # tokens, for a model without a limit of its own
LEAST = 8  # tokens of sources, below which there is no point in asking
STOPS = ("\n\n", "\nQuestion:")


@dataclass(frozen=True)
class Prompt:
    """`truncated`: the ids of documents that did not fit in full."""

    text: str
    truncated: list[str]


@dataclass(frozen=True)
class Answer:
    question: str
    text: str
    sources: list[Hit]
    prompt: Prompt


def answer(
    index: Index,
    generator: Generator,
    question: str,
    config: GenerationConfig,
    *,
    k: int = 3,
    by: By | None = None,
    template: str = TEMPLATE,
    context: int = 0,
) -> Answer:
    """Search, and let the model answer. `context`: the tokens of prompt and answer together; 0 = what the model can
    read."""
    hits = index.search(question, k, by=by)
    if not hits:
        raise ValueError("no document shares a word with the question; ask in other words, or search by vectors")
    limit = min(context or generator.limit or CONTEXT, generator.limit or context or CONTEXT)
    made = fitted(question, [hit.document for hit in hits], generator.tokenizer, limit - config.max_new_tokens - 1,
                  template)  # fmt: skip
    (found,) = generator.generate([made.text], config)
    return Answer(question, found[0].text.strip(), hits, made)


def fitted(
    question: str, documents: Sequence[Document], tokenizer: Tokenizer, room: int, template: str = TEMPLATE
) -> Prompt:
    """The prompt in at most `room` tokens. Documents that do not fit are truncated: short ones are kept whole, and the
    long ones get equal shares."""
    for field in ("{sources}", "{question}"):
        if template.count(field) != 1:
            raise ValueError(f"the template must contain {field} once; it is filled in there")
    rows = tokenizer.encode([document.text for document in documents])
    bare = _filled(template, question, [_shown(number, one, "") for number, one in enumerate(documents, start=1)])
    left = room - _size(bare, tokenizer)
    while True:
        if left < LEAST:
            raise ValueError(
                f"the prompt has room for {max(0, room)} tokens, which leaves none for the sources; lower -k or "
                "--max-new-tokens, shorten the question, or choose a model with a longer context"
            )
        shares = _shares([len(row) for row in rows], left)
        texts = [
            document.text if share >= len(row) else _cut(row[:share], tokenizer)
            for document, row, share in zip(documents, rows, shares, strict=True)
        ]
        shown = [_shown(n, one, text) for n, (one, text) in enumerate(zip(documents, texts, strict=True), start=1)]
        text = _filled(template, question, shown)
        over = _size(text, tokenizer) - room
        if over <= 0:  # texts may have more tokens beside each other than each by itself
            cut = [one.id for one, row, share in zip(documents, rows, shares, strict=True) if share < len(row)]
            return Prompt(text, cut)
        left -= max(over, len(documents))


def _filled(template: str, question: str, shown: Sequence[str]) -> str:
    """Not by str.format: a template may contain other braces."""
    before, after = template.split("{sources}")
    sources = "\n\n".join(shown)
    return before.replace("{question}", question) + sources + after.replace("{question}", question)


def _shown(number: int, document: Document, text: str) -> str:
    return f"[{number}] {document.title}\n{text}" if document.title else f"[{number}] {text}"


def _cut(row: Sequence[int], tokenizer: Tokenizer) -> str:
    """These tokens as text, up to the last complete word."""
    text = tokenizer.decode([list(row)])[0].rstrip("\ufffd")
    return text.rsplit(None, 1)[0] if len(text.split()) > 1 else text


def _shares(sizes: Sequence[int], room: int) -> list[int]:
    """How many tokens of each document are shown."""
    given = [0] * len(sizes)
    order = sorted(range(len(sizes)), key=sizes.__getitem__)
    for done, index in enumerate(order):
        given[index] = min(sizes[index], room // (len(sizes) - done))
        room -= given[index]
    return given


def _size(text: str, tokenizer: Tokenizer) -> int:
    return len(tokenizer.encode([text])[0])


def support(text: str, sources: Sequence[str]) -> float:
    """The share of a text's distinct words that occur in the sources; 0 for no words."""
    said, known = set(tokens(text)), {token for source in sources for token in tokens(source)}
    return len(said & known) / len(said) if said else 0.0


def read_questions(file: Path) -> list[tuple[str, str, str]]:
    """Rows of question, id of the right document, and perhaps the right answer."""
    if not file.is_file():
        raise ValueError(f"there is no file {file}")
    start = table_start(file, 1)
    if not start or len(start[0]) < 2:
        raise ValueError(f"{file}: questions are rows of question, tab, document, and perhaps tab, answer")
    columns = [Column("question", "raw", ("query",)), Column("document", "raw", ("id", "docid"))]
    columns += [Column("answer", "raw")] if len(start[0]) > 2 else []
    found = []
    for line in refuse_faults(read_rows([file], columns)):
        if isinstance(line, Line):
            question, document, *right = (cell.strip() for cell in line.texts)
            if not question or not document:
                raise ValueError(f"{line.file}:{line.number}: empty question or document; fill it in")
            found.append((question, document, right[0] if right else ""))
    if not found:
        raise ValueError(f"{file}: no questions")
    return found


def measured(answers: Sequence[Answer], wanted: Sequence[tuple[str, str, str]]) -> dict[str, float]:
    """Means over the questions, as shares from 0 to 1:

    first        the right document was found first
    found        it was among the sources
    supported    words of the written answer that occur in the sources
    answerable   words of the right answer that occur in the sources, if right answers are given
    answered     words of the right answer that occur in the written one
    """
    sums: dict[str, list[float]] = {}
    for one, (_, document, right) in zip(answers, wanted, strict=True):
        ids, texts = [hit.document.id for hit in one.sources], [hit.document.content for hit in one.sources]
        figures: Mapping[str, float] = {
            "first": float(ids[0] == document),
            "found": float(document in ids),
            "supported": support(one.text, texts),
            **({"answerable": support(right, texts), "answered": support(right, [one.text])} if right else {}),
        }
        for name, value in figures.items():
            sums.setdefault(name, []).append(value)
    return {"questions": len(answers), **{name: sum(values) / len(values) for name, values in sums.items()}}
