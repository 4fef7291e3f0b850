"""Learning from rewards: rollouts are the policy's own, the reference is where it started, a kill changes nothing."""

import json

import numpy as np
import pytest
import torch

import heedful
from heedful import parts
from heedful.checkpoint import load_model
from heedful.data.prepare import load_tokenizers
from heedful.inspection.plots import draw_training
from heedful.tasks import _answers
from heedful.tasks._answers import Writers
from heedful.tasks._rewards import open_reward
from heedful.tasks._rollouts import draw
from heedful.training.recipe import read_recipe
from tests.tasks.preferred import KINDS, bases, compared, metrics, run
from tests.tasks.test_preference import StopError, interrupted

SHORT = ["training.steps=7", "training.validate_every=7", "training.save_every=2", "training.batch_tokens=400",
         "training.learning_rate=0.01", "task.max_new_tokens=9"]  # fmt: skip
kinds = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return bases(tmp_path_factory.mktemp("bases"))


@pytest.fixture
def letters(tmp_path):
    """A folder of parts with rewards: how many of a letter are in the answer."""
    folder = tmp_path / "my_rewards"
    folder.mkdir()
    (folder / "rewards.py").write_text(
        "def letter(prompts, answers, references=()):\n"
        "    return [answer.count('a') / 4 for answer in answers]\n"
        "def short(prompts, answers, references=()):\n"
        "    return [0.0]\n"
        "def broken(prompts, answers, references=()):\n"
        "    return answers[0] / 2\n",
        encoding="utf-8",
    )
    before = dict(parts._packages)
    parts.use(str(folder))
    yield "rewards.py:letter"
    parts._packages.clear()
    parts._packages.update(before)


def prompts(path, count=40):
    path.write_text("".join(f"{'abcdefghij'[n % 10]} {'abcdefghij'[n % 7]} {n % 9}\n" for n in range(count)))
    return path


@kinds
def test_rollouts_are_drawn_from_the_policy_and_scored_alike(kind, base):
    model, tokenizers = load_model(base[kind]), load_tokenizers(base[kind], columns=2)
    texts = tokenizers[0].encode(["a b c", "d", "e f g h i", "b"])
    torch.manual_seed(3)
    found = draw(model, tokenizers, texts, longest=11)
    writers = Writers(tokenizers, joined=kind == "generator")
    batch = writers.batch(texts, [one.tokens for one in found], [one.ended for one in found])
    with torch.inference_mode():
        scored = _answers.log_probs(model, batch)
    for row, one in enumerate(found):
        assert scored[row, batch.valid[row]].tolist() == pytest.approx(one.token_log_probs, abs=1e-4)
    assert {one.ended for one in found} == {len(one.tokens) < 11 for one in found}


def test_what_is_drawn_follows_the_probabilities_of_the_policy_special_tokens_included(base):
    model, tokenizers = load_model(base["generator"]), load_tokenizers(base["generator"], columns=2)
    (prompt,) = tokenizers[0].encode(["a b"])
    with torch.inference_mode():
        wanted = model(torch.tensor([prompt]))[0, -1].softmax(-1)
    torch.manual_seed(5)
    found = draw(model, tokenizers, [prompt] * 4000, longest=1)
    first = [one.tokens[0] if one.tokens else tokenizers[1].eos for one in found]
    shares = torch.bincount(torch.tensor(first), minlength=len(wanted)) / len(first)
    assert float((shares - wanted).abs().sum()) < 4 * float((wanted * (1 - wanted) / 4000).sqrt().sum())
    assert float(wanted[list(tokenizers[1].never)].sum()) > 0 and shares[list(tokenizers[1].never)].sum() > 0


@kinds
def test_at_the_first_step_the_policy_is_its_reference(kind, base, tmp_path, letters):
    run("ppo", prompts(tmp_path / "p.txt"), tmp_path / "out", *SHORT, f"task.reward={letters}", start=base[kind])
    lines = [line for line in metrics(tmp_path / "out") if "figures" in line]
    figures = [line["figures"] for line in lines]
    assert figures[0]["kl"] == pytest.approx(0, abs=1e-4) and figures[0]["kl_positive"] == pytest.approx(0, abs=1e-4)
    assert figures[0]["clip_fraction"] == 0
    assert [one["reward"] for one in figures[:4]] == [figures[0]["reward"]] * 4  # four steps on the same answers
    assert figures[4]["kl_positive"] > 0 and figures[4]["reward"] != figures[3]["reward"]
    assert set(figures[0]) == {"reward", "kl", "kl_positive", "entropy", "value_loss", "clip_fraction", "answer_tokens"}
    assert 0 < figures[0]["entropy"] < np.log(300)
    assert draw_training(tmp_path / "out").stat().st_size > 10_000


