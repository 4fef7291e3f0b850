"""A translator for another domain from few pairs: which adapter, or all weights? Prints Markdown tables.

    python benchmarks/adapters.py --out runs/adapters                        some 15 minutes on one core
    python benchmarks/adapters.py --out runs/adapters --base-steps 20 --steps 10 --pairs 100 --test 20
                                                                             only to see that it runs

The base learns English to French from sentences of Tatoeba (../shared/data/multi-en-xx); the domain is the manual of
Python (../shared/data/pydocs-en-fr). Every method trains for as many steps on the same pairs, with the learning rate
that suits it (RATES). BLEU is that of 500 test sentences of the domain, and of 500 of the base's: what is forgotten.
`size` is that of the weights in the folder; memory and time are those of the training. Then 50 adapters of one base in
one process: memory, and sentences per second in batches of mixed adapters, beside the base alone.

If interrupted, the same command resumes.
"""

import argparse
import gzip
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DATA = Path(os.environ.get("HEEDFUL_DATA", Path(__file__).parents[2] / "shared" / "data"))
METHODS: dict[str, dict[str, Any]] = {
    "full": {},
    "lora": {"kind": "lora", "rank": 8, "targets": ["all"]},
    "bottleneck": {"kind": "bottleneck", "reduction": 8},
    "prefix": {"kind": "prefix", "attentions": ["encoder", "decoder"]},
    "prompt": {"kind": "prompt"},
    "bias": {"kind": "bias"},
    "layers": {"kind": "layers"},
}
RATES = {"full": 3e-4, "lora": 3e-3, "bottleneck": 3e-3, "prefix": 1e-2, "prompt": 1e-2, "bias": 3e-3, "layers": 1e-3}
ADAPTERS = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--base-steps", type=int, default=1500)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--pairs", type=int, nargs="+", default=[500, 2000])
    parser.add_argument("--test", type=int, default=500)
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("HEEDFUL_CACHE", str(options.out / "cache"))
    if options.one:
        print(json.dumps(getattr(sys.modules[__name__], options.one)(options)))
        return
    base = options.out / "base"
    if not (base / "README.md").exists():
        train(DATA / "multi-en-xx" / "en-fr.train.tsv.gz", base, options.base_steps)
    files = {"domain": DATA / "pydocs-en-fr" / "test.tsv.gz", "base": DATA / "multi-en-xx" / "en-fr.test.tsv"}
    tests = {name: rows(file, options.test) for name, file in files.items()}
    print("| pairs | trained | parameters | BLEU, domain | BLEU, base's | seconds | MiB | size, KiB |")
    print("|---:|---|---:|---:|---:|---:|---:|---:|", flush=True)
    print(row(0, "nothing", base, tests, None), flush=True)
    for count in options.pairs:
        some = options.out / f"domain-{count}.tsv"
        some.write_text("".join(f"{s}\t{t}\n" for s, t in rows(DATA / "pydocs-en-fr" / "train.tsv.gz", count)))
        for name in options.methods:
            folder = options.out / f"{name}-{count}"
            if not (folder / "README.md").exists():
                train(some, folder, options.steps, base=base, method=name)
            print(row(count, name, folder, tests, METHODS[name] or None), flush=True)
    print(f"\n{served(options, base)}")


def rows(file: Path, count: int) -> list[tuple[str, str]]:
    """The first pairs of a file that are neither empty nor very long."""
    with gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else file.open(encoding="utf-8") as lines:
        found = [tuple(line.rstrip("\n").split("\t")[:2]) for line in lines]
    return [(s, t) for s, t in found if s.strip() and t.strip() and len(s) < 300][:count]


