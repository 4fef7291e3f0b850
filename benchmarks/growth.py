"""How does cost grow? A step of training with the length of texts, decoding with the beam and with what is written.

    python benchmarks/growth.py --out docs/pictures/growth.png

A tiny model (4+4 layers, width 128). Training: 4,096 tokens a step, in ever longer texts. Decoding: 8 sentences of 20
tokens, one thread; with the beam, 24 tokens are written, with the length, by a beam of 5. Every point has a process of
its own. For corpora see memory.py, for clients serving.py.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import torch
from work import SIZES, best_of, peak_memory, say, sentences

LENGTHS, BEAMS, WRITTEN = [128, 256, 512, 1024, 2048, 4096], [1, 2, 4, 8, 16], [16, 32, 64, 128, 256, 512]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("growth.png"))
    parser.add_argument("--inside", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        kind, *numbers = options.inside
        {"train": train, "write": write}[kind](*map(int, numbers))
        return
    trained = [run("train", length) for length in LENGTHS]
    print("\n| length of texts | s a step of 4,096 tokens | peak memory, MB |\n|---:|---:|---:|")
    for length, point in zip(LENGTHS, trained, strict=True):
        print(f"| {length:,} | {point['seconds']:.2f} | {point['memory'] / 1e6:,.0f} |")
    beams = [run("write", beam, 24) for beam in BEAMS]
    print("\n| beam | ms a step | ms a step and beam |\n|---:|---:|---:|")
    for beam, point in zip(BEAMS, beams, strict=True):
        each = 1000 * point["seconds"] / 24
        print(f"| {beam} | {each:.2f} | {each / beam:.2f} |")
    written = [run("write", 5, length) for length in WRITTEN]
    print("\n| tokens written | ms a token | peak memory, MB |\n|---:|---:|---:|")
    for length, point in zip(WRITTEN, written, strict=True):
        print(f"| {length} | {1000 * point['seconds'] / length:.2f} | {point['memory'] / 1e6:,.0f} |")
    draw(options.out, trained, beams, written)
    print(f"\n{options.out}")


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
    from heedful.decoding.stepper import EncoderDecoderStepper
    from heedful.model.quick import quick

    torch.set_num_threads(1)
    model, _ = training.heedful(SIZES["tiny"], 0.0)
    model.eval()
    decoder = quick(model)
    source = torch.tensor([row[:20] for row in sentences(200) if len(row) >= 20][:8])
    config = GenerationConfig(num_beams=beam, min_new_tokens=length, max_new_tokens=length)

    def work() -> None:
        with torch.inference_mode():
            stepper = EncoderDecoderStepper(model, source, None, length=length, quick=decoder)
            limits = [length] * len(source)
            search(stepper, source[:, 0], config, eos=0, limits=limits, rules=Rules(config=config, eos=0))

    say(seconds=min(best_of(work, rounds=3)), memory=peak_memory())


def draw(path: Path, trained: list, beams: list, written: list) -> None:  # type: ignore[type-arg]
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    each = [1000 * point["seconds"] / length for length, point in zip(WRITTEN, written, strict=True)]
    figure, axes = plt.subplots(1, 4, figsize=(16, 3.6), constrained_layout=True)
    panels = [
        ("A step of training, s", "length of texts (4,096 tokens in all)", LENGTHS, [p["seconds"] for p in trained]),
        ("Its peak memory, MB", "length of texts (4,096 tokens in all)", LENGTHS, [p["memory"] / 1e6 for p in trained]),
        ("A step of decoding, ms", "beam", BEAMS, [1000 * p["seconds"] / 24 for p in beams]),
        ("A token, ms", "tokens written", WRITTEN, each),
    ]  # fmt: skip
    for axis, (title, label, x, y) in zip(axes, panels, strict=True):
        axis.plot(x, y, marker="o")
        axis.set(title=title, xlabel=label, ylim=(0, 1.15 * max(y)))
        axis.set_xscale("log", base=2)
        axis.set_xticks(x, [str(number) for number in x])
        axis.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
