"""Phrases that must be written: they are, in time, as whole words, and at no more cost than they must have."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.decoding.beam import search
from heedful.decoding.generation import GenerationConfig
from heedful.decoding.required import Phrase, Required, share_out
from heedful.decoding.rules import Rules
from tests.table import BOS, EOS, VOCAB, TableStepper, everything

NONE = torch.zeros(VOCAB, dtype=torch.bool)


def phrase(*tokens, opening=None, whole=False):
    return Phrase(tuple(opening or tokens), tokens, whole=whole)


def run(seed, phrases, *, beams=10, limit=8, continues=NONE, sentences=1, **rules):
    config = GenerationConfig(num_beams=beams, num_return_sequences=1)
    required = [Required(phrases, limit, EOS, continues)] * sentences
    return search(
        TableStepper(seed, sentences),
        torch.full((sentences,), BOS),
        config,
        eos=EOS,
        limits=[limit] * sentences,
        rules=Rules(config=config, eos=EOS, required=required, **rules),
    )


def contains(tokens, part):
    return any(tuple(tokens[at : at + len(part)]) == tuple(part) for at in range(len(tokens)))


tokens = st.lists(st.integers(1, VOCAB - 1), min_size=1, max_size=3).map(tuple)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), wanted=st.lists(tokens, min_size=1, max_size=2), spare=st.integers(0, 3))
def test_every_phrase_is_written_in_time(seed, wanted, spare):
    """Even where there is room for nothing else."""
    limit = sum(map(len, wanted)) + 1 + spare
    ((found,),) = run(seed, [phrase(*part) for part in wanted], limit=limit)
    assert found.ended and len(found.tokens) < limit
    assert all(contains(found.tokens, part) for part in wanted)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), wanted=tokens)
def test_a_wide_beam_finds_the_best_text_with_the_phrase(seed, wanted):
    limit, config = 5, GenerationConfig(num_beams=400)
    every = everything(TableStepper(seed, 1), limit, config)
    best = next(score for score, text in every if contains(text, wanted) and len(text) < limit)
    ((found,),) = run(seed, [phrase(*wanted)], beams=400, limit=limit)
    assert contains(found.tokens, wanted)
    assert found.score == pytest.approx(best, abs=1e-5)


def test_the_same_phrase_twice_is_written_twice():
    ((found,),) = run(3, [phrase(2, 3), phrase(2, 3)], limit=9)
    assert sum(found.tokens[at : at + 2] == [2, 3] for at in range(len(found.tokens))) >= 2


def test_phrases_with_a_common_beginning():
    for seed in range(20):
        ((found,),) = run(seed, [phrase(1, 2), phrase(1, 3)], limit=6)
        assert contains(found.tokens, (1, 2)) and contains(found.tokens, (1, 3))


def test_a_phrase_that_ends_a_word_is_not_continued():
    continues = torch.tensor([False, False, False, True, True])
    for seed in range(20):
        ((found,),) = run(seed, [phrase(2, whole=True)], continues=continues)
        assert any(a == 2 and b not in (3, 4) for a, b in itertools.pairwise([*found.tokens, EOS]))


def test_at_the_start_of_a_text_another_form_will_do():
    progress = Required([phrase(3, 4, opening=(2,))], 9, EOS, NONE).progress
    assert progress([2]).left == 0
    assert progress([1, 2]).left == 2
    assert progress([1, 3]).left == 1 and progress([1, 3]).advancing == {4}


def test_progress_starts_again_within_a_failed_match():
    progress = Required([phrase(1, 1, 2)], 9, EOS, NONE).progress
    assert [progress(tokens).left for tokens in ([1], [1, 1], [1, 1, 1], [1, 1, 1, 2])] == [2, 1, 1, 0]


def test_a_forced_beginning_comes_first():
    ((found,),) = run(5, [phrase(3, 3)], limit=6, prefixes=[[4, 4, 4]])
    assert found.tokens == [4, 4, 4, 3, 3]


def test_sentences_do_not_bear_on_each_other():
    together = run(11, [phrase(2, 2)], sentences=3)
    for sentence in range(3):
        alone = TableStepper(11, 1)
        alone.rows = [(sentence, ())]
        config = GenerationConfig(num_beams=10)
        required = [Required([phrase(2, 2)], 8, EOS, NONE)]
        rules = Rules(config=config, eos=EOS, required=required)
        (found,) = search(alone, torch.tensor([BOS]), config, eos=EOS, limits=[8], rules=rules)
        assert found == together[sentence]


def test_places_are_shared_out_and_none_is_wasted():
    ranked = [(0, 1), (0, 2), (0, 3), (1, 4), (2, 5)]
    assert share_out(ranked, 3, 3) == [1, 4, 5]
    assert share_out(ranked, 3, 4) == [1, 4, 5, 2]
    assert share_out(ranked[:3], 3, 3) == [1, 2, 3]


@pytest.mark.parametrize("limit", range(13, 45, 3))
def test_a_long_phrase_is_not_lost_by_beginning_it_again_and_again(limit):
    """A model that likes to write the first token of the phrase, and then something else."""

    class Tempting(TableStepper):
        def log_probs(self, sentence, past):
            wanted = 3 if past[-1] == 2 else 2
            return torch.full((VOCAB,), -9.0).index_fill(0, torch.tensor([wanted]), -0.01).log_softmax(-1)

    config, wanted = GenerationConfig(num_beams=10), (2, 4) * 6
    rules = Rules(config=config, eos=EOS, required=[Required([phrase(*wanted)], limit, EOS, NONE)])
    (found,) = search(Tempting(0, 1), torch.tensor([BOS]), config, eos=EOS, limits=[limit], rules=rules)
    assert found and contains(found[0].tokens, wanted)
