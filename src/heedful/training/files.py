"""The user's files for a recipe's task: which columns they have, and where."""

from collections.abc import Callable, Sequence
from pathlib import Path

from heedful.data.columns import has_answers
from heedful.data.corpus import jsonl_start, table_start
from heedful.data.inputs import Inputs
from heedful.data.layout import guess, layout
from heedful.text.tokenizer import Tokenizer
from heedful.training.recipe import Recipe
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
) -> tuple[Recipe, Inputs]:
    """The inputs, and the recipe with what the files decide: whether rows have one text or two, the order of columns.
    The recipe then is complete: test files are read in the same way."""
    given = tuple(fields) or recipe.data.fields
    task = recipe.task
    looks = task.labelled and not has_answers(task.columns) and bool(train) and train[0].is_file()
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


def _given_tokenizers(recipe: Recipe) -> list[Tokenizer]:
    """Those of the model that training starts from, or of the file that the recipe names."""
    texts = sum(column.is_text for column in recipe.task.columns)
    if recipe.start_from:
        return tokenizers_of(Path(recipe.start_from), texts)
    return [Tokenizer.load(Path(recipe.tokenizer.file))] if recipe.tokenizer.file and texts else []
