"""A published language model fine-tuned on instructions with LoRA: ours beside PEFT with transformers' Trainer.

    python benchmarks/instructions.py SmolLM2-135M-Instruct.Q4_1.gguf --steps 30

Both start from the same float32 weights and the same adapter, and read the same batches in the same order, which our
training records, with AdamW at a constant rate. Prints the training losses of both, step by step, and a table: time and
peak memory of the training process, also of ours with the base's weights in int8, and the largest difference of losses.
Needs peft, accelerate and gguf.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

DATA = Path(os.environ.get("HEEDFUL_DATA", Path(__file__).parents[2] / "shared" / "data"))
RATE, RANK, TARGETS = 2e-4, 8, ["query", "value"]
NAMES = ("tokens", "wanted", "learned")
OPTIMIZER = {"betas": (0.9, 0.98), "eps": 1e-9, "weight_decay": 0.01}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("--data", type=Path, default=DATA / "instructions" / "instructions.jsonl")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch-tokens", type=int, default=1024)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", choices=list(PARTS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        PARTS[options.one](options)
        return
    with tempfile.TemporaryDirectory() as temporary:
        options.out = options.out or Path(temporary)
        options.out.mkdir(parents=True, exist_ok=True)
        for name in PARTS:
            words = [sys.executable, __file__, str(options.model), "--data", str(options.data), "--one", name]
            words += ["--steps", str(options.steps), "--batch-tokens", str(options.batch_tokens)]
            subprocess.run([*words, "--out", str(options.out)], check=True, stdout=sys.stderr)
        ours, int8, theirs = (json.loads((options.out / f"{name}.json").read_text()) for name in list(PARTS)[1:])
    print("| step | heedful | Trainer |\n|---:|---:|---:|")
    for step, (one, other) in enumerate(zip(ours["losses"], theirs["losses"], strict=True), 1):
        print(f"| {step} | {one:.4f} | {other:.4f} |")
    largest = max(abs(one - other) for one, other in zip(ours["losses"], theirs["losses"], strict=True))
    print("\n| | seconds | peak memory, MiB |\n|---|---:|---:|")
    for title, one in (("heedful", ours), ("heedful, int8 base", int8), ("PEFT and Trainer", theirs)):
        print(f"| {title} | {one['seconds']:.1f} | {one['memory'] / 2**20:,.0f} |")
    print(
        f"| ratio | {theirs['seconds'] / ours['seconds']:.2f} times as fast | {ours['memory'] / theirs['memory']:.2f} |"
    )
    rounding = max(abs(one - other) for one, other in zip(ours["losses"], int8["losses"], strict=True))
    print(f"\nWith an int8 base, losses differ by at most {rounding:.1e}.")
    print(f"Largest difference of losses: {largest:.1e} (the Trainer rounds to four places).")


def folder(options: argparse.Namespace) -> None:
    """The model as a folder of transformers, with its tokenizer, from which both start."""
    from heedful.exchange import hugging_face, published

    opened = published.load(options.model)
    (tokenizer,) = published.load_tokenizers(options.model, columns=1)
    hugging_face.save(opened.model, options.out / "base", opened.family, details=opened.details)
    hugging_face.save_tokenizer(tokenizer, options.out / "base", length=2048, types=False)


def heedful(options: argparse.Namespace, *, int8: bool = False) -> None:
    """Our training, which records its batches and its adapter before the first step."""
    from heedful.data.inputs import Inputs
    from heedful.exchange import peft
    from heedful.training import loop
    from heedful.training.files import arranged
    from heedful.training.journal import read_metrics
    from heedful.training.recipe import read_recipe
    from heedful.training.run import peak_memory, train

    changes = [
        f"start_from={options.out / 'base'}", "adapter=lora", f"adapter.rank={RANK}",
        f"adapter.targets={json.dumps(TARGETS)}", f"adapter.int8={json.dumps(int8)}",
        f"training.steps={options.steps}", f"training.batch_tokens={options.batch_tokens}", "training.log_every=1",
        f"training.validate_every={options.steps + 1}", f"training.save_every={options.steps + 1}",
        "training.schedule=constant", "training.warmup=0", f"training.learning_rate={RATE}", "training.samples=0",
        "data.max_length=1024", f"training.betas={json.dumps(OPTIMIZER['betas'])}",
        f"training.weight_decay={OPTIMIZER['weight_decay']}",
    ]  # fmt: skip
    recipe, inputs = arranged(read_recipe("instruct", changes), [options.data])
    assert isinstance(inputs, Inputs)
    batches: list[Any] = []
    plain = loop.Trainer._micro_batches

    def recorded(self: loop.Trainer, rows: Any) -> Any:
        found = plain(self, rows)
        if self.progress.step:
            batches.extend(found)
        elif not (options.out / "adapter").exists():
            names = [name for name, parameter in self.model.named_parameters() if parameter.requires_grad]
            assert recipe.adapter is not None
            peft.write(self.model, recipe.adapter, names, options.out / "adapter", base="base")
        return found

    loop.Trainer._micro_batches = recorded  # type: ignore[method-assign]
    ended: dict[str, Any] = {}

    def last(self: loop.Trainer) -> bool:
        ended.update(seconds=self.progress.seconds, memory=peak_memory())
        return False

    loop.Trainer._validate = last  # type: ignore[method-assign]  # what is compared is training alone
    name = "int8" if int8 else "heedful"
    train(recipe, inputs, options.out / f"run-{name}", cache=options.out / "cache")
    losses = [line["loss"] for line in read_metrics(options.out / f"run-{name}") if "loss" in line and "step" in line]
    save(batches[: options.steps], options.out / "batches.safetensors")
    (options.out / f"{name}.json").write_text(json.dumps({"losses": losses[: options.steps], **ended}))


def save(batches: list[Any], file: Path) -> None:
    from safetensors.torch import save_file

    save_file({f"{name}{step}": getattr(one, name) for step, one in enumerate(batches) for name in NAMES}, file)


def trainer(options: argparse.Namespace) -> None:
    import torch
    import transformers
    from peft import PeftModel
    from safetensors.torch import load_file

    from heedful.training.run import peak_memory

    os.environ["HF_HUB_OFFLINE"] = "1"
    base = transformers.AutoModelForCausalLM.from_pretrained(options.out / "base", dtype=torch.float32)
    model = PeftModel.from_pretrained(base, options.out / "adapter", is_trainable=True)
    held = load_file(options.out / "batches.safetensors")
    batches = [shifted(*(held[f"{name}{step}"] for name in NAMES)) for step in range(options.steps)]

    class Same(transformers.Trainer):
        def get_train_dataloader(self) -> Any:
            return batches

    settings = transformers.TrainingArguments(
        str(options.out / "trainer"), max_steps=options.steps, learning_rate=RATE, lr_scheduler_type="constant",
        adam_beta1=OPTIMIZER["betas"][0], adam_beta2=OPTIMIZER["betas"][1], adam_epsilon=OPTIMIZER["eps"],
        weight_decay=OPTIMIZER["weight_decay"], max_grad_norm=1.0, use_cpu=True, report_to="none", save_strategy="no",
        logging_steps=1, disable_tqdm=True,
    )  # fmt: skip
    found = Same(model=model, args=settings, train_dataset=list(range(len(batches))))
    began = time.monotonic()
    found.train()
    seconds = time.monotonic() - began
    losses = [line["loss"] for line in found.state.log_history if "loss" in line]
    result = {"losses": losses, "seconds": seconds, "memory": peak_memory()}
    (options.out / "trainer.json").write_text(json.dumps(result))


def shifted(tokens: Any, wanted: Any, learned: Any) -> dict[str, Any]:
    """As transformers wants it: the labels are the tokens themselves, shifted inside the model."""
    import torch
    import torch.nn.functional as F

    lengths = (learned * torch.arange(1, tokens.shape[1] + 1)).amax(1)  # the last learned place ends a row
    whole = F.pad(tokens, (0, 1))
    whole[torch.arange(len(whole)), lengths] = wanted[torch.arange(len(whole)), lengths - 1]
    places = torch.arange(whole.shape[1])
    return {
        "input_ids": whole,
        "attention_mask": (places <= lengths[:, None]).long(),
        "labels": torch.where(F.pad(learned, (1, 0)), whole, -100),
    }


PARTS = {"folder": folder, "heedful": heedful, "int8": partial(heedful, int8=True), "trainer": trainer}

if __name__ == "__main__":
    main()
