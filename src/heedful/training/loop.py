"""The training loop.

Everything random in a step follows from the seed and the step's number, and the order of the data from the seed and the
epoch's: a resumed training needs the weights, the optimizer's numbers and a few counters, and goes on to the bit.
"""

import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint as recompute

from heedful.checkpoint import Checkpoint, prune, save_checkpoint, save_weights, state_of, steps
from heedful.model.architecture import Model
from heedful.model.stack.transformer import Transformer
from heedful.tasks import Batch, Task
from heedful.training.journal import Journal
from heedful.training.optimizer import build_optimizer, optimizer_state, restore_optimizer
from heedful.training.parallel import World
from heedful.training.precision import Precision
from heedful.training.recipe import Recipe
from heedful.training.schedule import learning_rate

HIGHER_IS_BETTER = {"accuracy", "bleu", "chrf", "exact"}
EXPLODED = 3.0  # times the loss of guessing, or of the first step if that was higher


@dataclass
class Progress:
    """What must survive beside weights and optimizer. `index` counts the batches used of this epoch."""

    step: int = 0
    epoch: int = 0
    index: int = 0
    tokens: int = 0
    seconds: float = 0.0
    best: float | None = None
    best_step: int = 0
    stale: int = 0
    skipped: int = 0
    bad_in_a_row: int = 0
    first_loss: float = 0.0

    def is_stale(self, patience: int) -> bool:
        """Whether it is time to stop early."""
        return bool(patience) and self.stale >= patience


class DivergedError(ValueError):
    """The loss is beyond help; the last good model is kept."""


