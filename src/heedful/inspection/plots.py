"""Pictures of a training."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # files, not windows

from matplotlib import pyplot

from heedful.files import in_place
from heedful.training.journal import read_metrics


def draw_training(folder: Path) -> Path:
    """training.png in a model folder: loss, scores and learning rate over the steps."""
    lines = read_metrics(folder)
    steps = [line for line in lines if "loss" in line]
    valid = [line for line in lines if "valid" in line]
    scores = [name for name in ("bleu", "chrf", "accuracy") if valid and name in valid[0]["valid"]]
    figure, (loss, score, rate) = pyplot.subplots(3, 1, figsize=(8, 9), sharex=True, constrained_layout=True)
    _line(loss, steps, [line["loss"] for line in steps], "training", alpha=0.6)
    _line(loss, valid, [line["valid"]["loss"] for line in valid], "validation", marker="o")
    loss.set_ylabel("loss per token (nats)")
    for name in scores:
        _line(score, valid, [line["valid"][name] for line in valid], name, marker="o")
    score.set_ylabel("score on the validation set")
    score.set_ylim(0, 100)
    _line(rate, steps, [line["learning_rate"] for line in steps], "learning rate")
    rate.set_ylabel("learning rate")
    rate.set_xlabel("step")
    for axes in (loss, score, rate):
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[1]:
            axes.legend()
    path = folder / "training.png"
    with in_place(path) as temporary:
        figure.savefig(temporary, dpi=110, format="png")
    pyplot.close(figure)
    return path


def _line(axes: Any, lines: list[dict[str, Any]], values: list[float], label: str, **style: Any) -> None:
    if values:
        axes.plot([line["step"] for line in lines], values, label=label, **style)
