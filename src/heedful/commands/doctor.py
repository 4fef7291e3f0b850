"""`heedful doctor`: what this machine has, and what Heedful will use."""

import json
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

from heedful.commands.options import Parts

OPTIONAL = {"matplotlib": "plots", "tensorboard": "curves in TensorBoard", "transformers": "parity tests only"}


def doctor(
    model: Annotated[
        Path | None, typer.Argument(help="A model folder: show what runs each of its components on a CPU.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    parts: Parts = None,
) -> None:
    """Show what this machine has (cores, memory, GPU, packages) and what Heedful will use.

    For a model, show which components run on Heedful's CPU kernels, in training and in decoding, and why the others do
    not.

    Examples:

      heedful doctor

      heedful doctor runs/first
    """
    found = examine()
    rows = [] if model is None else paths(model)
    if as_json:
        print(json.dumps(found if model is None else {**found, "model": str(model), "parts": rows}, indent=2))
        return
    if model is not None:
        found = {"model": str(model), "kernels": found["kernels"]}
    for name, value in found.items():
        print(f"{name + ':':<16}{value}")
    if rows:
        print()
        print_table([list(rows[0]), *(list(row.values()) for row in rows)])


def paths(folder: Path) -> list[dict[str, str]]:
    """What runs each component of a model."""
    from heedful.checkpoint import load_model
    from heedful.model.cpu.report import report

    return [vars(row) for row in report(load_model(folder))]


def print_table(rows: list[list[str]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def examine() -> dict[str, Any]:
    import torch

    from heedful import __version__
    from heedful.data.prepare import default_cache
    from heedful.model.cpu.kernels import MISSING, NATIVE
    from heedful.threads import SETTLED
    from heedful.training.plan import free_memory
    from heedful.training.precision import choose

    device = "cuda" if torch.cuda.is_available() else "cpu"
    free = free_memory()
    return {
        "heedful": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": f"{torch.get_num_threads()} ({SETTLED.why})",
        "waiting": SETTLED.waiting,
        "kernels": f"torch only ({MISSING})" if NATIVE is None else f"native, for {NATIVE.PROCESSOR}",
        "memory free": f"{free / 2**30:.1f} GiB" if free else "unknown",
        "GPU": ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())) or "none",
        "trains on": f"{device}, in {choose(torch.device(device))}",
        "cache": str(default_cache()),
        **{f"{package}": _version(package, use) for package, use in OPTIONAL.items()},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _version(package: str, use: str) -> str:
    try:
        return f"{metadata.version(package)} ({use})"
    except metadata.PackageNotFoundError:
        return f"not installed ({use})"
