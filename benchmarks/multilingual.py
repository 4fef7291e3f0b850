"""One model for English to and from German, French and Spanish, or six models of one direction each?

    python benchmarks/multilingual.py --out runs/multilingual                   about 15 minutes on two cores
    python benchmarks/multilingual.py --out runs/multilingual --budget 60s --lines 500 --test 20
                                                                                only to see that it runs: some minutes

Both sides train for the same total time (--budget): the one model for all of it, each of the six for a sixth. All have
the model of the recipe `tiny`. Then the directions that the one model has not seen (zero-shot), against translating
through English, with the one model and with two of the six. Test pairs of these directions are those whose English
sides are equal in the test sets of both languages.

If interrupted, the same command resumes.
"""

import argparse
import gzip
import itertools
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

import heedful
from heedful.evaluation.metrics import Score, score

DATA = Path(os.environ.get("HEEDFUL_DATA", Path(__file__).parents[2] / "shared" / "data")) / "multi-en-xx"
OTHERS = ("de", "fr", "es")
DIRECTIONS = [pair for other in OTHERS for pair in (("en", other), (other, "en"))]
Pairs = list[tuple[str, str]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget", default="6m", help="seconds or minutes of training of each side: 360s, 6m")
    parser.add_argument("--lines", type=int, default=0, help="pairs of each corpus; 0 = all")
    parser.add_argument("--test", type=int, default=0, help="test pairs of each direction; 0 = all")
    parser.add_argument("--layout", choices=["prefix", "m2m", "mbart"], default="prefix")
    options = parser.parse_args()
    seconds = _seconds(options.budget)
    options.out.mkdir(parents=True, exist_ok=True)
    for (source, target), split in itertools.product(DIRECTIONS, ("train", "dev")):
        _write(options.out / f"{source}-{target}.{split}.tsv", _pairs(source, target, split)[: options.lines or None])
    many = _train_one(options.out, seconds, options.layout)
    singles = {pair: _train_single(options.out, pair, seconds / len(DIRECTIONS)) for pair in DIRECTIONS}
    _report_trained(many, singles, options.test or None)
    _report_zero_shot(many, singles, options.test or None)


def _seconds(budget: str) -> float:
    found = re.fullmatch(r"([\d.]+)(s|m|h)", budget)
    if not found:
        raise SystemExit(f"budget {budget!r} is not one of 360s, 6m, 1h")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]


def _pairs(source: str, target: str, split: str) -> Pairs:
    """The pairs of a direction, of which the files have English first."""
    other = target if source == "en" else source
    place = next(DATA.glob(f"en-{other}.{split}.tsv*"))
    with gzip.open(place, "rt", encoding="utf-8") if place.suffix == ".gz" else place.open(encoding="utf-8") as lines:
        rows = [line.rstrip("\n").split("\t")[:2] for line in lines]
    return [(first, second) if source == "en" else (second, first) for first, second in rows]


def _write(file: Path, pairs: Pairs) -> None:
    if not file.exists():
        file.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), encoding="utf-8")


def _train_one(out: Path, seconds: float, layout: str) -> heedful.Translator:
    corpora = [
        {"file": f"en-{other}.train.tsv", "valid": f"en-{other}.dev.tsv", "source": "en", "target": other, "both": True}
        for other in OTHERS
    ]
    recipe: dict[str, Any] = yaml.safe_load(heedful_recipe("multilingual"))
    recipe["data"] = {"corpora": corpora, "temperature": 5.0, "language_tokens": layout}
    (out / "many.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return _trained(out / f"many-{layout}", ["--recipe", str(out / "many.yaml")], seconds)


def _train_single(out: Path, pair: tuple[str, str], seconds: float) -> heedful.Translator:
    name = "-".join(pair)
    files = [str(out / f"{name}.train.tsv"), "--valid", str(out / f"{name}.dev.tsv")]
    return _trained(out / name, [*files, "--recipe", "tiny", f"data.target_language={pair[1]}"], seconds)


def heedful_recipe(name: str) -> str:
    return (Path(heedful.__file__).parent / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")


def _trained(folder: Path, words: Sequence[str], seconds: float) -> heedful.Translator:
    command = [sys.executable, "-m", "heedful", "train", *words, "--out", str(folder)]
    subprocess.run([*command, "--budget", f"{seconds:.0f}s", "--keep-model"], check=True, stdout=subprocess.DEVNULL)
    return heedful.load(folder, expect=heedful.Translator)


def _bleu(texts: Sequence[str], references: Sequence[str]) -> Score:
    return score(list(texts), [list(references)])["bleu"]


def _written(model: heedful.Translator, texts: Sequence[str], **languages: str) -> list[str]:
    return [one.text for one in model.translate(list(texts), num_beams=4, split=False, **languages)]


def _report_trained(
    many: heedful.Translator, singles: dict[tuple[str, str], heedful.Translator], most: int | None
) -> None:
    print("\n| direction | test pairs | six models: BLEU | one model: BLEU |\n|---|---:|---:|---:|")
    both = []
    for source, target in DIRECTIONS:
        pairs = _pairs(source, target, "test")[:most]
        texts, references = [text for text, _ in pairs], [text for _, text in pairs]
        single = _bleu(_written(singles[source, target], texts), references)
        one = _bleu(_written(many, texts, source=source, target=target), references)
        both.append((single.value, one.value))
        print(f"| {source}-{target} | {len(pairs):,} | {single.value:.2f} | {one.value:.2f} |", flush=True)
    means = [statistics.mean(values) for values in zip(*both, strict=True)]
    print(f"| mean | | {means[0]:.2f} | {means[1]:.2f} |\n\nSignature: `{one.signature}`, beam 4.")


def _report_zero_shot(
    many: heedful.Translator, singles: dict[tuple[str, str], heedful.Translator], most: int | None
) -> None:
    print(
        "\n| not trained | test pairs | zero-shot: BLEU | through English: BLEU | through English, two models: BLEU |"
    )
    print("|---|---:|---:|---:|---:|")
    for source, target in itertools.permutations(OTHERS, 2):
        english = dict(_pairs("en", target, "test"))
        pairs = [(text, english[middle]) for text, middle in _pairs(source, "en", "test") if middle in english][:most]
        if not pairs:
            continue
        texts, references = [text for text, _ in pairs], [text for _, text in pairs]
        direct = _written(many, texts, source=source, target=target)
        middle = _written(many, texts, source=source, target="en")
        pivot = _written(many, middle, source="en", target=target)
        two = _written(singles["en", target], _written(singles[source, "en"], texts))
        cells = [f"{_bleu(some, references).value:.2f}" for some in (direct, pivot, two)]
        print(f"| {source}-{target} | {len(pairs):,} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
