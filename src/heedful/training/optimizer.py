"""Adam, and its memory as plain named tensors."""

import inspect
from typing import Any

import torch
from torch import Tensor

from heedful.model.architecture import Model
from heedful.training.recipe import TrainingConfig


def build_optimizer(config: TrainingConfig, model: Model) -> torch.optim.Optimizer:
    """Adam or AdamW for all that is not frozen; decay, if any, is for matrices only: norms and biases have nothing to
    lose."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in trained if parameter.ndim > 1]
    others = [parameter for parameter in trained if parameter.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
    kind = AdamW if config.optimizer == "adamw" else Adam
    return kind(groups, lr=1.0, betas=config.betas, eps=config.eps, fused=model.device.type in ("cpu", "cuda"))


class _Plain(torch.optim.Optimizer):
    """torch's own, without what it does for `torch.compile`: taking up parameters, it would import the whole compiler,
    75 MB and a second, only to keep it out."""

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        return inspect.unwrap(super().step.__func__)(self, closure)  # type: ignore[attr-defined]


class Adam(_Plain, torch.optim.Adam):
    pass


class AdamW(_Plain, torch.optim.AdamW):
    pass


def optimizer_state(optimizer: torch.optim.Optimizer, model: Model) -> dict[str, Tensor]:
    """Every number the optimizer keeps, under its parameter's name."""
    return {
        f"{name}/{key}": value.detach().clone().contiguous()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
        for key, value in optimizer.state[parameter].items()
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, model: Model, tensors: dict[str, Tensor]) -> None:
    parameters = dict(model.named_parameters())
    for name, tensor in tensors.items():
        owner, _, key = name.rpartition("/")
        optimizer.state[parameters[owner]][key] = tensor.to(parameters[owner].device)
