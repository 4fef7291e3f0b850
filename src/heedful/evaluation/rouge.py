"""ROUGE, computed by the library rouge-score (Lin 2004), for any script.

    rouge1, rouge2   F1 of the words, and of the pairs of adjacent words, that hypothesis and reference share
    rougeL           F1 of their longest common subsequence, whole texts
    rougeLsum        the same sentence by sentence, as the union over sentences

Differs: that library's words are [a-z0-9]+, so that texts in other scripts score 0 even if they are identical. Ours are
letters and digits of any script; in scripts without spaces, each character is a word. For English, the figures are the
same. Of several references, the best counts, for each score by itself.
"""

import re
import unicodedata
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from heedful.evaluation.metrics import Score
from heedful.text.sentences import sentences
from heedful.text.words import words

NAMES = ("rouge1", "rouge2", "rougeL", "rougeLsum")
ASCII = re.compile(r"[a-z0-9]+")


class Words:
    """The words of a text in lower case. `stem`: Porter stems of English words of more than three letters."""

    def __init__(self, *, stem: bool = False) -> None:
        self._stemmer = _porter() if stem else None

    def tokenize(self, text: str) -> list[str]:
        """The name is rouge-score's."""
        plain = "".join(one if _is_of_word(one) else " " for one in unicodedata.normalize("NFC", text.lower()))
        found = words(plain)
        if self._stemmer is None:
            return found
        return [self._stemmer.stem(word) if len(word) > 3 and ASCII.fullmatch(word) else word for word in found]


def rouge(hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, stem: bool = False) -> dict[str, Score]:
    """The mean over texts, in percent. `references`: one or several for each hypothesis."""
    if len(hypotheses) != len(references):
        raise ValueError(f"{len(hypotheses):,} texts, but references for {len(references):,}; the numbers must match")
    if any(not some for some in references):
        raise ValueError("a text has no reference; give at least one for each")
    scorer = _scorer()(list(NAMES), tokenizer=Words(stem=stem))
    totals = dict.fromkeys(NAMES, 0.0)
    for hypothesis, some in zip(hypotheses, references, strict=True):
        found = scorer.score_multi([by_line(text) for text in some], by_line(hypothesis))
        for name in NAMES:
            totals[name] += found[name].fmeasure
    signed = _signature([len(some) for some in references], stem)
    return {name: Score(name, 100 * total / max(1, len(hypotheses)), signed) for name, total in totals.items()}


def by_line(text: str) -> str:
    """A sentence on each line, which is where rougeLsum splits."""
    return "\n".join(sentence.replace("\n", " ") for sentence, _ in sentences(text))


def lead(text: str, count: int) -> str:
    """The first sentences of a text: the summary that a model has to beat."""
    return " ".join(sentence for sentence, _ in sentences(text)[:count])


def _signature(counts: Sequence[int], stem: bool) -> str:
    least, most = min(counts, default=0), max(counts, default=0)
    references = str(most) if least == most else f"{least}-{most}"
    best = ",best" if most > 1 else ""
    return (
        f"F1|mean|refs:{references}{best}|stem:{'porter' if stem else 'no'}|words:unicode,characters-if-unspaced|"
        f"Lsum-sentences:pysbd|rouge-score:{version('rouge-score')}"
    )


def _is_of_word(character: str) -> bool:
    """Letters, digits, and the marks on them."""
    return unicodedata.category(character)[0] in "LNM"


def _scorer() -> Any:
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError:
        raise ValueError("ROUGE needs the package rouge-score: pip install 'heedful[summaries]'") from None
    return RougeScorer


def _porter() -> Any:
    _scorer()
    from nltk.stem.porter import PorterStemmer

    return PorterStemmer()
