"""Which language is this? Only those that a model can read are in question."""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

# Scripts that give a language away.
SCRIPTS = {
    "zh": r"[\u4e00-\u9fff]", "ja": r"[\u3040-\u30ff]", "ko": r"[\uac00-\ud7af]", "ar": r"[\u0600-\u06ff]",
    "he": r"[\u0590-\u05ff]", "el": r"[\u0370-\u03ff]", "th": r"[\u0e00-\u0e7f]", "hi": r"[\u0900-\u097f]",
    "ru": r"[\u0400-\u04ff]", "uk": r"[\u0400-\u04ff]", "bg": r"[\u0400-\u04ff]",
}  # fmt: skip


def detect(text: str, known: Sequence[str]) -> tuple[str, float]:
    """(code, confidence from 0 to 100), of these codes. Without anything to go by, the first one and 0."""
    letters = sum(character.isalpha() for character in text)
    if not known or not letters:
        return (known[0] if known else "", 0.0)
    for code, sign in (("ja", r"[\u3040-\u30ff]"), ("uk", r"[іїєґІЇЄҐ]")):
        if code in known and re.search(sign, text):
            return code, 100.0
    shares = {code: len(re.findall(SCRIPTS[code], text)) / letters for code in known if code in SCRIPTS}
    if [share > 0.3 for share in shares.values()].count(True) == 1:  # several of one script: by their words
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
    """py3langid, where it is installed; it reads a file of its own, and nothing from the network."""
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        return None
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
