"""`heedful compare`: several changes of one recipe, trained on the same data with the same seeds and budget."""

import json
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heedful.commands.options import Parts

if TYPE_CHECKING:
    from heedful.training.recipe import Recipe

SURE = 0.05  # a difference counts if chance explains it less often


@dataclass(frozen=True)
class Variant:
    name: str
    changes: list[str]


@dataclass(frozen=True)
class Run:
    """One training: its scores, the seconds its steps took, and the peak memory of its process."""

    seed: int
    scores: dict[str, float]
    seconds: float
    mebibytes: float
    steps: int
    parameters: int
    texts: list[str] = field(default_factory=list, repr=False)  # of a translator, its translations of the test set


def compare(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE... [KEY=VALUE]...", help="Training data, then recipe keys that all share."),
    ],
    variants: Annotated[
        list[str],
        typer.Option("--variant", "-v", help="NAME: KEY=VALUE KEY=VALUE ... or just KEY=VALUE; may be repeated."),
    ],
    out: Annotated[Path, typer.Option(help="Folder of the model folders and of compare.json. Rerun to resume.")],
    recipe: Annotated[str, typer.Option(help="The recipe that is changed; by itself it is the baseline.")] = "tiny",
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each variant, with seeds 1, 2, ...")] = 3,
    budget: Annotated[str, typer.Option(help="Training time of each, such as 2m. Default: equal steps.")] = "",
    valid: Annotated[list[Path] | None, typer.Option(help="Validation data. Default: hold some out.")] = None,
    test: Annotated[Path | None, typer.Option(help="Test pairs of a translator. Default: hold some out.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    parts: Parts = None,
) -> None:
    """Train several variants of one recipe with the same data, seeds and budget, and compare them.

    Each training runs in a process of its own, so time and memory are its own. Translators are scored by BLEU and chrF
    on the test pairs; other tasks by the metrics of their validation. A difference from the baseline is marked with *
    if it goes the same way for every seed and is significant (p < 0.05): for BLEU by a paired bootstrap over sentences
    for every seed, otherwise by a permutation test over seeds, which needs at least four.

    Examples:

      heedful compare pairs.tsv --out runs/mixes -v model.encoder.attention.mix=linear training.steps=2000

      heedful compare pairs.tsv --out runs/depth -v "deep: model.encoder.layers=6 model.decoder.layers=6" --budget 5m
    """
    from heedful.training.recipe import read_recipe

    names = [word for word in files if "=" not in word or Path(word).exists()]
    common = [word for word in files if word not in names]
    if not names:
        raise ValueError("no file to train on; give a TSV, JSONL or text file, or two parallel files")
    every = [Variant("baseline", []), *(_variant(text) for text in variants)]
    repeated = {one.name for one in every if sum(other.name == one.name for other in every) > 1}
    if repeated:
        raise ValueError(f"two variants are called {repeated.pop()!r}; name them: --variant 'NAME: KEY=VALUE'")
    recipes = [read_recipe(recipe, [*common, *one.changes]) for one in every]  # mistakes are found before any training
    translates = recipes[0].task.translates
    if test is not None and not translates:
        raise ValueError(f"--test is for translators; the task {recipes[0].task.kind} is compared by its validation")
    if test is None and valid and translates:
        raise ValueError("with --valid no test pairs are held out; give some with --test")
    if test is None and translates and len({one.data.context > 0 for one in recipes}) > 1:
        raise ValueError("with and without data.context other pairs are held out; give test pairs with --test")
    found: dict[str, list[Run]] = {}
    for one, chosen in zip(every, recipes, strict=True):
        for seed in range(1, seeds + 1):
            folder = out / one.name / f"seed-{seed}"
            print(f"heedful: {one.name}, seed {seed} of {seeds}", file=sys.stderr, flush=True)
            command = [
                *names,
                "--out",
                str(folder),
                "--recipe",
                recipe,
                *common,
                *one.changes,
                f"seed={seed}",
                "--json",
            ]
            command += [word for path in valid or () for word in ("--valid", str(path))]
            command += [word for path in [test] if path for word in ("--test", str(path))]
            command += ["--budget", budget, "--keep-model"] if budget else []
            command += [word for name in parts or () for word in ("--parts", name)]
            _train(command, folder)
            found.setdefault(one.name, []).append(_scored(folder, chosen, seed, test))
    result = _summary(found, recipes, _references(out / every[0].name / "seed-1", test))
    _write(out / "compare.json", result)
    if as_json:
        print(json.dumps(result, indent=2))
    elif markdown:
        print(_markdown(result))
    else:
        _print(result)


def _variant(text: str) -> Variant:
    name, colon, rest = text.partition(":")
    if not colon or "=" in name:
        name, rest = text.partition("=")[2] or text, text
    changes = rest.split()
    wrong = [change for change in changes if "=" not in change]
    if wrong or not changes or not name.strip():
        raise ValueError(f"variant {text!r} is not of the form KEY=VALUE or 'NAME: KEY=VALUE KEY=VALUE'")
    clean = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name.strip()).strip("-.")
    return Variant(clean or "variant", changes)


