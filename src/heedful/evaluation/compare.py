"""Comparing several systems on the same sentences, with significance tests."""

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest, Result

from heedful.text.words import words

MOST_SPLITS = 100_000  # of a permutation test; beyond that, so many are drawn


@dataclass(frozen=True)
class Comparison:
    """A system's score, the 95 % interval around its mean, and the p-value of its difference from the first system."""

    system: str
    metric: str
    score: float
    mean: float
    interval: float
    p_value: float | None


def compare(
    systems: Mapping[str, Sequence[str]],
    references: Sequence[Sequence[str]],
    *,
    tokenizer: str = "13a",
    samples: int = 1000,
) -> list[Comparison]:
    """Paired bootstrap resampling (Koehn 2004) by sacrebleu; the first system is the baseline."""
    metrics = {"BLEU": BLEU(tokenize=tokenizer, references=references), "chrF2": CHRF(references=references)}
    named: list[tuple[str, Sequence[str]]] = [(name, list(texts)) for name, texts in systems.items()]
    _, scores = PairedTest(named, metrics, references=None, test_type="bs", n_samples=samples)()
    found = []
    for metric in metrics:
        results = [result for result in scores[metric] if isinstance(result, Result)]
        for name, result in zip(systems, results, strict=True):
            # Equal scores differ by nothing in every sample, which sacrebleu takes for a difference never reached.
            equal = result.p_value is not None and math.isclose(result.score, results[0].score, abs_tol=1e-9)
            p_value = 1.0 if equal else result.p_value
            found.append(
                Comparison(name, metric, result.score, float(result.mean or 0), float(result.ci or 0), p_value)
            )
    return found


def permutation_p_value(first: Sequence[float], second: Sequence[float]) -> float:
    """How often chance alone separates the means of two groups of scores at least so far: a two-sided
    permutation test. With three scores each it is never below 0.1, with four 0.029. 1 if a score is not a number."""
    pooled = [*first, *second]
    if not all(map(math.isfinite, pooled)):
        return 1.0
    observed = abs(sum(first) / len(first) - sum(second) / len(second))
    hits = total = 0
    splits: Iterable[tuple[int, ...]] = combinations(range(len(pooled)), len(first))
    if math.comb(len(pooled), len(first)) > MOST_SPLITS:
        chance = random.Random(1)
        hits = total = 1  # the split that was observed
        splits = (tuple(chance.sample(range(len(pooled)), len(first))) for _ in range(MOST_SPLITS))
    for chosen in splits:
        one = sum(pooled[index] for index in chosen)
        difference = abs(one / len(first) - (sum(pooled) - one) / len(second))
        hits += difference >= observed - 1e-12
        total += 1
    return hits / total


def same_direction(first: Sequence[float], second: Sequence[float]) -> bool:
    """Whether all pairs of scores differ the same way."""
    differences = [b - a for a, b in zip(first, second, strict=True)]
    return all(one > 0 for one in differences) or all(one < 0 for one in differences)


def by_length(
    sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]
) -> list[tuple[str, int, float]]:
    """chrF by source length: (words, sentences, score)."""
    edges = [(1, 5), (6, 10), (11, 20), (21, 40), (41, 10**9)]
    found = []
    for low, high in edges:
        chosen = [index for index, source in enumerate(sources) if low <= len(words(source)) <= high]
        if chosen:
            texts, wanted = [hypotheses[index] for index in chosen], [[references[index] for index in chosen]]
            name = f"{low}-{high}" if high < 10**9 else f"{low}+"
            found.append((name, len(chosen), CHRF().corpus_score(texts, wanted).score))
    return found


def worst(
    sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str], *, count: int = 5
) -> list[dict[str, object]]:
    """The worst translations, by chrF."""
    metric = CHRF()
    scored = [
        {
            "source": source,
            "reference": reference,
            "hypothesis": text,
            "chrf": metric.sentence_score(text, [reference]).score,
        }
        for source, text, reference in zip(sources, hypotheses, references, strict=True)
    ]
    return sorted(scored, key=lambda one: float(str(one["chrf"])))[:count]
