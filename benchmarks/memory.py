"""Does training memory grow with the corpus? Trains a few steps on corpora of increasing size.

    python benchmarks/memory.py                      10 thousand, 100 thousand, 1 million and 10 million pairs
    python benchmarks/memory.py --pairs 10000 1000000

Prints for each: the time to the first step, for a first and a second start, and the resident memory of the second.
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

CHANGES = [
    "model.width=32", "model.encoder.layers=1", "model.decoder.layers=1", "model.encoder.feedforward.hidden=64",
    "model.decoder.feedforward.hidden=64", "tokenizer.vocab=2000", "training.batch_tokens=2048", "training.steps=200",
    "training.log_every=1", "training.validate_every=1000", "training.save_every=1000", "data.held_out=100",
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, nargs="+", default=[10_000, 100_000, 1_000_000, 10_000_000])
    options = parser.parse_args()
    print("| pairs | first start, s | second start, s | peak resident memory of the second, MiB |")
    print("|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory(prefix="heedful-memory-") as place:
        for count in options.pairs:
            first, second, memory = measure(count, Path(place) / str(count))
            print(f"| {count:,} | {first:.1f} | {second:.1f} | {memory / 2**20:,.0f} |", flush=True)


def measure(count: int, folder: Path) -> tuple[float, float, int]:
    """Seconds to the first step, for a first and a second start, and the peak memory of the second."""
    folder.mkdir()
    corpus = write_corpus(folder / "pairs.tsv", count)
    first, _ = run(corpus, folder / "first")
    return first, *run(corpus, folder / "second")


def run(corpus: Path, out: Path) -> tuple[float, int]:
    """Seconds to the first step, and the peak memory at the end."""
    command = [sys.executable, "-m", "heedful", "train", str(corpus), "--out", str(out), *CHANGES]
    command += ["--cache", str(corpus.parent / "cache")]
    began, first = time.monotonic(), 0.0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        for line in process.stderr:
            if line.startswith("step 1/") and not first:
                first = time.monotonic() - began
    if process.returncode:
        sys.exit("the training failed")
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return first, int(json.loads(lines[-1])["peak_memory"])


def write_corpus(path: Path, count: int) -> Path:
    """Random sentences of 3 to 25 words, from the same distribution for every size."""
    chance = random.Random(1)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(chance.choices(letters, k=chance.randint(2, 9))) for _ in range(5000)]
    with path.open("w") as file:
        for _ in range(count):
            line = chance.choices(words, k=chance.randint(3, 25))
            file.write(f"{' '.join(line)}\t{' '.join(reversed(line))}\n")
    os.sync()
    return path


if __name__ == "__main__":
    main()
