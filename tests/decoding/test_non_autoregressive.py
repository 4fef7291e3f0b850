"""Decoding all words at once: a text's result is its own, and each way of decoding is what it says."""

import numpy as np
import pytest
import torch

from heedful.decoding.generation import GenerationConfig
from heedful.decoding.non_autoregressive import fertilities, likely_lengths
from heedful.decoding.runner import Request
from heedful.generator import Generator
from heedful.model.architecture.decoder_only import DecoderOnlyConfig
from heedful.model.architecture.encoder_decoder import EncoderDecoderConfig
from heedful.model.architecture.non_autoregressive import NonAutoregressiveConfig
from heedful.model.create import create
from heedful.text.tokenizer import TokenizerConfig, train_tokenizer
from heedful.translator import Translator
from tests.corpora import words

TEXTS = ["a b c", "d", "e f g h i j a b", "c c", "j i h g f e d c b a"]
STACK = {"layers": 2, "attention": {"heads": 2}, "feedforward": {"hidden": 48}, "dropout": 0.0}
WAYS = {
    "argmax": ("fertility", {}),
    "average": ("fertility", {"fertilities": "average"}),
    "noisy": ("fertility", {"noisy": 5, "seed": 3}),
    "masks": ("mask_predict", {"iterations": 4, "length_beam": 3}),
}


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(words(50), TokenizerConfig(kind="character"), vocab=40)


def random_model(config):
    torch.manual_seed(7)
    model = create(config).eval()
    with torch.no_grad():  # outputs that differ
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def teacher(tokenizer):
    return random_model(EncoderDecoderConfig(vocab=tokenizer.vocab, width=32, encoder=STACK, decoder=STACK))


@pytest.fixture(scope="module")
def translators(tokenizer):
    def made(method):
        keys = {"vocab": tokenizer.vocab, "width": 32, "method": method, "max_fertility": 4}
        model = random_model(NonAutoregressiveConfig(**keys, encoder=STACK, decoder=STACK))
        return Translator([model], [tokenizer, tokenizer], teacher=lambda: teacher(tokenizer))

    return {method: made(method) for method in ("fertility", "mask_predict")}


@pytest.mark.parametrize("way", WAYS)
def test_a_result_does_not_depend_on_its_neighbours(translators, way):
    method, options = WAYS[way]
    translator = translators[method]
    alone = [translator.translate(text, **options) for text in TEXTS]
    assert len({one.text for one in alone}) > 2
    for order in (TEXTS, TEXTS[::-1]):
        for batch_size in (None, 2):
            found = translator.translate(order, batch_size=batch_size, **options)
            together = dict(zip(order, found, strict=True))
            for text, one in zip(TEXTS, alone, strict=True):
                assert together[text].tokens == one.tokens and together[text].fertilities == one.fertilities
                assert together[text].score == pytest.approx(one.score, abs=1e-4)
                np.testing.assert_allclose(together[text].token_log_probs, one.token_log_probs, atol=1e-4)


@pytest.mark.parametrize("way", WAYS)
def test_kernels_and_modules_write_the_same(translators, way, monkeypatch):
    method, options = WAYS[way]
    translator = translators[method]
    fast = translator.translate(TEXTS, **options)
    monkeypatch.setattr(translator.starter, "quick", None)
    assert [one.tokens for one in translator.translate(TEXTS, **options)] == [one.tokens for one in fast]


def test_what_is_written_is_what_one_pass_gives(translators, tokenizer):
    translator = translators["fertility"]
    model, tokens = translator.models[0], tokenizer.encode(["a b c"])[0]
    found = translator.translate("a b c")
    with torch.no_grad():
        encoded = model.encode(torch.tensor([[*tokens, tokenizer.eos]]))
        counts = encoded.fertilities.argmax(-1)
        inputs, _ = model.copied(encoded, counts)
        log_probs = model.logits(model.decode(inputs, encoded)).log_softmax(-1)
    log_probs[..., [*tokenizer.never, tokenizer.eos]] = -torch.inf
    assert found.fertilities == counts[0].tolist() and sum(found.fertilities) == len(found.tokens)
    assert found.tokens == log_probs.argmax(-1)[0].tolist()
    assert found.token_log_probs == pytest.approx(log_probs.amax(-1)[0].tolist(), abs=1e-4)


def test_fertilities_are_argmax_rounded_average_and_samples():
    torch.manual_seed(0)
    scores, valid = torch.randn(2, 3, 5) * 2, torch.tensor([[1, 1, 1], [1, 1, 0]]).bool()
    expected = (scores.double().softmax(-1) * torch.arange(5)).sum(-1).round().long()
    config = GenerationConfig(fertilities="average", noisy=4000, seed=1)
    found = fertilities(scores, valid, config, [11, 12])
    assert torch.equal(found[0, 0], expected[0]) and torch.equal(found[1, 0, :2], expected[1, :2])
    assert not found[1, :, 2].any() and (found.sum(-1) > 0).all()
    drawn = torch.nn.functional.one_hot(found[0, 1:], 5).double().mean(0)
    assert (drawn - scores[0].double().softmax(-1)).abs().max() < 0.04
    nothing = torch.zeros(1, 3, 5)
    nothing[..., 0], nothing[0, 1, 2] = 9, 5  # argmax says that no word is written: then the likeliest one is
    assert fertilities(nothing, valid[:1], GenerationConfig(), [0]).tolist() == [[[0, 1, 0]]]


