"""How cost scales: with text length, beam size, output length, corpus size and the number of a server's clients.

    python benchmarks/growth.py --out docs/pictures/growth.png        all, about 20 minutes
    python benchmarks/growth.py --only lengths beams

A tiny model (4+4 layers, width 128).

    lengths   a training step of 4,096 tokens, with increasing text length
    beams     decoding 24 tokens for 8 sentences, on one core, with increasing beam size
    written   the same with a beam of 5, with increasing output length
    corpora   a training with increasing corpus size: seconds to the first step, and resident memory (see memory.py)
    clients   a server, after a short training, with more and more concurrent clients (see serving.py)

Each point is measured in its own process.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import memory
import serving
import torch
from work import SIZES, best_of, peak_memory, say, sentences

Panel = tuple[str, str, list[int], dict[str, list[float]]]  # title, x label, x values, curves
LENGTHS, BEAMS, WRITTEN = [128, 256, 512, 1024, 2048, 4096], [1, 2, 4, 8, 16], [16, 32, 64, 128, 256, 512]
CORPORA, CLIENTS = [10_000, 100_000, 1_000_000, 3_000_000], [1, 4, 16, 64, 256]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("growth.png"))
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--inside", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        kind, *numbers = options.inside
        {"train": train, "write": write}[kind](*map(int, numbers))
        return
    panels = [panel for name in options.only for panel in PARTS[name]()]
    draw(options.out, panels)
    print(f"\n{options.out}")


def lengths() -> list[Panel]:
    points = [run("train", length) for length in LENGTHS]
    seconds, megabytes = [point["seconds"] for point in points], [point["memory"] / 1e6 for point in points]
    table("length of texts", LENGTHS, {"s a step of 4,096 tokens": seconds, "peak memory, MB": megabytes})
    label = "length of texts (4,096 tokens in all)"
    return [("A step of training, s", label, LENGTHS, {"": seconds}),
            ("Its peak memory, MB", label, LENGTHS, {"": megabytes})]  # fmt: skip


def beams() -> list[Panel]:
    each = [1000 * run("write", beam, 24)["seconds"] / 24 for beam in BEAMS]
    share = [one / beam for one, beam in zip(each, BEAMS, strict=True)]
    table("beam", BEAMS, {"ms a step": each, "ms a step and beam": share})
    return [("A step of decoding, ms", "beam", BEAMS, {"": each})]


def written() -> list[Panel]:
    points = [run("write", 5, length) for length in WRITTEN]
    each = [1000 * point["seconds"] / length for point, length in zip(points, WRITTEN, strict=True)]
    table("tokens written", WRITTEN, {"ms a token": each, "peak memory, MB": [p["memory"] / 1e6 for p in points]})
    return [("A token, ms", "tokens written", WRITTEN, {"": each})]


def corpora() -> list[Panel]:
    with tempfile.TemporaryDirectory(prefix="heedful-growth-") as place:
        points = [memory.measure(count, Path(place) / str(count)) for count in CORPORA]
    starts = {"first": [one for one, _, _ in points], "second": [two for _, two, _ in points]}
    megabytes = [peak / 1e6 for _, _, peak in points]
    table("pairs", CORPORA, {f"{name} start, s": found for name, found in starts.items()} | {"memory, MB": megabytes})
    return [
        ("To the first step, s", "pairs", CORPORA, starts),
        ("Resident memory, MB", "pairs", CORPORA, {"": megabytes}),
    ]


def clients() -> list[Panel]:
    """A model trained on the mini corpus for a minute, so that it generates sentences of typical length."""
    heedful = [sys.executable, "-m", "heedful"]
    with tempfile.TemporaryDirectory(prefix="heedful-growth-") as name:
        place = Path(name)
        changes = ["training.batch_tokens=1024", "training.steps=400", "training.learning_rate=0.003"]
        for command in (
            ["corpus", "mini", "--lines", "20000", "--out", str(place / "corpus")],
            ["train", str(place / "corpus" / "train.tsv"), "--out", str(place / "model"), "--recipe", "tiny",
             "--cache", str(place / "cache"), "training.warmup=100", "training.samples=0", *changes],
        ):  # fmt: skip
            subprocess.run([*heedful, *command], check=True, stdout=subprocess.DEVNULL)
        rows = (place / "corpus" / "test.tsv").read_text(encoding="utf-8").splitlines()
        lines = [row.split("\t")[0] for row in rows[:500]]
        expected = serving.offline(place / "model", lines)
        found = []
        with serving.serving(place / "model", []) as port:
            for count in [4, *CLIENTS]:  # the first is a warm-up
                found.append(asyncio.run(serving.load(port, count, 8, lines, expected)))
    found = found[1:]
    if any(one.lost or one.wrong for one in found):
        sys.exit(f"answers were lost or wrong: {found}")
    rates = [one.rate for one in found]
    slow = {f"p{share}": [1000 * one.latency[len(one.latency) * share // 100] for one in found] for share in (50, 99)}
    table("clients", CLIENTS, {"sentences/s": rates} | {f"{name}, ms": times for name, times in slow.items()})
    return [("Sentences/s", "clients", CLIENTS, {"": rates}), ("Time to an answer, ms", "clients", CLIENTS, slow)]


PARTS: dict[str, Callable[[], list[Panel]]] = {
    "lengths": lengths, "beams": beams, "written": written, "corpora": corpora, "clients": clients
}  # fmt: skip


def table(what: str, values: list[int], columns: dict[str, list[float]]) -> None:
    print(f"\n| {what} | {' | '.join(columns)} |\n|---:|{'---:|' * len(columns)}")
    for place, value in enumerate(values):
        row = [column[place] for column in columns.values()]
        print(f"| {value:,} | {' | '.join(f'{one:,.0f}' if one >= 100 else f'{one:.2f}' for one in row)} |", flush=True)


def run(*arguments: str | int) -> dict[str, float]:
    command = [sys.executable, __file__, "--inside", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def train(length: int) -> None:
    import training
    from work import Batch

    size = SIZES["tiny"]
    rows = size.batch_tokens // length
    torch.manual_seed(1)
    tokens = torch.randint(4, 9000, (rows, length))
    model, loss = training.heedful(size, 0.1)
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), fused=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss(Batch(tokens, tokens, tokens, tokens.numel())).backward()
        optimizer.step()

    say(seconds=min(best_of(step, rounds=3)), memory=peak_memory())


def write(beam: int, length: int) -> None:
    import training

    from heedful.decoding.beam import search
    from heedful.decoding.generation import GenerationConfig
    from heedful.decoding.rules import Rules
    from heedful.decoding.stepper import SourceStepper
    from heedful.model.cpu.decoding import lower

    torch.set_num_threads(1)
    model, _ = training.heedful(SIZES["tiny"], 0.0)
    model.eval()
    decoder = lower(model) or None
    source = torch.tensor([row[:20] for row in sentences(200) if len(row) >= 20][:8])
    config = GenerationConfig(num_beams=beam, min_new_tokens=length, max_new_tokens=length)

    def work() -> None:
        with torch.inference_mode():
            stepper = SourceStepper(model, source, None, length=length, quick=decoder)
            limits = [length] * len(source)
            search(stepper, source[:, 0], config, eos=0, limits=limits, rules=Rules(config=config, eos=0))

    say(seconds=min(best_of(work, rounds=3)), memory=peak_memory())


def draw(path: Path, panels: list[Panel]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = min(4, len(panels))
    rows = -(-len(panels) // columns)
    figure, grid = plt.subplots(rows, columns, figsize=(4 * columns, 3.6 * rows), squeeze=False, layout="constrained")
    for axis in grid.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, (title, label, x, curves) in zip(grid.flat, panels, strict=False):
        for name, y in curves.items():
            axis.plot(x, y, marker="o", label=name)
        axis.set(title=title, xlabel=label)
        axis.set_xscale("log", base=2)
        axis.set_xticks(x, [_short(number) for number in x])
        axis.set_ylim(0, 1.15 * max(max(y) for y in curves.values()))
        axis.grid(alpha=0.3)
        if len(curves) > 1:
            axis.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def _short(number: int) -> str:
    if number >= 10**6:
        return f"{number // 10**6}M"
    return f"{number // 1000}k" if number >= 10**4 else str(number)


if __name__ == "__main__":
    main()
