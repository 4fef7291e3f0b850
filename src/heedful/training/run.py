"""A whole training: data, model, loop, result. Rerun with the same arguments, it resumes."""

import json
import resource
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file

from heedful.adapters import AdapterConfig, install
from heedful.bases import Base, digest_of
from heedful.bounded import read_yaml
from heedful.checkpoint import average, newest, regular, set_aside
from heedful.data.check import Report
from heedful.data.inputs import Inputs, look_over
from heedful.data.mixture import Mixture, prepare_mixture
from heedful.data.prepare import Prepared, load_tokenizers, prepare, save_tokenizers
from heedful.files import locked, write_text
from heedful.model.architecture import ArchitectureConfig, Model
from heedful.model.create import create
from heedful.tasks import Settings, Task
from heedful.text.tokenizer import BREAK, Tokenizer
from heedful.training.anchor import anchor_for
from heedful.training.card import card
from heedful.training.earlier import FREE, earlier, refuse_changes
from heedful.training.held_out import save_test
from heedful.training.journal import Journal, read_metrics
from heedful.training.loop import Trainer
from heedful.training.parallel import World, join
from heedful.training.plan import Budget, fit_memory, parse_budget, plan, readable_words, relative_cost, with_characters
from heedful.training.recipe import Recipe, parse_recipe
from heedful.training.start import layout_of, take_weights, tokenizers_of
from heedful.training.step import load_trained


@dataclass(frozen=True)
class Result:
    """`numbers`: the final scores on the validation set. `finished`: False if it was stopped early."""

    folder: Path
    finished: bool
    numbers: dict[str, float]
    signal: int = 0  # what stopped it


def train(
    recipe: Recipe,
    inputs: Inputs | Mixture,
    out: Path,
    *,
    cache: Path,
    budget: str = "",
    keep_model: bool = False,
    show: Callable[[Prepared, Recipe], None] = lambda prepared, recipe: None,
) -> Result:
    """Train on the given files by a recipe, into a model folder. `keep_model`: a budget plans the steps only. `show` is
    called with the plan before training."""
    limit = Budget(budget, keep_model)
    if keep_model and not budget:
        raise ValueError("--keep-model plans the steps for a budget; give one with --budget")
    if limit:
        parse_budget(budget)
    world = join()
    with locked(out / ".lock", "another training") if world.leads else nullcontext():
        return _run(recipe, inputs, out, cache, limit, show, world)


def _run(
    recipe: Recipe,
    inputs: Inputs | Mixture,
    out: Path,
    cache: Path,
    budget: Budget,
    show: Callable[[Prepared, Recipe], None],
    world: World,
) -> Result:
    known = earlier(out)
    if isinstance(inputs, Inputs):
        inputs = replace(inputs, documents=recipe.data.context > 0)
    asked: dict[str, Any] = {
        "recipe": recipe.model_dump(mode="json"),
        "budget": str(budget),
        "data": inputs.digests(cache),
    }
    for name, key, origin in (
        ("start", "start_from", recipe.start_from),
        ("teacher", "task.teacher", recipe.task.tokenizers_from),
        *((key, key, folder) for key, folder in recipe.task.models.items()),
    ):
        if origin and not Path(origin).exists():
            raise ValueError(f"{key}: there is no folder {origin}")
        if origin:
            asked[name] = digest_of(Path(origin))
    if recipe.task.needs_start and not recipe.start_from:
        raise ValueError(f"task {recipe.task.kind} {recipe.task.needs_start}; name one: --start-from MODEL")
    if recipe.start_from and (layout := layout_of(Path(recipe.start_from))) and layout != recipe.data.layout:
        raise ValueError(
            f"start_from: this model knows languages by their tokens (data.language_tokens={layout}); list your "
            f"files under data.corpora with source and target, and set data.language_tokens={layout}"
        )
    if world.size > 1 and not (recipe.task.adds_up or recipe.task.gathers):
        raise ValueError(
            f"task {recipe.task.kind} compares the rows of a batch with each other, so processes cannot share one; "
            "train in one process"
        )
    if known is not None:
        refuse_changes(known, asked, out)
    out.mkdir(parents=True, exist_ok=True)
    journal = Journal(out, steps=0, speaks=world.leads)
    report = None
    planned = budget and known is None and world.leads and budget.sizes(recipe) and not recipe.start_from
    if planned and isinstance(inputs, Inputs):
        journal.say("checking the corpus")
        report = look_over(inputs)
        recipe = with_characters(recipe, report, journal.say)
    prepared = _prepare(recipe, inputs, out, cache, world, journal, budget if known is None else None, report)
    if prepared.facts["unknown_labels"]:
        journal.say(f"{prepared.facts['unknown_labels']:,} rows with labels that do not occur in training are skipped")
    if not prepared.has("valid"):
        journal.say("too few rows to hold any out: validating on the training data")
    for part in prepared.parts if prepared.has("valid") else ():
        if recipe.training.metric == f"{part.metric}[{part.name}]" and not part.texts("valid"):
            raise ValueError(
                f"training.metric={recipe.training.metric}, but no rows are held out of {part.name}: it has too few; "
                "give validation files, or choose another metric"
            )
    model = recipe.fitted(prepared).model
    settings = Settings(
        label_smoothing=recipe.training.label_smoothing,
        bpe_dropout=recipe.tokenizer.dropout,
        language=recipe.data.target_language,
        cost=relative_cost(model),
        max_length=recipe.data.max_length,
        context=recipe.data.context,
        layout=recipe.data.layout,
        model=model,
        start_from=recipe.start_from,
        base=asked.get("start", ""),
        reference=partial(_reference, recipe, model, world) if recipe.start_from else None,
    )
    task = recipe.task.build(prepared, settings)
    for note in getattr(task, "notes", ()):
        journal.say(note)
    if world.leads:
        resolved = _resolve(recipe, known, prepared, task, out, budget, world, journal)
        write_text(out / "config.yaml", yaml.safe_dump(resolved.model_dump(mode="json"), sort_keys=False))
        write_text(out / "asked.json", json.dumps(asked, indent=2))
        if recipe.adapter is not None:
            Base(Path(recipe.start_from), str(asked["start"])).write(out)
        show(prepared, resolved)
    world.wait()
    resolved = parse_recipe(read_yaml(out / "config.yaml"))
    journal.steps = resolved.training.steps
    try:
        return _train(resolved, task, prepared, out, world, journal)
    finally:
        journal.close()
        world.leave()