def test_lengths_have_the_distribution_of_a_sum():
    torch.manual_seed(1)
    scores, valid = torch.randn(2, 3, 4), torch.tensor([[1, 1, 1], [1, 1, 0]]).bool()
    for row, count in ((0, 3), (1, 2)):
        each, total = scores[row].double().softmax(-1), np.ones(1)
        for place in range(count):
            total = np.convolve(total, each[place].numpy())
        wanted = (np.argsort(-total[1:], kind="stable") + 1)[:4].tolist()
        assert likely_lengths(scores, valid, [9, 9], 4)[row].tolist() == wanted
    assert likely_lengths(scores, valid, [2, 3], 4).max(1).values.tolist() <= [2, 3]


def test_the_teacher_chooses_among_noisy_results(translators, tokenizer):
    """The score of each is what the teacher gives it word by word, and no other result of the same draws is better."""
    translator, judge = translators["fertility"], Translator([teacher(tokenizer)], [tokenizer, tokenizer])
    text = "a b c d e"
    found = translator.translate(text, noisy=20, seed=1, num_return_sequences=4)
    every = [found, *found.alternatives]
    assert len({tuple(one.tokens) for one in every}) == len(every) == 4
    scores = []
    for one in every:  # by the tokens themselves: random ones do not survive being spelled out
        source = torch.tensor([[*tokenizer.encode([text])[0], tokenizer.eos]])
        read = torch.tensor([[tokenizer.start, *one.tokens]])
        with torch.no_grad():
            log_probs = judge.models[0](source, read).log_softmax(-1)[0]
        scores.append(float(log_probs.gather(1, torch.tensor([[*one.tokens, tokenizer.eos]]).T).mean()))
    assert [one.score for one in every] == pytest.approx(scores, abs=1e-4)
    assert scores == sorted(scores, reverse=True)
    more = translator.translate(text, noisy=60, seed=1)
    assert more.score >= found.score - 1e-6 and more.score > translator.translate(text, noisy=0).score - 100


def test_masks_are_predicted_again_from_the_least_certain(translators, monkeypatch):
    translator, seen = translators["mask_predict"], []
    monkeypatch.setattr(translator.starter, "quick", None)
    model = translator.models[0]
    plain = model.masked
    monkeypatch.setattr(model, "masked", lambda target, hidden: seen.append(hidden.sum(1)) or plain(target, hidden))
    found = translator.translate("a b c d e f", iterations=4, length_beam=1)
    length = len(found.tokens)
    assert [int(one) for one in seen] == [length * (4 - step) // 4 for step in range(4)]
    assert found.fertilities is None


REFUSED = [
    (
        "fertility",
        {"num_beams": 5},
        "num_beams 5: this model writes all words at once and has no beam; leave it out, or",
    ),
    (
        "fertility",
        {"do_sample": True},
        "do_sample is for models that write word by word, and this one writes all words",
    ),
    (
        "fertility",
        {"stop_strings": ("x",)},
        "stop_strings is for models that write word by word, and this one writes all words",
    ),
    (
        "fertility",
        {"iterations": 3},
        "iterations is for mask-predict, and this model copies by fertility; leave it out",
    ),
    ("mask_predict", {"noisy": 3}, "noisy is for models with fertilities, and this one predicts masks; leave it out"),
    ("mask_predict", {"history": True}, "a model that writes all words at once has no search history"),
]


@pytest.mark.parametrize(("method", "options", "text"), REFUSED)
def test_what_makes_no_sense_is_refused(translators, method, options, text):
    with pytest.raises(ValueError, match=text):
        translators[method].translate("a b", **options)


def test_prefixes_phrases_and_scores_are_refused(translators, tokenizer):
    translator = translators["fertility"]
    for request in (Request("a", prefix="b"), Request("a", required=["b"]), Request("a", banned=["b"])):
        with pytest.raises(ValueError, match="takes no prefix and no required or banned phrases; leave them out"):
            translator.translate(request)
    with pytest.raises(ValueError, match="gives no probability of a given text"):
        translator.score([("a", "b")])
    alone = Translator([translator.models[0]], [tokenizer, tokenizer])
    with pytest.raises(
        ValueError, match=r"noisy decoding needs the teacher, .*: heedful.load\(MODEL, teacher=FOLDER\)"
    ):
        alone.translate("a", noisy=2)


def test_models_that_write_word_by_word_refuse_what_is_not_theirs(tokenizer):
    with pytest.raises(
        ValueError, match="noisy is for models that write all words at once, and this one writes word by"
    ):
        Translator([teacher(tokenizer)], [tokenizer, tokenizer]).translate("a", noisy=2)
    writer = Generator(random_model(DecoderOnlyConfig(vocab=tokenizer.vocab, width=32, decoder=STACK)), tokenizer)
    with pytest.raises(ValueError, match="iterations is for models that write all words at once"):
        writer.generate("a", iterations=2)


def test_an_empty_text_and_a_limit(translators):
    for method, translator in translators.items():
        found = translator.translate(["", "a b c d e f"], max_new_tokens=3)
        assert found[0].text == "" and len(found[1].tokens) <= 3, method


def test_several_streams_give_the_same(translators):
    translator = translators["fertility"]
    several = Translator([translator.models[0]], [translator.source, translator.target], streams=2)
    try:
        found = several.translate(TEXTS * 3, batch_size=3)
    finally:
        several.close()
    assert [one.tokens for one in found] == [one.tokens for one in translator.translate(TEXTS * 3)]
