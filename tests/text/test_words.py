"""What counts as a word."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.text.words import is_unspaced, word_starts, words


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The dog  sees it.", ["The", "dog", "sees", "it."]),
        ("狗看见球。", ["狗", "看", "见", "球", "。"]),
        ("他买了3个iPhone, 对吗？", ["他", "买", "了", "3", "个", "iPhone,", "对", "吗", "？"]),
        ("犬が走る", ["犬", "が", "走", "る"]),
        ("ที่นี่", ["ที่", "นี่"]),  # marks stay on their letter
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
    assert [text[start] for start in word_starts(text)] == [word[0] for word in found]


def test_scripts_without_spaces():
    assert is_unspaced("狗看见球。") and is_unspaced("...")
    assert not is_unspaced("狗 and 球") and not is_unspaced("dog")
