"""Searches: exact where they can be, equal to each other where they must be, and the rules they obey."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.decoding.beam import search
from heedful.decoding.generation import GenerationConfig
from heedful.decoding.greedy import greedy
from heedful.decoding.rules import Rules
from heedful.decoding.sampling import likely, sample
from heedful.decoding.stepper import EnsembleStepper, SourceStepper
from heedful.model.architecture.encoder_decoder import EncoderDecoderConfig
from heedful.model.create import create
from heedful.model.stack.transformer import TransformerConfig
from tests.table import BOS, EOS, VOCAB, TableStepper, everything


def run(stepper, config, sentences=1, limit=4, **rules):
    first = torch.full((sentences,), BOS)
    limits = limit if isinstance(limit, list) else [limit] * sentences
    return search(stepper, first, config, eos=EOS, limits=limits, rules=Rules(config=config, eos=EOS, **rules))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    penalty=st.sampled_from([0.0, 0.6, 1.0, 2.0, -0.5]),
    alpha=st.sampled_from([0.0, 0.6]),
    count=st.sampled_from([1, 3]),
)
def test_a_wide_beam_equals_exhaustive_search(seed, penalty, alpha, count):
    """As many beams as there are texts: then nothing good can be lost on the way, and stopping too early would show."""
    config = GenerationConfig(num_beams=400, num_return_sequences=count, length_penalty=penalty, alpha=alpha)
    stepper = TableStepper(seed, 1, vocab=4)
    expected = everything(stepper, 4, config)[:count]
    (found,) = run(TableStepper(seed, 1, vocab=4), config)
    assert [h.tokens for h in found] == [text for _, text in expected]
    assert [h.score for h in found] == pytest.approx([score for score, _ in expected], abs=1e-5)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), penalty=st.sampled_from([0.0, 0.6, 1.0, 2.0]))
def test_stopping_when_nothing_can_win_loses_nothing(seed, penalty):
    """The same narrow beam run to the very end finds nothing better."""
    config = GenerationConfig(num_beams=3, num_return_sequences=2, length_penalty=penalty)
    (found,) = run(TableStepper(seed, 1), config, limit=9)
    everything_kept = config.model_copy(update={"num_return_sequences": 3})
    (late,) = run(NeverDone(seed, 1), everything_kept, limit=9)
    assert [h.tokens for h in found] == [h.tokens for h in late[:2]]


class NeverDone(TableStepper):
    """Used with a patched `done`: see the fixture below."""


@pytest.fixture(autouse=True)
def never_done(monkeypatch):
    from heedful.decoding import beam

    plain_done, plain_search = beam.done, beam.search

    def patched(stepper, *args, **options):
        if isinstance(stepper, NeverDone):
            beam.done = lambda finished, best, length, limit, config: length >= limit or best == -math.inf
        try:
            return plain_search(stepper, *args, **options)
        finally:
            beam.done = plain_done

    monkeypatch.setitem(globals(), "search", patched)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), sentences=st.integers(1, 4), limit=st.integers(1, 7))
def test_a_beam_of_one_is_greedy(seed, sentences, limit):
    config = GenerationConfig(num_beams=1, min_new_tokens=limit // 2)
    found = run(TableStepper(seed, sentences), config, sentences, limit)
    first, rules = torch.full((sentences,), BOS), Rules(config, EOS)
    plain = greedy(TableStepper(seed, sentences), first, limits=[limit] * sentences, rules=rules)
    for (one,), other in zip(found, plain, strict=True):
        assert (one.tokens, one.ended) == (other.tokens, other.ended)
        assert one.token_log_probs == pytest.approx(other.token_log_probs)
        assert one.score == pytest.approx(other.score, abs=1e-5)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), beams=st.integers(1, 5), penalty=st.sampled_from([0.0, 1.0]))
def test_a_sentence_does_not_depend_on_its_batch(seed, beams, penalty):
    config = GenerationConfig(num_beams=beams, num_return_sequences=beams, length_penalty=penalty)
    limits = [3, 9, 5, 7]
    together = run(TableStepper(seed, 4), config, 4, limits)
    for sentence in range(4):
        alone = TableStepper(seed, 1)
        alone.rows = [(sentence, ())]
        (found,) = run(alone, config, 1, limits[sentence : sentence + 1])
        assert [(h.tokens, round(h.score, 5)) for h in found] == [
            (h.tokens, round(h.score, 5)) for h in together[sentence]
        ]


def test_scores_are_the_sums_they_say():
    for hypothesis in run(TableStepper(3, 1), GenerationConfig(num_beams=4, num_return_sequences=4), limit=8)[0]:
        assert sum(hypothesis.token_log_probs) == pytest.approx(hypothesis.log_prob, abs=1e-5)
        length = len(hypothesis.tokens) + hypothesis.ended
        assert hypothesis.score == pytest.approx(hypothesis.log_prob / length, abs=1e-5)
        assert len(hypothesis.token_log_probs) == length


def test_hypotheses_are_distinct_and_in_order():
    (found,) = run(TableStepper(5, 1), GenerationConfig(num_beams=5, num_return_sequences=5), limit=8)
    texts = [tuple(h.tokens) for h in found]
    assert len(set(texts)) == len(texts) == 5
    assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)


def test_the_limit_and_the_least_length_hold():
    config = GenerationConfig(num_beams=4, num_return_sequences=4, min_new_tokens=3)
    for hypothesis in run(TableStepper(7, 1), config, limit=5)[0]:
        assert 3 <= len(hypothesis.tokens) <= 5


@pytest.mark.parametrize("size", [1, 2, 3])
def test_no_run_of_tokens_comes_twice(size):
    config = GenerationConfig(num_beams=4, num_return_sequences=4, no_repeat_ngram_size=size, min_new_tokens=4)
    for seed in range(10):
        for hypothesis in run(TableStepper(seed, 1, vocab=6), config, limit=9)[0]:
            runs = [tuple(hypothesis.tokens[i : i + size]) for i in range(len(hypothesis.tokens) - size + 1)]
            assert len(runs) == len(set(runs))


def test_banned_phrases_and_tokens_never_come():
    config = GenerationConfig(num_beams=4, num_return_sequences=4, min_new_tokens=5)
    for seed in range(10):
        for hypothesis in run(TableStepper(seed, 1), config, limit=9, never=(4,), banned=[[[2, 3], [1, 1, 1]]])[0]:
            text = "".join(map(str, hypothesis.tokens))
            assert "4" not in text and "23" not in text and "111" not in text


def test_a_forced_prefix_comes_first_and_is_scored_by_the_model():
    config = GenerationConfig(num_beams=3, num_return_sequences=3)
    first, second = run(TableStepper(7, 2), config, 2, 6, prefixes=[[2, 2, 3], []])
    assert all(h.tokens[:3] == [2, 2, 3] for h in first)
    stepper = TableStepper(7, 2)
    past, total = (BOS,), 0.0
    for token in (2, 2, 3):
        total += float(stepper.log_probs(0, past)[token])
        past = (*past, token)
    assert sum(first[0].token_log_probs[:3]) == pytest.approx(total, abs=1e-5)
    assert [h.tokens for h in second] == [h.tokens for h in run(TableStepper(7, 2), config, 2, 6)[1]]


def test_repetition_is_penalised():
    plain = run(TableStepper(1, 8, peaked=0.5), GenerationConfig(num_beams=2, min_new_tokens=8), 8, 9)
    penalised = run(
        TableStepper(1, 8, peaked=0.5), GenerationConfig(num_beams=2, min_new_tokens=8, repetition_penalty=3.0), 8, 9
    )
    distinct = [sum(len(set(h.tokens)) for (h,) in found) for found in (plain, penalised)]
    assert distinct[1] > distinct[0]


def test_sampling_follows_the_probabilities():
    stepper = TableStepper(4, 2000)
    stepper.rows = [(0, ())] * 2000
    config = GenerationConfig(do_sample=True, seed=1)
    drawn = sample(stepper, torch.full((2000,), BOS), config, eos=EOS, limits=[1] * 2000, rules=Rules(config, EOS))
    expected = stepper.log_probs(0, (BOS,)).exp()
    counts = torch.bincount(torch.tensor([h.tokens[0] if h.tokens else EOS for h in drawn]), minlength=VOCAB) / 2000
    assert torch.allclose(counts, expected, atol=0.04)


def test_a_seed_fixes_a_row_whatever_its_neighbours_do():
    config = GenerationConfig(do_sample=True, seed=5)

    def draw(limits):
        rows = len(limits)
        return sample(TableStepper(4, rows), torch.full((rows,), BOS), config, eos=EOS, limits=limits,
                      rules=Rules(config, EOS))  # fmt: skip

    first, second = draw([9, 9, 9]), draw([9, 1, 9])
    assert first[0] == second[0] and first[2] == second[2]
    assert draw([9, 9, 9]) == first


def test_only_the_likely_is_drawn():
    logits = torch.tensor([[0.5, 0.25, 0.15, 0.07, 0.03]]).log()
    kept = lambda **options: likely(logits, GenerationConfig(**options)).isfinite().sum().item()  # noqa: E731
    assert kept(top_k=2) == 2 and kept(top_k=99) == 5
    assert kept(top_p=0.5) == 1 and kept(top_p=0.6) == 2 and kept(top_p=0.9) == 3 and kept(top_p=0.91) == 4
    assert kept(min_p=0.3) == 3 and kept(min_p=0.0) == 5


def small(seed=0):
    torch.manual_seed(seed)
    stack = TransformerConfig(layers=2, attention={"heads": 2}, feedforward={"hidden": 20}, dropout=0.0)
    return create(EncoderDecoderConfig(vocab=19, width=12, encoder=stack, decoder=stack)).eval()


@pytest.mark.parametrize("beams", [1, 4])
def test_with_a_real_model_padding_and_neighbours_do_not_matter(beams):
    model = small()
    config = GenerationConfig(num_beams=beams, num_return_sequences=beams)
    source = torch.randint(3, 19, (5, 9))
    lengths = [9, 2, 5, 1, 7]
    valid = torch.arange(9) < torch.tensor(lengths)[:, None]

    def write(rows, valid):
        stepper = SourceStepper(model, rows, valid, length=20)
        first = torch.full((len(rows),), BOS)
        limits = [20] * len(rows)
        return search(stepper, first, config, eos=EOS, limits=limits, rules=Rules(config, EOS))

    together = write(source, valid)
    for row, length in enumerate(lengths):
        (alone,) = write(source[row : row + 1, :length], None)
        assert [h.tokens for h in alone] == [h.tokens for h in together[row]]
        assert [h.score for h in alone] == pytest.approx([h.score for h in together[row]], abs=1e-5)


def test_an_ensemble_is_the_mean_of_the_probabilities():
    models, source = [small(1), small(2)], torch.randint(3, 19, (3, 7))
    steppers = [SourceStepper(model, source, None, length=9) for model in models]
    apart = [SourceStepper(model, source, None, length=9) for model in models]
    tokens = torch.full((3,), BOS)
    mean = torch.stack([stepper.advance(tokens).exp() for stepper in apart]).mean(0)
    assert torch.allclose(EnsembleStepper(steppers).advance(tokens).exp(), mean, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_return_sequences": 5}, "num_return_sequences 5 is more than num_beams 4; raise num_beams"),
        ({"min_new_tokens": 9, "max_new_tokens": 5}, "min_new_tokens 9 is above max_new_tokens 5"),
        ({"temperature": 0}, "temperature"),
        ({"num_beam": 5}, "unknown key 'num_beam'; did you mean 'num_beams'?"),
    ],
)
def test_settings_that_do_not_fit_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        GenerationConfig(**options)
