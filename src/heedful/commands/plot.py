"""`heedful plot`: plots of attention, positions, schedules and training runs."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heedful.commands.languages import From, To, check_languages
from heedful.commands.options import Parts

if TYPE_CHECKING:
    from heedful.alignment import Aligner
    from heedful.inspection.attention import Attention
    from heedful.translator import Translator

plot = typer.Typer(name="plot", help="Plots, as PNG files.", no_args_is_help=True)
Json = Annotated[bool, typer.Option("--json", help="Print the file name as JSON.")]


@plot.callback()
def _plot() -> None:
    pass


@plot.command()
def attention(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    text: Annotated[str, typer.Argument(help="The text to translate, or to reply to.")],
    out: Annotated[Path, typer.Option(help="The image file to write.")] = Path("attention.png"),
    kind: Annotated[
        str, typer.Option(help="cross, encoder or decoder. Default: cross; of a language model, decoder.")
    ] = "",
    head: Annotated[str, typer.Option(help="Plot only this head: LAYER.HEAD, from 0, or `aligner`.")] = "",
    part: Annotated[int, typer.Option(min=1, help="Which part, if a long text is translated in parts.")] = 1,
    from_language: From = "",
    to_language: To = "",
    as_json: Json = False,
    parts: Parts = None,
) -> None:
    """Plot the attention of every layer and head while a text is translated, or a reply to it is written.

    Examples:

      heedful plot attention runs/my-model "The cat sleeps." --out cat.png

      heedful plot attention runs/my-model "The cat sleeps." --head aligner

      heedful plot attention runs/many "The cat sleeps." --from en --to de
    """
    draw = _plots().draw_attention
    import heedful
    from heedful.chatter import Chatter
    from heedful.inspection import dialogue
    from heedful.translator import Translator

    use, languages = heedful.load(model), (from_language, to_language)
    if isinstance(use, Chatter):
        if any(languages) or part > 1:
            raise ValueError("languages and parts are for translators; leave them out")
        only = _head(head, None, model)
        reply = dialogue.look(use, text)
        seen, title = reply.attention, f"{text}\n{reply.text}"
    elif isinstance(use, Translator):
        only = _head(head, use.aligner, model)
        check_languages(use.languages, languages)
        seen, title = _translation(use, text, languages, part)
    else:
        raise ValueError(f"{model} holds a {type(use).__name__}, not a Translator or Chatter")
    usual = "cross" if seen.source else "decoder"
    _say(draw(seen, out, kind=kind or usual, only=only, title=title), as_json)


def _head(name: str, aligner: "Aligner | None", model: Path) -> tuple[int, int] | None:
    """Layer and head; None = all."""
    if name == "aligner":
        if aligner is None:
            raise ValueError(f"{model} has no alignment.json, so there is no alignment head")
        return aligner.layer, aligner.head
    if not name:
        return None
    layer, _, number = name.partition(".")
    if not (layer.isdecimal() and number.isdecimal()):
        raise ValueError(f"head {name!r} is not LAYER.HEAD, such as 0.3, nor `aligner`")
    return int(layer), int(number)


def _translation(translator: "Translator", text: str, languages: tuple[str, str], part: int) -> tuple["Attention", str]:
    """The attention of a part of a text while it is translated, and a title."""
    from heedful.inspection.attention import look, translated_parts

    pieces = translated_parts(translator, text, languages)
    if part > len(pieces):
        raise ValueError(f"there is no part {part}; the text was translated in {len(pieces)} parts")
    if len(pieces) > 1:
        print(f"the text was translated in {len(pieces)} parts; this is part {part} (--part)", file=sys.stderr)
    source, found = pieces[part - 1]
    seen = look(translator, source, found.tokens, languages=languages, fertilities=found.fertilities)
    return seen, f"{source}\n{found.text}"


@plot.command()
def positions(
    out: Annotated[Path, typer.Option(help="The image file to write.")] = Path("positions.png"),
    length: Annotated[int, typer.Option(min=1, help="Number of positions.")] = 100,
    width: Annotated[int, typer.Option(min=4, help="Number of dimensions.")] = 128,
    as_json: Json = False,
) -> None:
    """Plot the sinusoidal position encodings of the paper as a heat map.

    Examples:

      heedful plot positions --length 60 --width 64
    """
    _say(_plots().draw_positions(out, length=length, width=width), as_json)


@plot.command()
def schedule(
    recipe: Annotated[str, typer.Argument(help="A named recipe or a YAML file.")] = "tiny",
    changes: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Keys to change.")] = None,
    out: Annotated[Path, typer.Option(help="The image file to write.")] = Path("schedule.png"),
    as_json: Json = False,
) -> None:
    """Plot the learning rate over the steps of a recipe.

    Examples:

      heedful plot schedule base training.warmup=8000
    """
    draw = _plots().draw_schedule
    from heedful.training.recipe import read_recipe

    _say(draw(read_recipe(recipe, changes or []), out), as_json)


@plot.command()
def training(
    model: Annotated[Path, typer.Argument(help="A model folder, finished or not.")], as_json: Json = False
) -> None:
    """Plot loss, scores and learning rate of a training run, as training.png in its folder.

    Examples:

      heedful plot training runs/my-model
    """
    draw = _plots().draw_training
    if not (model / "metrics.jsonl").is_file():
        raise ValueError(f"{model} has no metrics.jsonl: nothing has been trained there")
    _say(draw(model), as_json)


@plot.command()
def visibility(
    attentions: Annotated[
        list[str] | None, typer.Argument(metavar="[ATTENTION]...", help="Which ones. Default: all there are.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The picture.")] = Path("visibility.png"),
    length: Annotated[int, typer.Option(min=4, max=256, help="Tokens of the text.")] = 24,
    as_json: Json = False,
    parts: Parts = None,
) -> None:
    """Plot who sees whom in each attention, in an encoder and a decoder, as found by gradients. Windows, blocks and
    chunks are small here, so that a short text shows them.

    Examples:

      heedful plot visibility window longformer bigbird --length 40
    """
    draw = _plots().draw_visibility
    from heedful.inspection.visibility import pictures

    _say(draw(pictures(attentions, length=length), out), as_json)


@plot.command()
def confusion(
    model: Annotated[Path, typer.Argument(help="The folder of a classifier.")],
    test: Annotated[Path, typer.Argument(help="Labelled rows, as in training.")],
    out: Annotated[Path, typer.Option(help="The picture.")] = Path("confusion.png"),
    as_json: Json = False,
) -> None:
    """Plot the confusion matrix of a classifier: which labels it takes for which.

    Examples:

      heedful plot confusion runs/my-classifier test.tsv --out confusion.png
    """
    draw = _plots().draw_confusion
    import heedful

    use = heedful.load(model)
    if not test.is_file():
        raise ValueError(f"there is no file {test}")
    found = use.evaluate(test) if hasattr(use, "evaluate") else {}
    if "confusion" not in found:
        raise ValueError(f"{model} does not choose one label for each text, so there is no confusion matrix")
    title = f"{test.name}: accuracy {found['accuracy']:.1f} %"
    _say(draw(found["labels"], found["confusion"], out, title=title), as_json)


@plot.command()
def complexity(
    out: Annotated[Path, typer.Option(help="The picture.")] = Path("complexity.png"),
    longest: Annotated[int, typer.Option(min=256, max=4096, help="Longest text, in tokens.")] = 4096,
    widest: Annotated[int, typer.Option(min=128, max=1024, help="Largest width.")] = 1024,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Measure the complexity table of "Attention Is All You Need" on this machine: self-attention, recurrent,
    convolutional and restricted self-attention layers, predicted and measured, for growing texts and widths.

    Examples:

      heedful plot complexity --longest 2048
    """
    draw = _plots().draw_complexity
    from heedful.inspection.complexity import LENGTH, LENGTHS, WIDTH, WIDTHS, measure

    found = measure(
        lengths=[length for length in LENGTHS if length <= longest], widths=[size for size in WIDTHS if size <= widest]
    )
    draw(found, out)
    rows = [
        {
            "layer": one.kind.name,
            "cost": one.kind.cost,
            "sequential steps": one.kind.steps,
            "path": one.kind.path,
            "reach of a layer": one.reach,
            "exponent of n": round(one.exponents()[0], 2),
            "exponent of d": round(one.exponents()[1], 2),
        }
        for one in found
    ]
    if as_json:
        print(json.dumps({"picture": str(out), "layers": rows}, ensure_ascii=False))
        return
    from rich.console import Console
    from rich.table import Table

    title = f"one layer, forward; n grows at width {WIDTH}, d at {LENGTH} tokens; reach in a text of {LENGTH}"
    table = Table(*rows[0], title=title, title_justify="left")
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console().print(table)
    print(out)


def _plots():  # type: ignore[no-untyped-def]
    try:
        from heedful.inspection import plots
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        raise ValueError("plots need matplotlib: pip install 'heedful[plot]'") from None
    return plots


def _say(path: Path, as_json: bool) -> None:
    print(json.dumps({"picture": str(path)}) if as_json else path)
