"""`heedful evaluate` and `heedful score`: evaluation metrics and log-probabilities."""

import json
import math
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heedful import startup
from heedful.commands.languages import From, To, check_languages
from heedful.commands.options import Parts

if TYPE_CHECKING:
    from heedful.decoding.generation import GenerationConfig
    from heedful.translator import Translator


def evaluate(
    models: Annotated[
        list[Path],
        typer.Argument(
            metavar="MODEL... [TEST]",
            help="Model folders, then a test file. Default: the pairs that the first model's training held out.",
        ),
    ],
    num_beams: Annotated[int, typer.Option("--num-beams", "--beam-size", "-b", help="1 = greedy.")] = 4,
    length_penalty: Annotated[float, typer.Option(help="Score / length^this.")] = 1.0,
    batch_tokens: Annotated[int, typer.Option(min=1, help="Source tokens per batch.")] = 2048,
    streams: Annotated[int, typer.Option(min=0, help="Batches translated in parallel; 0 = one per core.")] = 0,
    quantize: Annotated[str, typer.Option(help="int8: a quarter of the memory for weights; CPU only.")] = "",
    shortlist: Annotated[bool, typer.Option("--shortlist", help="Consider only likely target tokens.")] = False,
    fertilities: Annotated[str, typer.Option(help="Non-autoregressive models: argmax or average.")] = "argmax",
    noisy: Annotated[int, typer.Option(min=0, help="Non-autoregressive models: sampled fertilities to try.")] = 0,
    iterations: Annotated[int, typer.Option(min=1, help="Mask-predict: passes.")] = 10,
    length_beam: Annotated[int, typer.Option(min=1, help="Mask-predict: lengths to try.")] = 5,
    tokenize: Annotated[
        str,
        typer.Option(help="BLEU tokenizer: 13a, zh, ja-mecab, ko-mecab, char ... Default: by language or script."),
    ] = "",
    source: From = "",
    target: To = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    parts: Parts = None,
) -> None:
    """Translate a test set and score it: BLEU, chrF and TER by sacreBLEU, exact match, perplexity, speed.

    Several models are shown side by side, with paired bootstrap tests against the first. For a language model and a
    text file: perplexity and bits per byte. For a model of several corpora: a row for each, with its own metric. For a
    summariser: ROUGE, with the first sentences beside it.

    Examples:

      heedful evaluate runs/my-model

      heedful evaluate runs/my-model test.tsv

      heedful evaluate runs/old runs/new test.tsv --markdown

      heedful evaluate runs/many de-fr.tsv --from de --to fr
    """
    import heedful

    startup.load("heedful.translator")
    from heedful.checkpoint import read_config

    asked: dict[str, Any] = {"quantize": quantize, "shortlist": shortlist, "streams": streams}
    options = {name: value for name, value in asked.items() if value}
    if all(model.is_dir() for model in models):
        from heedful.commands.evaluate_parts import evaluate_parts, parts_of

        if each := parts_of(models[0]):
            if source or target or tokenize or (fertilities, noisy, iterations, length_beam) != ("argmax", 0, 10, 5):
                raise ValueError("every corpus of this model has its own settings; for others, give a test file")
            evaluate_parts(models, each, options, num_beams, length_penalty, batch_tokens, as_json, markdown)
            return
    folders, test = _test_of(models)
    first = heedful.load(folders[0], **options)
    for folder in folders:
        _warn_if_trained_on(folder, test)
    from heedful.config import parse
    from heedful.decoding.generation import GenerationConfig
    from heedful.tasks import TaskConfig
    from heedful.translator import load

    recipe = read_config(folders[0])
    settings = {"num_beams": num_beams, "length_penalty": length_penalty, "fertilities": fertilities, "noisy": noisy,
                "iterations": iterations, "length_beam": length_beam}  # fmt: skip
    config = parse(GenerationConfig, settings)
    task = parse(TaskConfig, recipe.get("task") or "translation")
    figures = task.figures(first, test, config)
    if figures is not None:
        if len(folders) > 1:
            raise ValueError("only translation models can be compared; give one model folder and a test file")
        _show_numbers(figures, test, as_json)
        return
    from heedful.evaluation.compare import by_length, compare, worst
    from heedful.evaluation.metrics import tokenization

    documents = any(read_config(one).get("data", {}).get("context") for one in folders)
    pairs, places = read_pairs_of(test, documents=documents)
    sources, references = [source for source, _ in pairs], [target for _, target in pairs]
    language = target or str(recipe.get("data", {}).get("target_language", ""))
    cut = tokenization(references, language=language, tokenize=tokenize)
    if cut.name != "13a":
        print(f"heedful: BLEU uses the tokenizer {cut.name}: {cut.why}", file=sys.stderr)
    results, texts = {}, {}
    for number, folder in enumerate(folders):
        translator = load(folder, **options) if number else first
        name, direction = str(folder), translator.languages.direction(source, target)
        name += (
            "" if translator.languages.trained(direction) or not direction.source else f" ({direction}, not trained)"
        )
        results[name], texts[name] = evaluate_pairs(
            translator, pairs, config, batch_tokens, cut.name, (source, target), places
        )
    data: dict[str, Any] = {"test": test.name, "sentences": len(pairs), "models": results}
    best = next(iter(texts.values()))
    data["by_source_words"] = [
        {"words": words, "sentences": count, "chrf": value}
        for words, count, value in by_length(sources, best, references)
    ]
    data["worst"] = worst(sources, best, references)
    if len(folders) > 1:
        data["comparison"] = [vars(one) for one in compare(texts, [references], tokenizer=cut.name)]
    if as_json:
        print(json.dumps(data, indent=2, ensure_ascii=False))
    elif markdown:
        print(_markdown(data))
    else:
        _print(data)


