"""Language tokens: where each layout puts them, and what may be asked of a model."""

import pytest

from heedful.data.languages import Direction, Framing, Languages, language_token
from heedful.text.tokenizer import TokenizerConfig, train_tokenizer

CODES = ("de", "en", "fr", "pt-BR")
DIRECTIONS = [Direction("en", "de"), Direction("de", "en"), Direction("en", "fr"), Direction("fr", "en")]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(
        ["a b c"] * 3, TokenizerConfig(kind="character"), vocab=0, extra=[*map(language_token, CODES)]
    )


@pytest.fixture(scope="module")
def tokens(tokenizer):
    return {code: tokenizer.token_ids()[language_token(code)] for code in CODES}


def test_the_tokenizer_knows_its_languages(tokenizer, tokens):
    assert tokenizer.languages == tokens
    (row,) = tokenizer.encode(["<2de> a"])
    assert tokens["de"] not in row  # in a text it is text
    assert tokenizer.decode([[tokens["de"], *row]]) == ["<2de> a"]


@pytest.mark.parametrize("layout", ["prefix", "m2m", "mbart"])
def test_what_is_written_first_is_what_is_trained_first(tokenizer, tokens, layout):
    framing = Languages([tokenizer] * 2, layout, DIRECTIONS).framing("en", "de")
    bos, eos, en, de = tokenizer.start, tokenizer.eos, tokens["en"], tokens["de"]
    wanted = {
        "prefix": ([de, 7, 8, eos], [bos, 5, 6], [5, 6, eos]),
        "m2m": ([en, 7, 8, eos], [bos, de, 5, 6], [de, 5, 6, eos]),
        "mbart": ([7, 8, eos, en], [de, 5, 6], [5, 6, eos]),
    }[layout]
    found = framing.source([7, 8]), framing.read([5, 6]), framing.wanted([5, 6])
    assert tuple(each.tolist() for each in found) == wanted
    # At inference the decoder starts with `start` and is made to write `forced`: the same as in training.
    assert [framing.start, *framing.forced] == wanted[1][: 1 + len(framing.forced)]


@pytest.mark.parametrize(("layout", "module"), [("m2m", "m2m_100"), ("mbart", "mbart")])
def test_the_decoder_reads_what_it_reads_in_transformers(tokenizer, tokens, layout, module):
    torch = pytest.importorskip("torch")
    shifted = pytest.importorskip(f"transformers.models.{module}.modeling_{module}").shift_tokens_right
    framing = Languages([tokenizer] * 2, layout, DIRECTIONS).framing("en", "fr")
    text, eos = [5, 6, 9], tokenizer.eos
    if layout == "m2m":  # the labels of M2M100Tokenizer: [language] text </s>
        labels = torch.tensor([[tokens["fr"], *text, eos]])
        theirs = shifted(labels, tokenizer.pad, framing.start)
    else:  # of MBartTokenizer: text </s> [language]
        labels = torch.tensor([[*text, eos, tokens["fr"]]])
        theirs = shifted(labels, tokenizer.pad)
        labels, theirs = labels[:, :-1], theirs[:, :-1]  # we do not train what follows </s>
    assert framing.read(text).tolist() == theirs[0].tolist()
    assert framing.wanted(text).tolist() == labels[0].tolist()


def test_directions_that_may_be_asked_for(tokenizer):
    known = Languages([tokenizer] * 2, "m2m", DIRECTIONS)
    assert known.direction("en", "de") == ("en", "de")
    assert known.direction(target="fr") == ("en", "fr")  # there is one only
    assert known.untrained == [("de", "fr"), ("fr", "de")]
    assert known.trained(Direction("en", "de")) and not known.trained(Direction("de", "fr"))
    for asked, message in (
        ({"target": "en"}, "name the source language; trained directions: en-de, de-en, en-fr, fr-en; not trained, "
         "but possible: de-fr, fr-de"),
        ({}, "name the source and target language"),
        ({"source": "en", "target": "es"}, "does not know the language 'es'"),
        ({"source": "en", "target": "en"}, "does not translate from en to en"),
    ):  # fmt: skip
        with pytest.raises(ValueError) as caught:
            known.framing(**asked)
        assert message in str(caught.value)


def test_the_target_alone_is_enough_where_only_it_is_told(tokenizer, tokens):
    known = Languages([tokenizer] * 2, "prefix", DIRECTIONS)
    assert known.framing(target="en").before == (tokens["en"],)


def test_regions(tokenizer):
    known = Languages([tokenizer] * 2, "prefix", [Direction("en", "pt-BR"), Direction("de", "en")])
    assert known.direction("en-GB", "pt") == ("en", "pt-BR")


def test_a_model_of_one_direction_refuses_others(tokenizer):
    plain = Languages([tokenizer] * 2)
    assert plain.framing() == Framing((), (tokenizer.eos,), tokenizer.start, (), tokenizer.eos)
    with pytest.raises(ValueError, match="this model translates in one direction only; leave out the languages"):
        plain.framing("en", "de")

    named = Languages([tokenizer] * 2, directions=[Direction("en", "de")])
    assert named.framing("en", "de") == named.framing(target="de") == plain.framing()
    with pytest.raises(ValueError, match="this model translates from en to de only; leave out the languages"):
        named.framing("en", "fr")


def test_a_tokenizer_without_the_tokens_is_refused(tokenizer):
    with pytest.raises(ValueError, match="no token for the language 'es'; it has tokens for: de, en, fr, pt-BR"):
        Languages([tokenizer] * 2, "prefix", [Direction("en", "es")])
