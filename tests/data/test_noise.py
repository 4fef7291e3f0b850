"""The noise of denoising: what is counted, what is kept, and that every place is hidden equally often."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.data import noise

MASK, FIRST = 7, 1000
SENTINELS = list(range(999, 399, -1))  # downwards from the end, as in T5's tokenizers
seeds, sizes = st.integers(0, 2**32), st.integers(0, 71)
densities, means = st.floats(0.01, 0.99), st.floats(1, 11)


def text(size):
    return np.arange(FIRST, FIRST + size)


def chance(seed):
    return np.random.default_rng(seed)


@given(seeds, sizes, densities, means, st.booleans())
def test_source_and_target_of_spans_make_the_text(seed, size, density, mean, roll):
    source, target = noise.spans(text(size), chance(seed), density=density, mean=mean, sentinels=SENTINELS, roll=roll)
    assert noise.restored(source.tolist(), target.tolist(), SENTINELS) == text(size).tolist()
    marks = [token for token in source.tolist() if token < FIRST]
    assert marks == SENTINELS[: len(marks)] == [token for token in target.tolist() if token < FIRST]
    assert len(source) <= size and len(target) <= size + 1
    if len(target):
        assert target[0] == SENTINELS[0] and target[-1] >= FIRST  # no sentinel closes it


@given(seeds, st.integers(2, 71), densities, means)
def test_counts_of_spans_follow_from_the_length_alone(seed, size, density, mean):
    hidden, count = noise.span_counts(size, density=density, mean=mean)
    assert hidden == min(max(round(size * density), 1), size - 1)
    mask = noise.span_mask(size, chance(seed), density=density, mean=mean, roll=False)
    begins = np.flatnonzero(np.diff(mask.astype(int), prepend=0) == 1)
    assert mask.sum() == hidden and len(begins) == count
    assert not mask[0] and mask[-1]  # T5's rule
    rolled = noise.span_mask(size, chance(seed), density=density, mean=mean)
    again = np.flatnonzero(np.diff(rolled.astype(int), prepend=0) == 1)
    assert rolled.sum() == hidden and len(again) in (count, count + 1)


def test_the_counts_are_those_of_t5():
    assert noise.span_counts(512, density=0.15, mean=3.0) == (77, 26)
    assert noise.span_counts(20, density=0.15, mean=3.0) == (3, 1)
    assert noise.span_counts(1, density=0.15, mean=3.0)[0] == 0


@given(seeds, sizes, densities, means)
def test_infilling_keeps_the_order_and_never_lengthens(seed, size, density, mean):
    found = noise.infilling(text(size), chance(seed), density=density, mean=mean, mask=MASK)
    kept = [token for token in found.tolist() if token != MASK]
    assert kept == sorted(set(kept)) and set(kept) <= set(text(size).tolist())
    assert len(found) <= size
    assert size - len(kept) in (int(size * density), min(size, int(size * density) + 1))


def test_infilling_inserts_masks_for_spans_of_no_length():
    masks, hidden = [], []
    for seed in range(300):
        found = noise.infilling(text(101), chance(seed), density=0.3, mean=1.0, mask=MASK)
        gaps = np.flatnonzero(np.diff(found[found != MASK]) > 1)
        masks.append(int((found == MASK).sum()))
        hidden.append(len(gaps))
    assert np.mean(masks) > np.mean(hidden) + 5  # of spans with the mean 1, exp(-1) = 37 % have none


@given(seeds, sizes, densities)
def test_masking_and_deletion_hide_the_share(seed, size, density):
    masked = noise.masking(text(size), chance(seed), density=density, mask=MASK)
    assert len(masked) == size and all(a in (b, MASK) for a, b in zip(masked, text(size), strict=True))
    left = noise.deletion(text(size), chance(seed), density=density)
    assert left.tolist() == masked[masked != MASK].tolist()
    assert size - len(left) in (int(size * density), min(size, int(size * density) + 1))


@given(seeds, st.integers(1, 71), st.data())
def test_permutation_shuffles_whole_sentences(seed, size, data):
    starts = np.array(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)))
    found = noise.permutation(text(size), chance(seed), starts=starts)
    assert sorted(found.tolist()) == text(size).tolist()
    starts[0] = True
    breaks = [i for i in range(1, size) if found[i] != found[i - 1] + 1]
    assert all(starts[found[i] - FIRST] for i in [0, *breaks])


@given(seeds, st.integers(1, 71))
def test_rotation_turns_the_text(seed, size):
    found = noise.rotation(text(size), chance(seed)).tolist()
    place = found.index(FIRST)
    assert found[place:] + found[:place] == text(size).tolist()


@pytest.mark.parametrize("kind", ["spans", "infilling", "masking", "deletion"])
@pytest.mark.parametrize("size", [7, 23])
def test_every_place_is_hidden_with_the_same_frequency(kind, size):
    drawn, density = 4000, 0.23
    counts = np.zeros(size)
    for seed in range(drawn):
        source = {
            "spans": lambda c: noise.spans(text(size), c, density=density, mean=2.0, sentinels=SENTINELS)[0],
            "infilling": lambda c: noise.infilling(text(size), c, density=density, mean=2.0, mask=MASK),
            "masking": lambda c: noise.masking(text(size), c, density=density, mask=MASK),
            "deletion": lambda c: noise.deletion(text(size), c, density=density),
        }[kind](chance(seed))
        counts[source[source >= FIRST] - FIRST] += 1
    hidden = 1 - counts / drawn
    wanted = noise.span_counts(size, density=density, mean=2.0)[0] / size if kind == "spans" else density
    assert np.abs(hidden - wanted).max() < 5 * np.sqrt(wanted * (1 - wanted) / drawn)


def test_by_the_rule_of_t5_the_beginning_is_never_hidden():
    masks = [noise.span_mask(20, chance(seed), density=0.15, mean=3.0, roll=False) for seed in range(50)]
    assert np.flatnonzero(np.any(masks, axis=0)).tolist() == [17, 18, 19]
