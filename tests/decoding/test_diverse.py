import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.decoding.beam import search
from heedful.decoding.diverse import diverse_search
from heedful.decoding.generation import GenerationConfig
from heedful.decoding.rules import Rules
from tests.table import BOS, EOS, TableStepper


def run(seed, config, sentences=1, limits=None, rows=None):
    stepper = TableStepper(seed, sentences)
    stepper.rows = rows or stepper.rows
    return diverse_search(
        stepper,
        torch.full((sentences,), BOS),
        config,
        eos=EOS,
        limits=limits or [7] * sentences,
        rules=Rules(config=config, eos=EOS),
    )


def settings_of(groups, beams, penalty, **more):
    return GenerationConfig(num_beams=beams, num_beam_groups=groups, diversity_penalty=penalty, **more)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_the_first_group_is_a_plain_beam(seed):
    """Nothing comes before it, so it finds what a beam of its width finds; here with no other group worth more."""
    narrow, first = GenerationConfig(num_beams=2), torch.tensor([BOS])
    rules = Rules(config=narrow, eos=EOS)
    ((best,),) = search(TableStepper(seed, 1), first, narrow, eos=EOS, limits=[7], rules=rules)
    (found,) = run(seed, settings_of(3, 6, 0.7, num_return_sequences=6))
    assert any(one.tokens == best.tokens and one.score == pytest.approx(best.score, abs=1e-5) for one in found)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_scores_are_the_models_own(seed):
    for one in run(seed, settings_of(2, 4, 5.0, num_return_sequences=4))[0]:
        assert one.log_prob == pytest.approx(sum(one.token_log_probs), abs=1e-4)


def test_a_strong_penalty_makes_groups_begin_differently():
    for seed in range(20):
        (found,) = run(seed, settings_of(3, 3, 1000.0, num_return_sequences=3))
        firsts = [one.tokens[0] if one.tokens else EOS for one in found]
        assert len(set(firsts)) == 3


def test_the_penalty_decides_what_lives_on():
    """A is likeliest, but the first group has it: the second takes B."""

    class Fixed(TableStepper):
        def log_probs(self, sentence, past):
            return torch.tensor([-50.0, -50.0, -3.0, -0.1, -2.0])

    config = settings_of(2, 2, 2.5, num_return_sequences=2)
    rules = Rules(config=config, eos=EOS)
    (found,) = diverse_search(Fixed(0, 1), torch.tensor([BOS]), config, eos=EOS, limits=[3], rules=rules)
    assert [one.tokens[:2] for one in found] == [[3, 3], [4, 4]]


def test_more_penalty_more_difference():
    def distinct(penalty):
        found = [run(seed, settings_of(4, 8, penalty, num_return_sequences=8))[0] for seed in range(15)]
        return sum(len({tuple(one.tokens[:2]) for one in group}) for group in found)

    assert distinct(2.0) > distinct(0.01)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_a_sentence_does_not_depend_on_its_batch(seed):
    config, limits = settings_of(2, 4, 1.0, num_return_sequences=4), [3, 9, 5]
    together = run(seed, config, 3, limits)
    for sentence in range(3):
        assert run(seed, config, 1, [limits[sentence]], [(sentence, ())])[0] == together[sentence]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_beam_groups": 3, "diversity_penalty": 1.0}, "num_beams 4 must be a multiple of num_beam_groups 3"),
        ({"num_beam_groups": 2}, "num_beam_groups and diversity_penalty go together"),
        ({"diversity_penalty": 1.0}, "num_beam_groups and diversity_penalty go together"),
        ({"num_beam_groups": 2, "diversity_penalty": 1.0, "do_sample": True}, "leave out do_sample"),
        ({"stop_strings": [""]}, "a stop string is empty"),
    ],
)
def test_settings_that_do_not_go_together(changes, message):
    with pytest.raises(ValueError, match=message):
        GenerationConfig(**changes)
