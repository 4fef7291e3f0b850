"""Attentions for long texts by one key of the command line: trained, stopped and resumed to the bit, used, counted."""

import shutil

import pytest

from heedful.inspection.cost import count_parameters
from heedful.training.recipe import read_recipe
from tests.commands.test_train import heedful
from tests.corpora import SMALL, pairs

CHANGES = {
    "longformer and window": [
        "model.encoder.attention.window=3",
        "model.encoder.attention.mix=longformer",
        "model.decoder.attention.window=2",
        "model.decoder.attention.mix={kind: window, dilation: 2}",
    ],
    "bigbird and flash": [
        "model.encoder.attention.mix={kind: bigbird, block: 2, random: 1}",
        "model.decoder.attention.mix=flash",
        "model.decoder.attention.dropout=0.1",
    ],
}
STEPS = ["training.steps=10", "training.save_every=5", "training.validate_every=10", "training.log_every=5"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return pairs(tmp_path_factory.mktemp("corpus") / "p.tsv")


@pytest.mark.parametrize("name", CHANGES)
def test_it_trains_resumes_to_the_bit_and_translates(corpus, tmp_path, name):
    def train():
        result = heedful(corpus, "train", corpus, "--out", tmp_path / "run", *SMALL, *STEPS, *CHANGES[name])
        assert result.returncode == 0, result.stderr

    train()
    whole = (tmp_path / "run" / "model.safetensors").read_bytes()
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "10")  # as if it had been killed after step 5
    for file in ("README.md", "model.safetensors"):
        (tmp_path / "run" / file).unlink()
    train()
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == whole
    result = heedful(corpus, "translate", tmp_path / "run", input="a b c\n")
    assert result.returncode == 0 and len(result.stdout.splitlines()) == 1, result.stderr
    config = read_recipe(str(tmp_path / "run" / "config.yaml")).model
    assert sum(config.parameters().values()) == sum(count_parameters(config).values())
