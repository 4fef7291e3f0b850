"""`heedful evaluate` for a model of several corpora: a row for each corpus, or each direction of it."""

import json
import sys
from pathlib import Path
from typing import Any

from heedful.checkpoint import read_config
from heedful.config import parse
from heedful.data.corpora import part_names
from heedful.data.inputs import DataConfig

HEADER = ["corpus", "sentences", "its metric", "BLEU", "chrF2", "TER", "exact %", "perplexity"]


def parts_of(folder: Path) -> list[dict[str, Any]]:
    """The parts of the mixture that a model was trained on: name, metric, languages and test file."""
    data = read_config(folder).get("data", {})
    if not data.get("corpora"):
        return []
    recipe = parse(DataConfig, data)
    return [
        {"name": name, "metric": recipe.corpora[number].metric, "languages": tuple(direction or ("", "")),
         "test": folder / f"test.{name}.tsv"}
        for name, number, direction in part_names(recipe.corpora)
    ]  # fmt: skip


def evaluate_parts(
    folders: list[Path],
    parts: list[dict[str, Any]],
    options: dict[str, Any],
    num_beams: int,
    length_penalty: float,
    batch_tokens: int,
    as_json: bool,
    markdown: bool,
) -> None:
    """Score each part on the rows that its training held out or was given as test files."""
    from heedful.commands.evaluate import evaluate_pairs, read_pairs_of
    from heedful.decoding.generation import GenerationConfig
    from heedful.evaluation.metrics import one_score, tokenization
    from heedful.translator import load

    if len(folders) > 1:
        raise ValueError("several models are compared on one test file; give it after them, with --from and --to")
    tested = [part for part in parts if part["test"].is_file()]
    if not tested:
        raise ValueError(f"{folders[0]} has no test files, since no pairs were held out; give one after the model")
    if missing := [part["name"] for part in parts if part not in tested]:
        print(f"heedful: not scored, since no rows were held out: {', '.join(missing)}", file=sys.stderr)
    config = GenerationConfig(num_beams=num_beams, length_penalty=length_penalty)
    translator, found = load(folders[0], **options), {}
    for part in tested:
        pairs, _ = read_pairs_of(part["test"])
        references = [target for _, target in pairs]
        cut = tokenization(references, language=part["languages"][1]).name
        scores, texts = evaluate_pairs(translator, pairs, config, batch_tokens, cut, part["languages"])
        own = one_score(part["metric"], texts, references, language=part["languages"][1])
        metric = {"name": own.name, "score": own.value, "signature": own.signature}
        found[part["name"]] = {"sentences": len(pairs), "metric": metric, **scores}
    if as_json:
        print(json.dumps({"model": str(folders[0]), "parts": found}, indent=2, ensure_ascii=False))
        return
    rows = [_row(name, one) for name, one in found.items()]
    signatures = _signatures(found)
    if markdown:
        print("| " + " | ".join(HEADER) + " |\n|---" + "|---:" * (len(HEADER) - 1) + "|")
        print("\n".join("| " + " | ".join(row) + " |" for row in rows))
        print("\nSignatures:\n\n" + "\n".join(f"- {line}" for line in signatures))
        return
    from rich.console import Console
    from rich.table import Table

    console, table = Console(), Table(HEADER[0], title=str(folders[0]), title_justify="left")
    for column in HEADER[1:]:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    for line in signatures:
        console.print(line, highlight=False, soft_wrap=True)


def _row(name: str, one: dict[str, Any]) -> list[str]:
    own = f"{one['metric']['name']} {one['metric']['score']:.2f}"
    cells = [f"{one[key]['score']:.2f}" for key in ("bleu", "chrf", "ter", "exact")]
    return [name, f"{one['sentences']:,}", own, *cells, f"{one['perplexity']:.2f}"]


def _signatures(found: dict[str, dict[str, Any]]) -> list[str]:
    """Each signature once, with the corpora that it is for if not for all."""
    names: dict[str, list[str]] = {}
    for name, one in found.items():
        for metric in (one["bleu"], one["chrf"], one["ter"], one["metric"]):
            if metric["signature"] and name not in names.setdefault(metric["signature"], []):
                names[metric["signature"]].append(name)
    return [
        signature + ("" if len(some) == len(found) else f" ({', '.join(some)})") for signature, some in names.items()
    ]
