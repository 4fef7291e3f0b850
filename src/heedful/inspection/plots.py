"""Plots of training curves, attention, positions and learning rate schedules."""

import logging
from importlib.util import find_spec
from pathlib import Path
from textwrap import wrap
from typing import Any
from unicodedata import east_asian_width
from warnings import catch_warnings, simplefilter

import matplotlib
import torch

matplotlib.use("Agg")  # files, not windows

from matplotlib import font_manager, pyplot

from heedful.files import in_place
from heedful.inspection.attention import Attention
from heedful.inspection.complexity import LENGTH, WIDTH, Measured
from heedful.inspection.visibility import Picture
from heedful.model.position.sinusoidal import Sinusoidal, SinusoidalConfig
from heedful.training.journal import read_metrics
from heedful.training.recipe import Recipe
from heedful.training.schedule import learning_rate

LABEL = 12  # maximum characters of a token's label
MIN_WIDTH, MIN_HEIGHT = 4.5, 3.5  # inches
NUMBERED = 40  # labels; with more, counts would not fit into the cells of a confusion matrix
# What the rows (queries) and the columns (keys) of each kind of attention are.
AXES = {
    "cross": ("target token being predicted (query)", "source token (key)"),
    "encoder": ("source token (query)", "source token (key)"),
    "decoder": ("target token read (query)", "target token read (key)"),
}
# Fonts with Chinese, Japanese and Korean characters: from the plot extra, or common on some systems.
CJK = ("Noto Sans SC", "Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "WenQuanYi Micro Hei",
       "WenQuanYi Zen Hei", "Droid Sans Fallback", "PingFang SC", "Hiragino Sans GB", "Microsoft YaHei",
       "SimHei")  # fmt: skip


def draw_complexity(found: list[Measured], out: Path) -> Path:
    """Measured seconds of a layer (points) and what its formula predicts (lines), as texts and widths grow."""
    figure, panels = pyplot.subplots(1, 2, figsize=(12, 5), constrained_layout=True)
    for axes, label in zip(panels, ("tokens n", "width d"), strict=True):
        for number, one in enumerate(found):
            grows_in_length = label == "tokens n"
            points = one.by_length if grows_in_length else one.by_width
            fixed = list(points)
            curve = [one.predicted(x, WIDTH) if grows_in_length else one.predicted(LENGTH, x) for x in fixed]
            exponent = one.exponents()[0 if grows_in_length else 1]
            name = f"{one.kind.name}: {one.kind.cost}, measured exponent {exponent:.2f}"
            axes.plot(fixed, [1e3 * value for value in curve], color=f"C{number}", alpha=0.6)
            axes.plot(fixed, [1e3 * points[x] for x in fixed], "o", color=f"C{number}", label=name)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel(label)
        axes.set_ylabel("milliseconds")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    panels[0].set_title(f"texts grow, width {WIDTH}")
    panels[1].set_title(f"width grows, {LENGTH} tokens")
    figure.suptitle("One layer, forward: measured (points) and predicted by table 1 of the paper (lines)")
    _save(figure, out)
    return out


