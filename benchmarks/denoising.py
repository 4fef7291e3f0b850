"""What does pre-training by denoising give to a translator with few pairs, and which noise is best?

    python benchmarks/denoising.py --out runs/denoising                 all tables, some 10 minutes each on two cores
    python benchmarks/denoising.py --out runs/denoising --tables noise --steps 20 --tuning-steps 20 --pairs 200
                                                                        only to see that it runs

A small model is pre-trained on single sentences of Tatoeba (../shared/data/tatoeba-eng-deu), English ones from one half
of the pairs that are not used below and German ones from the other half, so that no sentence has its translation there.
Then it is fine-tuned on 2,000 pairs, English to German, and tested on 1,000. All models have the same tokenizer and
size.

    pairs    pre-trained and fine-tuned beside the same pairs alone, with the same number of steps, and with as many
             more as pre-training took
    noise    one row for each kind of noise
    spans    spans of 3 tokens beside single tokens (span 1), after equal numbers of tokens read
    speed    tokens read and written per second of training, beside plain translation by the same model

p: paired bootstrap resampling against the first row (sacrebleu). If interrupted, the same command resumes.
"""

import argparse
import json
import os
import random
import statistics
from pathlib import Path
from typing import Any

import heedful
from heedful.data.inputs import Inputs
from heedful.data.prepare import default_cache, prepare
from heedful.evaluation.compare import compare
from heedful.tasks import Settings
from heedful.tasks.denoising import SENTINELS
from heedful.text.tokenizer import TokenizerConfig, train_tokenizer
from heedful.training.journal import read_metrics
from heedful.training.recipe import read_recipe

