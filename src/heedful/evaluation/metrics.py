"""Translation metrics. Every reported number is computed by sacrebleu, with its signature."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heedful.text.words import HAN, UNSPACED, words

if TYPE_CHECKING:
    from sacrebleu.metrics import BLEU  # imported where it is used: a training does not start with it

TOKENIZERS = ("13a", "zh", "ja-mecab", "ko-mecab", "char", "intl", "none", "flores101", "flores200")
METRICS = ("chrf", "bleu")  # that single sentences are scored by
KANA = re.compile(r"[\u3040-\u30ff]")
LOOKED_AT = 1000  # references


@dataclass(frozen=True)
class Score:
    name: str
    value: float
    signature: str


@dataclass(frozen=True)
class Tokenization:
    """How BLEU splits texts into words, and why."""

    name: str
    why: str


def tokenization(references: Sequence[str], *, language: str = "", tokenize: str = "") -> Tokenization:
    """The tokenizer that was requested; or sacrebleu's choice for the target language; or one that suits the script of
    the references: without spaces between words, the default would count a sentence as one word."""
    if tokenize:
        if tokenize not in TOKENIZERS:
            raise ValueError(f"BLEU has no tokenizer {tokenize!r}; known: {', '.join(TOKENIZERS)}")
        return Tokenization(tokenize, "as requested")
    named = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}.get(language.partition("-")[0].lower())
    if named or language:
        return Tokenization(named or "13a", f"for the target language {language}")
    text = "".join(references[:LOOKED_AT])
    letters = sum(character.isalpha() for character in text)
    if 2 * len(UNSPACED.findall(text)) <= letters or not letters:
        return Tokenization("13a", "")
    if KANA.search(text) is None and 2 * len(HAN.findall(text)) > letters:
        return Tokenization("zh", "the references are written in Chinese characters")
    return Tokenization("char", "the references are in a script without spaces between words")


def score(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, language: str = "", tokenize: str = ""
) -> dict[str, Score]:
    """BLEU, chrF, TER and exact match. `references`: one list, as long as the hypotheses, per set of references. For
    `language` and `tokenize` see `tokenization`; Chinese and Japanese also set TER's tokenizer."""
    from sacrebleu.metrics import CHRF, TER

    for reference in references:
        if len(reference) != len(hypotheses):
            raise ValueError(
                f"{len(hypotheses):,} translations, but {len(reference):,} references; the numbers must match"
            )
    streams = [list(reference) for reference in references]
    chosen = tokenization(streams[0] if streams else [], language=language, tokenize=tokenize).name
    asian = chosen in ("zh", "ja-mecab", "char")
    found = {}
    for metric in (_bleu(chosen), CHRF(), TER(normalized=asian, asian_support=asian)):
        result = metric.corpus_score(list(hypotheses), streams)
        found[result.name.lower().rstrip("2")] = Score(result.name, result.score, str(metric.get_signature()))
    matches = sum(text.strip() in {r.strip() for r in other} for text, *other in zip(hypotheses, *streams, strict=True))
    found["exact"] = Score("exact match", 100 * matches / max(1, len(hypotheses)), "")
    return found


def one_score(metric: str, hypotheses: Sequence[str], references: Sequence[str], *, language: str = "") -> Score:
    """One metric: bleu, chrf, exact, accuracy (another word for it) or rouge."""
    if metric == "rouge":
        return Score("ROUGE-L", rouge_l(hypotheses, references), "F1|words:unicode|case:lower|stem:no")
    found = score(hypotheses, [references], language=language)["exact" if metric == "accuracy" else metric]
    return Score("accuracy", found.value, "") if metric == "accuracy" else found


def rouge_l(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """The mean F1 of the longest common subsequence of words (Lin 2004, section 3.1). Differs from the usual package:
    words are those of Unicode, so that texts in any script count."""
    total = 0.0
    for written, wanted in zip(hypotheses, references, strict=True):
        first, second = words(written.lower()), words(wanted.lower())
        common = _common_subsequence(first, second)
        total += 2 * common / (len(first) + len(second)) if common else 0.0
    return 100 * total / max(1, len(hypotheses))


def _common_subsequence(first: Sequence[str], second: Sequence[str]) -> int:
    """The length of the longest one."""
    best = [0] * (len(second) + 1)
    for one in first:
        before = 0
        for place, other in enumerate(second, start=1):
            kept = best[place]
            best[place] = before + 1 if one == other else max(best[place], best[place - 1])
            before = kept
    return best[-1]


def sentence_scores(metric: str, hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
    """chrF or BLEU of each text alone. BLEU of a text counts only the n-grams that it is long enough to have."""
    from sacrebleu.metrics import BLEU, CHRF

    names = tokenization(references).name if metric == "bleu" else ""
    one = CHRF() if metric == "chrf" else BLEU(tokenize=names, effective_order=True)
    return [float(one.sentence_score(text, [other]).score) for text, other in zip(hypotheses, references, strict=True)]


def consensus(texts: Sequence[str]) -> int:
    """The index of the text most similar to the others, by chrF: minimum Bayes risk (Kumar and Byrne 2004)."""
    from sacrebleu.metrics import CHRF

    metric = CHRF()
    likeness = [
        sum(metric.sentence_score(text, [other]).score for place, other in enumerate(texts) if place != index)
        for index, text in enumerate(texts)
    ]
    return max(range(len(texts)), key=likeness.__getitem__)


def _bleu(tokenizer: str) -> "BLEU":
    from sacrebleu.metrics import BLEU

    try:
        return BLEU(tokenize=tokenizer, force=True)
    except (RuntimeError, ImportError) as error:  # some need a package that is not installed
        raise ValueError(f"BLEU's tokenizer {tokenizer} is not available: {error}") from None


def quick_score(hypotheses: Sequence[str], references: Sequence[str], *, tokenizer: str = "13a") -> dict[str, float]:
    """BLEU, chrF and exact match as plain numbers, for validation during training."""
    from sacrebleu.metrics import CHRF

    stream = [list(references)]
    matches = sum(text.strip() == other.strip() for text, other in zip(hypotheses, references, strict=True))
    return {
        "bleu": _bleu(tokenizer).corpus_score(list(hypotheses), stream).score,
        "chrf": CHRF().corpus_score(list(hypotheses), stream).score,
        "exact": 100 * matches / max(1, len(hypotheses)),
    }
