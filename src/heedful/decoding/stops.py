"""Stop strings, at which a text ends; they need not match token boundaries."""

from collections.abc import Sequence

from heedful.text.tokenizer import Tokenizer


class Stops:
    """Whether the text of these tokens contains a stop string. Called after each token, so only the tail is decoded."""

    def __init__(self, tokenizer: Tokenizer, strings: Sequence[str]) -> None:
        self.tokenizer, self.strings = tokenizer, strings
        self.tail = max(len(string.encode()) for string in strings) + 4  # a token is at least a byte

    def __call__(self, tokens: list[int]) -> bool:
        text = self.tokenizer.decode([tokens[-self.tail :]])[0]
        return any(string in text for string in self.strings)


def until(text: str, strings: Sequence[str]) -> str:
    """The text before the first of these strings."""
    places = [place for string in strings if (place := text.find(string)) >= 0]
    return text[: min(places)] if places else text
