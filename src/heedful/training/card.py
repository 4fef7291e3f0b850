"""The model card: what the model is, its training data and its scores."""

import platform
from datetime import UTC, datetime

import torch

from heedful import __version__
from heedful.data.columns import is_pair
from heedful.data.prepare import Prepared
from heedful.model.architecture import Model
from heedful.training.loop import Progress
from heedful.training.recipe import Recipe


def card(
    recipe: Recipe,
    prepared: Prepared,
    progress: Progress,
    numbers: dict[str, float],
    samples: list[dict[str, str]],
    memory: int,
    model: Model,
) -> str:
    parameters = sum(parameter.numel() for parameter in model.parameters())
    data = recipe.data
    languages = (
        f"{data.source_language or '?'} -> {data.target_language or '?'}" if is_pair(prepared.columns) else "text"
    )
    rows = prepared.facts["rows"]
    counted = "target tokens" if is_pair(prepared.columns) else "tokens"
    files = [
        f"| {split} | {name} | `{digest}` |"
        for split, found in prepared.facts["files"].items()
        for name, digest in found.items()
    ]
    base = f"Trained as an adapter ({recipe.adapter.kind}) of {recipe.start_from}." if recipe.adapter else ""
    examples = [f"- {name}: {text!r}" for sample in samples for name, text in sample.items()]
    return "\n".join(
        [
            f"# A {recipe.task.kind} model, {languages}",
            "",
            f"Made with heedful {__version__} on {datetime.now(UTC):%Y-%m-%d}. {model.config.kind}, "
            f"{parameters:,} parameters"
            + (f", vocabulary {prepared.tokenizers[-1].vocab:,}." if prepared.tokenizers else "."),
            "",
            *([base, ""] if base else []),
            "## Scores on the validation set"
            if prepared.has("valid")
            else "## Scores on the training data (nothing was held out)",
            "",
            "| score | value |",
            "|---|---|",
            *(f"| {name} | {value:.4f} |" for name, value in numbers.items()),
            "",
            *([recipe.task.note, ""] if recipe.task.note else []),
            "## Training",
            "",
            f"{progress.step:,} steps, {progress.tokens:,} {counted} in {progress.seconds:,.0f} s "
            f"({progress.tokens / max(1e-9, progress.seconds):,.0f} tokens/s) on {platform.machine()}, "
            f"{torch.get_num_threads()} threads; peak memory {memory / 2**20:,.0f} MiB; seed {recipe.seed}. "
            f"Best {recipe.training.metric} at step {progress.best_step:,}. All settings are in config.yaml.",
            "",
            "## Data",
            "",
            f"{rows['train']:,} for training, {rows['valid']:,} for validation, {rows['test']:,} for test; "
            f"{prepared.facts['too_long']:,} skipped as too long.",
            "",
            "| split | file | BLAKE2b of its content |",
            "|---|---|---|",
            *files,
            "",
            "## Examples",
            "",
            *examples,
            "",
        ]
    )