class Trainer:
    def __init__(
        self, recipe: Recipe, task: Task, model: Model, *, world: World, journal: Journal, folder: Path
    ) -> None:
        self.recipe, self.config = recipe, recipe.training
        self.task, self.model = task, model.to(world.device)
        self.world, self.journal, self.folder = world, journal, folder
        self.progress = Progress()
        self.precision = Precision(self.config.precision, world.device)
        self.optimizer = build_optimizer(self.config, self.model)
        self.ema = {name: tensor.clone() for name, tensor in state_of(model).items()} if self.config.ema else {}
        if self.config.recompute:
            _recompute_layers(self.model)
        self.module: nn.Module = _StepLoss(self.model, task, self.config.label_smoothing)
        if self.config.compile:
            self.module = torch.compile(self.module, dynamic=True)  # type: ignore[assignment]
        if world.size > 1:
            self.module = DistributedDataParallel(self.module)
        self.stopped = False

    @property
    def budget(self) -> int:
        assert isinstance(self.config.batch_tokens, int)
        return self.config.batch_tokens

    def run(self) -> None:
        """From wherever the progress stands to the last step, or to an earlier end."""
        start = time.monotonic()
        with self._stopping_on_signals():
            for rows in self.feed():
                self.step(rows)
                self.progress.seconds += time.monotonic() - start
                start = time.monotonic()
                step = self.progress.step
                last = step >= self.config.steps
                ended = False
                if step % self.config.validate_every == 0 or last:
                    ended = self._validate()
                self.stopped = self.world.agree(self.stopped) if self.world.size > 1 else self.stopped
                if step % self.config.save_every == 0 or last or ended or self.stopped:
                    self.save()
                if last or ended or self.stopped:
                    return

    def restore(self, checkpoint: Checkpoint) -> None:
        self.model.load_state_dict(checkpoint.tensors("model"))
        restore_optimizer(self.optimizer, self.model, checkpoint.tensors("optimizer"))
        if self.ema:
            self.ema = {name: tensor.to(self.world.device) for name, tensor in checkpoint.tensors("ema").items()}
        self.progress = Progress(**checkpoint.state["progress"])
        self.precision.restore(checkpoint.state["scaler"])

    def save(self) -> None:
        if self.world.leads and self.progress.step not in steps(self.folder / "checkpoints"):
            tensors = {"model": state_of(self.model), "optimizer": optimizer_state(self.optimizer, self.model)}
            if self.ema:
                tensors["ema"] = self.ema
            state = {"progress": asdict(self.progress), "scaler": self.precision.state()}
            try:
                save_checkpoint(self.folder / "checkpoints", self.progress.step, tensors, state)
            except OSError as error:
                last = max(steps(self.folder / "checkpoints"), default=None)
                raise OSError(
                    f"checkpoint {self.progress.step} could not be written: {error}. The last good one is {last}; "
                    "make room and run the same command again"
                ) from None
            prune(
                self.folder / "checkpoints",
                keep=self.config.keep,
                every=self.config.save_every,
                spare=[self.progress.best_step],
            )
        self.world.wait()

    def score(self) -> tuple[dict[str, float], list[dict[str, str]]]:
        """Validate what would be handed over: the average where there is one, the weights themselves otherwise."""
        own = state_of(self.model) if self.ema else {}
        if self.ema:
            own = {name: tensor.clone() for name, tensor in own.items()}
            self.model.load_state_dict(self.ema)
        self.model.eval()
        with self.precision.compute():
            scores = self.task.validate(self.model, budget=self.budget, samples=self.config.samples)
        self.model.train()
        if self.ema:
            self.model.load_state_dict(own)
        return scores.numbers, scores.samples

    def is_better(self, value: float) -> bool:
        best = self.progress.best
        if not math.isfinite(value):
            return False
        return best is None or (value > best if self.config.metric in HIGHER_IS_BETTER else value < best)

    def probe(self) -> None:
        """One step's work on the batch that needs most memory, before the first step and without a trace."""
        self.model.train()
        parts = self._deal(self.task.worst(self.budget))
        for batch in parts[:1]:
            with self.precision.compute():
                self.module(batch.to(self.world.device)).mul(0).backward()
        self.optimizer.zero_grad(set_to_none=True)

    def feed(self) -> Iterator[np.ndarray]:
        progress = self.progress
        while True:
            batches = self.task.epoch(progress.epoch, budget=self.budget, seed=self.recipe.seed)
            for index, rows in enumerate(batches):
                if index >= progress.index:
                    progress.index = index + 1
                    yield rows
            progress.epoch, progress.index = progress.epoch + 1, 0

    def step(self, rows: np.ndarray) -> None:
        began = time.monotonic()
        progress, config = self.progress, self.config
        progress.step += 1
        self.model.train()
        torch.manual_seed(_mix(self.recipe.seed, progress.step, self.world.rank))
        parts = self._deal(rows)
        mine = sum(batch.count for batch in parts) if len(rows) > self.world.rank else 0
        count = int(self.world.total(mine))
        rate = learning_rate(config, progress.step, width=self.recipe.model.width)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        total = 0.0
        for number, batch in enumerate(parts):
            with self._sync_only(number == len(parts) - 1), self.precision.compute():
                loss = self.module(batch.to(self.world.device)) * (1 if mine else 0)
                # Summed over all tokens of the step, divided once. DDP takes the mean over processes: undo that.
                self.precision.scaler.scale(loss * (self.world.size / count)).backward()
            total += float(loss.detach())
        loss_per_token = self.world.total(total) / count
        norm = self._apply(loss_per_token)
        progress.tokens += count
        if progress.step % config.log_every == 0 or progress.step == 1:
            best = f"best {config.metric} {progress.best:.3f}" if progress.best is not None else ""
            self.journal.step(
                progress.step,
                best=best,
                loss=loss_per_token,
                learning_rate=rate,
                norm=norm,
                tokens_per_second=count / (time.monotonic() - began),
                skipped=progress.skipped,
            )

    def _apply(self, loss: float) -> float:
        """Clip and step, unless the loss or the gradient has gone mad. Gives the gradient's norm."""
        scaler, progress = self.precision.scaler, self.progress
        scaler.unscale_(self.optimizer)
        norm = float(nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip or math.inf))
        if progress.step == 1 and math.isfinite(loss):
            progress.first_loss = loss
        too_high = EXPLODED * max(1.0, math.log(self.recipe.model.vocab), progress.first_loss)
        scaled_over = scaler.is_enabled() and math.isfinite(loss)  # the scale was too high: that is float16's business
        if math.isfinite(norm) and loss < too_high:
            scaler.step(self.optimizer)
            for parameter in self.model.parameters():  # a fused step does not say so itself
                torch.autograd.graph.increment_version(parameter)
            progress.bad_in_a_row = 0
            self._follow()
        else:
            progress.skipped += 1
            progress.bad_in_a_row += 0 if scaled_over else 1
        scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if progress.bad_in_a_row >= self.config.bad_steps:
            raise DivergedError(
                f"the loss was not a number, or exploded, {progress.bad_in_a_row} steps in a row up to step "
                f"{progress.step}; lower training.learning_rate or raise training.warmup. The last good model is kept"
            )
        return norm

    def _follow(self) -> None:
        """The running average takes a small step towards the weights; larger ones at first."""
        decay = min(self.config.ema, (1 + self.progress.step) / (10 + self.progress.step))
        for name, tensor in state_of(self.model).items() if self.ema else ():
            self.ema[name].lerp_(tensor, 1 - decay)

    def _validate(self) -> bool:
        """Score the model, keep it if it is the best so far; True if training should end."""
        progress, ended = self.progress, False
        if self.world.leads:
            numbers, samples = self.score()
            value = numbers[self.config.metric]
            better = self.is_better(value)
            progress.stale = 0 if better else progress.stale + 1
            if better:
                progress.best, progress.best_step = value, progress.step
                save_weights(self.folder, self.ema or state_of(self.model))
            self.journal.validation(progress.step, numbers, samples, better)
            ended = progress.is_stale(self.config.patience)
            if ended:
                self.journal.say(f"no better {self.config.metric} in {progress.stale} validations: stopping early")
        return self.world.agree(ended)

    def _deal(self, rows: np.ndarray) -> list[Batch]:
        """This process's part of a step, in micro-batches. One left without rows takes a row that will not count."""
        mine = rows[self.world.rank :: self.world.size]
        mine = mine if len(mine) else rows[:1]
        parts = [mine[part :: self.config.accumulate] for part in range(self.config.accumulate)]
        seed = (self.recipe.seed, self.progress.epoch)
        return [self.task.collate(part, seed=seed) for part in parts if len(part)]

    def _sync_only(self, now: bool) -> Any:
        if now or not isinstance(self.module, DistributedDataParallel):
            return nullcontext()
        return self.module.no_sync()

    @contextmanager
    def _stopping_on_signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM end the training after the step at hand, saved; a second Ctrl-C ends it at once."""

        def stop(number: int, frame: object) -> None:
            if self.stopped and number == signal.SIGINT:
                raise KeyboardInterrupt
            self.stopped = True

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _StepLoss(nn.Module):
    """The loss of a batch as a module, which is what DDP and torch.compile can wrap."""

    def __init__(self, model: Model, task: Task, smoothing: float) -> None:
        super().__init__()
        self.model, self.task, self.smoothing = model, task, smoothing

    def forward(self, batch: Batch) -> Tensor:
        return self.task.loss(self.model, batch, smoothing=self.smoothing).total


def _recompute_layers(model: Model) -> None:
    """Gradient checkpointing: a layer's inner results are thrown away and computed again when they are needed."""
    for stack in model.modules():
        if isinstance(stack, Transformer):
            for layer in stack.layers:
                plain = layer.forward

                def forward(*inputs: Any, plain: Any = plain, **options: Any) -> Any:
                    return recompute(plain, *inputs, use_reentrant=False, **options)

                layer.forward = forward


def _mix(seed: int, step: int, rank: int) -> int:
    """One number of three, such that neighbouring steps have nothing in common."""
    return int(np.random.SeedSequence((seed, step, rank)).generate_state(1, np.uint64)[0] >> np.uint64(1))
