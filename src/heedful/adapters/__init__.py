"""Adapters: a few new weights beside a frozen model. One file each; the file's name is the name in a recipe.

An adapter is added to a built model by replacing some of its modules (`model/surgery.py`), so it serves every
architecture that has these modules. The base's weights keep their names and stay where they are.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import ClassVar

from torch import nn

from heedful.config import PartConfig
from heedful.model.architecture import Model


class AdapterConfig(PartConfig):
    """The contract. `neutral`: whether it changes nothing before it is trained."""

    folder: ClassVar[str] = "adapters"
    default: ClassVar[str] = "lora"
    neutral: ClassVar[bool] = True

    @property
    def merges(self) -> bool:
        """Whether it can be folded into the base's weights: a model without the adapter that computes the same."""
        return False

    def install(self, model: Model) -> set[str]:
        """Add it to a built model, in place; returns the names of the parameters to train."""
        raise NotImplementedError

    def merge(self, model: Model) -> None:
        """Fold what `install` added, now trained, into the base's weights, in place; its modules are plain again."""
        raise ValueError(f"adapter {self.kind} cannot be merged: it is more than a change of weights")


class Adapted:
    """What a module that an adapter has changed inherits from, so that it can be found. `active` off: it computes what
    the base's module would."""

    active: bool = True


def install(config: AdapterConfig, model: Model, new: Iterable[str] = ()) -> frozenset[str]:
    """Add an adapter to a model and freeze all but its weights and those named `new`, such as a head that the base does
    not have. Returns the names of what is trained."""
    trained = frozenset({*config.install(model), *new})
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trained)
    return trained


@contextmanager
def without(model: nn.Module) -> Iterator[None]:
    """The base alone, within this context."""
    found = [module for module in model.modules() if isinstance(module, Adapted) and module.active]
    for module in found:
        module.active = False
    try:
        yield
    finally:
        for module in found:
            module.active = True
