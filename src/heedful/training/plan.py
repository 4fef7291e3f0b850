"""Plan a training: the model, batch size and number of steps for a time budget, and batches that fit in memory.

A plan is made once, at the first start, from a few seconds of measurement on this machine; it then becomes part of the
recipe.
"""

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from heedful.data.batches import Cost, same_for_all
from heedful.data.check import Report
from heedful.data.prepare import Prepared
from heedful.model.architecture import ArchitectureConfig
from heedful.model.create import create
from heedful.tasks import Task
from heedful.training.journal import Journal
from heedful.training.loop import Trainer
from heedful.training.parallel import World
from heedful.training.recipe import Recipe, merge, parse_recipe, read_recipe
from heedful.training.step import tokens_in

Say = Callable[[str], None]
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
COUNTS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
EPOCHS = 12  # a larger model pays off if it can still see the corpus this often,
PER_PARAMETER = 20  # or this many tokens per parameter
ENOUGH = 60  # epochs after which more training does not help
STEPS = 3000  # updates that a training needs, with small batches if necessary
WORK = 0.9  # fraction of the time spent on steps; the rest is validation and saving
SHORT = 512  # tokens, up to which the length of a text does not matter
SHARE = 0.3  # fraction of the matrix-product rate that a small model reaches


@dataclass(frozen=True)
class Budget:
    """`text`: 20m, 2h, 5000steps, 3epochs, 10Mtokens; empty = none. `keep_model`: plan the steps, not the model."""

    text: str = ""
    keep_model: bool = False

    def __bool__(self) -> bool:
        return bool(self.text)

    def __str__(self) -> str:
        return f"{self.text} --keep-model" if self.text and self.keep_model else self.text

    def sizes(self, recipe: Recipe) -> tuple[str, ...]:
        """The recipes whose models may be chosen."""
        return () if self.keep_model else recipe.task.sizes


def plan(recipe: Recipe, budget: Budget, task: Task, prepared: Prepared, *, world: World, say: Say) -> Recipe:
    """The recipe that makes the best use of a budget."""
    amount, unit = parse_budget(budget.text)
    epoch = max(1, sum(prepared.facts["tokens"][-1:]) + prepared.facts["rows"]["train"])
    if unit != "seconds":
        wanted = {"steps": amount, "epochs": amount * epoch, "tokens": amount}[unit]
        return _with_steps(recipe, task, wanted, unit, say)
    if not budget.sizes(recipe):
        return _with_time(recipe, task, amount, world, say, keep=budget.keep_model)
    assert isinstance(recipe.training.batch_tokens, int)
    size, candidate, speed = _largest(recipe, task, world, epoch=epoch, seconds=amount * WORK)
    tokens = min(speed * amount * WORK, ENOUGH * epoch)
    batch = int(min(recipe.training.batch_tokens, max(512, 256 * round(tokens / STEPS / 256))))
    candidate = _changed(candidate, {"batch_tokens": batch})
    speed = _speed(candidate, task, world)
    tokens = min(speed * amount * WORK, ENOUGH * epoch)
    count = max(50, int(tokens / _tokens_a_step(candidate, task)))
    candidate = _paced(candidate, count)
    memory = _in_use() + _memory(candidate, task, world)
    vocab = prepared.tokenizers[-1].vocab
    say(
        f"plan for {budget.text}: {size} model, vocabulary {vocab:,}, {count:,} steps of {batch:,} tokens, "
        f"{tokens / epoch:.1f} epochs at {speed:,.0f} tokens/s, about {tokens / speed / WORK / 60:.0f} minutes "
        f"and {memory / 2**20:,.0f} MiB"
    )
    return candidate


def readable_words(budget: Budget, smallest: str, world: World) -> int:
    """Roughly how many words, both sides together, the smallest recipe's model can process here in this time. Rounded
    to a power of two, so that repeated measurements agree. 0: the budget is not a time."""
    amount, unit = parse_budget(budget.text)
    if unit != "seconds":
        return 0
    model = read_recipe(smallest).model.model_copy(update={"vocab": 8000})
    parameters = sum(model.parameters().values())
    tokens = amount * WORK * world.size * SHARE * _product_rate(world.device) / (6 * parameters)
    return int(2 ** round(math.log2(2 * tokens)))


def with_characters(recipe: Recipe, report: Report, say: Say) -> Recipe:
    """If nine in ten sources are single words (spelling to sound, transliteration), use characters as tokens, unless
    the user chose otherwise."""
    quantiles = report.sides[0].quantiles() if report.sides else []
    if recipe.tokenizer.kind != "bpe" or recipe.tokenizer.vocab or not quantiles or quantiles[1] > 1:
        return recipe
    say("plan: sources are single words, so tokens are characters (tokenizer.kind=character)")
    data = recipe.model_dump(mode="json")
    return parse_recipe({**data, "tokenizer": {**data["tokenizer"], "kind": "character"}})


