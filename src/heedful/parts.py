"""Where parts are found: in the package's own folders, and in those that a person has named.

A part of a person's own lives in a folder laid out like ours, or in an installed package with an entry point:

    my_parts/attention/mine.py               [project.entry-points."heedful.parts"]
    my_parts/tasks/other.py                  my-parts = "my_package"

`use("./my_parts")` or `use("my-parts")` makes them known to this process. Nothing else does: a model folder only says
which parts it needs, and opening one runs no code that the person has not named.
"""

import importlib
import pkgutil
import re
import sys
from collections.abc import Iterable
from hashlib import blake2b
from importlib import metadata
from pathlib import Path
from types import ModuleType

GROUP = "heedful.parts"
_packages: dict[str, str] = {}  # name -> the package that its modules are in


def use(name: str) -> str:
    """Make the parts of a folder, or of an installed package, known; gives the name by which a model folder will ask
    for them: the folder's own, or the package's."""
    path = Path(name)
    if name and path.is_dir():
        found, package = path.resolve().name, _package_of(path.resolve())
    else:
        entries = {entry.name: entry.module for entry in metadata.entry_points(group=GROUP)}
        if name not in entries:
            raise ValueError(
                f"there are no parts {name!r}: neither a folder nor an installed package with an entry point in {GROUP}"
                + (f"; installed: {', '.join(sorted(entries))}" if entries else "")
            )
        found, package = name, entries[name]
    if _packages.get(found, package) != package:
        raise ValueError(f"two folders of parts are called {found!r}; rename one")
    for kind, own in _clashes(package):
        raise ValueError(f"{name}: {kind} has the name of one of heedful's own parts ({own}); rename the file")
    _packages[found] = package
    return found


def listed(names: object) -> list[str]:
    """What a recipe or a model folder says under `parts`: a name, or a list of them."""
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
    """Refuse to go on where `place` needs parts that the person has not named."""
    missing = [name for name in names if name not in _packages]
    if missing:
        listed = ", ".join(missing)
        raise ValueError(
            f"{place} needs parts that are not heedful's own ({listed}), which are code; "
            f"if you trust them, name their folder: --parts PATH/{missing[0]}"
        )


def modules(folder: str) -> dict[str, str]:
    """kind -> the full name of its module, for every part of this folder: `model/attention` of ours, `attention` of a
    person's. Files whose names begin with `_` are helpers."""
    found = _names("heedful." + folder.replace("/", "."))
    for package in _packages.values():
        for kind, module in _names(f"{package}.{folder.rpartition('/')[2]}").items():
            if kind in found:
                raise ValueError(f"two parts are called {folder.rpartition('/')[2]}/{kind}; rename one")
            found[kind] = module
    return found


def load(module: str) -> ModuleType:
    """The module; a part of a person's own that cannot be imported is said so in one line."""
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
            return {}  # it has no such folder
        raise ValueError(f"{package} cannot be used: {error}") from error
    names = (module.name for module in pkgutil.iter_modules(path))
    return {name: f"{package}.{name}" for name in names if not name.startswith("_")}


def _package_of(folder: Path) -> str:
    """A folder as a package: its files may then import each other."""
    digest = blake2b(str(folder).encode(), digest_size=4).hexdigest()
    name = re.sub(r"\W", "_", f"heedful_parts_{folder.name}_{digest}")
    if name not in sys.modules:
        package = ModuleType(name, f"Parts in {folder}")
        package.__path__ = [str(folder)]
        sys.modules[name] = package
    return name


def _clashes(package: str) -> list[tuple[str, str]]:
    """Parts with the name of one of ours: (theirs, ours)."""
    folders = ("model/attention", "model/position", "model/input", "model/stack", "model/architecture", "tasks")
    found = []
    for folder in folders:
        last = folder.rpartition("/")[2]
        own = _names("heedful." + folder.replace("/", "."))
        found += [(f"{last}/{kind}.py", own[kind]) for kind in _names(f"{package}.{last}") if kind in own]
    return found
