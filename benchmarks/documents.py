"""Translators of documents: sources of 16,384 tokens, trained end to end by the command line, with several attentions.

    python benchmarks/documents.py --out /tmp/documents        some minutes on two cores

Each source is a long random text in which one sentence says which word is the answer; the target is that word. Prints
the validation loss, the time of a step (one document) and the peak memory of each training. Softmax is left out: a step
takes minutes. The point is that it works and what it costs; with so few steps no model has learned to answer.
"""

import argparse
import json
import random
import subprocess
import sys
from pathlib import Path

WORDS = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "el", "or")]
MIXES = {
    "window": "",
    "longformer": "model.encoder.attention.mix=longformer",
    "bigbird": "model.encoder.attention.window=null model.encoder.attention.mix=bigbird",
    "linear": "model.encoder.attention.window=null model.encoder.attention.mix=linear",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=16_384)
    parser.add_argument("--documents", type=int, default=60)
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    corpus = options.out / "documents.tsv"
    chance = random.Random(1)
    with corpus.open("w", encoding="utf-8") as file:
        for _ in range(options.documents):
            file.write("\t".join(document(chance, options.tokens - 8)) + "\n")
    shared = [
        "tokenizer.vocab=600", f"data.max_length={options.tokens}", f"training.batch_tokens={options.tokens}",
        f"training.steps={options.steps}", f"training.validate_every={options.steps}",
        f"training.save_every={options.steps}", "training.warmup=5", "training.samples=0",
        "model.width=128", "model.encoder.layers=2", "model.decoder.layers=1",
        "model.encoder.attention.window=128", "model.encoder.attention.mix=window",
    ]  # fmt: skip
    print("| encoder attention | loss | seconds per step | peak memory, MiB |\n|---|---:|---:|---:|", flush=True)
    for name, keys in MIXES.items():
        folder = options.out / name
        command = [sys.executable, "-m", "heedful", "train", str(corpus), "--out", str(folder), *shared, *keys.split()]
        subprocess.run(command, check=True, capture_output=True)
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        last = next(line for line in reversed(lines) if "final" in line)
        cost = f"{last['seconds'] / last['step']:.2f} | {last['peak_memory'] / 2**20:,.0f}"
        print(f"| {name} | {last['final']['loss']:.3f} | {cost} |", flush=True)


def document(chance: random.Random, tokens: int) -> tuple[str, str]:
    words = chance.choices(WORDS, k=tokens)
    answer = chance.choice(WORDS)
    place = chance.randrange(tokens - 2)
    words[place : place + 2] = ["answer", answer]
    return " ".join(words), answer


if __name__ == "__main__":
    main()
