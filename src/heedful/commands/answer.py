"""`heedful answer`: a language model answers from the documents of an index."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from heedful.commands.options import Parts, generation_options


@generation_options(max_new_tokens=60, num_beams=1)
def answer(
    folder: Annotated[Path, typer.Argument(metavar="INDEX", help="An index folder.")],
    model: Annotated[Path, typer.Option(help="A folder of a language model.")],
    question: Annotated[str, typer.Argument(help="The question.", show_default=False)] = "",
    k: Annotated[int, typer.Option("-k", help="Number of documents that the model reads.")] = 3,
    by: Annotated[
        Literal["vectors", "words", "both"] | None, typer.Option(help="How to search. Default: both, if possible.")
    ] = None,
    template: Annotated[
        Path | None, typer.Option(help="Text file with {sources} and {question}, to be used as the prompt.")
    ] = None,
    show_prompt: Annotated[bool, typer.Option("--show-prompt", help="Print the prompt before the answer.")] = False,
    context: Annotated[
        int, typer.Option(min=0, help="Tokens of prompt and answer. Default: what the model can read, or 2048.")
    ] = 0,
    questions: Annotated[
        Path | None, typer.Option(help="Measure instead: a table of question, document id and perhaps right answer.")
    ] = None,
    embedder: Annotated[Path | None, typer.Option(help="The folder of the index's model, if it was moved.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    parts: Parts = None,
    *,
    generation: dict[str, Any],
) -> None:
    """Answer a question from an index: search it, and let a language model continue a prompt with what was found.

    The answer may be wrong whatever the sources say; they are printed below it, to be read.

    Examples:

      heedful answer runs/docs --model runs/smollm2 "what is slip flow?"

      heedful answer runs/docs --model runs/smollm2 --questions questions.tsv
    """
    from heedful.commands.search import open_index
    from heedful.config import parse
    from heedful.decoding.generation import GenerationConfig
    from heedful.generator import load
    from heedful.search.answer import STOPS, TEMPLATE, Answer, measured, read_questions
    from heedful.search.answer import answer as answered

    if bool(question) == bool(questions):
        raise ValueError('give a question, such as: heedful answer INDEX --model LM "what is slip flow?"; or a file of '
                         "them with --questions")  # fmt: skip
    if template is not None and not template.is_file():
        raise ValueError(f"there is no file {template}; it is the text of a prompt with {{sources}} and {{question}}")
    generation["stop_strings"] = generation["stop_strings"] or STOPS
    generation["max_new_tokens"] = generation["max_new_tokens"] or 60
    config = parse(GenerationConfig, generation)
    text = TEMPLATE if template is None else template.read_text(encoding="utf-8")
    index, generator = open_index(folder, embedder), load(model)

    def run(asked: str) -> Answer:
        return answered(index, generator, asked, config, k=k, by=by, template=text, context=context)

    if questions is not None:
        wanted = read_questions(questions)
        figures = measured([run(asked) for asked, _, _ in wanted], wanted)
        print(json.dumps(figures, indent=2) if as_json else "\n".join(f"{n}: {v:g}" for n, v in figures.items()))
        return
    found = run(question)
    if found.prompt.truncated:
        print(f"heedful: truncated to fit the model's context: {', '.join(found.prompt.truncated)}", file=sys.stderr)
    if as_json:
        sources = [{"rank": hit.rank, "score": hit.score, **vars(hit.document)} for hit in found.sources]
        said = {"question": question, "answer": found.text, "sources": sources, "prompt": found.prompt.text,
                "truncated": found.prompt.truncated}  # fmt: skip
        print(json.dumps(said, ensure_ascii=False))
        return
    if show_prompt:
        print(found.prompt.text)
    print(found.text)
    print("\nSources:")
    for hit in found.sources:
        print(f"[{hit.rank}] {hit.document.id}  {hit.document.title}".rstrip())
