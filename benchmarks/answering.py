"""Question answering fine-tuned on SQuAD: ours beside transformers' Trainer, on the same questions for as many epochs.

    python benchmarks/answering.py MODEL_FOLDER DATA_FOLDER

MODEL_FOLDER is in Hugging Face's layout, such as all-MiniLM-L6-v2. DATA_FOLDER contains squad/train.json.gz and
dev.json.gz. Both read windows of 256 tokens that share 64, with AdamW and the same learning rate, warm-up and decay.
The Trainer's answers are found as in transformers' example: the best pair of start and end among the 20 best of each.
Exact match and F1 are computed by the same function. The time is that of training alone. Needs accelerate.
"""

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROWS, LENGTH, OVERLAP, BEST, LONGEST = 16, 256, 64, 20, 30
Question = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--questions", type=int, default=2000, help="to train on (default 2000)")
    parser.add_argument("--tested", type=int, default=500, help="to test on (default 500)")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    options = parser.parse_args()
    train = questions(options.data / "squad" / "train.json.gz", options.questions)
    test = questions(options.data / "squad" / "dev.json.gz", options.tested)
    print("| | EM | F1 | seconds |\n|---|---:|---:|---:|", flush=True)
    for name, run in (("heedful", heedful), ("Trainer", trainer)):
        em, f1, seconds = run(options, train, test)
        print(f"| {name} | {em:.2f} | {f1:.2f} | {seconds:.0f} |", flush=True)


def questions(file: Path, count: int) -> list[Question]:
    """Evenly spaced ones, so that all articles are in."""
    with gzip.open(file, "rt", encoding="utf-8") as opened:
        articles = json.load(opened)["data"]
    found = [
        {"question": one["question"], "context": paragraph["context"], "answers": one["answers"]}
        for article in articles
        for paragraph in article["paragraphs"]
        for one in paragraph["qas"]
    ]
    return found[:: max(1, len(found) // count)][:count]


def heedful(options: argparse.Namespace, train: list[Question], test: list[Question]) -> tuple[float, float, float]:
    windows = Windows(options.model, train)
    steps = options.epochs * -(-len(windows.owners) // ROWS)
    with tempfile.TemporaryDirectory() as folder:
        files = {name: Path(folder) / f"{name}.jsonl" for name in ("train", "test")}
        for name, rows in (("train", train), ("test", test)):
            files[name].write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        out, environment = Path(folder) / "run", {**os.environ, "HEEDFUL_CACHE": folder}
        command = [sys.executable, "-m", "heedful", "train", str(files["train"]), "--valid", str(files["test"])]
        command += [
            "--out",
            str(out),
            "--recipe",
            "answer",
            "--start-from",
            str(options.model),
            f"task.overlap={OVERLAP}",
        ]
        command += [f"data.max_length={LENGTH}", f"training.learning_rate={options.learning_rate}"]
        command += [f"training.steps={steps}", f"training.warmup={max(1, steps // 10)}"]
        command += [f"training.validate_every={steps}", f"training.save_every={steps}"]
        command += [f"training.batch_tokens={round(ROWS * windows.mean)}"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr)
        final = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
        evaluate = [sys.executable, "-m", "heedful", "evaluate", str(out), str(files["test"]), "--json"]
        scores = json.loads(subprocess.run(evaluate, capture_output=True, text=True, check=True).stdout)
        return scores["em"], scores["f1"], final["seconds"]


class Windows:
    """The questions as windows of transformers' tokenizer: `owners` are their questions, `places` where each token
    stands in the context (None outside it)."""

    def __init__(self, model: Path, rows: list[Question]) -> None:
        from transformers import AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(model)
        self.tokenizer.model_max_length = LENGTH
        made = self.tokenizer(
            [row["question"].strip() for row in rows],
            [row["context"] for row in rows],
            truncation="only_second",
            max_length=LENGTH,
            stride=OVERLAP,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        self.owners = made.pop("overflow_to_sample_mapping")
        self.places = [
            [offset if side == 1 else None for offset, side in zip(offsets, made.sequence_ids(number), strict=True)]
            for number, offsets in enumerate(made.pop("offset_mapping"))
        ]
        names = list(made)
        self.features = [dict(zip(names, values, strict=True)) for values in zip(*made.values(), strict=True)]
        self.mean = sum(len(one["input_ids"]) for one in self.features) / len(self.features)

    def spans(self, rows: list[Question]) -> list[dict[str, Any]]:
        """The features with the places of the answers; that of [CLS] where a window does not have it."""
        found = []
        for feature, owner, places in zip(self.features, self.owners, self.places, strict=True):
            answer = rows[owner]["answers"][0]
            begin, end = answer["answer_start"], answer["answer_start"] + len(answer["text"])
            starts = [n for n, place in enumerate(places) if place and place[0] <= begin < place[1]]
            ends = [n for n, place in enumerate(places) if place and place[0] < end <= place[1]]
            both = (starts[0], ends[0]) if starts and ends else (0, 0)
            found.append({**feature, "start_positions": both[0], "end_positions": both[1]})
        return found

    def texts(self, starts: np.ndarray, ends: np.ndarray, rows: list[Question]) -> list[str]:
        best: dict[int, tuple[float, str]] = {}
        for number, (owner, places) in enumerate(zip(self.owners, self.places, strict=True)):
            tops = [np.argsort(-side[number][: len(places)])[:BEST] for side in (starts, ends)]
            for first in tops[0]:
                for last in tops[1]:
                    if places[first] and places[last] and first <= last < first + LONGEST:
                        score = float(starts[number][first] + ends[number][last])
                        if score > best.get(owner, (-np.inf, ""))[0]:
                            best[owner] = score, rows[owner]["context"][places[first][0] : places[last][1]]
        return [best.get(owner, (0.0, ""))[1] for owner in range(len(rows))]


def trainer(options: argparse.Namespace, train: list[Question], test: list[Question]) -> tuple[float, float, float]:
    import transformers

    from heedful.evaluation.squad import scores

    windows = Windows(options.model, train)
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(options.model)
    steps = options.epochs * -(-len(windows.owners) // ROWS)
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
    )
    torch.set_num_threads(os.cpu_count() or 1)
    made = transformers.Trainer(
        model=model,
        args=arguments,
        train_dataset=windows.spans(train),
        data_collator=transformers.DataCollatorWithPadding(windows.tokenizer),
    )
    began = time.perf_counter()
    made.train()
    seconds = time.perf_counter() - began
    asked = Windows(options.model, test)
    found = made.predict(asked.spans(test)).predictions
    texts = asked.texts(found[0], found[1], test)
    numbers = scores(texts, [[answer["text"] for answer in row["answers"]] for row in test])
    return numbers["em"], numbers["f1"], seconds


if __name__ == "__main__":
    main()
