"""Raw text in, raw text out: whatever the text."""

import random

import pytest
import torch

import heedful
from heedful.data.inputs import Inputs
from heedful.decoding.generation import GenerationConfig
from heedful.decoding.runner import Request
from heedful.decoding.shortlist import Shortlist
from heedful.training.recipe import read_recipe
from heedful.training.run import train
from heedful.translator import Translator, load
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
    (found,) = translator.translate([long], split=False)
    assert found.warnings == ["too long for the model: translated in 6 parts"]
    assert found.text.count(".") <= 20 and found.text
    (found,) = translator.translate(["x" * 200])  # no sentence, no word to cut at
    assert "parts" in found.warnings[0]


def test_parts_fit_and_keep_their_spaces(translator):
    parts = translator.parts("a b c. " + "d e f g h i j " * 5)
    assert parts[0] == "a b c." and all(translator._fits(part) for part in parts)
    assert all(translator._fits(part) for part in translator.parts("\U00013000" * 40))


def test_a_text_in_parts_is_aligned_through(translator):
    text = "a b c d e. " * 5 + "f g"
    (found,) = translator.translate([text], alignment=True)
    assert [target for _, target in found.alignment] == list(range(len(found.text.split())))
    assert max(source for source, _ in found.alignment) < len(text.split())


def test_n_best_are_given_best_first(translator):
    (found,) = translator.translate(["a b c"], GenerationConfig(num_beams=4, num_return_sequences=4))
    scores = [found.score, *(one.score for one in found.alternatives)]
    assert len(scores) == 4 and scores == sorted(scores, reverse=True)


def test_prefixes_and_banned_phrases(translator):
    first, second = translator.translate([Request("a b c", prefix="j i"), "d e"])
    assert first.text.startswith("j i")
    plain = texts(translator.translate(["a b c"]))[0]
    assert plain and plain[0] not in texts(translator.translate([Request("a b c", banned=[plain[0]])]))[0]
    assert second.text == texts(translator.translate(["d e"]))[0]


def test_required_phrases_are_written_as_whole_words(translator):
    plain = texts(translator.translate(["a b c", "d e"]))
    first, second = translator.translate([Request("a b c", required=["h g", "j"]), "d e"])
    assert "h g" in first.text and "j" in first.text.split() and first.text != plain[0]
    assert second.text == plain[1]
    alone = translator.translate([Request("a b c", required=["h g", "j"])])
    assert texts(alone) == [first.text]


def test_a_phrase_cannot_be_required_and_banned():
    with pytest.raises(ValueError, match="the phrase 'a b' is required, but 'b' is banned"):
        Request("a", required=["a b"], banned=["b"])


def test_required_phrases_need_a_beam(translator):
    with pytest.raises(ValueError, match="required phrases need plain beam search"):
        translator.translate([Request("a", required=["b"])], GenerationConfig(do_sample=True))


