"""Language detection, restricted to the languages that the loaded models can read."""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

# Scripts that identify a language.
SCRIPTS = {
    "zh": r"[\u4e00-\u9fff]", "ja": r"[\u3040-\u30ff]", "ko": r"[\uac00-\ud7af]", "ar": r"[\u0600-\u06ff]",
    "he": r"[\u0590-\u05ff]", "el": r"[\u0370-\u03ff]", "th": r"[\u0e00-\u0e7f]", "hi": r"[\u0900-\u097f]",
    "ru": r"[\u0400-\u04ff]", "uk": r"[\u0400-\u04ff]", "bg": r"[\u0400-\u04ff]",
}  # fmt: skip


def detect(text: str, known: Sequence[str]) -> tuple[str, float]:
    """(one of the known codes, confidence from 0 to 100); the first one and 0 if there is no evidence."""
    letters = sum(character.isalpha() for character in text)
    if not known or not letters:
        return (known[0] if known else "", 0.0)
    for code, sign in (("ja", r"[\u3040-\u30ff]"), ("uk", r"[іїєґІЇЄҐ]")):
        if code in known and re.search(sign, text):
            return code, 100.0
    shares = {code: len(re.findall(SCRIPTS[code], text)) / letters for code in known if code in SCRIPTS}
    if [share > 0.3 for share in shares.values()].count(True) == 1:  # if several share a script: by their words
        best = max(shares, key=lambda code: shares[code])
        return best, round(100 * min(1.0, shares[best]), 1)
    model = _model()
    if model is None:
        return known[0], 0.0
    found = dict(model.rank(text))
    best = max(known, key=lambda code: found.get(code, 0.0))
    return best, round(100 * float(found.get(best, 0.0)), 1)


@lru_cache(maxsize=1)
def _model() -> Any:
    """py3langid, if it is installed. Its model comes with the package; nothing is downloaded."""
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        return None
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