@kinds
@pytest.mark.parametrize(("recipe", "killed"), [("ppo", 6), ("ppo", 3), ("minimum-risk", 4)])
def test_resumed_training_equals_uninterrupted_training(recipe, killed, kind, base, tmp_path, monkeypatch, letters):
    """Checkpoint 4 stands at the end of a rollout's passes, checkpoint 2 between them."""
    file, changes = prompts(tmp_path / "p.txt"), [*SHORT, f"task.reward={letters}", "task.samples=2"]
    run(recipe, file, tmp_path / "whole", *changes, start=base[kind])
    with monkeypatch.context() as patch, pytest.raises(StopError):
        interrupted(patch, killed)
        run(recipe, file, tmp_path / "cut", *changes, start=base[kind])
    run(recipe, file, tmp_path / "cut", *changes, start=base[kind])
    for name in ("model.safetensors", "checkpoints/7/model.safetensors", "checkpoints/7/optimizer.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes(), name
    if recipe == "ppo":
        name = "checkpoints/7/task.0.safetensors"
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes()


@kinds
@pytest.mark.parametrize("recipe", ["ppo", "minimum-risk"])
def test_the_finished_folder_is_an_ordinary_model(recipe, kind, base, tmp_path, letters):
    changes = [*SHORT, f"task.reward={letters}"]
    run(recipe, prompts(tmp_path / "p.txt"), tmp_path / "out", *changes, start=base[kind])
    names = set(load_model(tmp_path / "out").state_dict())
    assert names == set(load_model(base[kind]).state_dict())
    again = run(recipe, prompts(tmp_path / "p.txt"), tmp_path / "out", *changes, start=base[kind])  # finishes again
    assert again.finished
    parts._packages.clear()  # the reward was code; the model is none
    use = heedful.load(tmp_path / "out")
    assert type(use) is type(heedful.load(base[kind]))
    assert use.predict(["a b"])[0]["text"] is not None


def test_a_reward_that_is_code_runs_only_if_its_folder_is_named(base, tmp_path):
    with pytest.raises(ValueError, match="rewards.py:letter is code, which runs only if you name its folder: --parts "
                                         "FOLDER, with rewards.py in it"):  # fmt: skip
        run("ppo", prompts(tmp_path / "p.txt"), tmp_path / "out", *SHORT, "task.reward=rewards.py:letter",
            start=base["generator"])  # fmt: skip


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (
            "rewards.py:short",
            r"short must return a finite number for each of \d+ answers, but returned \[0.0\]",
        ),
        ("rewards.py:broken", "task.reward: rewards.py:broken has failed: TypeError"),
        ("rewards.py:none", "rewards.py has no function 'none'"),
        ("runs/nothing", "task.reward: there is no folder runs/nothing"),
    ],
)
def test_a_reward_that_does_not_work_is_named(reward, message, base, tmp_path, letters):
    with pytest.raises(ValueError, match=message):
        run("ppo", prompts(tmp_path / "p.txt"), tmp_path / "out", *SHORT, f"task.reward={reward}",
            start=base["generator"])  # fmt: skip


def test_references_are_needed_to_compare_with(base, tmp_path):
    with pytest.raises(ValueError, match="pairs must be TSV"):
        run("ppo", prompts(tmp_path / "p.txt"), tmp_path / "out", *SHORT, "task.reward=chrf", start=base["translator"])
    with pytest.raises(ValueError, match="improves the answers of a model, so it must start from one; name one: "):
        run("ppo", prompts(tmp_path / "p.txt"), tmp_path / "out", *SHORT, "task.pair=false")


@kinds
def test_a_reward_model_and_a_classifier_can_be_the_reward(kind, base, tmp_path):
    run("reward", compared(tmp_path / "p.jsonl"), tmp_path / "judge", "training.steps=2", start=base[kind])
    judge, tokenizers = heedful.load(tmp_path / "judge"), load_tokenizers(base[kind], columns=2)
    joined = kind == "generator"
    rows = [tokenizers[0].encode(["a b"])[0]], [tokenizers[1].encode(["b a"])[0]]
    rate = open_reward(str(tmp_path / "judge"), "", tokenizers, joined=joined)
    assert rate(*rows, [True], []) == pytest.approx(judge.score(["a b"], ["b a"]), abs=1e-5)
    with pytest.raises(ValueError, match="task.label is for classifiers, and .* is a reward model; leave it out"):
        open_reward(str(tmp_path / "judge"), "good", tokenizers, joined=joined)
    with pytest.raises(ValueError, match="was trained for .*; give a reward model or a classifier"):
        open_reward(str(base[kind]), "", tokenizers, joined=joined)
    file = tmp_path / "labelled.tsv"
    file.write_text("".join(f"{'a b' if n % 2 else 'c d'} {n % 5}\t{'good' if n % 2 else 'bad'}\n" for n in range(40)))
    small = ["model.width=16", "model.encoder.layers=1", "model.encoder.attention.heads=1", "training.steps=2"]
    run("classify", file, tmp_path / "classes", *small)
    rate = open_reward(str(tmp_path / "classes"), "good", tokenizers, joined=joined)
    text = tokenizers[1].decode([[*rows[0][0], *rows[1][0]] if joined else rows[1][0]])[0]
    (wanted,) = heedful.load(tmp_path / "classes").predict([text])
    assert rate(*rows, [True], []) == pytest.approx([wanted["scores"]["good"]], abs=1e-5)
    with pytest.raises(ValueError, match="must name a label of .*, whose probability is the reward, not 'god'; "
                                         "did you mean 'good'"):  # fmt: skip
        open_reward(str(tmp_path / "classes"), "god", tokenizers, joined=joined)


@kinds
def test_a_finished_model_is_evaluated_by_its_reward(kind, base, tmp_path, letters):
    changes = [*SHORT, f"task.reward={letters}"]
    run("ppo", prompts(tmp_path / "p.txt"), tmp_path / "out", *changes, start=base[kind])
    assert json.loads((tmp_path / "out" / "test.jsonl").read_text(encoding="utf-8").split("\n")[0])["prompt"]
    task = read_recipe("ppo", [f"task.reward={letters}", "task.pair=false"]).task
    found = task.figures(heedful.load(tmp_path / "out"), tmp_path / "out" / "test.jsonl", None)
    assert found["prompts"] > 0 and found["reward"] >= 0


def test_a_batch_of_answers_cannot_be_split(base, tmp_path):
    with pytest.raises(ValueError, match="task ppo compares the rows of a batch with each other"):
        run("ppo", prompts(tmp_path / "p.txt"), tmp_path / "out", *SHORT, "task.pair=false", "training.accumulate=2",
            start=base["generator"])  # fmt: skip
