"""Training logs: one live line on a terminal, plain lines elsewhere, and all metrics in metrics.jsonl."""

import json
import math
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from heedful.bounded import read_text
from heedful.files import write_text


class Pace:
    """Tokens per second of all steps since it was last asked: a single step says little, least of all on a busy
    machine. What lies between steps, such as validation, does not count."""

    def __init__(self) -> None:
        self._tokens, self._seconds = 0, 0.0

    def add(self, tokens: int, seconds: float) -> None:
        self._tokens, self._seconds = self._tokens + tokens, self._seconds + seconds

    def since_last(self) -> float:
        rate = self._tokens / max(1e-9, self._seconds)
        self._tokens, self._seconds = 0, 0.0
        return rate


class Journal:
    """Silent in all processes but the main one."""

    def __init__(self, folder: Path, *, steps: int, speaks: bool = True) -> None:
        self.path = folder / "metrics.jsonl"
        self.steps = steps
        self.speaks = speaks
        self.console = Console(stderr=True, quiet=not speaks)
        self._live: Live | None = None
        self._rate: float | None = None  # steps per second, smoothed
        self._last: tuple[int, float] | None = None
        self._board: Any = _tensorboard(folder) if speaks and folder.is_dir() else None

    def begin_at(self, step: int) -> None:
        """Drop lines written after this step by a process that was killed before it saved a checkpoint."""
        if self.speaks and self.path.exists():
            lines = self.path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
            kept = [line for line in lines if _step_of(line) <= step]
            if len(kept) < len(lines):
                write_text(self.path, "".join(line + "\n" for line in kept))

    def write(self, step: int, **numbers: Any) -> None:
        if self.speaks:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, **numbers}, ensure_ascii=False) + "\n")
            for name, value in _flat(numbers) if self._board else ():
                self._board.add_scalar(name, value, step)

    def step(self, step: int, *, best: str, figures: Mapping[str, float] | None = None, **numbers: float) -> None:
        """Log a step: numbers to the file, a line to the terminal. `figures`: what the task has measured."""
        self.write(step, **numbers, **({"figures": dict(figures)} if figures else {}))
        if not self.speaks:
            return
        terms = [f"{name.removeprefix('loss_')} {value:.3f}" for name, value in numbers.items() if "loss_" in name]
        terms = [f"{name} {value:.3f}" for name, value in (figures or {}).items()] or terms
        nll = numbers.get("nll", numbers["loss"])
        name = "smoothed loss" if "nll" in numbers else "loss"
        detail = ", ".join(terms) if terms else f"perplexity {math.exp(min(20.0, nll)):.2f}"
        line = (
            f"step {step}/{self.steps}  {name} {numbers['loss']:.3f}  {detail}  "
            f"{numbers['tokens_per_second']:,.0f} tokens/s  "
            f"rate {numbers['learning_rate']:.2e}  {self._left(step)}{best}"
        )
        if not sys.stderr.isatty():
            print(line, file=sys.stderr, flush=True)
            return
        if self._live is None:
            self._live = Live(console=self.console, auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(Text(line, overflow="ellipsis", no_wrap=True), refresh=True)

    def validation(self, step: int, numbers: dict[str, float], samples: list[dict[str, str]], better: bool) -> None:
        self.write(step, valid=numbers)
        shown = "  ".join(f"{name} {value:.3f}" for name, value in numbers.items())
        self.say(f"step {step}  validation  {shown}{'  (best so far)' if better else ''}")
        for sample in samples:
            for name, text in sample.items():
                self.say(f"    {name:12} {_short(text)}")

    def say(self, text: str) -> None:
        if self.speaks:
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        if self._board is not None:
            self._board.flush()

    def _left(self, step: int) -> str:
        now = time.monotonic()
        if self._last is not None and step > self._last[0]:
            rate = (step - self._last[0]) / max(1e-9, now - self._last[1])
            self._rate = rate if self._rate is None else 0.7 * self._rate + 0.3 * rate
        self._last = (step, now)
        if self._rate is None:
            return "ETA ...  "
        seconds = int((self.steps - step) / self._rate)
        return f"ETA {seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}  "


def _tensorboard(folder: Path) -> Any:
    """A TensorBoard writer, if TensorBoard is installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder / "tensorboard"))


def _flat(numbers: dict[str, Any], path: str = "") -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    for name, value in numbers.items():
        if isinstance(value, dict):
            found += _flat(value, f"{path}{name}/")
        elif isinstance(value, int | float):
            found.append((path + name, float(value)))
    return found


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    lines = read_text(path).split("\n") if path.exists() else []
    return [json.loads(line) for line in lines if 0 <= _step_of(line) < math.inf]


def _step_of(line: str) -> float:
    """The step of a line; infinity for a line truncated by a kill, which belongs to no saved step."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return math.inf


def _short(text: str, width: int = 160) -> str:
    text = text.replace("\n", "⏎")
    return text if len(text) <= width else text[: width - 1] + "…"
