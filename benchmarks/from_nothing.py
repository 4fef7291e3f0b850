"""Classifiers trained from nothing, beside TF-IDF with logistic regression (scikit-learn), over the number of labels.

    python benchmarks/from_nothing.py DATA_FOLDER --only sst2 trec6 --sizes 500 2000 0

DATA_FOLDER contains sst2/ and trec6/ with train.tsv and test.tsv: label, text. A size of 0 means all rows; of these,
Heedful holds out one in ten to choose the best step, and TF-IDF learns from all. With --start-from, a model pre-trained
by `heedful train --recipe masked-lm` is one more column.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

Rows = list[tuple[str, str]]  # label and text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", nargs="+", default=["sst2", "trec6"])
    parser.add_argument("--sizes", nargs="+", type=int, default=[500, 2000, 0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--start-from", type=Path)
    parser.add_argument("--keys", nargs="+", default=[], help="recipe keys, such as training.steps=1000")
    options = parser.parse_args()
    starts: list[Path | None] = [None, options.start_from] if options.start_from else [None]
    names = ["TF-IDF", "from nothing", "pre-trained"][: 1 + len(starts)]
    print("| data | rows | " + " | ".join(names) + " |")
    print("|---|---:|" + "---:|" * len(names), flush=True)
    for name in options.only:
        train, test = (read(options.data / name / f"{split}.tsv") for split in ("train", "test"))
        random.Random(0).shuffle(train)
        for size in options.sizes:
            rows = train[: size or len(train)]
            scores = [[tf_idf(rows, test)]]
            for start in starts:
                seeds = range(1, options.seeds + 1)
                scores.append([heedful(rows, options.data / name / "test.tsv", start, s, options.keys) for s in seeds])
            print(f"| {name} | {len(rows):,} | " + " | ".join(map(spread, scores)) + " |", flush=True)


def spread(values: list[float]) -> str:
    mean = sum(values) / len(values)
    if len(values) == 1:
        return f"{mean:.1f}"
    deviation = (sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5
    return f"{mean:.1f} ± {deviation:.1f}"


def read(file: Path) -> Rows:
    return [(line.split("\t")[0], line.split("\t")[1]) for line in file.read_text(encoding="utf-8").splitlines()]


def tf_idf(train: Rows, test: Rows) -> float:
    """Words and pairs of words, the strongest of its usual settings."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    model = make_pipeline(
        TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"\S+"), LogisticRegression(C=10, max_iter=1000)
    )
    model.fit([text for _, text in train], [label for label, _ in train])
    return 100 * float(model.score([text for _, text in test], [label for label, _ in test]))


def heedful(rows: Rows, test: Path, start: Path | None, seed: int, keys: list[str]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        train, out = Path(folder) / "train.tsv", Path(folder) / "run"
        train.write_text("".join(f"{label}\t{text}\n" for label, text in rows), encoding="utf-8")
        command = [sys.executable, "-m", "heedful", "train", str(train), "--recipe", "classify", "--out", str(out)]
        command += ["--test", str(test), f"seed={seed}", *(["--start-from", str(start)] if start else []), *keys]
        done = subprocess.run(command, env={**os.environ, "HEEDFUL_CACHE": folder}, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr)
        evaluate = [sys.executable, "-m", "heedful", "evaluate", str(out), str(test), "--json"]
        found = subprocess.run(evaluate, capture_output=True, text=True, check=True).stdout
        return float(json.loads(found)["accuracy"])


if __name__ == "__main__":
    main()
