"""The import direction of the design: parts import upwards only, and nothing imports in a circle."""

import ast
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "heedful"

# From the ground up; what stands on one line does not know its neighbours. A part may know every line above it.
LEVELS = [
    {"bounded", "files", "memory", "parts", "processors", "startup"},
    {"config", "threads"},
    {"busy"},
    {"text", "model", "mini"},
    {"data", "families", "adapters", "evaluation", "objectives", "preferences"},
    {"bank"},
    {"decoding"},
    {"exchange"},
    {"bases"},
    {"checkpoint"},
    {"alignment"},
    {"translator", "generator"},
    {"chatter"},
    {"tasks"},
    {"training", "search"},
    {"inspection"},
    {"serving"},
    {"commands"},
    {"__main__"},
]
# Narrower than their line allows.
ONLY = {
    "text": {"bounded", "config", "files"},
    "mini": {"files"},
    "model": {"bounded", "busy", "config"},
    "data": {"bounded", "config", "files", "text"},
    "evaluation": {"text"},
    "families": {"config", "model"},
    "adapters": {"config", "model"},
    "objectives": {"model"},
    "preferences": set(),
    "bank": {"adapters", "config", "model"},
    "decoding": {"bank", "bounded", "config", "files", "memory", "text", "data", "model"},
}
LEVEL = {part: number for number, parts in enumerate(LEVELS) for part in parts}


def modules() -> dict[str, Path]:
    names = {}
    for path in PACKAGE.rglob("*.py"):
        parts = ("heedful", *path.relative_to(PACKAGE).with_suffix("").parts)
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def imports(path: Path, known: set[str], *, lazy: bool) -> set[str]:
    """The heedful modules a file imports; those inside functions and under TYPE_CHECKING only if `lazy`."""
    found = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree) if lazy else tree.body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {full if (full := f"{node.module}.{alias.name}") in known else node.module for alias in node.names}
    return {name for name in found if name == "heedful" or name.startswith("heedful.")}


def part_of(module: str) -> str:
    pieces = module.split(".")
    return pieces[1] if len(pieces) > 1 else ""


def test_every_part_has_its_place_in_the_design():
    parts = {part_of(name) for name in modules()} - {""}
    assert parts <= set(LEVEL), f"not in the design: {parts - set(LEVEL)}"


def test_parts_import_upwards_only():
    known = modules()
    wrong = []
    for name, path in known.items():
        part = part_of(name)
        for other in imports(path, set(known), lazy=True):
            there = part_of(other)
            if not part or not there or there == part:
                continue
            if LEVEL[there] >= LEVEL[part] or there not in ONLY.get(part, LEVEL):
                wrong.append(f"{name} imports {other}")
    assert not wrong, wrong


def test_no_import_cycles():
    known = modules()
    graph = {name: imports(path, set(known), lazy=False) & set(known) - {name} for name, path in known.items()}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail[trail.index(name) :], name))
        if name not in done:
            for other in graph[name]:
                visit(other, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_text_never_imports_torch():
    for name, path in modules().items():
        if part_of(name) == "text":
            assert "import torch" not in path.read_text(encoding="utf-8"), name


def test_help_imports_nothing_heavy():
    code = "import sys, heedful.commands.main; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "numpy", "tokenizers", "sacrebleu", "fastapi", "matplotlib"} & set(loaded)


def test_init_files_re_export_nothing():
    """An `__init__` may import what its contract needs, but no module of its own folder: that way lie cycles."""
    known = modules()
    for name, path in known.items():
        if path.name == "__init__.py" and name != "heedful":
            inside = {other for other in imports(path, set(known), lazy=False) if other.startswith(name + ".")}
            assert not inside, f"{name} imports its own {inside}"


def test_nothing_unpickles():
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for word in ("import pickle", "torch.load(", "yaml.load(", "joblib"):
            assert word not in text, f"{path.name} uses {word}"


def test_models_are_asked_for_what_they_promise_and_not_for_their_class():
    """`isinstance(model, EncoderDecoder)` stands in no file but that class's own: others ask the contracts."""
    concrete = {"EncoderDecoder", "DecoderOnly", "EncoderOnly"}
    wrong = []
    for name, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
                named = {one.id for one in ast.walk(node.args[1]) if isinstance(one, ast.Name)}
                own = {
                    one.name
                    for one in ast.parse(path.read_text(encoding="utf-8")).body
                    if isinstance(one, ast.ClassDef)
                }
                if (named & concrete) - own:
                    wrong.append(f"{name}:{node.lineno}")
    assert not wrong, wrong


def test_special_tokens_are_the_tokenizers_business():
    for name, path in modules().items():
        if name != "heedful.text.tokenizer":
            text = path.read_text(encoding="utf-8")
            assert not {"BOS", "EOS", "PAD", "UNK"} & {
                node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)
            }, name


def test_helper_files_of_a_drop_in_folder_are_no_kinds(tmp_path, monkeypatch):
    from heedful import parts

    package = tmp_path / "some_package"
    package.mkdir()
    for file in ("__init__.py", "one.py", "_helper.py"):
        (package / file).write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert parts._names("some_package") == {"one": "some_package.one"}