DATA = Path(os.environ.get("HEEDFUL_DATA", Path(__file__).parents[2] / "shared" / "data"))
CORPUS = DATA / "tatoeba-eng-deu"
NOISES: dict[str, dict[str, Any]] = {
    "spans": {"noise": ["spans"]},
    "infilling": {"noise": ["infilling"]},
    "masking": {"noise": ["masking"]},
    "deletion": {"noise": ["deletion"]},
    "permutation": {"noise": ["permutation"]},
    "rotation": {"noise": ["rotation"]},
    "infilling + permutation": {"noise": ["infilling", "permutation"]},
}
SINGLE = {"noise": ["spans"], "span": 1}
VOCAB = 4000
READ, TRANSLATED = 2048, 1024  # tokens in a step of pre-training, and in one of training on pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tables", nargs="+", choices=["pairs", "noise", "spans", "speed"])
    parser.add_argument(
        "--steps", type=int, default=0, help="of pre-training; 0 = 1,000, and 300 for each kind of noise"
    )
    parser.add_argument("--tuning-steps", type=int, default=500, help="of training on pairs")
    parser.add_argument("--pairs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("HEEDFUL_CACHE", str(options.out / "cache"))
    write_corpora(options)
    tables = {"pairs": pairs_table, "noise": noise_table, "spans": spans_table, "speed": speed_table}
    for name in options.tables or tables:
        print(f"\n{tables[name](options)}", flush=True)


def write_corpora(options: argparse.Namespace) -> None:
    lines = (CORPUS / "train.tsv").read_text(encoding="utf-8").splitlines()
    random.Random(options.seed).shuffle(lines)
    few, rest = lines[: options.pairs], [line.split("\t") for line in lines[options.pairs :]]
    half = len(rest) // 2
    single = [row[0] for row in rest[:half]] + [row[1] for row in rest[half:]]
    random.Random(options.seed).shuffle(single)
    dev = [line.split("\t") for line in (CORPUS / "dev.tsv").read_text(encoding="utf-8").splitlines()]
    texts = {
        "pairs.tsv": "\n".join(few) + "\n",
        "text.txt": "\n\n".join(single) + "\n",
        "text-dev.txt": "\n\n".join(row[number % 2] for number, row in enumerate(dev)) + "\n",
    }
    for name, content in texts.items():
        (options.out / name).write_text(content, encoding="utf-8")
    if not (options.out / "tokenizer.json").exists():
        extra = [*SENTINELS, "<mask>"]
        train_tokenizer(single, TokenizerConfig(), vocab=VOCAB, extra=extra).save(options.out / "tokenizer.json")


def pretrained(name: str, task: dict[str, Any], steps: int, options: argparse.Namespace) -> Path:
    folder: Path = options.out / f"{name.replace(' ', '')}-{steps}"
    changes = {f"task.{key}": value for key, value in task.items()} | {
        "seed": options.seed, "tokenizer.file": str(options.out / "tokenizer.json"), "training.steps": steps,
        "training.batch_tokens": READ, "training.warmup": min(500, max(1, steps // 4)), "training.samples": 0,
        "training.validate_every": max(1, steps // 4), "training.save_every": max(1, steps // 4),
    }  # fmt: skip
    heedful.train(
        options.out / "text.txt", valid=[options.out / "text-dev.txt"], out=folder, recipe="denoise", changes=changes
    )
    return folder


def translations(name: str, start: Path | None, steps: int, options: argparse.Namespace) -> list[str]:
    """The test set translated by a model trained on the pairs, from a pre-trained one or from nothing."""
    changes = {
        "seed": options.seed, "training.steps": steps, "training.samples": 0, "training.learning_rate": 0.001,
        "training.batch_tokens": TRANSLATED,
        "training.warmup": min(100, max(1, steps // 4)), "training.validate_every": max(1, steps // 6),
        "training.save_every": max(1, steps // 6),
    }  # fmt: skip
    if start is None:
        changes["tokenizer.file"] = str(options.out / "tokenizer.json")
    made = heedful.train(
        options.out / "pairs.tsv",
        valid=[CORPUS / "dev.tsv"],
        out=options.out / f"{name.replace(' ', '')}-pairs-{steps}",
        start_from=start or "",
        changes=changes,
    )
    return [one.text for one in made.translate([source for source, _ in test_pairs()], num_beams=4)]


def test_pairs() -> list[list[str]]:
    return [line.split("\t")[:2] for line in (CORPUS / "test.tsv").read_text(encoding="utf-8").splitlines()]


def scored(title: str, systems: dict[str, list[str]], more: dict[str, list[str]] | None = None) -> str:
    """A row for each system, the first one being the baseline."""
    found = compare(systems, [[target for _, target in test_pairs()]])
    values = {(one.system, one.metric): one for one in found}
    heads, cells = (["held-out loss", "accuracy"], more) if more else ([], {})
    lines = [f"| {title} | BLEU | p | chrF2 | p |" + "".join(f" {head} |" for head in heads)]
    lines.append("|---|" + "---:|" * (4 + len(heads)))
    for name in systems:
        row = []
        for metric in ("BLEU", "chrF2"):
            one = values[name, metric]
            row += [f"{one.score:.1f} ± {one.interval:.1f}", "" if one.p_value is None else f"{one.p_value:.3f}"]
        lines.append(f"| {name} | " + " | ".join([*row, *((cells.get(name) or ["", ""]) if heads else [])]) + " |")
    return "\n".join(lines)


def numbers(folder: Path) -> list[str]:
    final = next(line["final"] for line in reversed(read_metrics(folder)) if "final" in line)
    return [f"{final['loss']:.3f}", f"{final['accuracy']:.1f} %"]


def pairs_table(options: argparse.Namespace) -> str:
    steps, tuning = options.steps or 1000, options.tuning_steps
    start = pretrained("spans", NOISES["spans"], steps, options)
    both = pretrained("infilling + permutation", NOISES["infilling + permutation"], steps, options)
    return scored(
        f"{options.pairs:,} pairs",
        {
            f"alone, {tuning} steps": translations("alone", None, tuning, options),
            f"alone, {steps + tuning} steps": translations("alone", None, steps + tuning, options),
            f"after {steps} steps of spans": translations(start.name, start, tuning, options),
            f"after {steps} steps of infilling + permutation": translations(both.name, both, tuning, options),
        },
    )


def noise_table(options: argparse.Namespace) -> str:
    steps, tuning = options.steps or 300, options.tuning_steps
    systems, more = {"none": translations("alone", None, tuning, options)}, {}
    for name, task in NOISES.items():
        folder = pretrained(name, task, steps, options)
        systems[name], more[name] = translations(folder.name, folder, tuning, options), numbers(folder)
    return scored(f"noise, {steps} steps", systems, more)


def spans_table(options: argparse.Namespace) -> str:
    steps, tuning = options.steps or 1000, options.tuning_steps
    systems, more = {}, {}
    for name, task in (("single tokens", SINGLE), ("spans of 3", NOISES["spans"])):
        folder = pretrained("spans" if task is NOISES["spans"] else name, task, steps, options)
        systems[name], more[name] = translations(folder.name, folder, tuning, options), numbers(folder)
    return scored(f"{steps} steps of {READ:,} tokens", systems, more)


def speed_table(options: argparse.Namespace) -> str:
    """Each training three times in turn, from its own journal; the median."""
    steps = options.steps or 150
    rates: dict[str, list[float]] = {}
    for turn in range(3):
        for name in ("translation", "spans", "infilling + permutation"):
            rates.setdefault(name, []).append(rate(name, steps, turn, options))
    lines = ["| training | tokens/s | beside translation |", "|---|---:|---:|"]
    plain = statistics.median(rates["translation"])
    for name, found in rates.items():
        value = statistics.median(found)
        lines.append(f"| {name} | {value:,.0f} | {value / plain:.2f} |")
    return "\n".join([*lines, "", "Tokens of source and target, without padding."])


def rate(name: str, steps: int, turn: int, options: argparse.Namespace) -> float:
    """Tokens of source and target per second."""
    folder = options.out / f"speed-{name.replace(' ', '')}-{steps}-{turn}"
    plain = name == "translation"
    file = CORPUS / "train.tsv" if plain else options.out / "text.txt"
    keys: dict[str, Any] = {
        "training.steps": steps, "training.batch_tokens": 4096, "training.samples": 0, "training.label_smoothing": 0.0,
        "training.validate_every": steps, "training.save_every": steps, "training.average": False,
        "tokenizer.file": str(options.out / "tokenizer.json"), "data.max_length": 128,
        "data.held_out": 100,
    } | ({} if plain else {f"task.{key}": value for key, value in NOISES[name].items()})  # fmt: skip
    recipe_name = "tiny" if plain else "denoise"
    heedful.train(file, out=folder, recipe=recipe_name, changes=keys)
    recipe = read_recipe(recipe_name, [f"{key}={json.dumps(value)}" for key, value in keys.items()])
    inputs = Inputs((file,), columns=recipe.task.columns)
    data = prepare(inputs, recipe.data, recipe.tokenizer, cache=default_cache(), specials=recipe.task.specials)
    task: Any = recipe.task.build(data, Settings(max_length=recipe.data.max_length))
    seconds = next(line["seconds"] for line in reversed(read_metrics(folder)) if "seconds" in line)
    tokens = done = epoch = 0
    while done < steps:
        for rows in task.epoch(epoch, budget=4096, seed=recipe.seed):
            if done == steps:
                break
            batch = task.collate(rows, seed=(recipe.seed, epoch))
            tokens += int(batch.source_valid.sum()) + int(batch.target_valid.sum())
            done += 1
        epoch += 1
    return tokens / float(seconds)


if __name__ == "__main__":
    main()
