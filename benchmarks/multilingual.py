"""One model for English to and from German, French and Spanish, or six models of one direction each?

    python benchmarks/multilingual.py --out runs/multilingual                   about 20 minutes on one core
    python benchmarks/multilingual.py --out runs/multilingual --steps 60 --lines 500 --test 20
                                                                                only to see that it runs: some minutes

Both sides train for as many steps of as many tokens (--steps): the one model for all of them, each of the six for a
sixth. All have the model of the recipe `tiny` and vocabularies of the same size. Then the directions that the one model
has not seen (zero-shot), against translating through English, with the one model and with two of the six. Test pairs of
these directions are those whose English sides are equal in the test sets of both languages.

If interrupted, the same command resumes.
"""

import argparse
import gzip
import itertools
import os
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
    parser.add_argument("--steps", type=int, default=4800, help="of training of each side (default 4800)")
    parser.add_argument("--batch-tokens", type=int, default=1024, help="of a step (default 1024)")
    parser.add_argument("--vocab", type=int, default=6000, help="of each model (default 6000)")
    parser.add_argument("--lines", type=int, default=0, help="pairs of each corpus; 0 = all")
    parser.add_argument("--test", type=int, default=0, help="test pairs of each direction; 0 = all")
    parser.add_argument("--layout", choices=["prefix", "m2m", "mbart"], default="prefix")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for (source, target), split in itertools.product(DIRECTIONS, ("train", "dev")):
        _write(options.out / f"{source}-{target}.{split}.tsv", _pairs(source, target, split)[: options.lines or None])
    many = _train_one(options)
    singles = {pair: _train_single(pair, options) for pair in DIRECTIONS}
    _report_trained(many, singles, options.test or None)
    _report_zero_shot(many, singles, options.test or None)


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


def _train_one(options: argparse.Namespace) -> heedful.Translator:
    corpora = [
        {"file": f"en-{other}.train.tsv", "valid": f"en-{other}.dev.tsv", "source": "en", "target": other, "both": True}
        for other in OTHERS
    ]
    recipe: dict[str, Any] = yaml.safe_load(heedful_recipe("multilingual"))
    recipe["data"] = {"corpora": corpora, "temperature": 5.0, "language_tokens": options.layout}
    file = options.out / "many.yaml"
    file.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return _trained(options.out / f"many-{options.layout}", ["--recipe", str(file)], options.steps, options)


def _train_single(pair: tuple[str, str], options: argparse.Namespace) -> heedful.Translator:
    name = "-".join(pair)
    files = [str(options.out / f"{name}.train.tsv"), "--valid", str(options.out / f"{name}.dev.tsv")]
    words = [*files, "--recipe", "tiny", f"data.target_language={pair[1]}"]
    return _trained(options.out / name, words, options.steps // len(DIRECTIONS), options)


def heedful_recipe(name: str) -> str:
    return (Path(heedful.__file__).parent / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")


def _trained(folder: Path, words: Sequence[str], steps: int, options: argparse.Namespace) -> heedful.Translator:
    every = max(1, steps // 4)
    keys = [f"training.steps={steps}", f"training.batch_tokens={options.batch_tokens}", "training.schedule=linear"]
    keys += [f"training.warmup={max(1, steps // 10)}", f"tokenizer.vocab={options.vocab}", "training.samples=0"]
    keys += [f"training.validate_every={every}", f"training.save_every={every}"]
    command = [sys.executable, "-m", "heedful", "train", *words, "--out", str(folder), *keys]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
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