def _train(recipe: Recipe, task: Task, prepared: Prepared, out: Path, world: World, journal: Journal) -> Result:
    torch.manual_seed(recipe.seed)
    model = create(recipe.model, scheme=recipe.initialise)
    checkpoint = newest(out / "checkpoints", journal.say)
    if checkpoint is None:
        _refuse_to_replace(out, recipe)
    world.wait()
    only = None
    config = recipe.training  # neither frozen weights nor those that others are pulled toward are in checkpoints
    partly = config.freeze or config.toward_start or config.elastic or recipe.adapter
    if recipe.start_from and (checkpoint is None or partly):
        new = take_weights(model, Path(recipe.start_from), journal.say)
        if recipe.adapter is not None:
            only = install(recipe.adapter, model, new & {name for name, _ in model.named_parameters()})
            journal.say(_counted(recipe.adapter, model))
    anchor = anchor_for(recipe, task, model, prepared, out, world, journal)
    if checkpoint is None and hasattr(task, "begin"):
        task.begin(model.to(world.device))
    trainer = Trainer(recipe, task, model, world=world, journal=journal, folder=out, only=only, anchor=anchor)
    if checkpoint is not None:
        trainer.restore(checkpoint)
        if world.leads:
            set_aside(out / "checkpoints", after=checkpoint.step)
        journal.say(f"resuming from step {checkpoint.step}")
    else:
        trainer.probe()
    journal.begin_at(trainer.progress.step)
    progress = trainer.progress
    if progress.step < recipe.training.steps and not progress.is_stale(recipe.training.patience):
        trainer.run()
    if trainer.stopped:
        journal.close()
        journal.say(f"stopped after step {trainer.progress.step}, saved; rerun the same command to resume")
        return Result(out, False, {}, trainer.stopped)
    numbers = _finish(trainer, recipe, prepared, out)
    world.wait()
    return Result(out, True, numbers)


def _reference(recipe: Recipe, config: ArchitectureConfig, world: World) -> Model:
    """The model that training starts from, to compare with."""
    found = create(config, scheme=recipe.initialise)
    take_weights(found, Path(recipe.start_from), lambda message: None)
    return found.to(world.device).eval().requires_grad_(False)


def _counted(adapter: AdapterConfig, model: Model) -> str:
    """How much of a model is trained."""
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    total, trained = sum(size for size, _ in sizes), sum(size for size, own in sizes if own)
    return f"adapter {adapter.kind}: {trained:,} of {total:,} parameters are trained ({trained / total:.2%})"


def _refuse_to_replace(out: Path, recipe: Recipe) -> None:
    """If there is a model but no checkpoint, starting over would lose it, unless it predates the first checkpoint."""
    steps = [int(line["step"]) for line in read_metrics(out) if "step" in line]
    if (out / "model.safetensors").exists() and max(steps, default=0) >= recipe.training.save_every:
        raise ValueError(
            f"{out} holds a model trained for {max(steps):,} steps, but its checkpoints are gone, so training would "
            "start over and replace it; choose another --out, or start from it: --start-from"
        )


