"""What counts as a word."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.text.words import is_unspaced, word_spans, words


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The dog  sees it.", ["The", "dog", "sees", "it."]),
        ("狗看见球。", ["狗", "看", "见", "球", "。"]),
        ("他买了3个iPhone, 对吗？", ["他", "买", "了", "3", "个", "iPhone,", "对", "吗", "？"]),
        ("犬が走る", ["犬", "が", "走", "る"]),
        ("ที่นี่", ["ที่", "นี่"]),  # marks stay on their letter
        ("人々が二〇二四", ["人", "々", "が", "二", "〇", "二", "四"]),
        ("葛\U000e0100城", ["葛\U000e0100", "城"]),  # which of two ways to write it
        ("ខ្ញុំ\u200bទៅ", ["ខ្", "ញុំ\u200b", "ទៅ"]),
        ("한국어 문장", ["한국어", "문장"]),
        ("", []),
        (" \u3000 ", []),
    ],
)
def test_words(text, found):
    assert words(text) == found


@given(st.text(alphabet=st.one_of(st.characters(), st.sampled_from("狗看 a\u3000\x1cที่"))))
def test_words_are_the_text_without_its_spaces(text):
    found = words(text)
    assert "".join(found) == "".join(text.split())
    assert [text[start:end] for start, end in word_spans(text)] == found


def test_scripts_without_spaces():
    assert is_unspaced("人々")
    assert is_unspaced("狗看见球。") and is_unspaced("...")
    assert not is_unspaced("狗 and 球") and not is_unspaced("dog")
