"""Batches: every row once, within the budget, in an order the seed fixes, with little padding."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.data import batches
from heedful.data.store import Store, StoreWriter


def make(folder, lengths, split="train", vocab=1000):
    writer = StoreWriter(folder, split, columns=lengths.shape[1], vocab=vocab)
    rows = [
        [[int(column + place) % vocab for place in range(length)] for length in lengths[:, column]]
        for column in range(lengths.shape[1])
    ]
    writer.add([rows[0][:3], rows[-1][:3]][: lengths.shape[1]])
    writer.add([rows[0][3:], rows[-1][3:]][: lengths.shape[1]])
    writer.close()
    return Store(folder, split, columns=lengths.shape[1], vocab=vocab)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """As many rows as Multi30k, and as long: about 13 words, source and target alike, a long tail."""
    chance = np.random.default_rng(0)
    source = np.clip(chance.lognormal(2.6, 0.35, size=29001).round(), 3, 60).astype(int)
    target = np.clip((source * chance.normal(1.05, 0.2, size=29001)).round(), 3, 70).astype(int)
    return make(tmp_path_factory.mktemp("store"), np.stack([source, target], axis=1))


def all_of(store, **options):
    return list(batches.epoch(store, **{"budget": 4096, "seed": 1, "number": 0, **options}))


def test_the_store_gives_back_what_went_in(tmp_path):
    store = make(tmp_path, np.array([[2, 3], [5, 1], [4, 4], [1, 7], [3, 2]]))
    assert len(store) == 5
    assert [row.tolist() for row in store.rows(1, np.array([3, 1]))] == [[1, 2, 3, 4, 5, 6, 7], [1]]
    assert store.lengths(0).tolist() == [2, 5, 4, 1, 3]
    store.forget()
    assert store.rows(0, np.array([1]))[0].tolist() == [0, 1, 2, 3, 4]


def test_large_vocabularies_fit(tmp_path):
    store = make(tmp_path, np.array([[2, 3]] * 5), vocab=100_000)
    assert store.tokens[0].dtype == np.uint32


def test_every_row_once_an_epoch(store):
    rows = np.concatenate(all_of(store))
    assert sorted(rows.tolist()) == list(range(len(store)))


def test_the_budget_holds(store):
    for batch in all_of(store):
        longest = max(len(row) for column in (0, 1) for row in store.rows(column, batch))
        assert longest * len(batch) <= 4096


def test_padding_is_below_a_tenth(store):
    assert batches.padding(store, budget=4096) < 0.10


def test_the_seed_and_the_number_fix_the_order(store):
    first, second = all_of(store), all_of(store)
    assert all(np.array_equal(one, two) for one, two in zip(first, second, strict=True))
    for other in (all_of(store, seed=2), all_of(store, number=1)):
        assert not np.array_equal(np.concatenate(first), np.concatenate(other))


def test_lengths_do_not_come_in_order(store):
    longest = [max(len(row) for row in store.rows(1, batch)) for batch in all_of(store)]
    assert longest != sorted(longest)


def test_windows_bound_what_is_held_and_lose_nothing(store, monkeypatch):
    monkeypatch.setattr(batches, "BLOCK", 100)
    monkeypatch.setattr(batches, "WINDOW", 5)
    found = all_of(store)
    assert sorted(np.concatenate(found).tolist()) == list(range(len(store)))


def test_the_worst_batch_holds_the_longest_row(store):
    rows = batches.longest(store, budget=4096)
    longest = max(store.lengths(0).max(), store.lengths(1).max())
    assert max(len(row) for column in (0, 1) for row in store.rows(column, rows)) == longest
    assert len(rows) * longest <= 4096


@settings(deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=1, max_size=60),
    budget=st.integers(1, 200),
)
def test_cut_keeps_all_rows_and_the_budget(lengths, budget):
    table = np.array(lengths)
    found = batches.cut(np.arange(len(table)), table, budget)
    assert sorted(np.concatenate(found).tolist()) == list(range(len(table)))
    for rows in found:
        assert len(rows) == 1 or len(rows) * table[rows].max() <= budget


def test_long_rows_count_by_what_they_cost(tmp_path):
    lengths = np.array([[100]] * 8 + [[2000]] * 8)
    rows = np.arange(16)
    plain = batches.cut(rows, lengths, 4000)
    costly = batches.cut(rows, lengths, 4000, lambda length: max(1.0, length / 1000))
    assert sorted(map(len, plain)) == [2, 2, 2, 2, 8]
    assert sorted(map(len, costly)) == [1] * 8 + [8]
    assert sorted(np.concatenate(costly).tolist()) == rows.tolist()