def _test_of(models: list[Path]) -> tuple[list[Path], Path]:
    """The model folders and the test file: the one given, or the pairs that the first model's training held out."""
    *folders, test = models
    if test.is_dir():
        files = [models[0] / name for name in ("test.tsv", "test.jsonl")]
        folders, test = models, next((file for file in files if file.is_file()), files[0])
        if not test.is_file():
            raise ValueError(
                f"{models[0]} has no test.tsv, since no pairs were held out; give a test file after the model"
            )
    elif not folders:
        raise ValueError("give a model folder and a test file, such as: heedful evaluate runs/my-model test.tsv")
    if not test.is_file():
        raise ValueError(f"there is no file {test}")
    return folders, test


def _warn_if_trained_on(folder: Path, test: Path) -> None:
    """Warn if the test file is the training file: the scores then say nothing about new texts."""
    from heedful.bounded import read_object
    from heedful.data.digest import file_digest

    try:
        trained = read_object(folder / "asked.json")["data"]["train"]
    except (OSError, ValueError, LookupError, TypeError):
        return
    if file_digest(test) in trained:
        print(
            f"heedful: {test} is the training data of {folder}: these scores say nothing about new texts",
            file=sys.stderr,
        )


def score(
    models: Annotated[
        list[Path],
        typer.Argument(metavar="MODEL [BACK] PAIRS", help="A model, optionally the reverse model, and pairs."),
    ],
    from_language: From = "",
    to_language: To = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSONL with the log-probability of every token.")
    ] = False,
    parts: Parts = None,
) -> None:
    """Print the log-probability of each pair, one per line, followed by source and target.

    With a second model for the reverse direction, the second column is the log-probability of the source given the
    target. --from and --to are the languages of the pairs; the reverse model gets them in reverse.

    Examples:

      heedful score runs/en-de pairs.tsv

      heedful score runs/en-de runs/de-en pairs.tsv --json

      heedful score runs/many pairs.tsv --from en --to de
    """
    if len(models) not in (2, 3):
        raise ValueError(
            "give one or two model folders and a file of pairs, such as: heedful score runs/my-model p.tsv"
        )
    *folders, file = models
    from heedful.translator import load

    translators = [load(folder) for folder in folders]
    languages = [(from_language, to_language), (to_language, from_language)]
    for translator, asked in zip(translators, languages, strict=False):
        check_languages(translator.languages, asked)
    pairs, places = read_pairs_of(file, documents=any(translator.context for translator in translators))
    each_way = [pairs, [(target, source) for source, target in pairs]]
    scores = [
        translator.score(some, places=places, source=source, target=target)
        for translator, some, (source, target) in zip(translators, each_way, languages, strict=False)
    ]
    for index, (source, target) in enumerate(pairs):
        found = [each[index] for each in scores]
        if as_json:
            line: dict[str, Any] = {"source": source, "target": target, "log_prob": sum(found[0]), "tokens": found[0]}
            if len(found) == 2:
                line |= {"back_log_prob": sum(found[1]), "back_tokens": found[1]}
            print(json.dumps(line, ensure_ascii=False))
        else:
            print("\t".join([*(f"{sum(values):.4f}" for values in found), source, target]))


def read_pairs_of(file: Path, *, documents: bool = False) -> tuple[list[tuple[str, str]], list[int]]:
    """The pairs, and how many pairs of its document stand before each one."""
    from heedful.data.corpus import Fault, read_pairs

    pairs, places = [], []
    for line in read_pairs([file], documents=documents):
        if isinstance(line, Fault):
            print(f"heedful: {line.file}:{line.number} skipped: {line.reason}", file=sys.stderr)
        else:
            pairs.append((line.texts[0], line.texts[1]))
            places.append(line.before)
    if not pairs:
        raise ValueError(f"{file} has no usable pairs")
    if documents and len(pairs) > 1 and places.count(0) in (1, len(places)):
        found = "one document" if any(places) else "a document for each line"
        print(f"heedful: {file} is read as {found}, since it has no other blank lines or ids", file=sys.stderr)
    return pairs, places


