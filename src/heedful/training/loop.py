"""The training loop.

Everything random in a step is determined by the seed and the step number, and the order of the data by the seed and the
epoch number. So the weights, the optimizer state and a few counters are enough to resume a training bit for bit.
"""

import math
import signal
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from heedful.checkpoint import Checkpoint, prune, save_checkpoint, save_weights, state_of, steps
from heedful.model.architecture import Model
from heedful.tasks import Batch, State, Task
from heedful.training.anchor import Anchor
from heedful.training.journal import Journal, Pace
from heedful.training.optimizer import build_optimizer, optimizer_state, restore_optimizer
from heedful.training.parallel import World
from heedful.training.precision import Precision
from heedful.training.recipe import Recipe
from heedful.training.schedule import learning_rate
from heedful.training.step import StepLoss, freeze, load_trained, recompute_layers, tokens_in

EXPLODED = 3.0  # times the loss of a uniform guess, or of the first step if that was higher


@dataclass
class Progress:
    """What is saved besides weights and optimizer. `index` counts the batches used in this epoch."""

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
    """The loss has diverged; the last good model is kept."""


class Trainer:
    def __init__(
        self,
        recipe: Recipe,
        task: Task,
        model: Model,
        *,
        world: World,
        journal: Journal,
        folder: Path,
        anchor: Anchor | None = None,
        only: Collection[str] | None = None,
    ) -> None:
        """`only`: the parameters that are trained, where they are an adapter's; the folder then holds these alone."""
        self.recipe, self.config = recipe, recipe.training
        self.task, self.model = task, model.to(world.device)
        self.world, self.journal, self.folder, self.anchor = world, journal, folder, anchor
        if recipe.task.gathers:
            task.world = world  # type: ignore[attr-defined]
        if hasattr(task, "equip"):
            task.equip(self.model)
            self.model.to(world.device)
        self.progress, self.pace = Progress(), Pace()
        self.states: dict[int, State] = {}  # what the task carries from step to step, per micro-batch
        if only is not None:  # and what only training needs
            only = {*only, *(name for name in state_of(self.model) if name.partition(".")[0] in self.model.aside)}
        self.base = frozenset() if only is None else frozenset(state_of(self.model)) - frozenset(only)
        self.frozen = freeze(self.model, self.config.freeze) if only is None else self.base
        self.precision = Precision(self.config.precision, world.device)
        self.optimizer = build_optimizer(self.config, self.model)
        self.ema = {name: tensor.clone() for name, tensor in self.trained().items()} if self.config.ema else {}
        if self.config.recompute:
            recompute_layers(self.model)
        step_loss = StepLoss(self.model, task)
        self.module: nn.Module = step_loss
        if self.config.compile:
            self.module = torch.compile(self.module, dynamic=True)  # type: ignore[assignment]
        if world.size > 1:
            step_loss.unused = self._unused()
            self.module = DistributedDataParallel(self.module)
        self.stopped = 0  # the signal that requested it

    def _unused(self) -> list[nn.Parameter]:
        """Parameters without a gradient, such as a head that the task does not use: processes would wait for each
        other's gradients forever."""
        totals, *_ = self.module(self.task.collate(self.task.worst(self.budget)[:1]).to(self.world.device), {})
        sum(totals.values()).mul(0).backward()
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        unused = [parameter for parameter in trained if parameter.grad is None]
        self.optimizer.zero_grad(set_to_none=True)
        return unused

    @property
    def budget(self) -> int:
        assert isinstance(self.config.batch_tokens, int)
        return self.config.batch_tokens

    def run(self) -> None:
        """From the current progress to the last step, or until it is stopped early."""
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
                self.stopped = int(self.world.most(self.stopped)) if self.world.size > 1 else self.stopped
                if step % self.config.save_every == 0 or last or ended or self.stopped:
                    self.save()
                if last or ended or self.stopped:
                    return

    def restore(self, checkpoint: Checkpoint) -> None:
        load_trained(self.model, checkpoint.tensors("model"), self.frozen)
        self.states = self._own_states(checkpoint)
        restore_optimizer(self.optimizer, self.model, checkpoint.tensors("optimizer"))
        if self.ema:
            self.ema = {name: tensor.to(self.world.device) for name, tensor in checkpoint.tensors("ema").items()}
        self.progress = Progress(**checkpoint.state["progress"])
        self.precision.restore(checkpoint.state["scaler"])

    def trained(self) -> dict[str, Tensor]:
        """The weights that are not frozen: those that are saved, averaged and restored."""
        return {name: tensor for name, tensor in state_of(self.model).items() if name not in self.frozen}

    def save(self) -> None:
        carried = [load(one) for one in self.world.gather_bytes(save(_flat(self.states)))]
        if self.world.leads and self.progress.step not in steps(self.folder / "checkpoints"):
            tensors = {"model": self.trained(), "optimizer": optimizer_state(self.optimizer, self.model)}
            if self.ema:
                tensors["ema"] = self.ema
            for rank, own in enumerate(carried):
                if own:
                    tensors[f"task.{rank}"] = own
            state = {"processes": self.world.size, "progress": asdict(self.progress), "scaler": self.precision.state()}
            try:
                save_checkpoint(self.folder / "checkpoints", self.progress.step, tensors, state)
            except OSError as error:
                last = max(steps(self.folder / "checkpoints"), default=None)
                raise OSError(
                    f"checkpoint {self.progress.step} could not be written: {error}. The last good one is {last}; "
                    "free some disk space and rerun the same command"
                ) from None
            prune(
                self.folder / "checkpoints",
                keep=self.config.keep,
                every=self.config.save_every,
                spare=[self.progress.best_step],
            )
        self.world.wait()

    def score(self) -> tuple[dict[str, float], list[dict[str, str]]]:
        """Validate what would be the result: the moving average if there is one, otherwise the weights themselves."""
        own = {name: tensor.clone() for name, tensor in self.trained().items()} if self.ema else {}
        if self.ema:
            load_trained(self.model, self.ema, self.frozen)
        self.model.eval()
        with self.precision.compute():
            scores = self.task.evaluate(self.model, budget=self.budget, samples=self.config.samples, world=self.world)
        self.model.train()
        if self.ema:
            load_trained(self.model, own, self.frozen)
        return scores.numbers, scores.samples

    def is_better(self, value: float) -> bool:
        best = self.progress.best
        if not math.isfinite(value):
            return False
        higher = self.recipe.wants_higher
        return best is None or (value > best if higher else value < best)

    def probe(self) -> None:
        """Run forward and backward on the batch that needs the most memory, without changing anything."""
        self.model.train()
        parts = self._micro_batches(self.task.worst(self.budget))
        for batch in parts[:1]:
            with self.precision.compute():
                totals, *_ = self.module(batch.to(self.world.device), {})
                sum(totals.values()).mul(0).backward()
        unreached = [name for name, one in self.model.named_parameters() if one.requires_grad and one.grad is None]
        if self.base and unreached:
            raise ValueError(f"the adapter's {unreached[0]} has no part in the loss of this task; leave it out of "
                             "adapter.targets, or choose another adapter")  # fmt: skip
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
        self._announce(progress.step)
        torch.manual_seed(_mix(self.recipe.seed, progress.step, self.world.rank))
        parts = self._micro_batches(rows)
        mine = len(rows) > self.world.rank
        counts = {name: self.world.total(count if mine else 0) for name, count in _added(parts).items()}
        rate = learning_rate(config, progress.step, width=self.recipe.model.width)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        sums, plain = dict.fromkeys(counts, 0.0), 0.0
        plains: dict[str, Tensor] = {}
        seen: dict[str, list[float]] = {}  # name -> total, count
        for number, batch in enumerate(parts):
            with self._sync_only(number == len(parts) - 1), self.precision.compute():
                totals, plains, figures, state = self.module(batch.to(self.world.device), self.states.get(number, {}))
                # Sum over the whole step, divide once. DDP averages over processes: undo that.
                share = self.world.size if mine else 0
                loss = sum(total * (share / (counts[name] or 1)) for name, total in totals.items())
                self.precision.scaler.scale(loss).backward()
            if mine:  # a row that does not count must not change the state
                self.states[number] = {name: tensor.detach().clone().contiguous() for name, tensor in state.items()}
            for name, total in totals.items():
                sums[name] += float(total.detach()) if mine else 0.0
            plain += sum(map(float, plains.values())) if mine else 0.0
            for name, (total, count) in figures.items():
                before = seen.setdefault(name, [0.0, 0.0])
                seen[name] = [before[0] + float(total) * mine, before[1] + count * mine]
        terms = {name: self.world.total(value) / (counts[name] or 1) for name, value in sums.items()}
        loss_per_count = sum(terms.values())
        norm = self._apply(loss_per_count)
        count = next(iter(counts.values()))
        tokens = int(self.world.total(sum(map(tokens_in, parts)) if mine else 0))
        progress.tokens += tokens
        self.pace.add(tokens, time.monotonic() - began)
        if progress.step % config.log_every == 0 or progress.step == 1:
            best = f"best {config.metric} {progress.best:.3f}" if progress.best is not None else ""
            # A collective call: all processes make it, including those without rows, whose sum is 0.
            smoothed = {"nll": self.world.total(plain) / max(1, count)} if plains else {}
            shown = {name: self.world.total(total) / (self.world.total(of) or 1) for name, (total, of) in seen.items()}
            self.journal.step(
                progress.step,
                best=best,
                figures=shown,
                loss=loss_per_count,
                **smoothed,
                **({f"loss_{name}": value for name, value in terms.items()} if len(terms) > 1 else {}),
                learning_rate=rate,
                norm=norm,
                tokens_per_second=self.pace.since_last(),
                skipped=progress.skipped,
            )

    def _announce(self, step: int) -> None:
        """Tell the parts that change from step to step by themselves (random features), those that are trained."""
        for name, module in self.model.named_modules() if not self.base else ():
            before_step = getattr(module, "before_step", None)
            if before_step is not None and not any(f"{name}.".startswith(f"{part}.") for part in self.config.freeze):
                before_step(step)

    def _apply(self, loss: float) -> float:
        """Clip and step, unless the loss or the gradient has exploded; returns the gradient norm."""
        scaler, progress = self.precision.scaler, self.progress
        scaler.unscale_(self.optimizer)
        if self.anchor is not None:
            self.anchor.pull(self.model)
        norm = float(nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip or math.inf))
        if progress.step == 1 and math.isfinite(loss):
            progress.first_loss = loss
        too_high = EXPLODED * max(1.0, math.log(self.model.vocab or 1), progress.first_loss)
        scaled_over = scaler.is_enabled() and math.isfinite(loss)  # the scale was too high: the scaler lowers it
        if math.isfinite(norm) and loss < too_high:
            scaler.step(self.optimizer)
            for parameter in self.model.parameters():  # a fused step does not do so itself
                if parameter.requires_grad:
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
                f"the loss was NaN, infinite or exploding for {progress.bad_in_a_row} steps in a row, up to step "
                f"{progress.step}; lower training.learning_rate or raise training.warmup. The last good model is kept"
            )
        return norm

    def _follow(self) -> None:
        """The running average takes a small step towards the weights; larger ones at first. Buffers are not averaged:
        the mean of two draws of random features is no draw."""
        buffers = {name for name, _ in self.model.named_buffers(remove_duplicate=False)} if self.ema else set()
        decay = min(self.config.ema, (1 + self.progress.step) / (10 + self.progress.step))
        for name, tensor in self.trained().items() if self.ema else ():
            if name not in buffers:
                self.ema[name].lerp_(tensor, 1 - decay)
            else:
                self.ema[name].copy_(tensor)

    def _validate(self) -> bool:
        """Score the model, keep it if it is the best so far; True if training should end. All processes take part and
        reach the same decision; the main process saves the model."""
        progress = self.progress
        numbers, samples = self.score()
        value = numbers[self.config.metric]
        better = self.world.agree(self.is_better(value)) if self.world.size > 1 else self.is_better(value)
        progress.stale = 0 if better else progress.stale + 1
        if better:
            progress.best, progress.best_step = value, progress.step
            self.keep_best()
        self.journal.validation(progress.step, numbers, samples, better)
        ended = progress.is_stale(self.config.patience)
        if ended:
            self.journal.say(f"no improvement of {self.config.metric} in {progress.stale} validations: stopping early")
        return ended

    def keep_best(self) -> None:
        """Save the current result as the folder's model, including frozen weights, but not an adapter's base, nor what
        only training needs."""
        if self.world.leads:
            weights = {**state_of(self.model), **self.ema}
            aside = self.model.aside
            kept = {name for name in weights if name not in self.base and name.partition(".")[0] not in aside}
            save_weights(self.folder, {name: one for name, one in weights.items() if name in kept})

    def _own_states(self, checkpoint: Checkpoint) -> dict[int, State]:
        """The task's state in the checkpoint, for this process."""
        processes = checkpoint.state.get("processes", self.world.size)
        if checkpoint.has("task.0") and processes != self.world.size:
            raise ValueError(
                f"this training was started with {processes} processes, each with its own state; "
                f"resume it with {processes} processes"
            )
        name = f"task.{self.world.rank}"
        states: dict[int, State] = {}
        for key, tensor in checkpoint.tensors(name).items() if checkpoint.has(name) else ():
            number, _, own = key.partition("/")
            states.setdefault(int(number), {})[own] = tensor.to(self.world.device)
        return states

    def _micro_batches(self, rows: np.ndarray) -> list[Batch]:
        """This process's share of a step, in micro-batches. A process without rows takes a row that will not count."""
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
        """Ctrl-C and SIGTERM stop training after the current step, saved; a second Ctrl-C stops it at once."""

        def stop(number: int, frame: object) -> None:
            if self.stopped and number == signal.SIGINT:
                raise KeyboardInterrupt
            self.stopped = number

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _added(parts: list[Batch]) -> dict[str, float]:
    """The count of each term over all micro-batches."""
    counts: dict[str, float] = {}
    for batch in parts:
        for name, count in batch.counts.items():
            counts[name] = counts.get(name, 0) + count
    return counts


def _flat(states: dict[int, State]) -> dict[str, Tensor]:
    return {f"{number}/{name}": tensor for number, own in states.items() for name, tensor in own.items()}


def _mix(seed: int, step: int, rank: int) -> int:
    """A seed from three numbers, such that those of consecutive steps are independent."""
    return int(np.random.SeedSequence((seed, step, rank)).generate_state(1, np.uint64)[0] >> np.uint64(1))
