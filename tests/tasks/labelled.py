"""Small labelled corpora, and tasks built on them beside transformers' models."""

import random
from pathlib import Path

import torch

from heedful.data.prepare import Prepared, prepare
from heedful.exchange.hugging_face import load
from heedful.model.architecture import Reader
from heedful.tasks import Settings
from heedful.training.files import arranged
from heedful.training.recipe import read_recipe

GOOD, BAD = ["good", "great", "fine", "lovely"], ["bad", "awful", "poor", "dull"]
OTHER = ["film", "book", "day", "the", "a", "is", "was", "very", "this", "that"]
SMALL = {
    "model.encoder.layers": 1, "model.width": 64, "model.encoder.dropout": 0.0, "model.encoder.feedforward.hidden": 64,
    "model.encoder.attention.heads": 2, "tokenizer.vocab": 200, "training.steps": 250, "training.batch_tokens": 512,
    "training.warmup": 5, "training.learning_rate": 0.003, "training.validate_every": 30, "training.save_every": 30,
}  # fmt: skip


def sentences(count: int, *, seed: int = 0) -> list[tuple[str, str]]:
    """Texts with one word that decides, and their labels."""
    chance, found = random.Random(seed), []
    for _ in range(count):
        label = chance.choice(["pos", "neg"])
        words = chance.choices(OTHER, k=chance.randint(2, 9))
        words.insert(chance.randint(0, len(words)), chance.choice(GOOD if label == "pos" else BAD))
        found.append((" ".join(words), label))
    return found


def write(path: Path, rows: list[tuple[str, ...]]) -> Path:
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    return path


def prepared(file: Path, cache: Path, recipe: str, *changes: str) -> tuple[object, Prepared]:
    """The config of the recipe's task, and the file prepared for it."""
    recipe_, inputs = arranged(read_recipe(recipe, ["tokenizer.vocab=120", *changes]), [file])
    task = recipe_.task
    return task, prepare(inputs, recipe_.data, recipe_.tokenizer, cache=cache, specials=task.specials)


def built(file: Path, cache: Path, recipe: str, *changes: str, **settings: object):
    task, data = prepared(file, cache, recipe, *changes)
    return task.build(data, Settings(**settings)), data


def bert(folder: Path, kind: str, *, vocab: int, width: int, hidden: int, heads: int, **keys: object):
    """transformers' model of this kind with weights large enough to matter, and the same as ours."""
    import transformers

    torch.manual_seed(3)
    config = transformers.BertConfig(
        vocab_size=vocab, hidden_size=width, intermediate_size=hidden, num_attention_heads=heads, num_hidden_layers=2,
        max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **keys,
    )  # fmt: skip
    theirs = getattr(transformers, kind)(config)
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    theirs.save_pretrained(folder)
    ours = load(folder).model
    assert isinstance(ours, Reader)
    return theirs.train(), ours.train()


def word_gradients(theirs, ours) -> tuple[torch.Tensor, torch.Tensor]:
    return theirs.bert.embeddings.word_embeddings.weight.grad, next(
        weight.grad
        for weight in ours.parameters()
        if weight.shape == theirs.bert.embeddings.word_embeddings.weight.shape
    )