def _finish(trainer: Trainer, recipe: Recipe, prepared: Prepared, out: Path) -> dict[str, float]:
    """Keep the best model, or the average of the last ones if that is better; score it; write its card. All processes
    take part in scoring."""
    journal, progress, world = trainer.journal, trainer.progress, trainer.world
    journal.close()
    if not (out / "model.safetensors").exists():
        trainer.keep_best()
    world.wait()
    _load_into(trainer, out)
    trainer.ema = {}
    numbers, samples = trainer.score()
    counted = regular(out / "checkpoints", recipe.training.save_every)[-recipe.training.keep :]
    kept = [out / "checkpoints" / str(step) / "model.safetensors" for step in counted]
    if recipe.training.average and len(kept) > 1:
        buffers = [name for name, _ in trainer.model.named_buffers(remove_duplicate=False)]
        load_trained(trainer.model, average(kept, buffers=buffers), trainer.frozen)
        mean, mean_samples = trainer.score()
        if trainer.is_better(mean[recipe.training.metric]):
            numbers, samples = mean, mean_samples
            trainer.keep_best()
            journal.say(f"the average of the last {len(kept)} checkpoints is better and is used")
        world.wait()
        _load_into(trainer, out)
    for name in sorted({"loss", recipe.training.metric} & set(numbers)):
        if not isfinite(numbers[name]):
            raise ValueError(
                f"the training has failed: {name} is {numbers[name]} on the validation set, so the model in {out} is "
                "unusable; lower training.learning_rate, or check the weights that it started from"
            )
    if trainer.world.leads:
        trainer.task.finish(trainer.model.eval(), out)
    memory = peak_memory()
    speed = progress.tokens / max(1e-9, progress.seconds)
    if not world.leads:
        return {}
    journal.write(
        progress.step,
        final=numbers,
        peak_memory=memory,
        seconds=progress.seconds,
        tokens_per_second=speed,
        skipped=progress.skipped,
    )
    write_text(out / "README.md", card(recipe, prepared, progress, numbers, samples, memory, trainer.model))
    journal.say(
        f"{progress.step:,} steps, {progress.tokens:,} tokens in {progress.seconds:,.0f} s: {speed:,.0f} tokens/s, "
        f"peak memory {memory / 2**20:,.0f} MiB" + (f", {progress.skipped} steps skipped" if progress.skipped else "")
    )
    return numbers


def _load_into(trainer: Trainer, out: Path) -> None:
    """Set the weights to the folder's, all of them or an adapter's; parts that only training needs keep theirs."""
    model = trainer.model
    aside = {name for name in model.state_dict() if name.partition(".")[0] in model.aside}
    load_trained(model, load_file(out / "model.safetensors"), trainer.base | aside)


def _prepare(
    recipe: Recipe,
    inputs: Inputs | Mixture,
    out: Path,
    cache: Path,
    world: World,
    journal: Journal,
    budget: Budget | None,
    report: Report | None,
) -> Prepared:
    """The main process prepares the data; the others then find it in the cache. `budget` None: tokenizers exist."""
    if not world.leads:
        world.wait()
    given, words = None, 0
    texts = sum(column.is_text for column in inputs.columns)
    if budget is None or not world.leads:
        given = load_tokenizers(out, columns=texts)
    elif origin := recipe.start_from or recipe.task.tokenizers_from:
        given = tokenizers_of(Path(origin), texts)
        if recipe.tokenizer.file and Tokenizer.load(Path(recipe.tokenizer.file)).digest() != given[-1].digest():
            named = "start_from" if recipe.start_from else "task.teacher"
            raise ValueError(f"the weights of {named} require its own tokenizer; remove tokenizer.file")
    elif budget and budget.sizes(recipe):
        words = readable_words(budget, budget.sizes(recipe)[0], world)
    specials = (*recipe.task.specials, *([BREAK] if recipe.data.context else []))
    options: dict[str, Any] = {
        "cache": cache, "given": given, "words": words, "specials": specials, "notify": journal.say
    }  # fmt: skip
    if isinstance(inputs, Mixture):
        prepared = prepare_mixture(inputs, recipe.data, recipe.tokenizer, **options)
    else:
        prepared = prepare(inputs, recipe.data, recipe.tokenizer, report=report, **options)
    if world.leads:
        if budget is not None:
            save_tokenizers(out, prepared.tokenizers)
            save_test(prepared, out, documents=recipe.data.context > 0)
            if prepared.labels:
                write_text(out / "labels.json", json.dumps(prepared.labels, indent=2, ensure_ascii=False))
        world.wait()
    return prepared


def _resolve(
    recipe: Recipe,
    known: dict[str, Any] | None,
    prepared: Prepared,
    task: Task,
    out: Path,
    budget: Budget,
    world: World,
    journal: Journal,
) -> Recipe:
    """The fully resolved recipe. Decisions of an earlier start are kept."""
    if known is not None:
        saved = read_yaml(out / "config.yaml")
        if not budget:
            now = recipe.model_dump(mode="json")
            for key in (*FREE, "training.steps"):
                section, _, name = key.partition(".")
                saved[section][name] = now[section][name]
        return parse_recipe(saved)
    resolved = recipe.fitted(prepared)
    resolved = fit_memory(resolved, task, world=world, say=journal.say)
    return plan(resolved, budget, task, prepared, world=world, say=journal.say) if budget else resolved


def peak_memory() -> int:
    """The peak memory of this process so far, in bytes."""
    status = Path("/proc/self/status")  # Linux's ru_maxrss begins with the memory of the parent process
    if status.exists():
        found = [line for line in status.read_text().splitlines() if line.startswith("VmHWM:")]
        if found:
            return int(found[0].split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
