"""What does pre-training on plain text give to a classifier with few labels, and which of BERT's choices matter?

    python benchmarks/pretraining.py --out runs/pretraining                    some two hours on two cores
    python benchmarks/pretraining.py --out runs/pretraining --seeds 1 --steps 40 --tuning-steps 40 --documents 20
                                                                               only to see that it runs: some minutes

Models are pre-trained on ten novels (../shared/data/prose), then fine-tuned on 500 labelled rows of SST-2 (sentiment),
TREC (question types) and WNUT-17 (named entities), with 100 more to choose the best step, and tested on the published
test sets. Each variant is pre-trained once; seeds draw the labelled rows and the order of fine-tuning. All variants of
a seed see the same labelled rows, and have the same model, tokenizer and learning rate.

    nothing          no pre-training
    fresh            masks drawn anew in every epoch, windows of running text (RoBERTa)
    static           the masks of the first epoch in all
    next_sentence    fresh, with pairs of segments and the loss of BERT
    sentence_order   fresh, with pairs of segments and the loss of ALBERT
    whole_words      fresh, all tokens of a word together

p: the exact permutation test of paired differences against `fresh` over seeds, two-sided: of all ways to swap the two
results of each seed, the share whose mean difference is at least as large. With n seeds it is 2 / 2^n at least.

If interrupted, the same command resumes.
"""

import argparse
import gzip
import itertools
import os
import random
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import heedful

DATA = Path(os.environ.get("HEEDFUL_DATA", Path(__file__).parents[2] / "shared" / "data"))
BASELINE = "fresh"
SIZE = {"model.preset": "bert-tiny", "model.encoder.layers": 4}  # width 128; what is learned in minutes
VARIANTS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "fresh": {},
    "static": {"task.fresh": False},
    "next_sentence": {"task.pairs": "next_sentence"},
    "sentence_order": {"task.pairs": "sentence_order"},
    "whole_words": {"task.whole_words": True},
}
TASKS = {  # the corpus, the ending of its files, the recipe and the metric
    "SST-2": ("sst2", "tsv", "classify", "accuracy"),
    "TREC": ("trec6", "tsv", "classify", "accuracy"),
    "WNUT-17": ("wnut17", "conll", "tag", "f1"),
}
CHOOSING = 100  # labelled rows that choose the best step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=8000, help="of pre-training")
    parser.add_argument("--tuning-steps", type=int, default=500, help="of fine-tuning, and of training from nothing")
    parser.add_argument("--rate", type=float, default=5e-4, help="the learning rate of fine-tuning")
    parser.add_argument("--labels", type=int, default=500)
    parser.add_argument("--documents", type=int, default=0, help="chapters to pre-train on; 0 = all")
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("HEEDFUL_CACHE", str(options.out / "cache"))
    chosen = list(dict.fromkeys([BASELINE, *options.variants]))  # its tokenizer is that of all
    found: dict[str, list[dict[str, float]]] = {name: [] for name in chosen}
    accuracy = {name: pretrain(name, options) for name in chosen if name != "nothing"}
    for seed in range(1, options.seeds + 1):
        for name in chosen:
            found[name].append(run(name, seed, options))
            print(f"seed {seed}, {name}: {found[name][-1]}", flush=True)
    print("\n" + table(found, accuracy))


def run(name: str, seed: int, options: argparse.Namespace) -> dict[str, float]:
    """The test scores of the models that start from one variant."""
    scores: dict[str, float] = {}
    for title, (corpus, ending, recipe, metric) in TASKS.items():
        train, valid = labelled(corpus, ending, seed, options)
        changes = {"seed": seed, "training.steps": options.tuning_steps, "training.samples": 0}
        changes |= {"training.warmup": min(100, options.tuning_steps // 10), "training.learning_rate": options.rate}
        start: dict[str, Any] = {"start_from": options.out / name}
        if name == "nothing":
            own = options.out / BASELINE / "tokenizer.json"
            changes |= {**SIZE, "tokenizer.file": str(own)}
            start = {}
        trained = heedful.train(
            train,
            valid=[valid],
            out=options.out / f"{name}-{corpus}-{seed}",
            recipe=recipe,
            changes=changes,
            **start,
        )
        scores[title] = trained.evaluate(DATA / corpus / f"test.{ending}")[metric]
    return scores


def pretrain(name: str, options: argparse.Namespace) -> float:
    """Masked accuracy on held-out chapters, with the same masks for all that mask alike."""
    texts = {split: prose(split, options) for split in ("train", "dev")}
    every = max(1, options.steps // 10)
    changes = {
        **SIZE, "training.steps": options.steps, "training.samples": 0, "training.learning_rate": 0.002,
        "training.batch_tokens": 2048, "data.max_length": 64, "training.warmup": min(500, every),
        "training.validate_every": every, "training.save_every": every, **VARIANTS[name],
    }  # fmt: skip
    filler = heedful.train(
        texts["train"], valid=[texts["dev"]], out=options.out / name, recipe="masked-lm", changes=changes
    )
    return float(filler.evaluate(texts["dev"])["accuracy"])


def prose(split: str, options: argparse.Namespace) -> Path:
    file: Path = options.out / f"prose-{split}.txt"
    with gzip.open(DATA / "prose" / f"{split}.txt.gz", "rt", encoding="utf-8") as opened:
        chapters = opened.read().strip("\n").split("\n\n")
    file.write_text("\n\n".join(chapters[: options.documents or None]) + "\n", encoding="utf-8")
    return file


def labelled(corpus: str, ending: str, seed: int, options: argparse.Namespace) -> tuple[Path, Path]:
    """Files with some labelled rows (or tagged sentences) to train on, and some to choose the best step by."""
    between = "\n\n" if ending == "conll" else "\n"
    text = (DATA / corpus / f"train.{ending}").read_text(encoding="utf-8").replace("\n\t\n", "\n\n")
    rows = [row for row in text.split(between) if row.strip()]
    random.Random(seed).shuffle(rows)
    files = tuple(options.out / f"{corpus}-{seed}-{split}.{ending}" for split in ("train", "valid"))
    parts = rows[: options.labels], rows[options.labels : options.labels + CHOOSING]
    for file, part in zip(files, parts, strict=True):
        file.write_text(between.join(part) + "\n", encoding="utf-8")
    return files[0], files[1]


def table(found: dict[str, list[dict[str, float]]], accuracy: dict[str, float]) -> str:
    lines = ["| pre-training | masked accuracy | " + " | ".join(f"{title} | p" for title in TASKS) + " |"]
    lines.append("|---|---:|" + "---:|---:|" * len(TASKS))
    for name, runs in found.items():
        cells = [f"{accuracy[name]:.1f}" if name in accuracy else ""]
        for title in TASKS:
            values, base = ([one[title] for one in some] for some in (runs, found[BASELINE]))
            spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.1f}{spread}")
            cells.append(f"{permutation(values, base):.3f}" if name != BASELINE else "")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    seeds = len(found[BASELINE])
    return "\n".join([*lines, "", f"Percent, mean ± standard deviation over {seeds} seeds; p against {BASELINE}."])


def permutation(first: Sequence[float], second: Sequence[float]) -> float:
    differences = [one - two for one, two in zip(first, second, strict=True)]
    seen = abs(sum(differences)) - 1e-9
    signs = list(itertools.product((1, -1), repeat=len(differences)))
    return sum(abs(sum(s * d for s, d in zip(some, differences, strict=True))) >= seen for some in signs) / len(signs)


if __name__ == "__main__":
    main()
