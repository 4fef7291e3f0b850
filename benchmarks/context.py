"""What the sentence before is worth: pronoun accuracy and BLEU without and with data.context, as Markdown.

    python benchmarks/context.py [--budget 3epochs] [--lines 40000] [--out runs/context] [recipe keys]

The corpus is generated: documents of two sentences, where "it" in the second stands for a noun of the first, so German
needs its gender (er, sie, es). Both models have the same size, and learn each pair as often: with context a pair has
twice as many tokens, so it takes about twice the time. Without context, the best that a model can do is to guess the
most frequent pronoun for what is said about it: the last row.
"""

import argparse
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

from heedful.data.inputs import Inputs
from heedful.evaluation.metrics import score
from heedful.mini.corpus import write
from heedful.training.recipe import read_recipe
from heedful.training.run import train
from heedful.translator import load

Documents = list[list[tuple[str, str]]]


def read(file: Path) -> Documents:
    rows = [some.strip().split("\n") for some in file.read_text(encoding="utf-8").split("\n\n")]
    return [[(line.split("\t")[0], line.split("\t")[1]) for line in some] for some in rows]


def pronoun(text: str) -> str:
    return text.split(" ")[0]


def guessed(training: Documents, test: Documents) -> float:
    """The share of pronouns that are right if each is the most frequent one after its English sentence."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for _, (source, target) in training:
        counts[source][pronoun(target)] += 1
    usual = sum(counts.values(), Counter()).most_common(1)[0][0]
    best = {source: found.most_common(1)[0][0] for source, found in counts.items()}
    return sum(best.get(source, usual) == pronoun(target) for _, (source, target) in test) / len(test)


def measured(folder: Path, test: Documents, beams: int) -> tuple[float, float, float]:
    """Pronoun accuracy, BLEU, and the share of sentences that are exactly right."""
    found = load(folder).translate_documents([[source for source, _ in rows] for rows in test], num_beams=beams)
    texts = [one.text for some in found for one in some]
    right = sum(pronoun(some[1].text) == pronoun(rows[1][1]) for some, rows in zip(found, test, strict=True))
    scores = score(texts, [[target for rows in test for _, target in rows]])
    return right / len(test), scores["bleu"].value, scores["exact"].value


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    given.add_argument("--budget", default="3epochs", help="training of each model")
    given.add_argument("--lines", type=int, default=40_000, help="training pairs")
    given.add_argument("--beams", type=int, default=4)
    given.add_argument("--seed", type=int, default=1)
    given.add_argument("--out", type=Path, default=None, help="keep the models here; a second run resumes")
    asked, changes = given.parse_known_args()
    out = asked.out or Path(tempfile.mkdtemp(prefix="context-"))
    counts = write(out / "corpus", "en-de", asked.lines, seed=asked.seed, documents=True)
    files = {split: (out / "corpus" / f"{split}.tsv",) for split in counts}
    print(f"{out}: {counts}", file=sys.stderr)
    test = read(files["test"][0])
    print("| data.context | pronouns right | BLEU | exact |\n|---:|---:|---:|---:|")
    for context in (0, 1):
        recipe = read_recipe("tiny", [f"data.context={context}", f"seed={asked.seed}", *changes])
        folder = out / f"context-{context}"
        train(recipe, Inputs(**files), folder, cache=out / "cache", budget=asked.budget, keep_model=True)
        accuracy, bleu, exact = measured(folder, test, asked.beams)
        print(f"| {context} | {accuracy:.1%} | {bleu:.1f} | {exact:.1f} % |", flush=True)
    print(f"| most frequent pronoun | {guessed(read(files['train'][0]), test):.1%} | | |")


if __name__ == "__main__":
    main()
