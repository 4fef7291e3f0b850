"""The losses of preferences against TRL and torchtune, on the same numbers, with gradients. Those of PPO need
`preference_oracles.sh`."""

import ast
import importlib.util
import os
import sys
import types
import typing
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from heedful import preferences

FOLDER = os.environ.get("HEEDFUL_PREFERENCE_ORACLES", "")
PAIRS, BATCH, LENGTH = 7, 5, 11
LENGTHS = torch.tensor([11, 7, 5, 1, 3])
VALID = torch.arange(LENGTH) < LENGTHS[:, None]


def numbers(*shape, seed, scale=1.0):
    return (scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))).requires_grad_()


def equal(ours, theirs, inputs, tolerance=1e-6):
    """The same value, and the same gradient at every input."""
    assert torch.allclose(ours, theirs, atol=tolerance, rtol=1e-5), (ours, theirs)
    first, second = (torch.autograd.grad(one.sum(), inputs, retain_graph=True) for one in (ours, theirs))
    for one, other in zip(first, second, strict=True):
        assert one.abs().max() > 0
        assert torch.allclose(one, other, atol=tolerance, rtol=1e-5)


def trainer(**settings):
    """What their method reads of a trainer."""
    values = {
        "model": SimpleNamespace(training=False),
        "accelerator": SimpleNamespace(device="cpu", gather=lambda one: one, gather_for_metrics=lambda one: one),
        "aux_loss_enabled": False, "ld_alpha": None, "precompute_ref_logps": True, "f_divergence_type": "reverse_kl",
        "loss_weights": [1.0], "use_weighting": False, "_metrics": defaultdict(lambda: defaultdict(list)),
        "_total_train_tokens": 0, "args": SimpleNamespace(center_rewards_coefficient=None),
    }  # fmt: skip
    return SimpleNamespace(**{**values, **settings})


@pytest.mark.parametrize(("kind", "ours"), [("sigmoid", preferences.dpo), ("ipo", preferences.ipo)])
@pytest.mark.parametrize("beta", [0.1, 0.37])
def test_dpo_and_ipo_are_those_of_trl(kind, ours, beta):
    trl = pytest.importorskip("trl", minversion="1.0")
    per_token = numbers(2 * PAIRS, LENGTH - 1, seed=1, scale=2.0)
    references = numbers(2, PAIRS, seed=2, scale=5.0).detach()
    lengths = torch.randint(1, LENGTH, (2 * PAIRS,), generator=torch.Generator().manual_seed(3))
    answer = torch.arange(LENGTH) > LENGTH - 1 - lengths[:, None]  # the last tokens of each row
    used = per_token * answer[:, 1:]

    def model(**inputs):
        extra = dict.fromkeys(("entropy", "mean_logits"), torch.zeros(2 * PAIRS, LENGTH - 1))
        return SimpleNamespace(log_probs=used, is_top1=torch.zeros(2 * PAIRS, LENGTH - 1, dtype=torch.bool), **extra)

    inputs = {"input_ids": torch.zeros(2 * PAIRS, LENGTH, dtype=torch.long), "completion_mask": answer,
              "ref_chosen_logps": references[0], "ref_rejected_logps": references[1]}  # fmt: skip
    theirs = trl.DPOTrainer._compute_loss(trainer(loss_types=[kind], beta=beta), model, inputs, False)
    ratios = used.sum(1).view(2, PAIRS) - references
    if kind == "ipo":
        ratios = ratios / lengths.view(2, PAIRS)
    equal(ours(*ratios, beta=beta).mean(), theirs, [per_token])


def test_smoothed_dpo_is_trls_loss_of_both_directions():
    """Their trainer smooths the losses exo, robust and aot alone; conservative DPO is torchtune's."""
    theirs = torchtune("rlhf/loss/dpo.py").DPOLoss(beta=0.3, label_smoothing=0.17)
    policy, reference = numbers(2, PAIRS, seed=1, scale=3.0), numbers(2, PAIRS, seed=2, scale=3.0).detach()
    losses, *rewards = theirs(*policy, *reference)
    ratios = policy - reference
    equal(preferences.dpo(*ratios, beta=0.3, smoothing=0.17), losses, [policy])
    assert torch.allclose(0.3 * ratios, torch.stack(rewards))


def test_the_loss_of_rewards_is_that_of_trl():
    trl = pytest.importorskip("trl", minversion="1.0")
    rewards = numbers(2, PAIRS, seed=4, scale=3.0)

    def model(**inputs):
        return SimpleNamespace(logits=rewards.reshape(-1, 1))

    theirs = trl.RewardTrainer.compute_loss(trainer(), model, {}, False)
    equal(preferences.bradley_terry(*rewards).mean(), theirs, [rewards])


def test_rewards_and_advantages_are_those_of_trl():
    ours, theirs = preferences, trl_of_old()
    scores, (log_probs, reference) = numbers(BATCH, seed=1).detach(), numbers(2, BATCH, LENGTH, seed=2).detach()
    values = numbers(BATCH, LENGTH, seed=3).detach()
    mine = ours.token_rewards(scores, log_probs, reference, VALID, beta=0.2)
    wanted, _, divergence = theirs.compute_rewards(scores, log_probs, reference, VALID.long())
    assert torch.allclose(mine, wanted * VALID)
    assert torch.allclose(ours.divergence(log_probs, reference), divergence)
    _, advantages, returns = theirs.compute_advantages(values, wanted, VALID.float())
    found, gained = ours.estimate_advantages(mine, values, VALID, discount=0.9, smoothing=0.8)
    assert torch.allclose(gained[VALID], returns[VALID], atol=1e-6)
    assert torch.allclose(ours.whiten(found, VALID)[VALID], advantages[VALID], atol=1e-6)


