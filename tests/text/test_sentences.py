"""Sentences: found in scripts with and without spaces, and nothing of a text is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.text.parts import join
from heedful.text.sentences import sentences


@pytest.mark.parametrize(("text", "language", "found"), [
    ("The cat sleeps. The dog sees the bird.", "", ["The cat sleeps.", "The dog sees the bird."]),
    ("Dr. Smith paid 3.50 to Mr. Doe. He left!", "en", ["Dr. Smith paid 3.50 to Mr. Doe.", "He left!"]),
    ("Am 3. Mai kam er z. B. nach Hause. Dann ging er.", "de", ["Am 3. Mai kam er z. B. nach Hause.", "Dann ging er."]),
    ("我爱猫。他喜欢狗！为什么？", "", ["我爱猫。", "他喜欢狗！", "为什么？"]),
    ("猫が好きです。犬も好きです。", "ja", ["猫が好きです。", "犬も好きです。"]),
    ("no end at all", "", ["no end at all"]),
    ("", "", [""]),
    ("  \n ", "", [""]),
    ("one\n\ntwo", "xx", ["one", "two"]),
])  # fmt: skip
def test_sentences_of_many_scripts(text, language, found):
    assert [sentence for sentence, _ in sentences(text, language)] == found


@given(st.text(alphabet="ab .!?\n。！\"'()1A我", max_size=40), st.sampled_from(["", "en", "de", "zh", "ja", "th"]))
def test_nothing_is_lost(text, language):
    found = sentences(text, language)
    assert "".join(sentence + space for sentence, space in found).rstrip() == text.strip()


@given(st.lists(st.sampled_from(["Go.", "Stop!", "Why?"]), min_size=1, max_size=6))
def test_sentences_that_repeat_are_all_there(some):
    assert [sentence for sentence, _ in sentences(" ".join(some))] == some


def test_parts_are_joined_as_their_source_was():
    assert join(["a.", "b."], [" ", ""]) == "a. b."
    assert join(["a.", "b."], ["\n\n", ""]) == "a.\n\nb."
    assert join(["我。", "他。"], [" ", ""]) == "我。他。"  # into a script without spaces
    assert join(["a.", "b."], ["", ""]) == "a. b."  # and out of one


def test_a_long_text_is_split_without_delay():
    text = "The cat sleeps. " * 5000
    assert len(sentences(text)) == 5000 and "".join(map("".join, sentences(text))) == text
