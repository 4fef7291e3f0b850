"""It learns: small tasks, solved in seconds."""

import pytest
import torch

from heedful.data.inputs import Inputs
from heedful.training.recipe import read_recipe
from heedful.training.run import train
from tests.corpora import pairs

TASKS = {
    "copy": lambda text: text,
    "reverse": lambda text: text[::-1],
    "sort": lambda text: " ".join(sorted(text.split())),
}
CHANGES = [
    "model.width=64",
    "model.encoder.layers=2",
    "model.decoder.layers=2",
    "model.encoder.dropout=0",
    "model.decoder.dropout=0",
    "tokenizer.kind=word",
    "tokenizer.vocab=100",
    "training.batch_tokens=1024",
    "training.warmup=50",
    "training.learning_rate=0.003",
    "training.schedule=linear",
    "training.metric=exact",
    "training.label_smoothing=0.05",
    "training.average=false",
]


@pytest.mark.parametrize("name", TASKS)
def test_a_small_model_learns_to(name, tmp_path):
    corpus = pairs(tmp_path / "p.tsv", 3000, longest=7, change=TASKS[name])
    recipe = read_recipe("tiny", [*CHANGES, "training.steps=400", "training.validate_every=200", "training.samples=0"])
    result = train(recipe, Inputs((corpus,)), tmp_path / "run", cache=tmp_path / "cache")
    assert result.numbers["exact"] >= 90, result.numbers
    torch.set_grad_enabled(True)
