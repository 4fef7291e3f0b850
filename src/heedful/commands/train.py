"""`heedful train`: from a file of pairs, or plain text, to a model folder."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heedful import startup
from heedful.commands.options import Parts

if TYPE_CHECKING:
    from heedful.data.prepare import Prepared
    from heedful.training.recipe import Recipe


def train(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE]... [KEY=VALUE]...",
            help="TSV or JSONL with pairs, two parallel files, CoNLL with tagged words, or plain text for a language "
            "model; optionally gzipped; - = standard input; none if the recipe lists its corpora. Followed by recipe "
            "keys to change.",
            show_default=False,
        ),
    ] = None,
    *,
    out: Annotated[Path, typer.Option(help="The model folder. An interrupted training in it is resumed.")],
    recipe: Annotated[str, typer.Option(help="A named recipe (`heedful recipes` lists them) or a YAML file.")] = "tiny",
    valid: Annotated[list[Path] | None, typer.Option(help="Validation pairs. Default: hold some out.")] = None,
    test: Annotated[list[Path] | None, typer.Option(help="Test pairs, not used for training.")] = None,
    fields: Annotated[
        str,
        typer.Option(
            help="Names of the files' columns: the table's own, or the JSONL keys, in the order that the task reads "
            "(en,zh); or the task's names in the order of the table (label,text)."
        ),
    ] = "",
    start_from: Annotated[
        str,
        typer.Option(
            help="Model whose tokenizer and weights to start from: a Heedful, Hugging Face or "
            "sentence-transformers folder, or a GGUF file."
        ),
    ] = "",
    replay: Annotated[
        list[str] | None,
        typer.Option(help="Data that the model of --start-from has learned, mixed in so that it does not forget it."),
    ] = None,
    replay_share: Annotated[float, typer.Option(help="The share of these among the rows trained on.")] = 0.5,
    budget: Annotated[
        str, typer.Option(help="20m, 1h30m, 5000steps, 3epochs, 10Mtokens: plans vocabulary, model, batch and steps.")
    ] = "",
    keep_model: Annotated[
        bool, typer.Option("--keep-model", help="With --budget: keep the recipe's model, plan only the steps.")
    ] = False,
    cache: Annotated[
        Path | None, typer.Option(help="Cache folder of tokenised corpora.", show_default="~/.cache/heedful")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the final scores as JSON.")] = False,
    parts: Parts = None,
) -> None:
    """Train a model on your own file. If interrupted, rerun the same command to resume.

    Keys people change most:

      seed=7                          random seed
      training.steps=20000            number of updates
      training.batch_tokens=4096      tokens per update; auto = what fits
      training.learning_rate=0.001    peak rate; also .warmup, .schedule
      training.metric=bleu            metric that selects the best model
      training.patience=5             validations without gain before stopping
      training.precision=bfloat16     chosen automatically on a GPU
      model.preset=vaswani-base       model; also model.encoder.layers=3 ...
      tokenizer.vocab=8000            vocabulary size; also tokenizer.kind
      data.max_length=256             longer pairs are skipped

    Examples:

      heedful train pairs.tsv --out runs/my-model

      heedful train pairs.tsv --out runs/my-model --budget 20m

      heedful train train.en train.de --valid dev.en --valid dev.de --out runs/en-de data.target_language=de

      heedful train book.txt --out runs/book --recipe char-gpt

      heedful train --recipe mix.yaml --out runs/mix

      heedful train more.tsv --out runs/tuned --start-from runs/my-model 'training.freeze=["embedding"]'

      heedful train domain.tsv --out runs/domain --start-from runs/my-model --replay pairs.tsv

      torchrun --nproc-per-node 2 -m heedful train pairs.tsv --out runs/my-model
    """
    startup.load("heedful.training.run")
    from heedful.data.prepare import default_cache
    from heedful.training.files import arranged, replayed
    from heedful.training.parallel import exit_now
    from heedful.training.recipe import read_recipe
    from heedful.training.run import train as run

    names = [word for word in files or () if "=" not in word or Path(word).exists()]
    changes = [word for word in files or () if word not in names]
    changes = [f"start_from={start_from}", *changes] if start_from else changes
    named = [name.strip() for name in fields.split(",") if name.strip()]
    if replay:
        held = {"valid": list(map(str, valid or ())), "test": list(map(str, test or ()))}
        changes = [*changes, replayed(recipe, names, replay, replay_share, **held, fields=named)]
        names, named, valid, test = [], [], None, None
    chosen = read_recipe(recipe, changes)
    chosen, inputs = arranged(
        chosen,
        [_from_stdin(out) if name == "-" else Path(name) for name in names],
        valid=valid or (),
        test=test or (),
        fields=named,
        say=lambda message: print(f"heedful: {message}", file=sys.stderr),
    )
    result = run(chosen, inputs, out, cache=cache or default_cache(), budget=budget, keep_model=keep_model, show=_show)
    if result.finished and result.numbers:
        _draw(out)
        if as_json:
            print(json.dumps({"folder": str(out), **result.numbers}))
        else:
            scores = "  ".join(f"{name} {value:.3f}" for name, value in result.numbers.items())
            print(f"{out}: {scores}")
    code = 128 + result.signal if result.signal else 0
    exit_now(code)
    if code:
        raise typer.Exit(code)


def _from_stdin(out: Path) -> Path:
    """Standard input is read more than once, so it is saved; what an earlier start saved is not overwritten."""
    import os
    import shutil

    from heedful.data.digest import file_digest
    from heedful.files import in_place

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("several processes cannot share standard input; give a file")
    out.mkdir(parents=True, exist_ok=True)
    kept, new = out / "input", out / "input.new"
    with in_place(new) as temporary, temporary.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    if (out / "asked.json").exists() and kept.exists() and file_digest(kept) != file_digest(new):
        new.unlink()
        raise ValueError(f"standard input differs from what {out} was started with; choose another --out")
    new.replace(kept)
    return kept


def _show(prepared: "Prepared", recipe: "Recipe") -> None:
    from rich.console import Console

    from heedful.commands.data import report_table, shares_table

    facts = prepared.facts
    console = Console(stderr=True)
    for part in prepared.parts:
        if not part.swapped:
            console.print(report_table(part.prepared.facts["report"], part.name))
    console.print(shares_table(prepared) if prepared.parts else report_table(facts["report"]))
    rows, parameters = facts["rows"], sum(recipe.model.parameters().values())
    unknown = f", {facts['unknown_labels']:,} with labels unknown to training" if facts["unknown_labels"] else ""
    vocabulary = prepared.tokenizers[-1].vocab if prepared.tokenizers else 0
    if facts.get("held_out_elsewhere"):
        console.print(
            f"{facts['held_out_elsewhere']:,} rows are not for training: other corpora hold out their sources"
        )
    held = f"{rows['train']:,} for training, {rows['valid']:,} for validation, {rows['test']:,} for test"
    console.print(
        f"{held}; {facts['too_long']:,} too long{unknown}. "
        f"{'/'.join(f'{count:,}' for count in facts['tokens'])} tokens, vocabulary {vocabulary:,}. "
        f"{recipe.model.kind} with {parameters:,} parameters; {recipe.training.steps:,} steps of "
        f"{recipe.training.batch_tokens:,} tokens.",
        highlight=False,
    )


def _draw(out: Path) -> None:
    try:
        from heedful.inspection.plots import draw_training
    except ImportError:
        print("training.png not drawn: pip install 'heedful[plot]'", file=sys.stderr)
        return
    draw_training(out)
