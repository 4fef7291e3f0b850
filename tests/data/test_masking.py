"""Masks: how many, which, what is shown instead; the same for the same seed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.data.masking import inner_blanks, is_special, masking_for
from heedful.text.tokenizer import TokenizerConfig, train_tokenizer
from heedful.text.whole_words import blank_tokens

WORDS = ["the", "unbelievable", "storyteller", "fox", "jumps", "over", "lazy", "dogs"]
TOKENIZER = train_tokenizer([" ".join(WORDS)] * 3, TokenizerConfig(), vocab=300, extra=["<mask>", "<cls>", "<sep>"])
MASKINGS = {whole: {share: masking_for(TOKENIZER, share, whole_words=whole) for share in (0.15, 0.4)}
            for whole in (False, True)}  # fmt: skip
TEXTS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=40).map(" ".join)
SEEDS = st.integers(0, 2**32)


def row(text):
    return np.array([TOKENIZER.cls, *TOKENIZER.encode([text])[0], TOKENIZER.sep])


@settings(max_examples=150, deadline=None)
@given(TEXTS, SEEDS, st.sampled_from([False, True]), st.sampled_from([0.15, 0.4]))
def test_only_chosen_places_change_and_no_special_token_is_chosen(text, seed, whole, share):
    tokens, masking = row(text), MASKINGS[whole][share]
    shown, places = masking(tokens, np.random.default_rng(seed))
    assert (np.diff(places) > 0).all()
    rest = np.setdiff1d(np.arange(len(tokens)), places)
    assert (shown[rest] == tokens[rest]).all()
    assert not masking.never[tokens[places]].any()
    changed = shown[places][shown[places] != TOKENIZER.mask]
    assert not masking.never[changed].any()  # a random token is an ordinary one
    again, same_places = masking(tokens, np.random.default_rng(seed))
    assert (again == shown).all() and (same_places == places).all()


@settings(max_examples=150, deadline=None)
@given(TEXTS, SEEDS)
def test_a_word_is_chosen_whole_or_not_at_all(text, seed):
    tokens, masking = row(text), MASKINGS[True][0.4]
    chosen = np.isin(np.arange(len(tokens)), masking.choose(tokens, np.random.default_rng(seed)))
    word = np.cumsum(masking.words.starts(tokens))
    for number in np.unique(word):
        assert len(set(chosen[(word == number) & ~masking.never[tokens]])) <= 1


@settings(max_examples=50, deadline=None)
@given(TEXTS, SEEDS, st.sampled_from([0.15, 0.4]))
def test_the_count_is_the_share_rounded_up_or_down(text, seed, share):
    tokens = row(text)
    exact = share * (~MASKINGS[False][share].never[tokens]).sum()
    assert abs(len(MASKINGS[False][share].choose(tokens, np.random.default_rng(seed))) - exact) < 1


@pytest.mark.parametrize("whole", [False, True])
def test_every_token_has_the_same_chance_and_the_shares_are_80_10_10(whole):
    tokens, masking = row("the unbelievable fox jumps over lazy dogs storyteller"), MASKINGS[whole][0.15]
    rounds = 6000
    chosen, fates = np.zeros(len(tokens)), np.zeros(3)
    for seed in range(rounds):
        shown, places = masking(tokens, np.random.default_rng(seed))
        chosen[places] += 1
        masked, same = shown[places] == TOKENIZER.mask, shown[places] == tokens[places]
        fates += masked.sum(), (~masked & ~same).sum(), same.sum()
    never = masking.never[tokens]
    np.testing.assert_allclose(chosen[~never] / rounds, 0.15, atol=0.02)
    assert never[0] and never[-1] and not chosen[never].any()
    np.testing.assert_allclose(fates / fates.sum(), [0.8, 0.1, 0.1], atol=0.012)


def test_the_shares_are_those_of_transformers():
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    names = {"pad_token": "<pad>", "mask_token": "<mask>", "cls_token": "<cls>", "sep_token": "<sep>",
             "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}  # fmt: skip
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=TOKENIZER._backend, **names)
    collator = transformers.DataCollatorForLanguageModeling(theirs, mlm_probability=0.15)
    torch.manual_seed(1)
    tokens = row(" ".join(WORDS * 6))
    found = collator([{"input_ids": tokens.tolist()}] * 600)
    chosen = (found["labels"] != -100).numpy()
    theirs_share = [
        chosen[:, 1:-1].mean(),
        ((found["input_ids"] == TOKENIZER.mask).numpy() & chosen).sum() / chosen.sum(),
    ]
    ours = [MASKINGS[False][0.15](tokens, np.random.default_rng(seed)) for seed in range(600)]
    possible = (~MASKINGS[False][0.15].never[tokens]).sum()
    count = sum(len(places) for _, places in ours)
    masked = sum(int((shown[places] == TOKENIZER.mask).sum()) for shown, places in ours)
    np.testing.assert_allclose([count / 600 / possible, masked / count], theirs_share, atol=0.01)


def test_blanks_are_kept_inside_a_text_and_dropped_at_its_ends():
    special, blank = is_special(TOKENIZER), blank_tokens(TOKENIZER)
    (text,) = TOKENIZER.encode(["\nfox\njumps\n\n"])
    tokens = np.array([TOKENIZER.cls, *text, TOKENIZER.sep, *text, TOKENIZER.sep])
    (inner,) = TOKENIZER.encode(["fox\njumps"])
    kept = tokens[inner_blanks(tokens, special, blank)]
    assert kept.tolist() == [TOKENIZER.cls, *inner, TOKENIZER.sep, *inner, TOKENIZER.sep]
