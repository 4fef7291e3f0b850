"""Learning from preferences and rewards, in three tables:

    dpo           accuracy of the implied rewards on held-out pairs, beside TRL's trainer on as many steps
    sentiment     reward over KL: PPO, and DPO on pairs of the model's own samples, both ranked by a classifier
    translation   chrF before and after minimum-risk training and PPO

    python benchmarks/preferences.py DATA_FOLDER --only dpo sentiment translation

DATA_FOLDER contains instructions/preferences.jsonl (instruction, input, chosen, rejected), sst2/ (train.tsv, test.tsv:
label, text) and tatoeba-eng-deu/ (train.tsv, test.tsv). All models are trained here, in minutes: what is compared are
methods, not models. Both DPO trainings are judged by the same function. Without TRL, its row is left out. `--steps`
scales everything; the default takes about a quarter of an hour on one core.
"""

import argparse
import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import heedful
from heedful.checkpoint import load_model
from heedful.data.prepare import load_tokenizers
from heedful.exchange import hugging_face
from heedful.model.architecture import Model
from heedful.tasks._answers import Writers, log_probs
from heedful.tasks._rewards import open_reward
from heedful.tasks._rollouts import draw
from heedful.text.tokenizer import Tokenizer

BETA, RATE, PAIRS = 0.1, 1e-4, 8  # of DPO; PAIRS in a batch
SMALL = {  # GPT-2's shape, so that transformers can open it
    "model.preset": "gpt2", "model.width": 128, "model.decoder.layers": 4, "model.decoder.attention.heads": 4,
    "model.decoder.attention.bias": True, "model.decoder.attention.output_bias": True,
    "model.decoder.feedforward.hidden": 512, "model.decoder.feedforward.bias": True,
    "model.decoder.position.length": 512, "tokenizer.kind": "byte_bpe", "tokenizer.vocab": 2000,
    "task.windows": "documents", "task.context": 128, "training.batch_tokens": 2048,
}  # fmt: skip
QUIET = {"training.samples": 0, "training.log_every": 10}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--steps", type=int, default=300, help="of the longest training; the others have a share of it")
    parser.add_argument("--out", type=Path, help="keep the models in this folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        place = options.out or Path(temporary)
        place.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("HEEDFUL_CACHE", str(place / "cache"))
        for name in options.only:
            began = time.monotonic()
            PARTS[name](options.data, place, options.steps)
            print(f"\n{name}: {time.monotonic() - began:,.0f} s, {options.steps} steps at most\n", flush=True)


def dpo(data: Path, place: Path, steps: int) -> None:
    rows = [json.loads(line) for line in (data / "instructions" / "preferences.jsonl").open(encoding="utf-8")]
    pairs = [
        {
            "prompt": f"{row['instruction']} {row['input']}".strip(),
            "chosen": f" {row['chosen']}",
            "rejected": f" {row['rejected']}",
        }
        for row in rows
        if row["chosen"] != row["rejected"]
    ]
    train, test = (place / f"pairs-{name}.jsonl" for name in ("train", "test"))
    held_out = pairs[::8]
    written(test, held_out)
    written(train, [pair for number, pair in enumerate(pairs) if number % 8])
    base = language_model([pair["prompt"] + pair["rejected"] for pair in pairs], place / "dpo-base", steps)
    print("| | steps | accuracy, percent | margin | log p of the chosen | of the rejected | seconds |")
    print("|---|---:|---:|---:|---:|---:|---:|", flush=True)
    count = max(2, steps // 3)
    changes = {**QUIET, **paced(count), "training.learning_rate": RATE, "task.beta": BETA,
               "training.batch_tokens": 2 * PAIRS * 64, "data.max_length": 200,
               "training.warmup": max(1, count // 10)}  # fmt: skip
    out = place / "dpo"
    if not (out / "README.md").exists():
        heedful.train(train, valid=[test], out=out, recipe="prefer", start_from=base, changes=changes)
    seconds = json.loads((out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])["seconds"]
    tokenizers = load_tokenizers(base, columns=2)
    reference = load_model(base)
    print_judged("heedful", count, load_model(out), reference, tokenizers, held_out, seconds)
    if importlib.util.find_spec("trl") is None:
        print("TRL is not installed: its row is left out")
        return
    model, seconds = by_trl(base, train, place / "trl", count)
    print_judged("TRL", count, model, reference, tokenizers, held_out, seconds)


def by_trl(base: Path, train: Path, out: Path, steps: int) -> tuple[Model, float]:
    """The same base, pairs, steps, rate and pairs per step, in TRL's trainer."""
    import trl
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    hugging_face.save(load_model(base), out / "base", "gpt2")
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(base / "tokenizer.json"), eos_token="</s>",
                                        pad_token="<pad>", bos_token="<s>")  # fmt: skip
    rows = [json.loads(line) for line in train.open(encoding="utf-8")]
    config = trl.DPOConfig(
        output_dir=str(out / "run"), per_device_train_batch_size=PAIRS, max_steps=steps, learning_rate=RATE, beta=BETA,
        lr_scheduler_type="linear", warmup_steps=max(1, steps // 10), adam_beta2=0.98, use_cpu=True, bf16=False,
        report_to="none", save_strategy="no", logging_strategy="no", gradient_checkpointing=False,
        precompute_ref_log_probs=True, disable_tqdm=True,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(out / "base")
    trainer = trl.DPOTrainer(model, args=config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)
    seconds = trainer.train().metrics["train_runtime"]
    trainer.model.save_pretrained(out / "trained")
    return hugging_face.load(out / "trained").model.eval(), float(seconds)


def print_judged(
    name: str, steps: int, model: Model, base: Model, tokenizers: Sequence[Tokenizer], pairs: list[Any], seconds: float
) -> None:
    """A row of the table: the rewards that a model implies, by one function for all."""
    found = torch.stack([sums(one, tokenizers, pairs) for one in (base, model)])  # model pair answer
    ratios = BETA * (found[1] - found[0])
    margins = ratios[:, 0] - ratios[:, 1]
    likely = found[1].mean(0)
    print(
        f"| {name} | {steps} | {100 * float((margins > 0).float().mean()):.1f} | {float(margins.mean()):.3f} | "
        f"{float(likely[0]):.1f} | {float(likely[1]):.1f} | {seconds:,.0f} |",
        flush=True,
    )


@torch.inference_mode()
def sums(model: Model, tokenizers: Sequence[Tokenizer], pairs: list[Any]) -> torch.Tensor:
    """log p of the chosen and of the rejected answer of each pair: pairs 2."""
    writers, found = Writers(tokenizers, joined=True), []
    for place in range(0, len(pairs), 16):
        some = pairs[place : place + 16]
        prompts = tokenizers[0].encode([one["prompt"] for one in some])
        answers = [row for name in ("chosen", "rejected") for row in tokenizers[1].encode([one[name] for one in some])]
        found.append(log_probs(model, writers.batch(prompts * 2, answers)).sum(1).view(2, -1).T)
    return torch.cat(found)


def sentiment(data: Path, place: Path, steps: int) -> None:
    rows = [line.split("\t") for line in (data / "sst2" / "train.tsv").read_text(encoding="utf-8").splitlines()]
    classes = place / "classifier"
    if not (classes / "README.md").exists():
        test = data / "sst2" / "test.tsv"
        heedful.train(data / "sst2" / "train.tsv", valid=[test], out=classes, recipe="classify",
                      changes={**QUIET, **paced(max(2, steps))})  # fmt: skip
    base = language_model([text for _, text in rows], place / "sentiment-base", steps)
    starts = list(dict.fromkeys(" ".join(text.split()[:3]) for _, text in rows if len(text.split()) > 6))
    train, test_prompts = starts[:4000], starts[4000:4200] or starts[:200]
    file = place / "starts.txt"
    file.write_text("".join(f"{text}\n" for text in train), encoding="utf-8")
    tokenizers = load_tokenizers(base, columns=2)
    rate = open_reward(str(classes), "1", tokenizers, joined=True)
    print("| | reward: probability of a positive text | KL to the base, nats per answer | tokens of an answer |")
    print("|---|---:|---:|---:|", flush=True)
    reference = load_model(base)

    def show(name: str, model: Model) -> None:
        prompts = tokenizers[0].encode(test_prompts)
        torch.manual_seed(1)
        drawn = draw(model, tokenizers, prompts, longest=24)
        answers, ended = [one.tokens for one in drawn], [one.ended for one in drawn]
        rewards = rate(prompts, answers, ended, [])
        batch = Writers(tokenizers, joined=True).batch(prompts, answers, ended)
        with torch.inference_mode():
            away = float((log_probs(model, batch) - log_probs(reference, batch)).sum(1).mean())
        size = sum(map(len, answers)) / len(answers)
        print(f"| {name} | {sum(rewards) / len(rewards):.3f} | {away:.2f} | {size:.1f} |", flush=True)

    show("base", reference)
    torch.manual_seed(2)
    prompts = tokenizers[0].encode(train[: 8 * max(20, steps // 3)])
    drawn = draw(reference, tokenizers, [prompt for prompt in prompts for _ in range(2)], longest=24)
    twice = [prompt for prompt in prompts for _ in range(2)]
    rewards = rate(twice, [one.tokens for one in drawn], [one.ended for one in drawn], [])
    texts = tokenizers[1].decode([one.tokens for one in drawn])
    ranked = []
    for number, prompt in enumerate(train[: len(prompts)]):
        both = sorted(zip(rewards[2 * number : 2 * number + 2], texts[2 * number : 2 * number + 2], strict=True))
        if both[0][1].strip() and both[1][1].strip() and both[1][0] > both[0][0]:
            ranked.append({"prompt": prompt, "chosen": both[1][1], "rejected": both[0][1]})
    pairs = written(place / "ranked.jsonl", ranked)
    for beta in (0.1, 0.5):
        out = place / f"sentiment-dpo-{beta}"
        changes = {**QUIET, **paced(max(2, steps // 3)), "task.beta": beta, "training.learning_rate": RATE,
                   "training.batch_tokens": 2048, "data.max_length": 96}  # fmt: skip
        if not (out / "README.md").exists():
            heedful.train(pairs, out=out, recipe="prefer", start_from=base, changes=changes)
        show(f"DPO, beta {beta}, {len(ranked)} pairs", load_model(out))
    for beta in (0.02, 0.2):
        out = place / f"sentiment-ppo-{beta}"
        changes = {**QUIET, **paced(max(4, steps)), "task.reward": str(classes), "task.label": "1", "task.beta": beta,
                   "task.max_new_tokens": 24, "training.learning_rate": RATE, "training.batch_tokens": 2048,
                   "training.warmup": 10}  # fmt: skip
        if not (out / "README.md").exists():
            heedful.train(file, out=out, recipe="ppo", start_from=base, changes=changes)
        show(f"PPO, beta {beta}, {max(4, steps)} steps", load_model(out))


def translation(data: Path, place: Path, steps: int) -> None:
    lines = (data / "tatoeba-eng-deu" / "train.tsv").read_text(encoding="utf-8").splitlines()[:40_000]
    file, test = place / "tatoeba.tsv", data / "tatoeba-eng-deu" / "test.tsv"
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    few = place / "tatoeba-few.tsv"
    few.write_text("".join(f"{line}\n" for line in lines[:8000]), encoding="utf-8")
    base = place / "translator"
    if not (base / "README.md").exists():
        heedful.train(file, out=base, changes={**QUIET, **paced(2 * steps), "training.batch_tokens": 2048,
                                               "training.schedule": "linear"})  # fmt: skip
    pairs = [line.split("\t")[:2] for line in test.read_text(encoding="utf-8").splitlines()[:300]]
    print("| | chrF, greedy | BLEU | seconds |\n|---|---:|---:|---:|", flush=True)

    def show(name: str, folder: Path) -> None:
        from heedful.evaluation.metrics import quick_score

        found = heedful.load(folder).translate([source for source, _ in pairs], num_beams=1)
        scores = quick_score([one.text for one in found], [target for _, target in pairs])
        seconds = json.loads((folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])["seconds"]
        print(f"| {name} | {scores['chrf']:.2f} | {scores['bleu']:.2f} | {seconds:,.0f} |", flush=True)

    show("before", base)
    for name, recipe, own in (
        ("longer as before", "tiny", {**paced(max(2, steps // 4)), "training.learning_rate": 1e-4}),
        ("minimum risk", "minimum-risk", {**paced(max(2, steps // 4)), "training.learning_rate": 1e-4}),
        ("PPO", "ppo", {**paced(max(4, steps // 2)), "training.learning_rate": 5e-5, "task.beta": 0.02}),
    ):
        out = place / recipe.replace("tiny", "longer")
        changes = {**QUIET, **own, "training.warmup": 5}
        if recipe != "tiny":
            changes |= {"task.reward": "chrf", "task.max_new_tokens": 32, "training.batch_tokens": 4096}
        if not (out / "README.md").exists():
            heedful.train(few, out=out, recipe=recipe, start_from=base, changes=changes)
        show(f"{name}, {own['training.steps']} steps", out)


def language_model(texts: Sequence[str], out: Path, steps: int) -> Path:
    """A small one, which learns texts with their ends."""
    if not (out / "README.md").exists():
        file = out.with_suffix(".txt")
        file.write_text("\n\n".join(" ".join(text.split()) for text in texts) + "\n", encoding="utf-8")
        changes = {**QUIET, **SMALL, **paced(2 * steps), "training.learning_rate": 0.001}
        heedful.train(file, out=out, recipe="char-gpt", changes=changes)
    return out


def paced(steps: int) -> dict[str, Any]:
    every = max(1, steps // 4)
    return {"training.steps": steps, "training.validate_every": every, "training.save_every": steps,
            "training.warmup": max(1, steps // 10)}  # fmt: skip


def written(file: Path, rows: list[Any]) -> Path:
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return file


PARTS = {"dpo": dpo, "sentiment": sentiment, "translation": translation}

if __name__ == "__main__":
    sys.exit(main())