def _train(arguments: list[str], folder: Path) -> None:
    """Train in a process of its own, so that its memory is its own. It resumes, does nothing if it is finished, and
    refuses a folder of other arguments."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "train.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "heedful", "train", *arguments], stdout=subprocess.DEVNULL, stderr=log
        )
        try:
            code = process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
    if code:
        last = (folder / "train.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        said = last[0].removeprefix("heedful: ") if last else "no message"
        raise ValueError(f"training {folder} failed: {said} (see {folder / 'train.log'})")


def _scored(folder: Path, recipe: "Recipe", seed: int, test: Path | None) -> Run:
    import heedful
    from heedful.evaluation.metrics import score as scored
    from heedful.evaluation.metrics import tokenization
    from heedful.training.journal import read_metrics

    last = [line for line in read_metrics(folder) if "final" in line]
    use = heedful.load(folder)
    scores, texts, model = dict(last[-1]["final"]), list[str](), getattr(use, "model", None)
    if isinstance(use, heedful.Translator) and recipe.task.translates:
        pairs, places = _pairs(folder, test, documents=use.context > 0)
        references = [target for _, target in pairs]
        starts = [number for number, place in enumerate(places) if not place] if use.context else [0]
        documents = [[source for source, _ in pairs[start:end]] for start, end in pairwise([*starts, len(pairs)])]
        texts = [one.text for some in use.translate_documents(documents, split=False) for one in some]
        cut = tokenization(references, language=recipe.data.target_language)
        each = scored(texts, [references], tokenize=cut.name)
        scores = {"bleu": each["bleu"].value, "chrf": each["chrf"].value, "loss": scores["loss"]}
        model = use.models[0]
        use.close()
    return Run(
        seed,
        scores,
        seconds=last[-1]["seconds"],
        mebibytes=max(line["peak_memory"] for line in last) / 2**20,
        steps=last[-1]["step"],
        parameters=0 if model is None else sum(one.numel() for one in model.parameters()),
        texts=texts,
    )


def _pairs(folder: Path, test: Path | None, *, documents: bool = False) -> tuple[list[tuple[str, str]], list[int]]:
    from heedful.commands.evaluate import read_pairs_of

    file = test or folder / "test.tsv"
    if not file.is_file():
        raise ValueError("no pairs were held out to test on; give some with --test")
    return read_pairs_of(file, documents=documents)


def _references(folder: Path, test: Path | None) -> list[str]:
    return [target for _, target in _pairs(folder, test)[0]] if test or (folder / "test.tsv").is_file() else []


def _summary(found: dict[str, list[Run]], recipes: "list[Recipe]", references: list[str]) -> dict[str, Any]:
    """Mean and spread of each metric, and whether a variant differs from the baseline (the first)."""
    from heedful.evaluation.compare import permutation_p_value, same_direction

    baseline = next(iter(found.values()))
    metric = "bleu" if baseline[0].texts else recipes[0].training.metric
    if "bits_per_byte" in baseline[0].scores and any(one.tokenizer != recipes[0].tokenizer for one in recipes):
        metric = "bits_per_byte"  # a loss per token depends on what a token is
    rows = {}
    for name, runs in found.items():
        values = [run.scores[metric] for run in runs]
        base = [run.scores[metric] for run in baseline]
        p_value = None
        if runs is not baseline:
            p_value = (
                _bootstrap(baseline, runs, references, recipes[0].data.target_language)
                if runs[0].texts
                else permutation_p_value(base, values)
            )
        rows[name] = {
            "scores": {key: _mean_and_spread([run.scores[key] for run in runs]) for key in runs[0].scores},
            "p_value": p_value,
            "differs": p_value is not None and p_value < SURE and same_direction(base, values),
            "seconds": _mean_and_spread([run.seconds for run in runs])[0],
            "mebibytes": max(run.mebibytes for run in runs),
            "steps": round(_mean_and_spread([run.steps for run in runs])[0]),
            "parameters": runs[0].parameters,
            "runs": [{key: value for key, value in asdict(run).items() if key != "texts"} for run in runs],
        }
    return {"metric": metric, "seeds": len(baseline), "variants": rows}


def _bootstrap(baseline: list[Run], runs: list[Run], references: list[str], language: str) -> float:
    """The largest p-value of all seeds: a difference must be there in every one of them."""
    from heedful.evaluation.compare import compare as compared
    from heedful.evaluation.metrics import tokenization

    cut = tokenization(references, language=language)
    worst = 0.0
    for first, second in zip(baseline, runs, strict=True):
        results = compared({"baseline": first.texts, "other": second.texts}, [references], tokenizer=cut.name)
        p_value = next(one.p_value for one in results if one.system == "other" and one.metric == "BLEU")
        worst = max(worst, 1.0 if p_value is None else p_value)
    return worst


def _mean_and_spread(values: list[float]) -> tuple[float, float]:
    mean = sum(values) / len(values)
    return mean, (sum((value - mean) ** 2 for value in values) / max(1, len(values) - 1)) ** 0.5


def _table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    names = list(next(iter(result["variants"].values()))["scores"])
    names.sort(key=lambda name: name != result["metric"])
    header = ["variant", *names, "p", "parameters", "steps", "seconds", "MiB"]
    rows = []
    for variant, row in result["variants"].items():
        scores = [f"{row['scores'][name][0]:.3f} ± {row['scores'][name][1]:.3f}" for name in names]
        scores[0] += " *" if row["differs"] else ""
        p_value = "" if row["p_value"] is None else f"{row['p_value']:.3f}"
        cost = [f"{row['parameters']:,}", f"{row['steps']:,}", f"{row['seconds']:.0f}", f"{row['mebibytes']:.0f}"]
        rows.append([variant, *scores, p_value, *cost])
    return header, rows


def _markdown(result: dict[str, Any]) -> str:
    header, rows = _table(result)
    lines = [" | ".join(header), "|".join(["---", *["---:"] * (len(header) - 1)]), *(" | ".join(row) for row in rows)]
    return "\n".join(f"| {line} |" for line in lines)


def _print(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    header, rows = _table(result)
    table = Table(header[0], title=f"{result['seeds']} seeds, mean ± standard deviation", title_justify="left")
    for column in header[1:]:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def _write(path: Path, data: dict[str, Any]) -> None:
    from heedful.files import write_text

    write_text(path, json.dumps(data, indent=2))
