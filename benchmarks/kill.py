"""Kill a training repeatedly at random moments, and compare the result with an uninterrupted training.

    python benchmarks/kill.py              20 kills, about three minutes on two cores
    python benchmarks/kill.py --kills 3

Exits with code 0 only if weights and optimizer state are identical.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CHANGES = [
    "model.width=32", "model.encoder.layers=2", "model.decoder.layers=2", "model.encoder.attention.heads=2",
    "model.decoder.attention.heads=2", "model.encoder.feedforward.hidden=64", "model.decoder.feedforward.hidden=64",
    "tokenizer.vocab=300", "training.batch_tokens=512", "training.warmup=20", "training.steps=400",
    "training.save_every=10", "training.validate_every=50", "training.log_every=10", "seed=7",
]  # fmt: skip


WORDS = ["one", "two", "three", "four", "five", "six", "seven"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="heedful-kill-") as place:
        folder = Path(place)
        corpus = write_corpus(folder / "pairs.tsv")
        began = time.monotonic()
        start(corpus, folder / "alone").wait()
        whole = time.monotonic() - began
        print(f"uninterrupted: {whole:.1f} s")
        kills = 0
        while kills < options.kills:
            process = start(corpus, folder / "killed")
            try:
                process.wait(timeout=chance.uniform(0.05, 0.6) * whole)
                (folder / "killed").rename(folder / f"finished-{kills}")  # it finished first: start over
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                kills += 1
                saved = sorted(int(p.name) for p in (folder / "killed/checkpoints").glob("[0-9]*"))
                print(f"kill {kills}: last checkpoint {saved[-1] if saved else 'none'}", flush=True)
        if start(corpus, folder / "killed").wait():
            sys.exit("the last run failed")
        names = ["model.safetensors", "checkpoints/400/model.safetensors", "checkpoints/400/optimizer.safetensors"]
        finished = [folder / "killed", *folder.glob("finished-*")]
        for run in finished:
            for name in names:
                if (run / name).read_bytes() != (folder / "alone" / name).read_bytes():
                    sys.exit(f"{name} differs after {kills} kills")
        print(f"{kills} kills, {len(finished)} trainings finished: weights and optimizer state identical")


def start(corpus: Path, out: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "heedful", "train", str(corpus), "--out", str(out), *CHANGES]
    command += ["--cache", str(out.parent / "cache")]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def write_corpus(path: Path) -> Path:
    chance = random.Random(1)
    lines = [" ".join(chance.choices(WORDS, k=6)) for _ in range(3000)]
    path.write_text("".join(f"{line}\t{line.upper()[::-1]}\n" for line in lines))
    return path


if __name__ == "__main__":
    main()
