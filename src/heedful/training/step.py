"""The loss of a step as a module, and what is done to a model before training: freezing, gradient checkpointing."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as recompute

from heedful.model.architecture import Model
from heedful.model.stack import Stack
from heedful.tasks import Batch, State, Task

Figures = dict[str, tuple[Tensor, float]]  # name -> total, count


class StepLoss(nn.Module):
    """The loss of a batch as a module, which is what DDP and torch.compile can wrap: weighted totals by term, the
    totals without label smoothing if it is used, the figures to log (total, count), and the state."""

    def __init__(self, model: Model, task: Task) -> None:
        super().__init__()
        self.model, self.task = model, task
        self.unused: list[nn.Parameter] = []

    def forward(self, batch: Batch, state: State) -> tuple[dict[str, Tensor], dict[str, Tensor], Figures, State]:
        loss = self.task.loss(self.model, batch, state=state)
        found = {name: term.count for name, term in loss.terms.items()}
        if found != dict(batch.counts):
            raise TypeError(f"the loss counts {found}, but its batch {dict(batch.counts)}")
        plains = {name: term.plain for name, term in loss.terms.items() if term.plain is not None}
        totals = {name: term.total * term.weight for name, term in loss.terms.items()}
        first = next(iter(totals))
        for parameter in self.unused:
            totals[first] = totals[first] + 0 * parameter.sum()
        figures = {name: (term.total.detach(), term.count) for name, term in loss.figures.items()}
        return totals, plains, figures, loss.state


def tokens_in(batch: Batch) -> int:
    """How many tokens a batch has, for its speed."""
    return int(getattr(batch, "tokens_read", 0) or next(iter(batch.counts.values())))


def freeze(model: nn.Module, parts: tuple[str, ...]) -> frozenset[str]:
    """Exclude these parts from training; returns the names of their weights."""
    names = [name for name, _ in model.named_parameters()]
    frozen: set[str] = set()
    for part in parts:
        found = {name for name in names if name == part or name.startswith(part + ".")}
        if not found:
            known = ", ".join(dict.fromkeys(name.split(".")[0] for name in names))
            raise ValueError(f"training.freeze names {part!r}, which this model does not have; its parts: {known}")
        frozen |= found
    if frozen and len(frozen) == len(names):
        raise ValueError("training.freeze names the whole model; leave something to train")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen)
    return frozenset(frozen)


def load_trained(model: nn.Module, weights: Mapping[str, Tensor], frozen: frozenset[str]) -> None:
    """Set the weights that are not frozen, all of them."""
    missing, unexpected = model.load_state_dict(weights, strict=False)
    wrong = [*unexpected, *(name for name in missing if name not in frozen)]
    if wrong:
        raise ValueError(f"the checkpoint does not fit the model: {wrong[0]}")


def recompute_layers(model: Model) -> None:
    """Gradient checkpointing: intermediate results of layers are discarded, and recomputed in the backward pass."""
    stacks = [module for module in model.modules() if isinstance(module, Stack)]
    layers = [layer for stack in stacks for layer in stack.recomputable()]
    for stack in stacks:
        stack.recomputed = True
    if not layers:
        raise ValueError("this model has no layers that can be recomputed; set training.recompute=false")
    for layer in layers:
        plain = layer.forward

        def forward(*inputs: Any, plain: Any = plain, **options: Any) -> Any:
            return recompute(plain, *inputs, use_reentrant=False, **options)

        layer.forward = forward
