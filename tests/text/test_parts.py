"""Long texts in parts."""

from hypothesis import given
from hypothesis import strategies as st

from heedful.text.parts import join, split, words_of_parts
from heedful.text.words import words


@given(st.text(alphabet=st.one_of(st.characters(), st.sampled_from("ab. 狗。！\n"))), st.integers(1, 12))
def test_parts_fit_and_lose_nothing_but_spaces(text, most):
    parts = split(text.strip(), lambda part: len(part) <= most, most=most)
    assert all(len(part) <= most for part in parts)
    assert "".join("".join(parts).split()) == "".join(text.split())


def test_sentences_are_cut_before_words_and_words_before_characters():
    fits = lambda part: len(part) <= 6  # noqa: E731
    assert split("Ab c. De f g h. Ijklmnop", fits, most=4) == ["Ab c.", "De f", "g h.", "Ijkl", "mnop"]
    assert split("", fits, most=4) == [""]


def test_parts_of_a_text_keep_the_numbers_of_its_words():
    text = "太好了！！！走了 now"
    assert words(text) == ["太", "好", "了", "！！！", "走", "了", "now"]
    assert words_of_parts(text, ["太好了！", "！！", "走了 now"]) == [[0, 1, 2, 3], [3], [4, 5, 6]]
    assert words_of_parts("abcdef", ["abc", "def"]) == [[0], [0]]
    assert words_of_parts("a b", ["a", "something else"]) == [[0], [0, 1]]  # never beyond the end


def test_parts_are_joined_as_their_script_has_it():
    assert join(["Es regnet.", "(Gut.)"]) == "Es regnet. (Gut.)"
    assert join(["下雨。", "好。", "OK."]) == "下雨。好。 OK."
    assert join([]) == ""