def train(file: Path, out: Path, steps: int, *, base: Path | None = None, method: str = "full") -> None:
    """By the command, so that the memory in metrics.jsonl is that of this training."""
    every = max(1, steps // 2)
    words = [f"training.steps={steps}", f"training.validate_every={every}", f"training.save_every={every}"]
    words += [f"training.warmup={max(1, steps // 10)}", "training.schedule=linear"]
    words += ["training.samples=0", "training.average=false", "data.source_language=en", "data.target_language=fr"]
    if base is not None:
        words += ["--start-from", str(base), f"training.learning_rate={RATES[method]}", "training.batch_tokens=1024"]
        words += [f"adapter={json.dumps(METHODS[method])}"] if METHODS[method] else []
    else:
        words += ["tokenizer.vocab=4000", "training.learning_rate=0.002", "training.batch_tokens=2048"]
    command = [sys.executable, "-m", "heedful", "train", str(file), "--out", str(out), *words]
    subprocess.run(command, check=True, stdout=sys.stderr)


def row(count: int, name: str, folder: Path, tests: dict[str, list[tuple[str, str]]], adapter: Any) -> str:
    import heedful
    from heedful.evaluation.metrics import score
    from heedful.training.journal import read_metrics

    translator = heedful.load(folder)
    bleu = {
        test: score([one.text for one in translator.translate([s for s, _ in pairs])], [[t for _, t in pairs]])["bleu"]
        for test, pairs in tests.items()
    }
    last = next(line for line in reversed(read_metrics(folder)) if "final" in line)
    weights = folder / "model.safetensors"
    trained = sum(one.count for one in _held(weights).values()) if count else 0
    cells = [f"{trained:,}", *(f"{one.value:.1f}" for one in bleu.values())]
    cells += [f"{last['seconds']:.0f}", f"{last['peak_memory'] / 2**20:,.0f}", f"{weights.stat().st_size / 1024:,.0f}"]
    return f"| {count or ''} | {name} | " + " | ".join(cells) + " |"


def _held(file: Path) -> Any:
    from heedful.bounded import header

    return header(file)


def served(options: argparse.Namespace, base: Path) -> str:
    """Memory and speed with one model and with 50 adapters beside it, each in a process of its own."""
    found = {}
    for name in ("alone", "kernels", "many"):
        words = [sys.executable, __file__, "--out", str(options.out), "--one", f"measure_{name}"]
        words += ["--pairs", *map(str, options.pairs), "--test", str(options.test)]
        found[name] = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    lines = ["| served | MiB | sentences/s, batch 32 |", "|---|---:|---:|"]
    titles = {
        "kernels": "the base, by kernels",
        "alone": "the base, by modules",
        "many": f"{ADAPTERS} adapters, by modules",
    }
    lines += [f"| {titles[name]} | {found[name][0]:,.0f} | {found[name][1]:.1f} |" for name in titles]
    return "\n".join(lines)


def measure_kernels(options: argparse.Namespace) -> tuple[float, float]:
    return _measured(options, {})


def measure_alone(options: argparse.Namespace) -> tuple[float, float]:
    os.environ["HEEDFUL_KERNELS"] = "off"
    return _measured(options, {})


def measure_many(options: argparse.Namespace) -> tuple[float, float]:
    """The adapter trained last, fifty times under other names: what they say does not matter for the speed."""
    place = options.out / "many"
    place.mkdir(exist_ok=True)
    source = options.out / f"lora-{options.pairs[-1]}"
    for number in range(ADAPTERS):
        if not (place / str(number)).exists():
            shutil.copytree(source, place / str(number), ignore=shutil.ignore_patterns("checkpoints"))
    return _measured(options, {str(number): place / str(number) for number in range(ADAPTERS)})


def _measured(options: argparse.Namespace, adapters: dict[str, Path]) -> tuple[float, float]:
    import heedful
    from heedful.decoding.runner import Request
    from heedful.training.run import peak_memory

    translator = heedful.load(options.out / "base", streams=1, **({"adapters": adapters} if adapters else {}))
    texts = [s for s, _ in rows(DATA / "pydocs-en-fr" / "test.tsv.gz", 128)]
    names: Sequence[str] = list(adapters) or [""]
    asked = [Request(text, adapter=names[number % len(names)]) for number, text in enumerate(texts)]
    translator.translate(asked[:32], num_beams=4)
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        translator.translate(asked, num_beams=4, batch_size=32)
        seconds.append(time.perf_counter() - began)
    return peak_memory() / 2**20, len(asked) / statistics.median(seconds)


if __name__ == "__main__":
    main()
