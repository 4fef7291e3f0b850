"""Splitting a text that is too long for a model into parts, and joining their translations."""

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise

from heedful.text.words import UNSPACED, word_spans

SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])")


def split(text: str, fits: Callable[[str], bool], *, most: int) -> list[str]:
    """Split at sentence ends, or else at word ends, or else after at most `most` characters."""
    parts: list[str] = []
    for sentence in SENTENCE_END.split(text):
        units = [sentence] if fits(sentence) else re.split(r"(?<=\s)", sentence)
        first = len(parts)  # words are rejoined only within their sentence
        for unit in units:
            while not fits(unit):  # no space either: cut by characters
                size = max(1, most)
                while size > 1 and not fits(unit[:size]):
                    size //= 2
                parts.append(unit[:size])
                unit = unit[size:]
            if len(parts) > first and fits(parts[-1] + unit):
                parts[-1] += unit
            else:
                parts.append(unit)
    return [part.strip() for part in parts if part.strip()] or [""]


def join(parts: Sequence[str], between: Sequence[str] = ()) -> str:
    """Join parts as the source was joined (`between`: the white space after each part), so that line breaks are kept.
    Where that was nothing or spaces: with a space, unless both parts are in a script without spaces."""
    joined = "".join(parts[:1])
    for place, (before, part) in enumerate(pairwise(parts)):
        space = between[place] if place < len(between) else " "
        if not space.strip(" "):
            space = "" if UNSPACED.search(before) and UNSPACED.search(part) else space or " "
        joined += space + part
    return joined


def words_of_parts(text: str, parts: Sequence[str]) -> list[list[int]]:
    """For each part of a text, in order: for each of its words, the index of the text's word in which it begins."""
    starts, end, found = [start for start, _ in word_spans(text)], 0, []
    for part in parts:
        begin = max(end, text.find(part, end))
        found.append([max(0, bisect_right(starts, begin + start) - 1) for start, _ in word_spans(part)])
        end = begin + len(part)
    return found
