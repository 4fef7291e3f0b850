"""Our optimizers are torch's."""

import subprocess
import sys

import pytest
import torch

from heedful.training import optimizer

TRAIN = """
import sys
from pathlib import Path
from heedful.data.inputs import Inputs
from heedful.training.recipe import read_recipe
from heedful.training.run import train
from tests.corpora import SMALL, pairs

place = Path(sys.argv[1])
recipe = read_recipe("tiny", [*SMALL, "training.steps=2"])
train(recipe, Inputs((pairs(place / "pairs.tsv"),)), place / "run", cache=place / "cache")
print([name for name in ("torch._dynamo", "sympy") if name in sys.modules])
"""


@pytest.mark.parametrize("name", ["Adam", "AdamW"])
@pytest.mark.parametrize("fused", [True, False])
def test_steps_are_those_of_torch(name, fused):
    torch.manual_seed(0)
    first, trained = torch.randn(5, 7), []
    for kind in (getattr(optimizer, name), getattr(torch.optim, name)):
        weight = torch.nn.Parameter(first.clone())
        one = kind([weight], lr=0.1, weight_decay=0.1, fused=fused)
        for _ in range(4):
            one.zero_grad()
            assert weight.grad is None
            weight.pow(2).sum().backward()
            one.step()
        trained.append(weight.detach())
    assert torch.equal(*trained) and not torch.equal(first, trained[0])


def test_training_imports_neither_a_compiler_nor_symbolic_mathematics(tmp_path):
    done = subprocess.run([sys.executable, "-c", TRAIN, str(tmp_path)], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr
