"""The one way to change a built model: replace its modules."""

from collections.abc import Callable
from typing import TypeVar

from torch import nn

ModuleT = TypeVar("ModuleT", bound=nn.Module)


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


def adopted(module: nn.Module, kind: type[ModuleT]) -> ModuleT:
    """The module as an instance of another class, with the same tensors under the same names. The class is derived from
    the module's own, or the reverse; what it has besides is set afterwards."""
    if not (issubclass(kind, type(module)) or isinstance(module, kind)):
        raise TypeError(f"a {type(module).__name__} cannot become a {kind.__name__}")
    found = kind.__new__(kind)
    found.__dict__.update(module.__dict__)
    for name in ("_parameters", "_buffers", "_modules"):
        found.__dict__[name] = dict(module.__dict__[name])
    return found
