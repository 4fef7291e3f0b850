"""Summaries of abstracts (SciTLDR): ROUGE of a model trained here, beside the first sentences of each document.

    python benchmarks/summaries.py --data ../shared/data/scitldr --steps 2000

Prints a Markdown table. The model learns from 1,982 abstracts from nothing, so it is the lower end of what the method
gives: published systems on this corpus begin with pre-trained weights (`--start-from FOLDER` takes some).
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROWS = ("model", "lead-1", "lead-3")
SCORES = ("rouge1", "rouge2", "rougeL", "rougeLsum")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data" / "scitldr")
    parser.add_argument("--steps", type=int, default=2000, help="of training (default 2000)")
    parser.add_argument("--beam-size", type=int, default=4)
    parser.add_argument("--start-from", default="", help="a folder of a pre-trained sequence-to-sequence model")
    parser.add_argument("changes", nargs="*", help="recipe keys, such as data.max_length=400")
    options = parser.parse_args()
    train, dev = (options.data / f"{split}.jsonl.gz" for split in ("train", "dev"))
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "model")
        # Validation on the dev set chooses the checkpoint by loss, not by ROUGE.
        words = ["train", str(train), "--valid", str(dev), "--recipe", "summarise", "--out", out]
        words += [f"training.steps={options.steps}", f"training.warmup={max(1, options.steps // 10)}"]
        words += ["training.batch_tokens=2048", "training.schedule=linear", "training.samples=0"]
        words += [f"training.{name}_every={max(1, options.steps // 8)}" for name in ("validate", "save")]
        words += ["tokenizer.vocab=4000", "tokenizer.dropout=0.1"]
        words += ["--start-from", options.start_from] if options.start_from else []
        run([*words, *options.changes], shown=True)
        found = json.loads(run(["evaluate", out, str(dev), "--json", "--beam-size", str(options.beam_size)]))
    print("| SciTLDR dev | ROUGE-1 | ROUGE-2 | ROUGE-L | ROUGE-Lsum |\n|---|---:|---:|---:|---:|")
    for name in ROWS:
        print(f"| {name} | " + " | ".join(f"{found[name][score]:.2f}" for score in SCORES) + " |")
    told = {key: value for key, value in found.items() if key not in (*ROWS, "test")}
    print("\n" + "; ".join(f"{key}: {value}" for key, value in told.items()))


def run(words: list[str], *, shown: bool = False) -> str:
    """A command of heedful; what it prints. `shown`: on standard error instead, while it runs."""
    command = [sys.executable, "-m", "heedful", *words]
    done = subprocess.run(command, check=True, text=True, stdout=sys.stderr if shown else subprocess.PIPE)
    return done.stdout or ""


if __name__ == "__main__":
    main()
