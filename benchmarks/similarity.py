"""Sentence vectors fine-tuned on STS-B: ours beside sentence-transformers, on the same rows for as many epochs.

    python benchmarks/similarity.py MODEL_FOLDER DATA_FOLDER

MODEL_FOLDER is in sentence-transformers' layout, such as all-MiniLM-L6-v2. DATA_FOLDER contains stsb/en-train.tsv and
en-dev.tsv: score, sentence, sentence. Both minimise (cosine - score / 5)^2 with AdamW and the same learning rate,
warm-up and decay; the score is Spearman's correlation on en-dev.tsv. Needs sentence-transformers, datasets and
accelerate.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROWS = 32  # rows of a batch of sentence-transformers'; ours has about as many


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    print("| seed | before | heedful | sentence-transformers | heedful s | sentence-transformers s |")
    print("|---:|---:|---:|---:|---:|---:|", flush=True)
    for seed in range(1, options.seeds + 1):
        ours, our_seconds = heedful(options, seed)
        before, theirs, their_seconds = sentence_transformers(options, seed)
        print(
            f"| {seed} | {before:.2f} | {ours:.2f} | {theirs:.2f} | {our_seconds:.0f} | {their_seconds:.0f} |",
            flush=True,
        )


def read(file: Path) -> dict[str, list[str] | list[float]]:
    rows = [line.split("\t") for line in file.read_text(encoding="utf-8").splitlines()]
    scores, first, second = zip(*rows, strict=True)
    return {"first": list(first), "second": list(second), "score": [float(score) / 5 for score in scores]}


def heedful(options: argparse.Namespace, seed: int) -> tuple[float, float]:
    """Spearman's correlation in percent, and the seconds of training, by the command line, as a user would."""
    from transformers import AutoTokenizer

    train, test = (options.data / "stsb" / f"en-{split}.tsv" for split in ("train", "dev"))
    rows = read(train)
    steps = options.epochs * -(-len(rows["score"]) // ROWS)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    longer = [
        max(map(len, tokenizer(list(pair))["input_ids"])) for pair in zip(rows["first"], rows["second"], strict=True)
    ]
    with tempfile.TemporaryDirectory() as folder:
        out, environment = Path(folder) / "run", {**os.environ, "HEEDFUL_CACHE": folder}
        command = [sys.executable, "-m", "heedful", "train", str(train), "--valid", str(test), "--out", str(out)]
        command += ["--recipe", "embed", "task.loss=cosine", "--start-from", str(options.model), f"seed={seed}"]
        command += [f"training.learning_rate={options.learning_rate}", f"training.steps={steps}"]
        command += [f"training.warmup={max(1, steps // 10)}", f"training.validate_every={steps}"]
        command += [f"training.save_every={steps}", f"training.batch_tokens={round(ROWS * sum(longer) / len(longer))}"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr)
        final = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
        evaluate = [sys.executable, "-m", "heedful", "evaluate", str(out), str(test), "--json"]
        scores = json.loads(subprocess.run(evaluate, capture_output=True, text=True, check=True).stdout)
        return 100 * scores["spearman"], final["seconds"]


def sentence_transformers(options: argparse.Namespace, seed: int) -> tuple[float, float, float]:
    """Spearman's correlation in percent before and after, and the seconds of training."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.evaluation import EmbeddingSimilarityEvaluator
    from sentence_transformers.losses import CosineSimilarityLoss

    model = SentenceTransformer(str(options.model), device="cpu")
    train, test = (read(options.data / "stsb" / f"en-{split}.tsv") for split in ("train", "dev"))
    judge = EmbeddingSimilarityEvaluator(test["first"], test["second"], test["score"], main_similarity="cosine")

    def spearman() -> float:
        return 100 * next(value for name, value in judge(model).items() if name.endswith("spearman_cosine"))

    before = spearman()
    steps = options.epochs * -(-len(train["score"]) // ROWS)
    arguments = SentenceTransformerTrainingArguments(
        output_dir=tempfile.mkdtemp(),
        num_train_epochs=options.epochs,
        per_device_train_batch_size=ROWS,
        learning_rate=options.learning_rate,
        warmup_steps=max(1, steps // 10),
        lr_scheduler_type="linear",
        weight_decay=0.01,
        save_strategy="no",
        report_to="none",
        logging_steps=10**9,
        disable_tqdm=True,
        use_cpu=True,
        seed=seed,
    )
    trainer = SentenceTransformerTrainer(
        model=model, args=arguments, train_dataset=Dataset.from_dict(train), loss=CosineSimilarityLoss(model)
    )
    began = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - began
    return before, spearman(), seconds


if __name__ == "__main__":
    main()