def _product_rate(device: torch.device, seconds: float = 0.3) -> float:
    """Floating-point operations per second in matrix products."""
    size, count = 1024, 0
    matrix = torch.ones(size, size, device=device)
    (matrix @ matrix).sum().item()
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        (matrix @ matrix)[0, 0].item()
        count += 1
    return count * 2 * size**3 / (time.monotonic() - began)


def _largest(recipe: Recipe, task: Task, world: World, *, epoch: int, seconds: float) -> tuple[str, Recipe, float]:
    """The largest model that sees enough tokens in this time, or else the smallest one; and its speed. A model that is
    not one of the named sizes was chosen by the user, and is kept."""
    sizes = recipe.task.sizes
    if all(_sized(recipe, size).model != recipe.model for size in sizes):
        return "your", recipe, _speed(recipe, task, world)
    chosen = _sized(recipe, sizes[0])
    size, speed = sizes[0], _speed(chosen, task, world)
    for next_size in sizes[1:]:
        candidate = _sized(recipe, next_size)
        work = [sum(config.model.parameters().values()) for config in (chosen, candidate)]
        wanted = min(EPOCHS * epoch, PER_PARAMETER * work[1]) / seconds
        if speed * 3 * work[0] / work[1] < wanted:  # even if it used the machine three times as well
            break
        next_speed = _speed(candidate, task, world)
        if next_speed < wanted or not _fits(candidate, task, world):
            break
        size, chosen, speed = next_size, candidate, next_speed
    return size, chosen, speed


def parse_budget(text: str) -> tuple[float, str]:
    """(amount, seconds | steps | epochs | tokens)"""
    found = re.fullmatch(r"([\d.]+)\s*([kKmMgG]?)\s*(steps?|epochs?|tokens?)", text.strip())
    if found:
        return float(found[1]) * COUNTS[found[2].lower()], found[3].rstrip("s") + "s"
    if parts := re.fullmatch(r"(?:([\d.]+)d)?(?:([\d.]+)h)?(?:([\d.]+)m(?:in)?)?(?:([\d.]+)s)?", text.strip()):
        seconds = sum(float(part) * UNITS[unit] for part, unit in zip(parts.groups(), "dhms", strict=True) if part)
        if seconds:
            return seconds, "seconds"
    raise ValueError(f"budget {text!r} is not one of 20m, 1h30m, 5000steps, 3epochs, 10Mtokens")


def relative_cost(model: ArchitectureConfig) -> Cost:
    """What a token of a long text costs beside one of a text of `SHORT` tokens, by the operations of its model: more
    where attention is quadratic, the same where it is linear. Tokens of shorter texts all count as one."""
    short = sum(model.flops(SHORT).values())
    if not short:
        return same_for_all
    return lambda length: max(1.0, sum(model.flops(length).values()) / short)


def fit_memory(recipe: Recipe, task: Task, *, world: World, say: Say) -> Recipe:
    """Resolve `batch_tokens: auto`, and split batches into micro-batches until the worst case fits in memory."""
    if recipe.training.batch_tokens == "auto":
        recipe = _changed(recipe, {"batch_tokens": 25000 if world.device.type == "cuda" else 4096})
        while not _fits(recipe, task, world):
            parts = recipe.training.accumulate * 2
            if parts > 256:
                raise ValueError("this model does not fit in memory even row by row; choose a smaller one")
            say(f"a batch does not fit in memory: splitting it into {parts} micro-batches")
            recipe = _changed(recipe, {"accumulate": parts})
    return recipe


def _fits(recipe: Recipe, task: Task, world: World) -> bool:
    """Try the worst batch: run it on a GPU; on a CPU, where running out of memory is fatal, estimate from an eighth."""
    if world.device.type == "cuda":
        try:
            _trainer(recipe, task, World(device=world.device)).probe()
        except torch.cuda.OutOfMemoryError:
            return False
        finally:
            torch.cuda.empty_cache()
        return True
    free = free_memory()
    return free is None or _memory(recipe, task, world) < 0.8 * free


