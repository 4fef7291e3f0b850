"""Tables as people have them: with or without a header row, in any order of columns, with columns to skip."""

import pytest

from heedful.data.columns import Column
from heedful.data.layout import guess, layout

PAIR = (Column("first", also=("premise",)), Column("second", also=("hypothesis",)), Column("label", "label"))
ONE = (Column("text", also=("sentence",)), Column("label", "label"))
SCORED = (Column("first"), Column("second"), Column("score", "number"))


@pytest.mark.parametrize(
    ("cells", "columns", "fields", "places", "header"),
    [
        (["text", "label"], ONE, (), (0, 1), True),
        (["Label", "Sentence"], ONE, (), (1, 0), True),
        (["idx", "label", "hypothesis", "premise"], PAIR, (), (3, 2, 1), True),
        (["a cat", "pos"], ONE, (), (0, 1), False),
        (["pos", "a cat"], ONE, ("label", "text"), (1, 0), False),
        (["7", "pos", "a cat"], ONE, ("id", "label", "text"), (2, 1), False),
        (["review", "stars", "sold"], ONE, ("review", "stars"), (0, 1), True),
        (["stars", "label", "text"], ONE, ("label", "text"), (2, 1), True),
    ],
)
def test_columns_are_found(cells, columns, fields, places, header):
    found = layout(cells, columns, fields)
    assert (found.places, found.has_header) == (places, header)


def test_the_label_is_the_cell_with_few_values():
    rows = [["pos" if n % 2 else "neg", f"text number {n}"] for n in range(20)]
    assert guess(rows, ONE) == ("label", "text")
    assert guess([row[::-1] for row in rows], ONE) in ((), ("text", "label"))


def test_the_score_is_the_cell_that_always_is_a_number():
    rows = [[str(n / 3), f"text {n}", f"other {n}"] for n in range(20)]
    assert guess(rows, SCORED) == ("score", "first", "second")
    assert guess([["1", "2", "3"]] * 5, SCORED) == ()  # three numbers: not to be told
