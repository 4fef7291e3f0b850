"""Raw text in, raw text out: whatever the text."""

import pytest
import torch

import heedful
from heedful.data.prepare import Inputs
from heedful.decoding.generation import GenerationConfig
from heedful.training.recipe import read_recipe
from heedful.training.run import train
from heedful.translator import Translator
from tests.corpora import SMALL, pairs

GREEDY = GenerationConfig(num_beams=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model that has learned a little: to copy letters."""
    place = tmp_path_factory.mktemp("translator")
    corpus = pairs(place / "p.tsv", 500, change=lambda text: text)
    changes = [*SMALL, "model.width=32", "training.steps=150", "training.learning_rate=0.005", "data.max_length=24"]
    train(read_recipe("tiny", changes), Inputs((corpus,)), place / "run", cache=place / "cache")
    return place / "run"


@pytest.fixture(scope="module")
def translator(folder) -> Translator:
    return heedful.load(folder)


def texts(found):
    return [one.text for one in found]


def test_empty_lines_stay_empty(translator):
    assert texts(translator.translate(["", "a b", "   ", "c"]))[::2] == ["", ""]


def test_order_and_number_are_kept(translator):
    lines = [f"{letter} " * count for letter, count in zip("abcde", (5, 1, 4, 2, 3), strict=True)]
    together = texts(translator.translate(lines))
    assert together == [texts(translator.translate([line]))[0] for line in lines]
    assert list(texts(translator.stream(iter(lines)))) == together


@pytest.mark.parametrize("budget", [1, 30, 10_000])
def test_the_size_of_batches_does_not_matter(translator, budget):
    lines = ["a b c", "d", "e f g h", "a a a a"]
    plain = translator.translate(lines)
    found = translator.translate(lines, batch_tokens=budget)
    assert texts(found) == texts(plain)
    assert [one.score for one in found] == pytest.approx([one.score for one in plain], abs=1e-5)


def test_long_texts_are_cut_translated_and_joined_with_a_warning(translator):
    long = "a b c d e. " * 5 + "f g"
    (found,) = translator.translate([long])
    assert found.warnings == ["too long for the model: translated in 6 parts"]
    assert found.text.count(".") <= 20 and found.text
    (found,) = translator.translate(["x" * 200])  # no sentence, no word to cut at
    assert "parts" in found.warnings[0]


def test_n_best_are_given_best_first(translator):
    (found,) = translator.translate(["a b c"], GenerationConfig(num_beams=4, num_return_sequences=4))
    scores = [found.score, *(one.score for one in found.alternatives)]
    assert len(scores) == 4 and scores == sorted(scores, reverse=True)


def test_prefixes_and_banned_phrases(translator):
    first, second = translator.translate(["a b c", "d e"], prefixes=["j i", ""])
    assert first.text.startswith("j i")
    plain = texts(translator.translate(["a b c"]))[0]
    assert plain and plain[0] not in texts(translator.translate(["a b c"], banned=[plain[0]]))[0]
    assert second.text == texts(translator.translate(["d e"]))[0]


def test_scores_of_pairs_are_those_of_the_search(translator):
    (found,) = translator.translate(["a b c d"], GREEDY)
    (log_probs,) = translator.score([("a b c d", found.text)])
    if translator.target.encode([found.text])[0] == found.tokens:
        assert log_probs == pytest.approx(found.token_log_probs, abs=1e-4)
    assert translator.score([]) == []


def test_sampling_with_a_seed_is_repeatable(translator):
    config = GenerationConfig(do_sample=True, seed=3, num_return_sequences=3)
    first, second = (translator.translate(["a b c"], config) for _ in range(2))
    assert first == second and len(first[0].alternatives) == 2


def test_an_ensemble_of_one_model_twice_is_that_model(folder, translator):
    twice = heedful.load(folder, folder)
    lines = ["a b c", "d e f g"]
    assert texts(twice.translate(lines)) == texts(translator.translate(lines))


def test_odd_text_is_no_trouble(translator):
    odd = ["\x00", "👩‍👩‍👧", "</s>", "a\u2028b", "ﬁ①", "\ufeff", "a" * 20]
    assert len(translator.translate(odd)) == len(odd)


def test_a_folder_that_is_none(tmp_path, folder):
    with pytest.raises(ValueError, match="is not a model folder: there is no config.yaml in it"):
        heedful.load(tmp_path)
    (tmp_path / "config.yaml").write_text((folder / "config.yaml").read_text())
    with pytest.raises(ValueError, match="has no weights yet: there is no model.safetensors in it"):
        heedful.load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:99])
    with pytest.raises(ValueError, match="does not fit config.yaml"):
        heedful.load(tmp_path)


def test_nothing_is_learned_while_translating(translator):
    before = {name: tensor.clone() for name, tensor in translator.models[0].state_dict().items()}
    translator.translate(["a b c"])
    assert all(torch.equal(before[name], tensor) for name, tensor in translator.models[0].state_dict().items())
