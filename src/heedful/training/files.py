"""The user's files for a recipe's task: which columns they have, and where; or the corpora that the recipe lists."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from heedful.data.columns import has_answers, has_messages
from heedful.data.corpora import CorpusConfig, with_replay
from heedful.data.corpus import jsonl_start, table_start
from heedful.data.inputs import Inputs
from heedful.data.layout import guess, layout
from heedful.data.mixture import Mixture, open_mixture
from heedful.text.tokenizer import Tokenizer
from heedful.training.recipe import Recipe, read_recipe
from heedful.training.start import tokenizers_of

GUESSED = 2000  # rows that are read to tell which column is which


def arranged(
    recipe: Recipe,
    train: Sequence[Path],
    *,
    valid: Sequence[Path] = (),
    test: Sequence[Path] = (),
    fields: Sequence[str] = (),
    say: Callable[[str], None] = lambda message: None,
) -> tuple[Recipe, Inputs | Mixture]:
    """The inputs, and the recipe with what the files decide: whether rows have one text or two, the order of columns.
    The recipe then is complete: test files are read in the same way."""
    if recipe.data.corpora:
        if train or valid or test or fields:
            raise ValueError(
                "the recipe lists its corpora under data; leave out the files, --valid, --test and --fields"
            )
        return _with_names(recipe), _mixture(recipe, say)
    if not train and not recipe.data.language_tokens:
        raise ValueError("no file to train on; give a TSV, JSONL or text file, or two parallel files")
    if recipe.data.language_tokens:
        raise ValueError(
            "data.language_tokens is for corpora with languages; list your files under data.corpora: "
            "[{file: en-de.tsv, source: en, target: de, both: true}, ...]"
        )
    if recipe.data.temperature != 1:
        raise ValueError("data.temperature is for several corpora; list them under data.corpora")
    given = tuple(fields) or recipe.data.fields
    task = recipe.task
    ordered = not (has_answers(task.columns) or has_messages(task.columns))  # otherwise files say what is what
    looks = task.labelled and ordered and bool(train) and train[0].is_file()
    start = table_start(train[0], GUESSED, task.columns) if looks else []
    if looks:
        names = {*given, *jsonl_start(train[0]), *(start[0] if start else ())}
        task = task.for_columns(len(start[0]) if start else len(given), {name.strip().casefold() for name in names})
    if start and not given:
        found = layout(start[0], task.columns)
        widths = {len(row) for row in start}
        if not found.has_header:
            given = guess(start, task.columns)
            ours = ", ".join(column.name for column in task.columns)
            if min(widths) > len(task.columns):
                raise ValueError(
                    f"{train[0].name} has {min(widths)} columns and no header row, but {task.kind} reads {ours}; name "
                    f"the file's columns in order, such as --fields id,{ours.replace(' ', '')}"
                )
            if given:
                say(f"{train[0].name}: columns read as {', '.join(given)}; to name them yourself: --fields")
    if tokenizers := _given_tokenizers(recipe):
        task = task.for_tokenizer(tokenizers[-1])
    updated = recipe.model_copy(update={"task": task, "data": recipe.data.model_copy(update={"fields": tuple(given)})})
    inputs = Inputs(
        train=tuple(train),
        valid=tuple(valid),
        test=tuple(test),
        columns=task.columns,
        fields=tuple(given),
        strict=task.labelled,
    )
    return updated, inputs


def replayed(
    recipe: str,
    train: Sequence[str],
    replay: Sequence[str],
    share: float,
    *,
    valid: Sequence[str] = (),
    test: Sequence[str] = (),
    fields: Sequence[str] = (),
) -> str:
    """The change of a recipe that mixes old data into the training on these files."""
    if not train or "-" in train:
        raise ValueError("--replay mixes old data into new data; give a file of new data as well")
    if read_recipe(recipe).data.corpora:
        raise ValueError("the recipe lists its corpora; list the old data there too, with replay: true, not --replay")
    new = CorpusConfig(file=tuple(train), valid=tuple(valid), test=tuple(test), fields=tuple(fields))
    corpora = [one.model_dump(exclude_defaults=True) for one in with_replay(new, replay, share)]
    return f"data.corpora={json.dumps(corpora)}"


def _given_tokenizers(recipe: Recipe) -> list[Tokenizer]:
    """Those of the model that training starts from, or of the file that the recipe names."""
    texts = sum(column.is_text for column in recipe.task.columns)
    if recipe.start_from:
        return tokenizers_of(Path(recipe.start_from), texts)
    return [Tokenizer.load(Path(recipe.tokenizer.file))] if recipe.tokenizer.file and texts else []


def _mixture(recipe: Recipe, say: Callable[[str], None]) -> Mixture:
    if not recipe.task.mixes:
        raise ValueError(
            f"task {recipe.task.kind} trains on one corpus; give its files on the command line, without --replay"
        )
    mixture = open_mixture(recipe.data.corpora)
    for note in mixture.notes:
        say(f"warning: {note}")
    return mixture


def _with_names(recipe: Recipe) -> Recipe:
    """The recipe with the names of the files alone: what a model is made of is their content, wherever they are."""
    corpora = [
        one.model_copy(update={kind: tuple(Path(file).name for file in getattr(one, kind)) for kind in
                               ("file", "valid", "test")})
        for one in recipe.data.corpora
    ]  # fmt: skip
    data = recipe.data.model_copy(update={"corpora": tuple(corpora), "language_tokens": recipe.data.layout})
    return recipe.model_copy(update={"data": data})
