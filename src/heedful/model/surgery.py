"""The one way to change a built model: replace its modules."""

from collections.abc import Callable

from torch import nn


def replace_modules(model: nn.Module, change: Callable[[str, nn.Module], nn.Module | None]) -> int:
    """Replace each module by `change(name, module)`, unless that is None; returns the number of replacements."""
    count = 0
    for name, module in list(model.named_modules()):
        new = change(name, module) if name else None
        if new is not None:
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, new)
            count += 1
    return count
