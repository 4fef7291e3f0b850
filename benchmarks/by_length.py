"""Does attention help with long sentences, and does it need anything else? BLEU by the length of the source, for models
that are trained for the same time on the same text.

    python benchmarks/by_length.py                                 about 15 minutes on two cores
    python benchmarks/by_length.py --budget 20s --models none additive --folder runs/by-length

    transformer     recipe tiny
    additive        recipe recurrent: GRUs with additive attention       Bahdanau et al. 2015
    none            the same without attention: one vector for the whole source
    convolutional   recipe convolutional                                 Gehring et al. 2017

The text is Tatoeba, English to German. Its sentences here have two to seven words, too few to see anything, so one to
six of them make a source, and their translations a target: in training and in test alike. Expected, in direction:
without attention the score falls with length (Bahdanau et al., figure 2), with it, it does not.

Models are kept in --folder; a second run opens those that are there.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DATA = Path(os.environ.get("HEEDFUL_DATA", Path(__file__).parents[2] / "shared" / "data")) / "tatoeba-eng-deu"
MODELS = {
    # Another limit of length changes nothing but makes it a model of the user's own, which a budget does not replace.
    "transformer": ["--recipe", "tiny", "model.encoder.length=1024"],
    "additive": ["--recipe", "recurrent"],
    "none": ["--recipe", "recurrent", "model.decoder.attention=none"],
    "convolutional": ["--recipe", "convolutional"],
}
COMMON = ["tokenizer.vocab=4000", "training.samples=0", "seed=1"]
JOINED, TIMES = 6, 3  # sentences in the longest source; how often each is used, each time with other neighbours
BUCKETS = [5, 10, 15, 20, 99]  # words of the source, at most
Pairs = list[tuple[str, str]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", default="150s", help="of each training: 150s, 10m, 500steps")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--folder", type=Path, help="where models are kept (default: nowhere)")
    parser.add_argument("--data", type=Path, default=DATA, help="a folder with train.tsv, dev.tsv and test.tsv")
    parser.add_argument("--pairs", type=int, default=600, help="of the test, joined")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="heedful-by-length-") as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        train = write(folder / "train.tsv", joined(read(options.data / "train.tsv"), times=TIMES, seed=1))
        valid = write(folder / "valid.tsv", joined(read(options.data / "dev.tsv"), times=1, seed=2))
        test = joined(read(options.data / "test.tsv"), times=3, seed=3)[: options.pairs]
        found = {}
        for name in options.models:
            seconds = trained(name, train, valid, folder / name, options.budget)
            found[name] = {"minutes": seconds / 60, **scores(folder / name, test)}
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        table(found, test)


def read(path: Path) -> Pairs:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [(source, target) for source, _, target in (line.partition("\t") for line in lines) if target]


def joined(pairs: Pairs, *, times: int, seed: int) -> Pairs:
    """One to six neighbours of a random order make a pair; each pair is in `times` of them."""
    chance, found = random.Random(seed), []
    for _ in range(times):
        order, start = chance.sample(pairs, len(pairs)), 0
        while start < len(order):
            some = order[start : start + chance.randint(1, JOINED)]
            found.append((" ".join(source for source, _ in some), " ".join(target for _, target in some)))
            start += len(some)
    return found


def write(path: Path, pairs: Pairs) -> Path:
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), encoding="utf-8")
    return path


def trained(name: str, train: Path, valid: Path, out: Path, budget: str) -> float:
    """How many seconds it took, or had taken."""
    kept = out / "benchmark.json"
    if not kept.exists():
        print(f"training {name} for {budget} ...", file=sys.stderr, flush=True)
        words = ["train", train, "--valid", valid, "--out", out, "--budget", budget, *MODELS[name], *COMMON]
        began = time.monotonic()
        subprocess.run([sys.executable, "-m", "heedful", *map(str, words)], check=True, stdout=subprocess.DEVNULL)
        kept.write_text(json.dumps({"seconds": time.monotonic() - began}))
    seconds: float = json.loads(kept.read_text())["seconds"]
    return seconds


def scores(folder: Path, test: Pairs) -> dict[str, float]:
    """BLEU of all, and of each bucket that has any."""
    import heedful
    from heedful.evaluation.metrics import score

    found = heedful.load(folder).translate([source for source, _ in test], split=False)
    texts = [one.text for one in found]
    buckets = {"all": list(range(len(test)))}
    buckets |= {heading(bucket): [i for i, pair in enumerate(test) if bucket_of(pair[0]) == bucket]
                for bucket in BUCKETS}  # fmt: skip
    return {
        name: score([texts[row] for row in rows], [[test[row][1] for row in rows]], language="de")["bleu"].value
        for name, rows in buckets.items()
        if rows
    }


def bucket_of(source: str) -> int:
    return next(bucket for bucket in BUCKETS if len(source.split()) <= bucket)


def heading(bucket: int) -> str:
    place = BUCKETS.index(bucket)
    first = BUCKETS[place - 1] + 1 if place else 1
    return f"{first}+" if place == len(BUCKETS) - 1 else f"{first}-{bucket}"


def table(found: dict[str, dict[str, float]], test: Pairs) -> None:
    columns = list(next(iter(found.values())))
    print(f"\nBLEU by words of the source; {len(test):,} pairs\n")
    print("| model | " + " | ".join(columns) + " |")
    print("|---|" + "---:|" * len(columns))
    for name, numbers in found.items():
        print(f"| {name} | " + " | ".join(f"{numbers[column]:.1f}" for column in columns) + " |")


if __name__ == "__main__":
    main()