@pytest.mark.parametrize("config", [GREEDY, GenerationConfig(), GenerationConfig(do_sample=True, seed=1)])
def test_stop_strings_end_the_text(translator, config):
    (whole,) = translator.translate(["a b c d e"], config)
    stop = whole.text[len(whole.text) // 2 :][:2]
    (found,) = translator.translate(["a b c d e"], config.model_copy(update={"stop_strings": (stop,)}))
    assert stop not in found.text and len(found.tokens) < len(whole.tokens) + 1
    if config is GREEDY:
        assert whole.text.startswith(found.text)


def test_the_history_tells_how_the_best_text_came_about(translator):
    (found,) = translator.translate(["a b c"], GenerationConfig(num_beams=3), history=True)
    by_beam = {None: ([], 0.0)}
    reached = []
    for number, step in enumerate(found.history):
        following = {}
        for one in step:
            tokens, total = by_beam[None if number == 0 else one.parent]
            assert one.score == pytest.approx(total + one.log_prob, abs=1e-4)
            if one.ended:
                reached.append(tokens if one.token == 2 else [*tokens, one.token])
            elif one.beam is not None:
                following[one.beam] = ([*tokens, one.token], one.score)
        by_beam = following
    assert found.tokens in reached
    assert translator.translate(["a b c"])[0].history is None


def test_results_can_carry_their_alignment(translator):
    (found,) = translator.translate(["a b c"], alignment=True)
    assert [target for _, target in found.alignment] == list(range(len(found.text.split())))
    assert all(0 <= source < 3 for source, _ in found.alignment)
    bare = Translator(translator.models, [translator.source, translator.target])
    with pytest.raises(ValueError, match=r"has no alignment.json"):
        bare.translate(["a"], alignment=True)


def test_diverse_beams_differ(translator):
    config = GenerationConfig(num_beams=4, num_return_sequences=4, num_beam_groups=4, diversity_penalty=50.0)
    (found,) = translator.translate(["a b c d"], config)
    assert len({one.text for one in [found, *found.alternatives]}) == 4


def test_unknown_words_are_copied_from_the_source(tmp_path):
    """Whole words; half of them are so rare that the vocabulary has no place for them."""
    corpus = tmp_path / "p.tsv"
    chance = random.Random(0)
    rare = ["".join(chance.choices("klmnop", k=5)) for _ in range(400)]
    rows = [[chance.choice(["yes", "no", "so", chance.choice(rare)]) for _ in range(3)] for _ in range(1500)]
    corpus.write_text("".join(f"{' '.join(row)}\t{' '.join(row)}\n" for row in rows))
    changes = ["model.width=32", "model.encoder.layers=1", "model.decoder.layers=1", "tokenizer.kind=word",
               "tokenizer.vocab=10", "training.steps=300", "training.batch_tokens=512", "training.warmup=30",
               "training.learning_rate=0.005", "training.validate_every=300", "training.samples=0"]  # fmt: skip
    train(read_recipe("tiny", changes), Inputs((corpus,)), tmp_path / "run", cache=tmp_path / "cache")
    translator = heedful.load(tmp_path / "run")
    asked = ["yes zebra no", "so so gnu", "ibex yes so"]
    plain = texts(translator.translate(asked))
    copied = texts(translator.translate(asked, replace_unknowns=True))
    assert all("zebra" not in text for text in plain)
    assert sum(text == source for text, source in zip(copied, asked, strict=True)) >= 2, copied


def test_a_shortlist_is_learned_with_the_model(folder, translator):
    translator.starter.shortlist = Shortlist.load(folder)
    try:
        assert translator.translate(["a b c"])[0].text
        bare = Shortlist(torch.full((999, 1), 2), torch.tensor([2]), joint=False)  # nothing but the end
        translator.starter.shortlist = bare
        (found,) = translator.translate([Request("a b c", required=["h g"], prefix="j")])
        assert found.text.startswith("j") and "h g" in found.text
    finally:
        translator.starter.shortlist = None


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
    with pytest.raises(ValueError, match="model.safetensors is damaged"):
        heedful.load(tmp_path)


def test_nothing_is_learned_while_translating(translator):
    before = {name: tensor.clone() for name, tensor in translator.models[0].state_dict().items()}
    translator.translate(["a b c"])
    assert all(torch.equal(before[name], tensor) for name, tensor in translator.models[0].state_dict().items())


@pytest.mark.parametrize(
    "config", [GREEDY, GenerationConfig(num_beams=3), GenerationConfig(do_sample=True, seed=4)], ids=["1", "3", "drawn"]
)
def test_streams_write_the_same_and_see_new_weights(folder, translator, config):
    lines = [" ".join(random.Random(seed).choices("abcdefgh", k=1 + seed % 9)) for seed in range(30)]
    several = load(folder, streams=2)
    assert texts(several.translate(lines, config, batch_size=4)) == texts(translator.translate(lines, config))
    with torch.no_grad():
        several.models[0].embedding.weight.copy_(several.models[0].embedding.weight.flip(0))
    changed = several.translate(lines, config, batch_size=4)
    several.starter.quick = [None]  # by the modules, which have no copies
    several.runner.streams = 1
    assert texts(changed) == texts(several.translate(lines, config)) != texts(translator.translate(lines, config))
    several.close()


def test_streams_take_a_model_loaded_in_inference_mode(folder, translator):
    lines = ["a b c", "d", "e f g h", "a a a a"]
    with torch.inference_mode():
        several = load(folder, streams=2)
    assert all(parameter.is_inference() for parameter in several.models[0].parameters())
    assert texts(several.translate(lines, GREEDY, batch_size=1)) == texts(translator.translate(lines, GREEDY))
    several.close()


def test_one_text_gives_one_translation(translator):
    one = translator.translate("a b c", GREEDY)
    assert one.text == translator.translate(["a b c"], GREEDY)[0].text and len(one.text) > 1
    assert translator.translate(Request("a b c", prefix="d")).text.startswith("d")


def test_sentences_are_translated_one_by_one_and_joined_as_they_were(translator):
    parts = ["a b c.", "d e.", "f g h?"]
    alone = [translator.translate(part, GREEDY).text for part in parts]
    found = translator.translate("a b c. d e.\n\nf g h?", GREEDY)
    assert found.text == f"{alone[0]} {alone[1]}\n\n{alone[2]}" and not found.warnings
    whole = translator.translate("a b c. d e.", GREEDY, split=False)
    assert [one.text for one in translator.translate_all(["a b c. d e."], GREEDY, split=False)] == [whole.text]
    assert translator.parts("a b c. d e.") == ["a b c.", "d e."]
    assert translator.parts("a b c. d e.", split=False) == ["a b c. d e."]


def test_several_sentences_keep_their_alignments_and_alternatives(translator):
    config = GenerationConfig(num_beams=4, num_return_sequences=3)
    found = translator.translate("a b c. d e.", config, alignment=True)
    assert len(found.alternatives) == 2 and len({found.text, *(one.text for one in found.alternatives)}) > 1
    sources = {source for source, _ in found.alignment}
    assert sources <= set(range(5)) and max(sources) >= 3  # words are numbered as in the whole text


def test_phrases_to_write_keep_a_text_whole(translator):
    found = translator.translate(Request("a b. c d.", required=["g h"]))
    assert "g h" in found.text


def test_a_model_that_read_several_sentences_a_line_is_given_them(folder, tmp_path):
    import json
    import shutil

    shutil.copytree(folder, tmp_path / "copy")
    assert json.loads((folder / "sentences.json").read_text())["several"] == 0.0 and load(folder).split
    (tmp_path / "copy" / "sentences.json").write_text('{"several": 0.4}')
    assert not load(tmp_path / "copy").split
    (tmp_path / "copy" / "sentences.json").unlink()
    assert load(tmp_path / "copy").split


def test_options_go_by_keyword_under_either_spelling(translator):
    wanted = translator.translate("a b c d", GenerationConfig(num_beams=3, num_return_sequences=2))
    for options in ({"num_beams": 3, "num_return_sequences": 2}, {"beam_size": 3, "n_best": 2}):
        found = translator.translate("a b c d", **options)
        assert found.text == wanted.text and len(found.alternatives) == 1
    assert len(translator.translate("a b c", n_best=3).alternatives) == 2  # as many beams as it takes
    with pytest.raises(ValueError, match="num_beams: input should be greater than or equal to 1, not 0"):
        translator.translate("a", beam_size=0)
    with pytest.raises(TypeError, match="beems"):
        translator.translate("a", beems=3)


def test_it_says_what_it_is(translator):
    assert repr(translator).startswith("<Translator: ") and "parameters, vocabulary 27" in repr(translator)


def test_training_from_python_gives_what_load_gives(tmp_path, monkeypatch):
    monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path / "cache"))
    corpus = pairs(tmp_path / "p.tsv", 60)
    changes = {"training.steps": 3, "model.width": 16, "tokenizer.kind": "character", "training.samples": 0}
    found = heedful.train(corpus, out=tmp_path / "run", changes=changes)
    assert isinstance(found, Translator) and isinstance(found.translate("a b").text, str)
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_a_text_is_tokenised_once(translator, monkeypatch):
    seen = []
    plain = type(translator.source).encode
    monkeypatch.setattr(type(translator.source), "encode", lambda self, texts: seen.extend(texts) or plain(self, texts))
    translator.translate(["a b c", "d e. f g."], GREEDY)
    assert [text for text in seen if text] == ["a b c", "d e.", "f g."]


def test_the_most_agreed_on_of_samples_is_split_or_not_as_asked(translator, monkeypatch):
    asked = []
    plain = translator.translate_all

    def noted(texts, config=None, **options):
        asked.append(options["split"])
        return plain(texts, config, **options)

    monkeypatch.setattr(translator, "translate_all", noted)
    config = GenerationConfig(num_return_sequences=3, do_sample=True, seed=1)
    for split in (None, False):
        assert len(translator.by_consensus(["a b. c d."], config, split=split)) == 1
    assert asked == [None, False]
