"""Fine-tuning a published BERT-like model: ours beside transformers' Trainer, on the same rows for the same number of
epochs, one after the other in one run.

    python benchmarks/fine_tuning.py MODEL_FOLDER DATA_FOLDER --only sst2 trec6

MODEL_FOLDER is in Hugging Face's layout, such as all-MiniLM-L6-v2. DATA_FOLDER contains sst2/ (train.tsv, test.tsv:
label, text), trec6/ (the same), wnut17/ (train.conll, test.conll). The Trainer sorts texts by length, as ours does.
Both use AdamW with the same learning rate, warm-up and decay; the time is that of training alone. Needs accelerate.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ROWS = 32  # rows of a batch of the Trainer's; ours has about as many
Rows = list[tuple[Any, Any]]  # text and label, or words and tags


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", nargs="+", default=["sst2", "trec6", "wnut17"], choices=["sst2", "trec6", "wnut17"])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    print("| data | metric | heedful | Trainer | heedful s | Trainer s | times as fast |")
    print("|---|---|---:|---:|---:|---:|---:|", flush=True)
    for name in options.only:
        ours, theirs, metric = [], [], "f1" if name == "wnut17" else "accuracy"
        for seed in range(1, options.seeds + 1):
            ours.append(heedful(name, options, seed, metric))
            theirs.append((tagger if name == "wnut17" else classifier)(name, options, seed))
        mean = [sum(column) / len(column) for column in (*zip(*ours, strict=True), *zip(*theirs, strict=True))]
        print(
            f"| {name} | {metric} | {mean[0]:.2f} | {mean[2]:.2f} | {mean[1]:.0f} | {mean[3]:.0f} | "
            f"{mean[3] / mean[1]:.2f} |",
            flush=True,
        )


def heedful(name: str, options: argparse.Namespace, seed: int, metric: str) -> tuple[float, float]:
    """The test score and the seconds of training, by the command line, as a user would."""
    suffix = "conll" if name == "wnut17" else "tsv"
    train, test = (options.data / name / f"{split}.{suffix}" for split in ("train", "test"))
    rows = len(read_tags(train)) if name == "wnut17" else len(read_labels(train))
    steps = options.epochs * -(-rows // ROWS)
    with tempfile.TemporaryDirectory() as folder:
        out, environment = Path(folder) / "run", {**os.environ, "HEEDFUL_CACHE": folder}
        command = [sys.executable, "-m", "heedful", "train", str(train), "--valid", str(test), "--out", str(out)]
        command += ["--recipe", "tag" if name == "wnut17" else "classify", "--start-from", str(options.model)]
        command += [f"training.learning_rate={options.learning_rate}", f"training.steps={steps}", f"seed={seed}"]
        command += [f"training.warmup={max(1, steps // 10)}", f"training.validate_every={steps}"]
        command += [f"training.save_every={steps}", f"training.batch_tokens={batch_tokens(options.model, train)}"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr)
        final = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
        evaluate = [sys.executable, "-m", "heedful", "evaluate", str(out), str(test), "--json"]
        scores = json.loads(subprocess.run(evaluate, capture_output=True, text=True, check=True).stdout)
        return scores[metric], final["seconds"]


def batch_tokens(model: Path, train: Path) -> int:
    """The budget of tokens for which batches have about ROWS rows, so that as many steps read the data as often."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    if train.suffix == ".conll":
        texts = [" ".join(words) for words, _ in read_tags(train)]
    else:
        texts = [text for text, _ in read_labels(train)]
    lengths = [len(ids) for ids in tokenizer(texts)["input_ids"]]
    return round(ROWS * sum(lengths) / len(lengths))


def read_labels(file: Path) -> Rows:
    rows = [line.split("\t") for line in file.read_text(encoding="utf-8").splitlines()]
    return [(text, label) for label, text in rows]


def read_tags(file: Path) -> Rows:
    found: Rows = []
    for block in file.read_text(encoding="utf-8").replace("\n\t\n", "\n\n").split("\n\n"):
        cells = [line.split("\t") for line in block.split("\n") if line.strip()]
        if cells:
            found.append(([cell[0] for cell in cells], [cell[-1] for cell in cells]))
    return found


def classifier(name: str, options: argparse.Namespace, seed: int) -> tuple[float, float]:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(options.model)
    train, test = (read_labels(options.data / name / f"{split}.tsv") for split in ("train", "test"))
    labels = sorted({label for _, label in train})
    model = AutoModelForSequenceClassification.from_pretrained(options.model, num_labels=len(labels))

    def encode(rows: Rows) -> list[dict[str, Any]]:
        return [
            {**tokenizer(text, truncation=True, max_length=128), "labels": labels.index(label)} for text, label in rows
        ]

    trained, seconds = trainer(model, tokenizer, encode(train), options, seed, "DataCollatorWithPadding")
    found = trained.predict(encode(test))
    return 100 * float((found.predictions.argmax(-1) == found.label_ids).mean()), seconds


def tagger(name: str, options: argparse.Namespace, seed: int) -> tuple[float, float]:
    """Trains on the first piece of each word, as transformers' own example does."""
    from seqeval.metrics import f1_score
    from seqeval.scheme import IOB2
    from transformers import AutoModelForTokenClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(options.model)
    train, test = (read_tags(options.data / name / f"{split}.conll") for split in ("train", "test"))
    tags = sorted({tag for _, row in train for tag in row})
    model = AutoModelForTokenClassification.from_pretrained(options.model, num_labels=len(tags))

    def encode(rows: Rows) -> list[dict[str, Any]]:
        found = []
        for words, row in rows:
            one = tokenizer(words, is_split_into_words=True, truncation=True, max_length=128)
            owners = one.word_ids()
            first = [owner is not None and owner not in owners[:place] for place, owner in enumerate(owners)]
            wanted = [tags.index(row[owner]) if begins else -100 for owner, begins in zip(owners, first, strict=True)]
            found.append({**one, "labels": wanted})
        return found

    trained, seconds = trainer(model, tokenizer, encode(train), options, seed, "DataCollatorForTokenClassification")
    found = trained.predict(encode(test))
    truth, said = [], []
    for logits, wanted in zip(found.predictions.argmax(-1), found.label_ids, strict=True):
        kept = wanted >= 0
        truth.append([tags[number] for number in wanted[kept]])
        said.append([tags[number] for number in logits[kept]])
    return 100 * float(f1_score(truth, said, mode="strict", scheme=IOB2)), seconds


def trainer(
    model: Any, tokenizer: Any, rows: list[dict[str, Any]], options: argparse.Namespace, seed: int, collator: str
) -> tuple[Any, float]:
    import transformers

    collate: Callable[..., Any] = getattr(transformers, collator)
    steps = options.epochs * -(-len(rows) // ROWS)
    arguments = transformers.TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        num_train_epochs=options.epochs,
        per_device_train_batch_size=ROWS,
        per_device_eval_batch_size=ROWS,
        learning_rate=options.learning_rate,
        warmup_steps=max(1, steps // 10),
        lr_scheduler_type="linear",
        weight_decay=0.01,
        train_sampling_strategy="group_by_length",
        save_strategy="no",
        report_to="none",
        logging_steps=10**9,
        disable_tqdm=True,
        use_cpu=True,
        seed=seed,
    )
    torch.set_num_threads(os.cpu_count() or 1)
    made = transformers.Trainer(
        model=model, args=arguments, train_dataset=rows, data_collator=collate(tokenizer), processing_class=tokenizer
    )
    began = time.perf_counter()
    made.train()
    return made, time.perf_counter() - began


if __name__ == "__main__":
    main()
