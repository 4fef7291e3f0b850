"""Sentence splitting, for scripts with and without spaces, by pysbd; a simple rule handles languages and inputs that
pysbd cannot."""

import re
from functools import lru_cache
from typing import Any

from heedful.text.words import HAN, UNSPACED

END = re.compile(r"(?<=[.!?…])[\"'”’»)\]]*\s+|(?<=[。！？])[”’」』）]*|\n\s*\n")
# Without one of these before the last character there is nothing to split, which settles most lines.
MAY_END = re.compile(r"[.!?…。！？।؟\n]\S*\s*\S")
LONG = 4000  # characters, beyond which the simple rule splits
KANA = re.compile(r"[\u3040-\u30ff]")


def sentences(text: str, language: str = "") -> list[tuple[str, str]]:
    """The sentences of a text, each with the white space after it: joined, they give the text without its leading white
    space."""
    text = text.lstrip()
    pieces = [text] if MAY_END.search(text) is None else _by_rules(text, language) or _by_ends(text)
    found = [(piece.rstrip(), piece[len(piece.rstrip()) :]) for piece in pieces]
    return [pair for pair in found if pair[0]] or [("", "")]


def _by_rules(text: str, language: str) -> list[str]:
    """pysbd's sentences, if they cover the text exactly; otherwise none. Its time grows with the square of the text, so
    long ones are left to the simple rule."""
    if len(text) > LONG:
        return []
    segmenter = _segmenter(language.partition("-")[0].lower() or _likely_language(text))
    if segmenter is None:
        return []
    try:
        found = [piece for piece in segmenter.segment(text) if piece]
    except Exception:  # some inputs break its rules
        return []
    pieces: list[str] = []
    end = 0
    for piece in found:
        start = text.find(piece.strip(), end)
        if start < 0 or text[end:start].strip():
            return []
        if pieces:
            pieces[-1] += text[end:start]
        pieces.append(text[start : start + len(piece.strip())])
        end = start + len(piece.strip())
    if pieces and not text[end:].strip():
        pieces[-1] += text[end:]
        return pieces
    return []


def _by_ends(text: str) -> list[str]:
    ends = [match.end() for match in END.finditer(text)]
    return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True) if text[start:end]]


def _likely_language(text: str) -> str:
    if KANA.search(text):
        return "ja"
    return "zh" if HAN.search(text) and UNSPACED.search(text) else "en"


@lru_cache
def _segmenter(language: str) -> Any:
    import pysbd
    from pysbd.languages import LANGUAGE_CODES

    return pysbd.Segmenter(language=language if language in LANGUAGE_CODES else "en", clean=False)