def evaluate_pairs(
    translator: "Translator",
    pairs: list[tuple[str, str]],
    config: "GenerationConfig",
    batch_tokens: int,
    tokenize: str,
    languages: tuple[str, str] = ("", ""),
    places: Sequence[int] = (),
) -> tuple[dict[str, Any], list[str]]:
    from heedful.evaluation.metrics import score as scored

    began = time.monotonic()
    source, target = languages
    starts = [number for number, place in enumerate(places) if not place] if translator.context else [0]
    documents = [[text for text, _ in pairs[start:end]] for start, end in pairwise([*starts, len(pairs)])]
    found = translator.translate_documents(
        documents, config, batch_tokens=batch_tokens, split=False, source=source, target=target
    )
    texts = [one.text for some in found for one in some]
    seconds = time.monotonic() - began
    results: dict[str, Any] = {
        name: {"score": one.value, "signature": one.signature}
        for name, one in scored(texts, [[target for _, target in pairs]], tokenize=tokenize).items()
    }
    results["perplexity"] = _perplexity(translator, pairs, languages, places) if translator.stepwise else None
    results["sentences_per_second"] = len(pairs) / seconds
    return results, texts


def _perplexity(
    translator: "Translator", pairs: list[tuple[str, str]], languages: tuple[str, str], places: Sequence[int]
) -> float:
    log_probs = translator.score(pairs, source=languages[0], target=languages[1], places=places)
    return math.exp(-sum(map(sum, log_probs)) / max(1, sum(map(len, log_probs))))


def _show_numbers(figures: dict[str, Any], test: Path, as_json: bool) -> None:
    """The task's own evaluation, for models that do not translate."""
    data = {"test": test.name, **figures}
    if as_json:
        print(json.dumps(data, indent=2, ensure_ascii=False))
        return
    for name, value in data.items():
        if isinstance(value, dict):  # a figure for each label
            print(f"{name}:")
            print("\n".join(f"  {label}: {_figure(one)}" for label, one in value.items()))
        elif name == "confusion":
            _print_confusion(data["labels"], value)
        elif not isinstance(value, list):
            print(f"{name}: {_figure(value)}")


def _figure(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _print_confusion(labels: list[str], matrix: list[list[int]]) -> None:
    """Rows are true labels, columns predicted ones; beyond what fits a terminal, `heedful plot confusion` draws it."""
    if len(labels) > 12:
        print("confusion: see `heedful plot confusion`")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("true \\ predicted", title="confusion", title_justify="left")
    for label in labels:
        table.add_column(label, justify="right")
    for label, row in zip(labels, matrix, strict=True):
        table.add_row(label, *map(str, row))
    Console(markup=False).print(table)


def _rows(data: dict[str, Any]) -> list[list[str]]:
    rows = []
    for name, found in data["models"].items():
        cells = [f"{found[key]['score']:.2f}" for key in ("bleu", "chrf", "ter", "exact")]
        perplexity = "-" if found["perplexity"] is None else f"{found['perplexity']:.2f}"
        rows.append([name, *cells, perplexity, f"{found['sentences_per_second']:.1f}"])
    return rows


HEADER = ["model", "BLEU", "chrF2", "TER", "exact %", "perplexity", "sentences/s"]


def _markdown(data: dict[str, Any]) -> str:
    lines = ["| " + " | ".join(HEADER) + " |", "|---" + "|---:" * (len(HEADER) - 1) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in _rows(data)]
    first = next(iter(data["models"].values()))
    lines += ["", f"{data['test']}, {data['sentences']:,} sentences. Signatures:", ""]
    lines += [f"- {name}: `{first[name]['signature']}`" for name in ("bleu", "chrf", "ter")]
    for one in data.get("comparison", []):
        p = "" if one["p_value"] is None else f", p = {one['p_value']:.4f}"
        lines.append(
            f"- {one['system']}: {one['metric']} {one['score']:.2f} (mean {one['mean']:.2f} ± {one['interval']:.2f}{p})"
        )
    return "\n".join(lines)


def _print(data: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(HEADER[0], title=f"{data['test']}, {data['sentences']:,} sentences", title_justify="left")
    for column in HEADER[1:]:
        table.add_column(column, justify="right")
    for row in _rows(data):
        table.add_row(*row)
    console.print(table)
    first = next(iter(data["models"].values()))
    for name in ("bleu", "chrf", "ter"):
        console.print(first[name]["signature"], highlight=False, soft_wrap=True)
    for one in data.get("comparison", []):
        p = "" if one["p_value"] is None else f", p = {one['p_value']:.4f}"
        mean = f"mean {one['mean']:.2f} ± {one['interval']:.2f}{p}"
        console.print(f"{one['system']}: {one['metric']} {one['score']:.2f} ({mean})", highlight=False)
    lengths = ", ".join(
        f"{one['words']} words {one['chrf']:.1f} ({one['sentences']})" for one in data["by_source_words"]
    )
    console.print(f"chrF by source length: {lengths}", highlight=False, soft_wrap=True)
    for one in data["worst"]:
        console.print(
            f"chrF {one['chrf']:.1f}: {one['source']} -> {one['hypothesis']} (reference: {one['reference']})",
            highlight=False, markup=False, soft_wrap=True,
        )  # fmt: skip
