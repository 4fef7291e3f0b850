"""Sentences read per second, and the time of a training step, of a BERT-like model: ours beside transformers,
onnxruntime and CTranslate2, in one run on the same sentences.

    python benchmarks/reading.py MODEL_FOLDER SENTENCES.txt

MODEL_FOLDER is in Hugging Face's layout, such as all-MiniLM-L6-v2. Peers that cannot be imported are named.
"""

import argparse
import importlib.util
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import torch

from heedful.exchange.hugging_face import load
from heedful.model.cpu.reading import reader

Batch = dict[str, torch.Tensor]
Read = Callable[[Batch], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder with config.json, model.safetensors and tokenizer.json")
    parser.add_argument("sentences", help="a text file; of a line with tabs, the first column is read")
    parser.add_argument("--count", type=int, default=256, help="how many sentences are read (default 256)")
    parser.add_argument("--threads", type=int, default=2, help="processor cores (default 2)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    texts = [
        max(line.split("\t"), key=len)
        for line in Path(options.sentences).read_text("utf-8").splitlines()
        if line.strip()
    ]
    from transformers import AutoTokenizer  # also what the peers read

    tokenizer = AutoTokenizer.from_pretrained(options.model)
    texts = sorted(texts[: options.count], key=len)
    batches = {
        size: [
            dict(tokenizer(texts[at : at + size], padding=True, truncation=True, return_tensors="pt"))
            for at in range(0, len(texts), size)
        ]
        for size in (1, 32)
    }
    print(f"{'':28}{'batch 1':>12}{'batch 32':>12}   sentences/s")
    with tempfile.TemporaryDirectory() as folder:
        for name, make in readers(options.model, Path(folder), options.threads).items():
            try:
                read = make()
            except Exception as error:  # a peer that cannot run must not hide the others
                print(f"{name:28}  failed: {type(error).__name__}: {str(error).splitlines()[0][:80]}")
                continue
            print(f"{name:28}" + "".join(f"{len(texts) / seconds(read, all_):12.0f}" for all_ in batches.values()))
    ours, theirs = training(options.model, batches[32])
    print(
        f"training step, batch 32: ours {1000 * ours:.0f} ms, transformers {1000 * theirs:.0f} ms, {theirs / ours:.2f}x"
    )


def seconds(read: Read, batches: list[Batch], repeats: int = 3) -> float:
    """The best of several runs over all batches."""
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        for batch in batches:
            read(batch)
        found.append(time.perf_counter() - start)
    return min(found)


def readers(model: str, folder: Path, threads: int) -> dict[str, Callable[[], Read]]:
    made: dict[str, Callable[[], Read]] = {}
    made["heedful float32"] = lambda: ours(model, False)
    made["heedful int8"] = lambda: ours(model, "int8")
    made["transformers float32"] = lambda: transformers_reader(model, int8=False)
    made["transformers int8"] = lambda: transformers_reader(model, int8=True)
    for package, make in (("onnxruntime", onnx_reader), ("ctranslate2", ctranslate2_reader)):
        if importlib.util.find_spec(package) is None:
            print(f"{package} is not installed and is left out")
            continue
        for kind in ("float32", "int8"):
            made[f"{package} {kind}"] = lambda make=make, kind=kind: make(model, folder, kind, threads)
    return made


def ours(folder: str, quantize: object) -> Read:
    fast = reader(load(folder).model.eval(), quantize)  # type: ignore[arg-type]
    assert fast.reason is None, fast.reason
    return lambda batch: fast(
        batch["input_ids"], token_types=batch["token_type_ids"], valid=batch["attention_mask"].bool()
    )


def transformers_reader(folder: str, *, int8: bool) -> Read:
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folder).eval()
    if int8:
        model = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)

    @torch.inference_mode()
    def read(batch: Batch) -> object:
        return model(**batch).last_hidden_state

    return read


class States(torch.nn.Module):
    """transformers' model with tensors alone as arguments and result, as the exporter wants it."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
        found = self.model(input_ids=ids, attention_mask=mask, token_type_ids=segments)
        return cast(torch.Tensor, found.last_hidden_state)


def onnx_reader(model: str, folder: Path, kind: str, threads: int) -> Read:
    import onnxruntime
    from onnxruntime.quantization import quantize_dynamic
    from transformers import AutoModel

    names = ["input_ids", "attention_mask", "token_type_ids"]
    path = folder / "float32.onnx"
    if not path.exists():
        torch.onnx.export(
            States(AutoModel.from_pretrained(model, attn_implementation="eager").eval()),
            tuple(torch.ones(2, 7, dtype=torch.long) for _ in names),
            str(path),
            input_names=names,
            output_names=["states"],
            dynamic_axes={name: {0: "batch", 1: "query"} for name in [*names, "states"]},
            dynamo=False,
        )
    if kind == "int8":
        quantize_dynamic(str(path), str(folder / "int8.onnx"))
        path = folder / "int8.onnx"
    how = onnxruntime.SessionOptions()
    how.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(path), how, providers=["CPUExecutionProvider"])
    return lambda batch: session.run(["states"], {name: batch[name].numpy() for name in names})


def ctranslate2_reader(model: str, folder: Path, kind: str, threads: int) -> Read:
    import ctranslate2

    to = folder / f"ctranslate2-{kind}"
    ctranslate2.converters.TransformersConverter(model).convert(str(to), quantization=kind)
    encoder = ctranslate2.Encoder(str(to), inter_threads=1, intra_threads=threads, compute_type=kind)

    def read(batch: Batch) -> object:
        lengths = batch["attention_mask"].sum(1).tolist()
        ids = [row[:length] for row, length in zip(batch["input_ids"].tolist(), lengths, strict=True)]
        return np.array(encoder.forward_batch(ids).last_hidden_state)

    return read


def training(folder: str, batches: list[Batch]) -> tuple[float, float]:
    """Seconds per step of a two-class classifier on the first token, with AdamW: ours, transformers'."""
    from transformers import AutoModel

    opened, theirs = load(folder).model, AutoModel.from_pretrained(folder)
    step = (
        lambda batch: opened(
            batch["input_ids"], token_types=batch["token_type_ids"], valid=batch["attention_mask"].bool()
        ),
        lambda batch: theirs(**batch).last_hidden_state,
    )
    found = []
    for model, states in zip((opened, theirs), step, strict=True):
        head = torch.nn.Linear(model.config.width if model is opened else model.config.hidden_size, 2)
        optimizer = torch.optim.AdamW([*model.train().parameters(), *head.parameters()], lr=2e-5)

        def train(batch: Batch, states: Read = states, head: torch.nn.Linear = head, optimizer=optimizer) -> None:
            logits = head(states(batch)[:, 0])  # type: ignore[index]
            torch.nn.functional.cross_entropy(logits, torch.arange(len(logits)) % 2).backward()
            optimizer.step()
            optimizer.zero_grad()

        found.append(seconds(train, batches, 2) / len(batches))
    return found[0], found[1]


if __name__ == "__main__":
    main()
