"""What is a word, where words are counted and aligned: what spaces separate. In a script that puts none between words
(Chinese, Japanese, Thai ...), where one ends cannot be told, so each character counts, with the marks on it."""

import re
import unicodedata

BLOCKS = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
JOINERS = r"\u200b-\u200d\ufe00-\ufe0f\U000e0100-\U000e01ef"  # nothing of their own, between or after characters
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
    """Where each word begins and ends."""
    return [match.span() for match in WORD.finditer(text)]


def is_unspaced(text: str) -> bool:
    """Whether it is in such a script, or in no script at all."""
    return not any(character.isalnum() and not UNSPACED.match(character) for character in text)
