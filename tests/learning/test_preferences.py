"""Preferences and rewards are learned: small tasks, in seconds."""

import random

import pytest
import torch

import heedful
from heedful import parts
from heedful.checkpoint import load_model
from heedful.data.prepare import load_tokenizers
from heedful.tasks._rollouts import draw
from tests.corpora import pairs
from tests.tasks.preferred import KINDS, bases, compared, metrics, run
from tests.tasks.test_ppo import letters, prompts  # noqa: F401

kinds = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return bases(tmp_path_factory.mktemp("bases"), steps=150)


def steps(count):
    return [f"training.steps={count}", f"training.validate_every={count // 2}", f"training.save_every={count}"]


def rude(answer):
    """The answer with a letter that good ones do not have."""
    place = random.Random(answer).randrange(len(answer) + 1)
    return f"{answer[:place]}z{answer[place:]}"


@kinds
def test_a_reward_model_tells_good_answers_from_bad_ones(kind, base, tmp_path):
    file = compared(tmp_path / "p.jsonl", 300, worse=lambda answer: "j" * len(answer))
    found = run("reward", file, tmp_path / "out", *steps(120), "training.learning_rate=0.005", start=base[kind])
    assert found.numbers["accuracy"] >= 90
    judge = heedful.load(tmp_path / "out")
    better, worse = judge.score(["a b", "a b"], ["b a", "jjj"])
    assert better > worse


@kinds
@pytest.mark.parametrize("loss", ["dpo", "ipo"])
def test_preferences_make_the_preferred_likelier(loss, kind, base, tmp_path):
    file = compared(tmp_path / "p.jsonl", 300, worse=rude)
    found = run("prefer", file, tmp_path / "out", *steps(60), f"task.loss={loss}", "training.learning_rate=0.005",
                start=base[kind])  # fmt: skip
    assert found.numbers["accuracy"] >= 95 and found.numbers["margin"] > 0


@kinds
def test_rewards_make_what_is_rewarded_likelier(kind, base, tmp_path, letters):  # noqa: F811
    changes = [f"task.reward={letters}", "task.max_new_tokens=12", "task.beta=0.01", "training.batch_tokens=800"]
    run("ppo", prompts(tmp_path / "p.txt", 80), tmp_path / "out", *steps(120), *changes,
        "training.learning_rate=0.01", start=base[kind])  # fmt: skip
    figures = [line["figures"] for line in metrics(tmp_path / "out") if "figures" in line]
    first, last = (sum(one["reward"] for one in some) / 16 for some in (figures[:16], figures[-16:]))
    assert last > first + 0.3
    assert figures[-1]["kl_positive"] > figures[0]["kl_positive"]
    tokenizers = load_tokenizers(base[kind], columns=2)
    texts = tokenizers[0].encode(["b c"] * 50)
    counts = []
    for folder in (base[kind], tmp_path / "out"):
        torch.manual_seed(1)
        drawn = draw(load_model(folder), tokenizers, texts, longest=12)
        counts.append(sum(text.count("a") for text in tokenizers[1].decode([one.tokens for one in drawn])))
    parts._packages.clear()
    assert counts[1] > 2 * counts[0]


def test_minimum_risk_raises_chrf(base, tmp_path):
    file = pairs(tmp_path / "pairs.tsv", 200, seed=1)
    found = run("minimum-risk", file, tmp_path / "out", *steps(60), "training.learning_rate=0.003",
                "training.batch_tokens=3000", "task.max_new_tokens=14", "task.alpha=0.1",
                start=base["translator"])  # fmt: skip
    rewards = [line["figures"]["reward"] for line in metrics(tmp_path / "out") if "figures" in line]
    assert sum(rewards[-10:]) / 10 > sum(rewards[:10]) / 10 + 0.05
    assert found.numbers["reward"] > 0
