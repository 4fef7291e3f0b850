"""All words at once against word by word: BLEU, and the time that one sentence takes. Prints a Markdown table.

    python benchmarks/non_autoregressive.py --out runs/parallel                 Tatoeba: about 25 minutes on two cores
    python benchmarks/non_autoregressive.py --out runs/parallel --data mini --budget 2m

Trains a teacher (`tiny`) for the budget, lets it write the training targets again (beam 4), and trains models of the
same size for the same time each: with fertilities on the pairs as they are, on the distilled ones, and on these from
the teacher's encoder; and with masks. The time is the median of single sentences, and the mean in batches of 32, in
one stream. Rerun the same command to resume.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

DATA = Path(os.environ.get("HEEDFUL_DATA", Path(__file__).parents[2] / "shared" / "data"))
BATCH = 32
TEACHERS = {"beam 4": {"num_beams": 4}, "greedy": {"num_beams": 1}}
FERTILITY = {"argmax": {}, "average": {"fertilities": "average"}, "noisy 10": {"noisy": 10, "seed": 1},
             "noisy 100": {"noisy": 100, "seed": 1}}  # fmt: skip
MASKS = {f"{passes} passes": {"iterations": passes, "length_beam": 5} for passes in (1, 4, 10)}
ARGMAX = {"argmax": {}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", choices=["tatoeba", "mini"], default="tatoeba")
    parser.add_argument("--budget", default="4m", help="for each of the five models: 4m, 200steps ...")
    parser.add_argument("--sentences", type=int, default=1000, help="of the test set")
    parser.add_argument("--timed", type=int, default=200, help="sentences that are translated one by one")
    parser.add_argument("--keys", nargs="+", default=[], help="recipe keys for all models, such as model.width=64")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    train, valid, test = corpus(options.out, options.data)
    held = ["--valid", str(valid), "--test", str(test)]
    teacher = trained(options, "teacher", train, held, ["tiny"])
    distilled = distil(teacher, train, options.out / "distilled.tsv")
    own = ["non-autoregressive", f"task.teacher={teacher}"]
    models: list[tuple[str, Path, dict[str, dict[str, Any]]]] = [
        ("teacher, word by word", teacher, TEACHERS),
        ("fertility, raw pairs", trained(options, "raw", train, held, own), ARGMAX),
        ("fertility, distilled", trained(options, "distilled", distilled, held, own), FERTILITY),
        ("fertility, distilled, teacher's encoder",
         trained(options, "encoder", distilled, held, [*own, "task.teacher_encoder=true"]), ARGMAX),
        ("masks, distilled", trained(options, "masks", distilled, held, [*own, "model.method=mask_predict"]), MASKS),
    ]  # fmt: skip
    pairs = read(test)[: options.sentences]
    print(f"{options.data}, {len(pairs):,} test sentences, {options.budget} of training for each model\n")
    print("| model | decoding | BLEU | ms, alone | ms, 32 together | speed alone, of beam 4 |")
    print("|---|---|---:|---:|---:|---:|")
    first = 0.0
    for name, folder, ways in models:
        for way, settings in ways.items():
            bleu, alone, together = measured(folder, settings, pairs, options.timed)
            first = first or alone
            print(f"| {name} | {way} | {bleu:.1f} | {alone:.2f} | {together:.2f} | {first / alone:.1f} |", flush=True)


def corpus(out: Path, name: str) -> tuple[Path, Path, Path]:
    if name == "tatoeba":
        folder = DATA / "tatoeba-eng-deu"
        return folder / "train.tsv", folder / "dev.tsv", folder / "test.tsv"
    command = [sys.executable, "-m", "heedful", "corpus", "mini", "--out", str(out / "corpus")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return out / "corpus" / "train.tsv", out / "corpus" / "valid.tsv", out / "corpus" / "test.tsv"


def trained(
    options: argparse.Namespace,
    name: str,
    file: Path,
    held: list[str],
    recipe: list[str],
    more: list[str] | None = None,
) -> Path:
    folder: Path = options.out / name
    words = ["--recipe", *recipe, *options.keys, *held, "--budget", options.budget, *(more or [])]
    command = [sys.executable, "-m", "heedful", "train", str(file), "--out", str(folder), *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder


def read(file: Path) -> list[tuple[str, str]]:
    rows = (line.split("\t") for line in file.read_text(encoding="utf-8").splitlines())
    return [(row[0], row[1]) for row in rows]


def distil(teacher: Path, train: Path, out: Path) -> Path:
    """The training sources with what the teacher writes for them."""
    import heedful

    if not out.exists():
        sources = [source for source, _ in read(train)]
        found = heedful.load(teacher, expect=heedful.Translator).translate(sources, num_beams=4, split=False)
        rows = [f"{source}\t{one.text}\n" for source, one in zip(sources, found, strict=True) if one.text]
        out.write_text("".join(rows), encoding="utf-8")
    return out


def measured(
    folder: Path, settings: dict[str, Any], pairs: list[tuple[str, str]], timed: int
) -> tuple[float, float, float]:
    """BLEU, and milliseconds a sentence: alone, and in batches."""
    import heedful
    from heedful.evaluation.metrics import score

    translator = heedful.load(folder, expect=heedful.Translator, streams=1)
    sources = [source for source, _ in pairs]
    translator.translate(sources[:5], split=False, **settings)
    alone = []
    for source in sources[:timed]:
        began = time.perf_counter()
        translator.translate(source, split=False, **settings)
        alone.append(time.perf_counter() - began)
    began, texts = time.perf_counter(), []
    for start in range(0, len(sources), BATCH):
        some = sources[start : start + BATCH]
        found = translator.translate(some, split=False, batch_size=BATCH, batch_tokens=1 << 20, **settings)
        texts += [one.text for one in found]
    together = (time.perf_counter() - began) / len(sources)
    bleu = score(texts, [[target for _, target in pairs]])["bleu"].value
    return bleu, 1000 * statistics.median(alone), 1000 * together


if __name__ == "__main__":
    main()
