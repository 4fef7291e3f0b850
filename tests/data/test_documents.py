"""Documents: found in files, kept together, and their sentences shown with those before."""

import json
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.data.build import SPLITS
from heedful.data.context import InContext
from heedful.data.corpus import Line, read_pairs
from heedful.data.inputs import DataConfig, Inputs, look_over
from heedful.data.prepare import prepare
from heedful.data.store import Store, StoreWriter
from heedful.text.tokenizer import BREAK, TokenizerConfig, train_tokenizer


def found(path, *others):
    rows = read_pairs([path, *others], documents=True)
    return [(*row.texts, row.before) if isinstance(row, Line) else row.reason for row in rows]


EXPECTED = [("a", "A", 0), ("b", "B", 1), ("c", "C", 0), ("d", "D", 1), ("e", "E", 2)]


def test_blank_lines_ids_and_keys_say_the_same(tmp_path):
    tsv, ids, keys = tmp_path / "b.tsv", tmp_path / "i.tsv", tmp_path / "k.jsonl"
    tsv.write_text("a\tA\nb\tB\n\nc\tC\nd\tD\ne\tE\n")
    assert found(tsv) == EXPECTED
    ids.write_text("doc_id\tsource\ttarget\n" + "".join(f"{x in 'ab'}\t{x}\t{x.upper()}\n" for x in "abcde"))
    assert found(ids) == ["header row", *EXPECTED]
    rows = [{"doc": x in "ab", "source": x, "target": x.upper()} for x in "abcde"]
    keys.write_text("\n".join(map(json.dumps, rows)))
    assert found(keys) == EXPECTED
    (tmp_path / "x.en").write_text("a\nb\n\nc\nd\ne\n")
    (tmp_path / "x.de").write_text("A\nB\n\nC\nD\nE\n")
    assert found(tmp_path / "x.en", tmp_path / "x.de") == EXPECTED


def test_nothing_follows_what_is_left_out(tmp_path):
    file = tmp_path / "p.tsv"
    file.write_text("a\tA\nb\n\nc\tC\nd\tD\n\t\ne\tE\n")
    assert found(file) == [("a", "A", 0), "only one column", ("c", "C", 0), ("d", "D", 1), ("e", "E", 0)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [("a\tA\nb\tB\nc\tC\n", "it has no documents"), ("a\tA\n\nb\tB\n\nc\tC\n", "every line is a document of its own")],
)
def test_a_file_without_documents_is_refused_with_what_to_do(tmp_path, text, reason):
    (tmp_path / "p.tsv").write_text(text)
    with pytest.raises(ValueError, match=f"p.tsv: {reason}, but data.context needs .* or set data.context=0"):
        look_over(Inputs((tmp_path / "p.tsv",), documents=True))


@given(sizes=st.lists(st.integers(1, 5), min_size=30, max_size=60), number=st.integers(0, 9))
def test_no_split_divides_a_document(tmp_path_factory, sizes, number):
    folder = tmp_path_factory.mktemp("split")
    texts = [[f"{number} {place} {row}" for row in range(size)] for place, size in enumerate([2, *sizes])]
    rows = ("".join(f"{text}\t{text}\n" for text in some) for some in texts)
    (folder / "p.tsv").write_text("\n".join(rows))
    config = TokenizerConfig(kind="character")
    inputs = Inputs((folder / "p.tsv",), documents=True)
    done = prepare(inputs, DataConfig(context=2, held_out=20), config, cache=folder / "c", specials=[BREAK])
    every = []
    for split in SPLITS:
        store, places = done.store(split), done.places(split)
        read = done.tokenizers[0].decode(store.rows(0, np.arange(len(store))))
        starts = [place for place, before in enumerate(places) if before == 0]
        every += [read[start:end] for start, end in zip(starts, [*starts[1:], len(read)], strict=True)]
    assert sorted(every) == sorted(texts)


def test_a_tokenizer_without_a_break_is_refused_with_what_to_do(tmp_path):
    (tmp_path / "p.tsv").write_text("a\tA\nb\tB\n\nc\tC\n")
    given = [train_tokenizer(["a"], TokenizerConfig(kind="character"), vocab=0)] * 2
    inputs, config = Inputs((tmp_path / "p.tsv",), documents=True), TokenizerConfig()
    with pytest.raises(ValueError, match="<break>, which this tokenizer lacks; train a tokenizer .* data.context=0"):
        prepare(inputs, DataConfig(context=1), config, cache=tmp_path / "c", given=given, specials=[BREAK])


LENGTHS = st.lists(st.tuples(st.integers(1, 7), st.integers(1, 7), st.booleans()), min_size=1, max_size=23)


@given(rows=LENGTHS, context=st.integers(1, 4), limit=st.integers(7, 31), seed=st.integers(0, 99))
def test_rows_in_context_are_the_rows_before_them_and_a_break(tmp_path_factory, rows, context, limit, seed):
    folder = tmp_path_factory.mktemp("store")
    chance = np.random.default_rng(seed)
    columns = [[chance.integers(5, 50, row[side]).tolist() for row in rows] for side in (0, 1)]
    writer = StoreWriter(folder, "train", columns=2, vocab=50)
    writer.add(columns)
    writer.close()
    places = [0]
    for *_, begins in rows[1:]:
        places.append(0 if begins else places[-1] + 1)
    store = Store(folder, "train", columns=2, vocab=50)
    seen = InContext(store, np.array(places, np.uint8), context=context, limit=limit, breaks=[3, 4])
    expected = []
    for row, place in enumerate(places):
        for count in range(min(place, context), -1, -1):  # the oldest are left out first
            before = [[columns[side][row - back] + [3 + side] for back in range(count, 0, -1)] for side in (0, 1)]
            each = [list(chain.from_iterable(some)) for some in before]
            if count == 0 or max(len(each[side] + columns[side][row]) for side in (0, 1)) <= limit:
                break
        expected.append(each)
    numbers = chance.permutation(len(rows))
    for side in (0, 1):
        found, before = seen.rows(side, numbers)
        assert [one.tolist() for one in found] == [expected[row][side] + columns[side][row] for row in numbers]
        assert before.tolist() == [len(expected[row][side]) for row in numbers]
        start, end = sorted(chance.integers(0, len(rows) + 1, 2))
        lengths = [len(expected[row][side]) + len(columns[side][row]) for row in range(start, end)]
        assert seen.lengths(side, start, end).tolist() == lengths