def draw_visibility(found: list[Picture], out: Path) -> Path:
    """A small picture of each attention: a row per output, dark where it depends on an input."""
    columns = min(6, max(1, len(found)))
    rows = -(-len(found) // columns)
    figure, panels = pyplot.subplots(
        rows, columns, figsize=(2.3 * columns, 2.6 * rows), constrained_layout=True, squeeze=False
    )
    for axes, one in zip(panels.flat, found, strict=False):
        axes.imshow(one.seen.float(), cmap="Blues", vmin=0, vmax=1.3)
        axes.set_title(one.title, fontsize=9)
    for axes in panels.flat:
        axes.set_xticks([])
        axes.set_yticks([])
    for axes in panels.flat[len(found) :]:
        axes.axis("off")
    figure.supxlabel("input (key)", fontsize=9)
    figure.supylabel("output (query)", fontsize=9)
    return _save(figure, out)


def draw_training(folder: Path) -> Path:
    """training.png in a model folder: loss, scores and learning rate over the steps; and a curve for each figure that
    the task has logged, such as reward and KL."""
    lines = read_metrics(folder)
    steps = [line for line in lines if "loss" in line]
    valid = [line for line in lines if "valid" in line]
    figures = list(dict.fromkeys(name for line in steps for name in line.get("figures", ())))
    held = valid[0]["valid"] if valid else {}
    own = [*figures, *(name for name in held if min(line["valid"].get(name, 0) for line in valid) < 0)]
    scores = [name for name in held if name not in ("loss", "bits_per_byte", "exact", *own)]
    columns = 2 if figures else 1
    rows = -(-(3 + len(figures)) // columns)
    figure, panels = pyplot.subplots(
        rows, columns, figsize=(8 * columns, 3 * rows), sharex=True, constrained_layout=True, squeeze=False
    )
    loss, score, rate, *others = panels.flat
    plain = [line.get("nll", line["loss"]) for line in steps]
    _line(loss, steps, plain, "training, single steps", alpha=0.25)
    _line(loss, steps, _smoothed(plain), "training, running mean (with dropout)")
    _line(loss, valid, [line["valid"]["loss"] for line in valid], "validation", marker="o")
    loss.set_ylabel("loss" if figures else "-log p per token (nats)")
    for name in scores:
        _line(score, valid, [line["valid"][name] for line in valid], name, marker="o")
    score.set_ylabel("score on the validation set")
    score.set_ylim(0, 100)
    _line(rate, steps, [line["learning_rate"] for line in steps], "learning rate")
    rate.set_ylabel("learning rate")
    for axes, name in zip(others, figures, strict=False):
        with_figures = [line for line in steps if name in line.get("figures", ())]
        values = [line["figures"][name] for line in with_figures]
        _line(axes, with_figures, values, "training, single steps", alpha=0.25)
        _line(axes, with_figures, _smoothed(values), "training, running mean")
        _line(axes, valid, [line["valid"][name] for line in valid if name in line["valid"]], "validation", marker="o")
        axes.set_ylabel(name.replace("_", " "))
    for axes in panels[-1]:
        axes.set_xlabel("step")
    for axes in others[len(figures) :]:
        axes.axis("off")
    for axes in (loss, score, rate, *others[: len(figures)]):
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[1]:
            axes.legend()
    return _save(figure, folder / "training.png")


def _smoothed(values: list[float], decay: float = 0.8) -> list[float]:
    """An exponential moving average, since the loss varies a lot from step to step."""
    found: list[float] = []
    for value in values:
        found.append(value if not found else decay * found[-1] + (1 - decay) * value)
    return found


def draw_attention(
    seen: Attention, path: Path, *, kind: str = "cross", only: tuple[int, int] | None = None, title: str = ""
) -> Path:
    """A heat map of every head, layers from top to bottom; or of `only` one (layer, head), enlarged. `title`: the
    sentence and its translation, one per line."""
    weights, queries, keys = seen.of(kind)
    layers, heads = weights.shape[:2]
    shown = [only] if only is not None else [(layer, head) for layer in range(layers) for head in range(heads)]
    for layer, head in shown:
        if not (0 <= layer < layers and 0 <= head < heads):
            raise ValueError(f"there is no head {layer}.{head}; layers are 0 to {layers - 1}, heads 0 to {heads - 1}")
    rows, columns = (1, 1) if only is not None else (layers, heads)
    size = 0.32 if only is not None else 0.16
    # Below MIN_WIDTH there is no room for the title and the axis labels.
    width = max(MIN_WIDTH, columns * (size * len(keys) + 0.3) + 2.0)
    height = max(MIN_HEIGHT, rows * (size * len(queries) + 0.3) + 1.8)
    scale = min(1.0, 40 / max(width, height))  # a long text makes small cells, not a huge image
    with pyplot.rc_context({"font.family": _fonts(), "font.size": max(3.0, (9 if only is not None else 6) * scale)}):
        figure, grid = pyplot.subplots(
            rows, columns, figsize=(width * scale, height * scale), squeeze=False, constrained_layout=True
        )
        for (layer, head), axes in zip(shown, grid.flat, strict=True):
            image = axes.imshow(weights[layer, head].numpy(), vmin=0, vmax=1, cmap="Blues", aspect="auto")
            axes.set_title(f"layer {layer}, head {head}")
            axes.set_xticks(range(len(keys)), [], rotation=90)
            axes.set_yticks(range(len(queries)), [])
            axes.tick_params(length=2)
        for axes in grid[-1]:
            axes.set_xticklabels([_short(token) for token in keys], rotation=90, parse_math=False)
        for axes in grid[:, 0]:
            axes.set_yticklabels([_short(token) for token in queries], parse_math=False)
        rows_are, columns_are = AXES[kind]
        figure.supylabel(rows_are)
        figure.supxlabel(columns_are)
        figure.colorbar(image, ax=grid, label="attention weight", fraction=0.05, pad=0.02, aspect=30)
        if title:
            figure.suptitle(_wrapped(title, characters=int(12 * width)), parse_math=False)
        return _save(figure, path)


def draw_confusion(labels: list[str], matrix: list[list[int]], path: Path, *, title: str = "") -> Path:
    """How often each label (row) was taken for each label (column). Colours: shares of the row; numbers: counts."""
    counts = torch.tensor(matrix, dtype=torch.float64)
    shares = counts / counts.sum(1, keepdim=True).clamp(min=1)
    side = min(30.0, max(MIN_WIDTH, 0.45 * len(labels) + 2.5))
    with pyplot.rc_context({"font.family": _fonts(), "font.size": 9}):
        figure, axes = pyplot.subplots(figsize=(side + 1, side), constrained_layout=True)
        image = axes.imshow(shares.numpy(), vmin=0, vmax=1, cmap="Blues")
        names = [_short(label) for label in labels]
        axes.set_xticks(range(len(labels)), names, rotation=90, parse_math=False)
        axes.set_yticks(range(len(labels)), names, parse_math=False)
        if len(labels) <= NUMBERED:
            for row, column in torch.nonzero(counts).tolist():
                ink = "white" if shares[row, column] > 0.5 else "black"
                axes.text(column, row, f"{matrix[row][column]:,}", ha="center", va="center", color=ink)
        axes.set_xlabel("predicted label")
        axes.set_ylabel("true label")
        figure.colorbar(image, ax=axes, label="share of the true label", fraction=0.05, pad=0.02)
        if title:
            axes.set_title(_wrapped(title, characters=int(9 * side)), parse_math=False)
        return _save(figure, path)


def draw_positions(path: Path, *, length: int = 100, width: int = 128) -> Path:
    """The paper's sinusoidal encodings: one row per position, one column per dimension."""
    SinusoidalConfig().check(width=width, head_width=width)
    waves = Sinusoidal(SinusoidalConfig()).waves(torch.arange(length), width)
    figure, axes = pyplot.subplots(figsize=(9, 6), constrained_layout=True)
    image = axes.imshow(waves.numpy(), cmap="RdBu", vmin=-1, vmax=1, aspect="auto")
    axes.set_xlabel("dimension (even: sine, odd: cosine)")
    axes.set_ylabel("position")
    axes.set_title(f"Sinusoidal positions, {width} dimensions")
    figure.colorbar(image, ax=axes, label="value")
    return _save(figure, path)


def draw_schedule(recipe: Recipe, path: Path) -> Path:
    """The learning rate at each step of a recipe."""
    steps = range(1, recipe.training.steps + 1, max(1, recipe.training.steps // 1000))
    rates = [learning_rate(recipe.training, step, width=recipe.model.width) for step in steps]
    figure, axes = pyplot.subplots(figsize=(8, 4), constrained_layout=True)
    axes.plot(steps, rates)
    axes.set_xlabel("step")
    axes.set_ylabel("learning rate")
    axes.set_title(f"{recipe.training.schedule}, warm-up over {recipe.training.warmup:,} steps")
    axes.grid(alpha=0.3)
    return _save(figure, path)


def _save(figure: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with in_place(path) as temporary, catch_warnings(record=True) as warnings:
        simplefilter("always")
        figure.savefig(temporary, dpi=110, format="png")
    pyplot.close(figure)
    if any("missing from font" in str(warning.message) for warning in warnings):
        message = "%s: no installed font has some characters, shown as boxes; for Chinese: pip install 'heedful[plot]'"
        logging.getLogger("heedful").warning(message, path)
    return path


def _wrapped(title: str, *, characters: int) -> str:
    """Wrap each line of a title to the width of the plot, in at most three lines. Wide characters count twice."""
    lines: list[str] = []
    for line in title.splitlines():
        wide = sum(east_asian_width(letter) in "WF" for letter in line) > len(line) / 4
        lines += wrap(line, max(20, characters // (2 if wide else 1)), max_lines=3, placeholder=" …")
    return "\n".join(lines)


def _short(token: str) -> str:
    return token if len(token) <= LABEL else token[: LABEL - 1] + "…"


def _fonts() -> list[str]:
    """The default font, then fallbacks for characters it lacks."""
    manager = font_manager.fontManager
    known = {font.name for font in manager.ttflist}
    if CJK[0] not in known and (package := find_spec("zhplot")) is not None:  # only its font is used, none of its code
        for folder in package.submodule_search_locations or ():
            if (font := Path(folder) / "fonts" / "NotoSansSC-Regular.ttf").is_file():
                manager.addfont(font)
                known.add(CJK[0])
    return ["DejaVu Sans", *(name for name in CJK if name in known)]


def _line(axes: Any, lines: list[dict[str, Any]], values: list[float], label: str, **style: Any) -> None:
    if values:
        axes.plot([line["step"] for line in lines], values, label=label, **style)
