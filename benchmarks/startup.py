"""How long it takes to start: a translation, the help, the first step of a training; and what torch's import leaves.

    python benchmarks/startup.py

A model is trained for a few steps first, so that the corpus is prepared. Commands take turns; the best of all rounds is
shown, and the processor time of the same round. What a command takes beyond `import torch` is ours.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CHANGES = ["training.steps=1", "training.batch_tokens=512", "tokenizer.vocab=200", "training.log_every=1"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="heedful-startup-") as name:
        place = Path(name)
        rows = [f"a{n % 7} b{n % 11} c{n % 5}" for n in range(10_000)]
        (place / "pairs.tsv").write_text("".join(f"{row}\t{' '.join(reversed(row.split()))}\n" for row in rows))
        train = [sys.executable, "-m", "heedful", "train", str(place / "pairs.tsv"), "--cache", str(place / "cache")]
        timed([*train, "--out", str(place / "model"), *CHANGES], "step 1/")
        best: dict[str, tuple[float, float]] = {}
        for number in range(options.rounds):
            commands = {
                "`import torch`": ([sys.executable, "-c", "import numpy, torch; print(1)"], ""),
                "`heedful --help`": ([sys.executable, "-m", "heedful", "--help"], ""),
                "`echo x \\| heedful translate MODEL`": (
                    [sys.executable, "-m", "heedful", "translate", str(place / "model")],
                    "",
                ),
                "first step of `heedful train` on a prepared corpus": (
                    [*train, "--out", str(place / str(number)), *CHANGES],
                    "step 1/",
                ),
            }
            for what, (command, until) in commands.items():
                best[what] = min(best.get(what, (99.0, 99.0)), timed(command, until))
    print("| | seconds to the first output | processor time of all, s |\n|---|---:|---:|")
    for what, (seconds, used) in best.items():
        print(f"| {what} | {seconds:.2f} | {used:.2f} |")


def timed(command: list[str], until: str) -> tuple[float, float]:
    """Seconds to the first line that begins like this, and the processor time of the whole command."""
    before, began, first = used(), time.perf_counter(), 0.0
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment()
    ) as process:
        assert process.stdin and process.stdout
        process.stdin.write("x\n")
        process.stdin.close()
        for line in process.stdout:
            if line.startswith(until) and not first:
                first = time.perf_counter() - began
    if process.returncode or not first:
        sys.exit(f"{' '.join(command)} failed")
    return first, used() - before


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONUNBUFFERED": "1"}


def used() -> float:
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime


if __name__ == "__main__":
    main()