def _memory(recipe: Recipe, task: Task, world: World) -> int:
    """Roughly how many bytes a training will need: what the forward pass keeps for an eighth of the worst batch, times
    eight, plus half as much for the backward pass; and weights, gradients and Adam's two moments."""
    assert isinstance(recipe.training.batch_tokens, int)
    eighth = _changed(recipe, {"batch_tokens": max(1, recipe.training.batch_tokens // 8)})
    trainer = _trainer(eighth, task, World(device=world.device))
    weights = sum(parameter.numel() * parameter.element_size() for parameter in trainer.model.parameters())
    counter = _CountSaved()
    with counter:
        trainer.probe()
    return int(8 * counter.bytes * 1.5 + 4 * weights)


def _in_use() -> int:
    """Bytes this process already uses, mostly for libraries."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    except OSError:
        return 0


class _CountSaved(torch.autograd.graph.saved_tensors_hooks):
    """How many bytes the forward pass keeps for the backward pass."""

    def __init__(self) -> None:
        self.bytes = 0
        seen: set[int] = set()

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            place = tensor.untyped_storage().data_ptr()
            if place not in seen:
                seen.add(place)
                self.bytes += tensor.untyped_storage().nbytes()
            return tensor

        super().__init__(pack, lambda tensor: tensor)


def free_memory() -> int | None:
    """Bytes of available memory; None if the system does not report it."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return found[0] if found else None


def _sized(recipe: Recipe, size: str) -> Recipe:
    """The recipe with the model and learning rate of a named one."""
    named = read_recipe(size)
    if named.model.kind != recipe.model.kind:
        return recipe.model_copy(update={"model": named.model})
    data = recipe.model_dump(mode="json")
    model = merge(named.model.model_dump(mode="json"), {"vocab": data["model"]["vocab"]})
    model |= {"source_vocab": data["model"]["source_vocab"], "tie": data["model"]["tie"]}
    training = {**data["training"], "learning_rate": named.training.learning_rate}
    return parse_recipe({**data, "model": model, "training": training})


def _changed(recipe: Recipe, training: dict[str, object]) -> Recipe:
    data = recipe.model_dump(mode="json")
    return parse_recipe({**data, "training": {**data["training"], **training}})


def _with_steps(recipe: Recipe, task: Task, amount: float, unit: str, say: Say) -> Recipe:
    count = max(1, round(amount if unit == "steps" else amount / _tokens_a_step(recipe, task)))
    say(f"plan: {count:,} steps of {recipe.training.batch_tokens:,} tokens")
    return _changed(recipe, {"steps": count})


def _paced(recipe: Recipe, steps: int) -> Recipe:
    """So many steps, with a schedule that ends with them."""
    every = max(25, steps // 16)
    return _changed(
        recipe,
        {
            "steps": steps,
            "warmup": min(1000, steps // 8),
            "schedule": "linear",
            "learning_rate": recipe.training.learning_rate or 0.001,
            "validate_every": every,
            "save_every": every,
            "log_every": max(1, steps // 100),
        },
    )


def _with_time(recipe: Recipe, task: Task, seconds: float, world: World, say: Say, *, keep: bool) -> Recipe:
    speed = _speed(recipe, task, world)
    count = max(1, int(seconds * WORK * speed / _tokens_a_step(recipe, task)))
    memory = (_in_use() + _memory(recipe, task, world)) / 2**20
    say(f"plan: {count:,} steps at {speed:,.0f} tokens/s, about {memory:,.0f} MiB")
    warmup = {"warmup": min(recipe.training.warmup, count // 8)} if keep else {}
    return _changed(recipe, {"steps": count, **warmup})


def _trainer(recipe: Recipe, task: Task, world: World) -> Trainer:
    return Trainer(
        recipe,
        task,
        create(recipe.model, scheme=recipe.initialise),
        world=world,
        journal=Journal(Path(), steps=0, speaks=False),
        folder=Path(),
    )


def _speed(recipe: Recipe, task: Task, world: World, seconds: float = 2.0) -> float:
    """Target tokens per second of all processes: the median of a few steps of this one, after a warm-up step."""
    trainer = _trainer(_changed(recipe, {"log_every": 10**9}), task, World(device=world.device))
    rates: list[float] = []
    began = time.monotonic()
    for rows in trainer.feed():
        before, seen = time.monotonic(), trainer.progress.tokens
        trainer.step(rows)
        rates.append((trainer.progress.tokens - seen) / (time.monotonic() - before))
        if len(rates) > 2 and time.monotonic() - began > seconds:
            break
    return sorted(rates[1:])[len(rates[1:]) // 2] * world.size


def _tokens_a_step(recipe: Recipe, task: Task) -> float:
    """Tokens in an average batch, as speed counts them."""
    assert isinstance(recipe.training.batch_tokens, int)
    counts = []
    for number, rows in enumerate(task.epoch(0, budget=recipe.training.batch_tokens, seed=recipe.seed)):
        counts.append(tokens_in(task.collate(rows)))
        if number == 50:
            break
    return sum(counts) / len(counts)
