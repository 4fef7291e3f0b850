"""Small corpora, made on the spot."""

import random
from pathlib import Path


def words(count: int, *, seed: int = 0, longest: int = 6) -> list[str]:
    """Lines of letters with spaces between them."""
    chance = random.Random(seed)
    return [" ".join(chance.choices("abcdefghij", k=chance.randint(2, longest))) for _ in range(count)]


def pairs(path: Path, count: int = 300, *, seed: int = 0, longest: int = 6, change=lambda text: text[::-1]) -> Path:
    """A TSV of lines and what `change` makes of them; backwards, unless told otherwise."""
    lines = words(count, seed=seed, longest=longest)
    path.write_text("".join(f"{line}\t{change(line)}\n" for line in lines), encoding="utf-8")
    return path


# A model and a training small enough for a test: seconds, not minutes.
SMALL = [
    "model.width=16",
    "model.encoder.layers=1",
    "model.decoder.layers=1",
    "model.encoder.attention.heads=2",
    "model.decoder.attention.heads=2",
    "model.encoder.feedforward.hidden=32",
    "model.decoder.feedforward.hidden=32",
    "tokenizer.kind=character",
    "training.batch_tokens=256",
    "training.warmup=20",
]
