"""Adam, and its state as named tensors."""

import inspect
from typing import Any

import torch
from torch import Tensor

from heedful.model.architecture import Model
from heedful.training.recipe import TrainingConfig


def build_optimizer(config: TrainingConfig, model: Model) -> torch.optim.Optimizer:
    """Adam or AdamW for all weights that are not frozen. Weight decay applies to matrices, not to norms and biases, nor
    to what a module lists in `undecayed`."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    spared = {id(getattr(module, name)) for module in model.modules() for name in getattr(module, "undecayed", ())}
    matrices = [parameter for parameter in trained if parameter.ndim > 1 and id(parameter) not in spared]
    others = [parameter for parameter in trained if parameter.ndim <= 1 or id(parameter) in spared]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
    kind = AdamW if config.optimizer == "adamw" else Adam
    return kind(groups, lr=1.0, betas=config.betas, eps=config.eps, fused=model.device.type in ("cpu", "cuda"))


class _Plain(torch.optim.Optimizer):
    """torch's own, without its support for `torch.compile`: adding parameters would import the whole compiler, 75 MB
    and a second, only to disable it."""

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
    """The optimizer's state tensors, under the names of their parameters."""
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
