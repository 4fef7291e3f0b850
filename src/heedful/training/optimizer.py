"""Adam, and its memory as plain named tensors."""

import torch
from torch import Tensor

from heedful.model.models import Model
from heedful.training.recipe import TrainingConfig


def build_optimizer(config: TrainingConfig, model: Model) -> torch.optim.Optimizer:
    """Adam or AdamW; decay, if any, is for matrices only: norms and biases have nothing to lose."""
    device = model.embedding.weight.device
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    others = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
    kind = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam
    return kind(groups, lr=1.0, betas=config.betas, eps=config.eps, fused=device.type in ("cpu", "cuda"))


def optimizer_state(optimizer: torch.optim.Optimizer, model: Model) -> dict[str, Tensor]:
    """Every number the optimizer keeps, under its parameter's name."""
    return {
        f"{name}/{key}": value.detach().clone().contiguous()
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state[parameter].items()
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, model: Model, tensors: dict[str, Tensor]) -> None:
    parameters = dict(model.named_parameters())
    for name, tensor in tensors.items():
        owner, _, key = name.rpartition("/")
        optimizer.state[parameters[owner]][key] = tensor.to(parameters[owner].device)
