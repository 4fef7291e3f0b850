"""Scores of translations. Every reported number is sacrebleu's own, with its signature."""

from collections.abc import Sequence
from dataclasses import dataclass

from sacrebleu.metrics import BLEU, CHRF, TER


@dataclass(frozen=True)
class Score:
    name: str
    value: float
    signature: str


def score(hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, language: str = "") -> dict[str, Score]:
    """BLEU, chrF, TER and exact match. `references`: one list as long as the hypotheses for each set of references.

    The target `language` chooses BLEU's tokenisation, as sacrebleu itself does, and for Chinese and Japanese TER's.
    """
    for reference in references:
        if len(reference) != len(hypotheses):
            raise ValueError(f"{len(hypotheses):,} translations, but {len(reference):,} references; they must be equal")
    streams = [list(reference) for reference in references]
    asian = language in ("zh", "ja")
    found = {}
    for metric in (BLEU(trg_lang=language or ""), CHRF(), TER(normalized=asian, asian_support=asian)):
        result = metric.corpus_score(list(hypotheses), streams)
        found[result.name.lower().rstrip("2")] = Score(result.name, result.score, str(metric.get_signature()))
    matches = sum(text.strip() in {r.strip() for r in other} for text, *other in zip(hypotheses, *streams, strict=True))
    found["exact"] = Score("exact match", 100 * matches / max(1, len(hypotheses)), "")
    return found


def consensus(texts: Sequence[str]) -> int:
    """Which of several versions is most like the others, by chrF: minimum Bayes risk (Kumar and Byrne 2004)."""
    metric = CHRF()
    likeness = [
        sum(metric.sentence_score(text, [other]).score for place, other in enumerate(texts) if place != index)
        for index, text in enumerate(texts)
    ]
    return max(range(len(texts)), key=likeness.__getitem__)


def quick_score(hypotheses: Sequence[str], references: Sequence[str], *, language: str = "") -> dict[str, float]:
    """BLEU, chrF and exact match as plain numbers, for watching a training."""
    stream = [list(references)]
    matches = sum(text.strip() == other.strip() for text, other in zip(hypotheses, references, strict=True))
    return {
        "bleu": BLEU(trg_lang=language or "", force=True).corpus_score(list(hypotheses), stream).score,
        "chrf": CHRF().corpus_score(list(hypotheses), stream).score,
        "exact": 100 * matches / max(1, len(hypotheses)),
    }
