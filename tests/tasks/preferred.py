"""Small models that write, and pairs of answers: what the tasks of preferences start from."""

import json
import random

from heedful.training.files import arranged
from heedful.training.recipe import read_recipe
from heedful.training.run import train
from tests.corpora import pairs

TRANSLATOR = [
    "model.width=14", "model.encoder.layers=1", "model.decoder.layers=1", "model.encoder.attention.heads=2",
    "model.decoder.attention.heads=2", "model.encoder.feedforward.hidden=23", "model.decoder.feedforward.hidden=23",
    "model.encoder.dropout=0.1", "model.decoder.dropout=0.1", "tokenizer.kind=character", "tokenizer.normalise=NFC",
]  # fmt: skip
GENERATOR = [
    "model.width=14", "model.decoder.layers=1", "model.decoder.attention.heads=1", "model.decoder.dropout=0.1",
    "model.decoder.feedforward.hidden=23", "model.decoder.position=rotary",
    "task.context=11",
]  # fmt: skip
KINDS = ("translator", "generator")
QUIET = ["training.samples=0", "training.log_every=1", "training.warmup=2"]


def run(recipe, files, out, *changes, start=None, **options):
    """Train by a named recipe; the keys after it are changed."""
    words = [*([f"start_from={start}"] if start else []), *QUIET, *changes]
    chosen, inputs = arranged(read_recipe(recipe, words), [files], **options)
    return train(chosen, inputs, out, cache=out.parent / "cache")


def bases(folder, *, steps=30):
    """{kind: folder} of a translator that has begun to write backwards, and a language model of the same letters."""
    corpus = pairs(folder / "pairs.tsv", 200)
    text = folder / "text.txt"
    text.write_text(corpus.read_text(encoding="utf-8").replace("\t", " = "), encoding="utf-8")
    schedule = [f"training.steps={steps}", f"training.validate_every={steps}", f"training.save_every={steps}"]
    run("tiny", corpus, folder / "translator", *TRANSLATOR, *schedule, "training.learning_rate=0.01")
    run("char-gpt", text, folder / "generator", *GENERATOR, *schedule, "training.learning_rate=0.01")
    return {kind: folder / kind for kind in KINDS}


def compared(path, count=60, *, seed=0, worse=lambda answer: "a " + answer):
    """JSONL: the better answer is the prompt backwards."""
    chance = random.Random(seed)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(count):
            prompt = " ".join(chance.choices("abcdefghij", k=chance.randint(2, 5)))
            row = {"prompt": prompt, "chosen": prompt[::-1], "rejected": worse(prompt[::-1])}
            file.write(json.dumps(row) + "\n")
    return path


def metrics(folder):
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]
