"""Windows of packed text and pairs of segments: complete, reproducible, and of the documents they claim."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.data import batches
from heedful.data.pieces import Packed, Pairs, Texts

SEPARATOR = 9999
LENGTHS = st.lists(st.integers(0, 30), min_size=1, max_size=12)


def every_third(tokens):
    return np.asarray(tokens) % 3 == 0


def documents(lengths):
    """Tokens that tell their document and place: 100 * document + place."""
    return [[100 * number + place for place in range(length)] for number, length in enumerate(lengths, start=1)]


def chance(seed=0):
    return np.random.default_rng(seed)


@settings(max_examples=200, deadline=None)
@given(LENGTHS, st.integers(2, 17))
def test_packed_windows_hold_every_token_once_in_order(lengths, room):
    rows = documents(lengths)
    packed = Packed(Texts.from_rows(rows), room=room, separator=[SEPARATOR])
    drawn = [packed.draw(row, chance()).texts[0] for row in range(len(packed))]
    kept = [token for window in drawn for token in window.tolist() if token != SEPARATOR]
    assert kept == [token for row in rows for token in row]
    assert all(len(window) <= room for window in drawn)
    assert packed.lengths(0).sum() == packed.size
    for window in drawn:
        owners = [token // 100 for token in window.tolist() if token != SEPARATOR]
        assert (window == SEPARATOR).sum() == len(set(owners)) - bool(owners)  # one between any two documents


@settings(max_examples=200, deadline=None)
@given(LENGTHS, st.integers(2, 17), st.integers(0, 99))
def test_swapped_segments_put_back_are_the_document(lengths, room, seed):
    rows = documents(lengths)
    pairs = Pairs(Texts.from_rows(rows), room=room, kind="sentence_order", starts=every_third)
    sizes = pairs.lengths(0)
    for row in range(len(pairs)):
        piece = pairs.draw(row, chance(seed))
        first, second = piece.texts[:: -1 if piece.label else 1]
        whole = np.concatenate([first, second])
        assert len(first) and len(second) and len(whole) == sizes[row] <= room
        assert (np.diff(whole) == 1).all() and len(set(whole // 100)) == 1
    used = sum(sizes)
    assert sum(lengths) - used == sum(length % room == 1 for length in lengths)  # a rest of one token is left out


@settings(max_examples=200, deadline=None)
@given(LENGTHS, st.integers(2, 17), st.integers(0, 99))
def test_a_false_next_segment_is_from_another_document_and_a_true_one_follows(lengths, room, seed):
    pairs = Pairs(Texts.from_rows(documents(lengths)), room=room, kind="next_sentence", starts=every_third)
    for row in range(len(pairs)):
        piece = pairs.draw(row, chance(seed))
        first, second = piece.texts
        assert len(first) and len(second) and len(first) + len(second) <= pairs.lengths(0)[row]
        assert (np.diff(second) == 1).all()
        if piece.label:
            assert len(set(second // 100)) == 1 and second[0] // 100 != first[0] // 100
        else:
            assert second[0] == first[-1] + 1


def test_half_of_the_pairs_are_true_and_false_ones_are_as_long_as_true_ones():
    pairs = Pairs(Texts.from_rows(documents([90] * 8)), room=20, kind="next_sentence", starts=every_third)
    drawn = [pairs.draw(row % len(pairs), chance(row)) for row in range(2000)]
    labels = np.array([piece.label for piece in drawn])
    sizes = np.array([len(piece.texts[1]) for piece in drawn])
    assert labels.mean() == pytest.approx(0.5, abs=0.04)
    assert sizes[labels == 1].mean() == pytest.approx(sizes[labels == 0].mean(), abs=1.6)
    assert all(piece.texts[1][0] % 3 == 0 for piece in drawn if len(piece.texts[1]) > 3)


def test_an_epoch_has_every_piece_once_in_batches_within_the_budget():
    pairs = Pairs(
        Texts.from_rows(documents([25, 3, 14, 60, 2, 31])), room=10, kind="sentence_order", starts=every_third
    )
    found = list(batches.epoch(pairs, budget=44, seed=1, number=0))
    assert sorted(np.concatenate(found).tolist()) == list(range(len(pairs)))
    sizes = pairs.lengths(0) + 1
    assert all(len(rows) * sizes[rows].max() <= 44 for rows in found)
