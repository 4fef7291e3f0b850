"""Masks state facts; the dense form must follow from them exactly."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from heedful.model.mask import Blocks, Mask, positions_in_segments, positions_of

CPU = torch.device("cpu")


def test_a_causal_mask_hides_the_future_and_shows_the_past():
    dense = Mask(causal=True).dense(5, 5, CPU)
    expected = [[key <= query for key in range(5)] for query in range(5)]
    assert dense[0, 0].tolist() == expected


def test_the_last_query_stands_beside_the_last_key():
    whole = Mask(causal=True).dense(7, 7, CPU)
    assert torch.equal(Mask(causal=True).dense(3, 7, CPU), whole[:, :, -3:])


def test_no_matrix_is_made_where_everybody_sees_everything():
    assert Mask().dense(5, 7, CPU) is None
    assert Mask(causal=True).dense(1, 7, CPU) is None


def test_the_kernels_causal_flag_is_used_only_where_it_says_all():
    assert Mask(causal=True).is_plain_causal(5, 5)
    assert not Mask(causal=True).is_plain_causal(3, 5)
    assert not Mask(causal=True, window=2).is_plain_causal(5, 5)
    assert not Mask(causal=True, key_valid=torch.ones(1, 5, dtype=torch.bool)).is_plain_causal(5, 5)
    assert not Mask().is_plain_causal(5, 5)


@given(
    query=st.integers(1, 7),
    more=st.integers(0, 5),
    causal=st.booleans(),
    window=st.none() | st.integers(1, 9),
    seed=st.integers(0, 1000),
    facts=st.sets(st.sampled_from(["valid", "segments", "prefix"])),
)
def test_dense_is_the_conjunction_of_the_facts(query, more, causal, window, seed, facts):
    batch, key = 3, query + more
    generator = torch.Generator().manual_seed(seed)
    valid = torch.rand(batch, key, generator=generator) < 0.7 if "valid" in facts else None
    segments = torch.rand(batch, key, generator=generator).mul(3).long().sort().values if "segments" in facts else None
    prefix = torch.randint(0, key + 1, (batch,), generator=generator) if "prefix" in facts and causal else None
    mask = Mask(causal=causal, key_valid=valid, window=window, segments=segments, prefix=prefix)
    dense = mask.dense(query, key, CPU)
    for row in range(batch):
        for i in range(query):
            place = i + key - query
            for j in range(key):
                sees = not causal or j <= place or (prefix is not None and j < prefix[row])
                sees = sees and (window is None or abs(place - j) < window)
                sees = sees and (segments is None or bool(segments[row, place] == segments[row, j]))
                sees = sees and (valid is None or bool(valid[row, j]))
                seen = True if dense is None else bool(dense.expand(batch, 1, query, key)[row, 0, i, j])
                assert seen == sees


def test_a_prefix_needs_a_causal_mask():
    with pytest.raises(ValueError, match="prefix only applies to a causal mask"):
        Mask(prefix=torch.tensor([2]))


def test_a_window_that_sees_nothing_is_refused():
    with pytest.raises(ValueError, match="window 0 sees nothing; choose 1"):
        Mask(window=0)


def test_positions_count_real_tokens_from_zero():
    valid = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0]]).bool()
    positions = positions_of(valid)
    assert positions[0, 2:].tolist() == [0, 1, 2]
    assert positions[1, :3].tolist() == [0, 1, 2]


def test_positions_start_again_with_each_segment():
    assert positions_in_segments(torch.tensor([[4, 4, 4, 7, 7, 9]])).tolist() == [[0, 1, 2, 0, 1, 0]]


def test_global_tokens_see_all_and_are_seen_by_all_whatever_the_window():
    chosen = torch.tensor([[False, True, False, False, False, False, False]])
    mask = Mask(window=2, global_tokens=chosen)
    dense = mask.dense(7, 7, CPU)[0, 0]
    assert dense[1].all() and dense[:, 1].all()
    assert dense[5].tolist() == [False, True, False, False, True, True, True]
    with_padding = Mask(window=2, global_tokens=chosen, key_valid=torch.arange(7)[None] < 5, causal=True)
    dense = with_padding.dense(7, 7, CPU)[0, 0]
    assert dense[1].tolist() == [True, True] + [False] * 5  # what gives sight back does not undo padding or the future
    last = mask.dense(2, 7, CPU)[0, 0]  # with a cache: the last two queries
    assert last.tolist() == mask.dense(7, 7, CPU)[0, 0, 5:].tolist()


def test_blocks_may_differ_by_head():
    seen = torch.tensor([[[True, False], [True, True]], [[False, True], [False, True]]])  # head query_block key_block
    dense = Mask(blocks=Blocks(3, seen)).dense(5, 5, CPU)
    assert dense.shape == (1, 2, 5, 5)
    for head, query, key in itertools.product(range(2), range(5), range(5)):
        assert dense[0, head, query, key] == seen[head, query // 3, key // 3]


def test_dense_forms_are_kept_for_each_device():
    mask = Mask(causal=True)
    assert mask.dense(3, 3, CPU).device.type == "cpu"
    assert mask.dense(3, 3, torch.device("meta")).device.type == "meta"
    assert mask.additive(3, 3, CPU).device.type == "cpu"


def test_a_mask_names_its_facts():
    assert Mask().facts() == frozenset()
    assert Mask(causal=True, window=3, key_valid=torch.ones(1, 2, dtype=torch.bool)).facts() == {"causal", "window"}
