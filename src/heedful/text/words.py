"""What counts as a word when words are counted and aligned: text between spaces. In scripts without spaces between
words (Chinese, Japanese, Thai ...), each character counts as a word, with its combining marks."""

import re
import unicodedata

BLOCKS = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
JOINERS = r"\u200b-\u200d\ufe00-\ufe0f\U000e0100-\U000e01ef"  # invisible, between or after characters
MARKS = "".join(
    chr(code)
    for block in (range(0x0E00, 0x0F00), range(0x1000, 0x10A0), range(0x1780, 0x1800), range(0x3099, 0x309B))
    for code in block
    if unicodedata.category(chr(code)).startswith("M")
)
HAN = re.compile(r"[\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
UNSPACED = re.compile(f"[{BLOCKS}]")
WORD = re.compile(rf"[{BLOCKS}][{MARKS}{JOINERS}]*|[^\s{BLOCKS}]+")


def words(text: str) -> list[str]:
    return WORD.findall(text) if UNSPACED.search(text) else text.split()


def word_spans(text: str) -> list[tuple[int, int]]:
    """The character span of each word."""
    return [match.span() for match in WORD.finditer(text)]


def is_unspaced(text: str) -> bool:
    """Whether a text is in a script without spaces, or has no letters at all."""
    return not any(character.isalnum() and not UNSPACED.match(character) for character in text)
