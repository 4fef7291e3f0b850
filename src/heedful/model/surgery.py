"""The one way to change a built model: replace modules, by looking at each and saying what comes in its place."""

from collections.abc import Callable

from torch import nn


def replace_modules(model: nn.Module, change: Callable[[str, nn.Module], nn.Module | None]) -> int:
    """Ask `change(name, module)` of every module; what it gives takes the place, None leaves it. How many changed."""
    count = 0
    for name, module in list(model.named_modules()):
        new = change(name, module) if name else None
        if new is not None:
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, new)
            count += 1
    return count
