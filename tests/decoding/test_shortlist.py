import random

import pytest
import torch

from heedful.decoding.beam import search
from heedful.decoding.generation import GenerationConfig
from heedful.decoding.rules import Rules
from heedful.decoding.shortlist import Shortlist, learn
from heedful.decoding.stepper import SourceStepper
from heedful.families.vaswani import vaswani
from heedful.model.create import create
from heedful.model.int8 import quantize_int8

VOCAB = 40


def dictionary(count=300):
    """Token s means s + 20, in any order, with one that follows everything."""
    chance = random.Random(1)
    sources = [[chance.randint(4, 15) for _ in range(chance.randint(1, 6))] for _ in range(count)]
    targets = [[token + 20 for token in chance.sample(row, len(row))] + [39] for row in sources]
    return sources, targets


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr("heedful.decoding.shortlist.EACH", 3)
    monkeypatch.setattr("heedful.decoding.shortlist.COMMON", 1)


def test_it_learns_which_words_come_of_which(few):
    found = learn(*dictionary(), source_vocab=VOCAB, vocab=VOCAB, always=[2], joint=False)
    for token in range(4, 16):
        assert token + 20 in found.table[token].tolist()
    assert found.common.tolist() == [2, 39]
    assert found.table[30].tolist() == [2, 2, 2]  # never seen: nothing but what is always allowed


def test_a_sentence_may_use_its_own_words_and_the_common_ones(few):
    found = learn(*dictionary(), source_vocab=VOCAB, vocab=VOCAB, always=[2], joint=True)
    allowed = found.allowed(torch.tensor([[5, 6], [7, 7]]), VOCAB)
    assert allowed[0, [25, 26, 39, 2, 5, 6]].all()
    assert not allowed[1, [5, 26]].any()


def test_it_is_found_again_in_the_folder(few, tmp_path):
    found = learn(*dictionary(), source_vocab=VOCAB, vocab=VOCAB, always=[2], joint=True)
    found.save(tmp_path)
    again = Shortlist.load(tmp_path)
    assert torch.equal(again.table, found.table) and torch.equal(again.common, found.common) and again.joint
    with pytest.raises(ValueError, match=r"has no shortlist.safetensors; it is written at the end of training"):
        Shortlist.load(tmp_path / "elsewhere")


def write(model, source, shortlist):
    config = GenerationConfig(num_beams=3, num_return_sequences=2)
    stepper = SourceStepper(model, source, None, length=9, allowed=shortlist and shortlist.allowed(source, VOCAB))
    rules = Rules(config=config, eos=2)
    return search(
        stepper, torch.ones(len(source), dtype=torch.long), config, eos=2, limits=[8] * len(source), rules=rules
    )


@pytest.mark.parametrize("tie", ["all", "none"])
def test_a_list_of_every_word_changes_nothing(tie):
    config = vaswani(vocab=VOCAB, width=24, hidden=20, heads=3, layers=2, dropout=0.1).model_copy(update={"tie": tie})
    model = create(config).eval()
    source = torch.randint(4, VOCAB, (3, 5))
    everything = Shortlist(torch.zeros(VOCAB, 1, dtype=torch.long), torch.arange(VOCAB), True)
    for quantised in (False, True):
        if quantised:
            quantize_int8(model, least=0)
        for mine, theirs in zip(write(model, source, everything), write(model, source, None), strict=True):
            assert [one.tokens for one in mine] == [one.tokens for one in theirs] or quantised
            assert mine[0].score == pytest.approx(theirs[0].score, abs=0.2 if quantised else 1e-4)


def test_neighbours_do_not_matter(few):
    model = create(vaswani(vocab=VOCAB, width=24, hidden=20, heads=3, layers=2, dropout=0.1)).eval()
    shortlist = learn(*dictionary(), source_vocab=VOCAB, vocab=VOCAB, always=[2], joint=False)
    source = torch.randint(4, 16, (4, 5))
    together = write(model, source, shortlist)
    for row in range(4):
        (alone,) = write(model, source[row : row + 1], shortlist)
        assert [one.tokens for one in alone] == [one.tokens for one in together[row]]
        assert alone[0].score == pytest.approx(together[row][0].score, abs=1e-4)
        allowed = shortlist.allowed(source, VOCAB)[row]
        assert all(allowed[token] for one in alone for token in one.tokens)