def test_the_losses_of_ppo_are_those_of_trl():
    theirs = trl_of_old()
    logits = torch.zeros(BATCH, LENGTH, 3)
    old, advantages, returns, held = (numbers(BATCH, LENGTH, seed=seed).detach() for seed in (1, 2, 3, 4))
    log_probs = (old + 0.3 * numbers(BATCH, LENGTH, seed=5).detach()).requires_grad_()
    values = (held + 0.3 * numbers(BATCH, LENGTH, seed=6).detach()).requires_grad_()
    policy, value, stats = theirs.loss(old, held, logits, values, log_probs, VALID.long(), advantages, returns)
    mine, clipped = preferences.policy_loss(log_probs, old, advantages, VALID, clip=0.2)
    equal(mine, policy, [log_probs])
    assert 0 < float(clipped) < 1
    assert float(clipped) == pytest.approx(float(stats["policy/clipfrac"]))
    equal(0.1 * preferences.value_loss(values, held, returns, VALID, clip=0.2), value, [values])


def test_advantages_and_losses_are_those_of_torchtune():
    """Where their advantages are whitened, the mean is added back: it is taken away here."""
    rewards, loss = torchtune("rlhf/rewards.py"), torchtune("rlhf/loss/ppo.py").PPOLoss(epsilon=0.2, value_coeff=1.0)
    scores, (log_probs, reference) = numbers(BATCH, seed=1).detach(), numbers(2, BATCH, LENGTH, seed=2).detach()
    held = numbers(BATCH, LENGTH, seed=3).detach() * VALID
    wanted, *_ = rewards.get_rewards_ppo(scores, log_probs, reference, 0.2, LENGTHS - 1)
    mine = preferences.token_rewards(scores, log_probs, reference, VALID, beta=0.2)
    assert torch.allclose(mine, wanted * VALID)
    advantages, returns = rewards.estimate_advantages(held, mine, 0.9, 0.8, VALID)
    found, gained = preferences.estimate_advantages(mine, held, VALID, discount=0.9, smoothing=0.8)
    assert torch.allclose(gained[VALID], returns[VALID], atol=1e-6)
    shifted = advantages[VALID] - rewards.masked_mean(found, VALID)
    assert torch.allclose(preferences.whiten(found, VALID)[VALID], shifted, atol=1e-6)

    policy = (log_probs + 0.3 * numbers(BATCH, LENGTH, seed=5).detach()).requires_grad_()
    values = (held + 0.3 * numbers(BATCH, LENGTH, seed=6).detach()).requires_grad_()
    whole, *_ = loss(log_probs, policy, found, held, values, gained, VALID, VALID)
    ours, _ = preferences.policy_loss(policy, log_probs, found, VALID, clip=0.2)
    equal(ours + preferences.value_loss(values, held, gained, VALID, clip=0.2), whole, [policy, values])


def torchtune(path):
    """A file of theirs, without the rest of the package."""
    found = importlib.util.spec_from_file_location("theirs", _held("torchtune") / path)
    stand_in = types.ModuleType("torchtune")
    if path != "rlhf/rewards.py":
        stand_in.rlhf = torchtune("rlhf/rewards.py")
    before, sys.modules["torchtune"] = sys.modules.get("torchtune"), stand_in
    try:
        module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)
    finally:
        del sys.modules["torchtune"]
        if before is not None:
            sys.modules["torchtune"] = before
    return module


def trl_of_old():
    """The last PPOTrainer that had functions of numbers, without what it imports."""
    core, trainer_file = _held("trl") / "core.py", _held("trl") / "trainer" / "ppo_trainer.py"
    names = {**vars(typing), "torch": torch, "F": F, "warnings": __import__("warnings"), "math": __import__("math"),
             "Mapping": dict}  # fmt: skip
    for file, inside in ((core, None), (trainer_file, "PPOTrainer")):
        body = ast.parse(file.read_text(encoding="utf-8")).body
        if inside:
            body = next(one for one in body if isinstance(one, ast.ClassDef) and one.name == inside).body
        wanted = {"masked_mean", "masked_var", "masked_whiten", "clip_by_value", "entropy_from_logits", "flatten_dict",
                  "compute_rewards", "_kl_penalty", "compute_advantages", "loss"}  # fmt: skip
        held = [one for one in body if isinstance(one, ast.FunctionDef) and one.name in wanted]
        exec(compile(ast.Module(held, []), str(file), "exec"), names)
    settings = SimpleNamespace(kl_penalty="kl", whiten_rewards=False, gamma=0.9, lam=0.8, cliprange=0.2,
                               cliprange_value=0.2, vf_coef=0.1, ratio_threshold=10.0)  # fmt: skip
    found = SimpleNamespace(config=settings, kl_ctl=SimpleNamespace(value=0.2))
    for name in ("compute_rewards", "_kl_penalty", "compute_advantages", "loss"):
        setattr(found, name, types.MethodType(names[name], found))
    return found


def _held(package):
    if not FOLDER:
        pytest.skip("HEEDFUL_PREFERENCE_ORACLES names no folder; see preference_oracles.sh")
    return Path(FOLDER) / package
