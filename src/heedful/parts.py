"""Finding components (parts): in the package's own folders, and in those that the user has named.

A custom component lives in a folder with the same layout, or in an installed package with an entry point:

    my_parts/attention/mine.py               [project.entry-points."heedful.parts"]
    my_parts/tasks/other.py                  my-parts = "my_package"

`use("./my_parts")` or `use("my-parts")` makes them available to this process. Nothing else does: a model folder only
records which parts it needs, and loading one never runs code that the user has not named.
"""

import importlib
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable
from hashlib import blake2b
from importlib import metadata, util
from pathlib import Path
from types import ModuleType
from typing import Any

GROUP = "heedful.parts"
FOLDERS = ("model/attention", "model/position", "model/input", "model/stack", "model/architecture", "tasks")
_packages: dict[str, str] = {}  # name -> the package that contains its modules


def use(name: str) -> str:
    """Make the parts of a folder or installed package available; returns the name by which model folders refer to
    them: the folder's or the package's."""
    path = Path(name)
    if name and path.is_dir():
        found, package = path.resolve().name, _package_of(path.resolve())
    else:
        entries = {entry.name: entry.module for entry in metadata.entry_points(group=GROUP)}
        if name not in entries:
            raise ValueError(
                f"no parts {name!r}: it is neither a folder nor an installed package with an entry point in {GROUP}"
                + (f"; installed: {', '.join(sorted(entries))}" if entries else "")
            )
        found, package = name, entries[name]
    if _packages.get(found, package) != package:
        raise ValueError(f"two folders of parts are called {found!r}; rename one")
    for kind, own in _clashes(package):
        raise ValueError(f"{name}: {kind} has the same name as a built-in part ({own}); rename the file")
    _packages[found] = package
    return found


def listed(names: object) -> list[str]:
    """The value of `parts` in a recipe or model folder, a name or a list of names, as a list."""
    if names is None or names == "":
        return []
    if isinstance(names, str):
        return [names]
    if isinstance(names, list | tuple) and all(isinstance(name, str) for name in names):
        return list(names)
    raise ValueError(f"parts is a name or a list of names, not {names!r}")


def used() -> list[str]:
    """The names of the parts in use."""
    return list(_packages)


def require(names: Iterable[str], *, place: str) -> None:
    """Raise an error if `place` needs parts that the user has not named."""
    missing = [name for name in names if name not in _packages]
    if missing:
        listed = ", ".join(missing)
        raise ValueError(
            f"{place} needs custom parts ({listed}), which are code; "
            f"if you trust them, name their folder: --parts PATH/{missing[0]}"
        )


def modules(folder: str) -> dict[str, str]:
    """kind -> the full name of its module, for every part of this folder: `model/attention` in the package, `attention`
    in custom folders. Files whose names begin with `_` are helpers."""
    found = _names("heedful." + folder.replace("/", "."))
    for package in _packages.values():
        for kind, module in _names(f"{package}.{folder.rpartition('/')[2]}").items():
            if kind in found:
                raise ValueError(f"two parts are called {folder.rpartition('/')[2]}/{kind}; rename one")
            found[kind] = module
    return found


def has_components(name: str) -> bool:
    """Whether a folder of parts in use holds components of models and tasks, not only functions."""
    return any(_names(f"{_packages[name]}.{folder.rpartition('/')[2]}") for folder in FOLDERS)


def function(name: str) -> Callable[..., Any]:
    """The function that `file.py:function` names, in a folder of parts that is in use."""
    file, _, called = name.partition(":")
    stem = file.removesuffix(".py")
    if not (stem.isidentifier() and called.isidentifier()):
        raise ValueError(f"{name!r} is not of the form file.py:function, such as rewards.py:polite")
    found = [package for package in _packages.values() if util.find_spec(f"{package}.{stem}") is not None]
    if not found:
        raise ValueError(f"{name} is code, which runs only if you name its folder: --parts FOLDER, with {file} in it")
    held = getattr(load(f"{found[0]}.{stem}"), called, None)
    if not callable(held):
        raise ValueError(f"{file} has no function {called!r}")
    return held


def load(module: str) -> ModuleType:
    """Import the module; a custom part that cannot be imported gives a one-line error."""
    if module.startswith("heedful."):
        return importlib.import_module(module)
    try:
        return importlib.import_module(module)
    except Exception as error:
        where = "/".join(module.split(".")[1:])
        raise ValueError(f"the part {where}.py cannot be used: {type(error).__name__}: {error}") from error


def _names(package: str) -> dict[str, str]:
    try:
        path = importlib.import_module(package).__path__
    except ModuleNotFoundError as error:
        if error.name is not None and (package == error.name or package.startswith(f"{error.name}.")):
            return {}  # there is no such folder
        raise ValueError(f"{package} cannot be used: {error}") from error
    names = (module.name for module in pkgutil.iter_modules(path))
    return {name: f"{package}.{name}" for name in names if not name.startswith("_")}


def _package_of(folder: Path) -> str:
    """Make a folder a package, so that its files can import each other."""
    digest = blake2b(str(folder).encode(), digest_size=4).hexdigest()
    name = re.sub(r"\W", "_", f"heedful_parts_{folder.name}_{digest}")
    if name not in sys.modules:
        package = ModuleType(name, f"Parts in {folder}")
        package.__path__ = [str(folder)]
        sys.modules[name] = package
    return name


def _clashes(package: str) -> list[tuple[str, str]]:
    """Custom parts with the name of a built-in one: (custom, built-in)."""
    found = []
    for folder in FOLDERS:
        last = folder.rpartition("/")[2]
        own = _names("heedful." + folder.replace("/", "."))
        found += [(f"{last}/{kind}.py", own[kind]) for kind in _names(f"{package}.{last}") if kind in own]
    return found
