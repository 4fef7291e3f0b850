"""How do time and memory of each attention grow with the length of a text? Beside softmax and other implementations.

    python benchmarks/attention.py --out docs/pictures/attention-cost.png        all, about 25 minutes
    python benchmarks/attention.py --only softmax window --lengths 512 1024 2048
    python benchmarks/attention.py --decoding                                    time per token as a text gets longer

One attention with its projections (width 512, 8 heads), one text, forward and backward, float32. Time is the best of
several runs in one process; peak memory is measured in a process of its own, in which freed memory goes back to the
system. The exponent is the slope of a straight line through the last four points in logarithms, where costs that do not
depend on the length no longer matter. The other implementations (`pip install heedful[dev]`) have the same sizes.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

WIDTH, HEADS, HEAD = 512, 8, 64
LENGTHS = [512, 1024, 2048, 4096, 8192, 16384]
LONGER = {"linear", "performer", "performer-pytorch"}  # these also at 32,768
WINDOW, BLOCK, RANK = 256, 64, 256
# variant -> keys of `attention`, and whose code it is measured against
OURS: dict[str, dict[str, Any]] = {
    "softmax": {"mix": "softmax"},
    "flash": {"mix": "flash"},
    "window": {"mix": "window", "window": WINDOW},
    "longformer": {"mix": {"kind": "longformer", "first": 1}, "window": WINDOW},
    "bigbird": {"mix": {"kind": "bigbird", "block": BLOCK}},
    "linformer": {"mix": {"kind": "linformer", "rank": RANK}},
    "performer": {"mix": "performer"},
    "linear": {"mix": "linear"},
    "lsh": {"mix": {"kind": "lsh", "rounds": 2, "chunk": 64}},
    "lsh as published": {"mix": {"kind": "lsh", "rounds": 2, "chunk": 64, "sees": "chunk"}},
}
PAIRS = {
    "flash": "torch sdpa",
    "window": "local-attention",
    "longformer": "transformers longformer",
    "bigbird": "transformers bigbird",
    "linformer": "linformer package",
    "performer": "performer-pytorch",
    "linear": "performer-pytorch linear",
    "lsh as published": "transformers reformer",
}
Point = dict[str, float]  # seconds, bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("attention-cost.png"))
    parser.add_argument("--only", nargs="+", choices=[*OURS, *PAIRS.values()], default=None)
    parser.add_argument("--lengths", nargs="+", type=int, default=LENGTHS)
    parser.add_argument("--decoding", action="store_true")
    parser.add_argument("--inside", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        what, name, lengths = options.inside
        print(json.dumps({"seconds": seconds, "memory": memory, "decoding": decoding}[what](name, json.loads(lengths))))
        return
    if options.decoding:
        show_decoding(options.lengths)
        return
    chosen = options.only or [one for name in OURS for one in (name, PAIRS.get(name)) if one]
    found: dict[str, dict[int, Point]] = {}
    for name in chosen:
        lengths = [*options.lengths, *([32768] if name in LONGER and options.lengths == LENGTHS else [])]
        times, peaks = run("seconds", name, lengths), run("memory", name, lengths)
        found[name] = {n: {"seconds": times[str(n)], "bytes": peaks[str(n)]} for n in lengths if str(n) in times}
        print(f"# {name} {found[name]}", file=sys.stderr, flush=True)
    show(found)
    draw(options.out, found)
    print(f"\n{options.out}")


def run(what: str, name: str, lengths: list[int]) -> dict[str, float]:
    """In a process of its own; for memory, one that gives back what it frees."""
    environment = dict(os.environ)
    if what == "memory":
        environment |= {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
    command = [sys.executable, __file__, "--inside", what, name, json.dumps(lengths)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=3600)
    if done.returncode:
        print(f"# {name}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return {}
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def seconds(name: str, lengths: list[int]) -> dict[int, float]:
    found = {}
    for length in lengths:
        work, best, spent = job(name, length), math.inf, 0.0
        work()
        for _ in range(7):
            began = time.perf_counter()
            work()
            took = time.perf_counter() - began
            best, spent = min(best, took), spent + took
            if spent > 20:
                break
        found[length] = best
        if best > 60:
            break
    return found


def memory(name: str, lengths: list[int]) -> dict[int, float]:
    found = {}
    for length in lengths:
        work = job(name, length)
        job(name, min(lengths))()  # what a first run loads
        before = status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        work()
        found[length] = status("VmHWM") - before
    return found


def status(name: str) -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:"))
    return float(line.split()[1]) * 1024


def job(name: str, length: int) -> Callable[[], None]:
    """Forward and backward over one text."""
    torch.manual_seed(0)
    forward = ours(name, length) if name in OURS else THEIRS[name](length)
    x = torch.randn(1, length, WIDTH)

    def work() -> None:
        given = x.clone().requires_grad_()
        forward(given).sum().backward()

    return work


def ours(name: str, length: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Of a one-layer encoder, the attention alone."""
    from heedful.model.initialise import initialise
    from heedful.model.mask import Mask
    from heedful.model.multihead import MultiHeadConfig, SelfAttention
    from heedful.model.sight import Sight

    keys = OURS[name] if not name.startswith("lsh") else {"mix": {**OURS[name]["mix"], "buckets": buckets(length)}}
    config = MultiHeadConfig(heads=HEADS, **keys)
    attention = SelfAttention(config, WIDTH, config.shape(WIDTH, length=length))
    initialise(attention, "xavier")
    attention.train()
    places = torch.arange(length)[None]

    def forward(x: torch.Tensor) -> torch.Tensor:
        sight = Sight(Mask(window=config.window), places, places, None)
        return attention(x, sight=sight)

    return forward


def buckets(length: int) -> list[int]:
    """As many as there are half chunks, in two factors."""
    count = max(4, length // 32)
    first = 2 ** (round(math.log2(count)) // 2)
    return [first, count // first]


class Projected(nn.Module):
    """Queries, keys and values around a function of them."""

    def __init__(self, mix: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.project, self.output, self.mix = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), mix

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.project(x).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (HEADS, HEAD)).transpose(1, 2) for part in parts)
        return self.output(self.mix(query, key, value).transpose(1, 2).flatten(2))


def torch_sdpa(length: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return Projected(nn.functional.scaled_dot_product_attention)


def local_attention(length: int) -> Callable[[torch.Tensor], torch.Tensor]:
    from local_attention import LocalAttention

    mix = LocalAttention(WINDOW, look_backward=1, look_forward=1, dim=HEAD, use_rotary_pos_emb=False)
    return Projected(mix)


def transformers_longformer(length: int) -> Callable[[torch.Tensor], torch.Tensor]:
    from transformers import LongformerConfig
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    sizes = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "attention_window": [2 * WINDOW]}
    config = LongformerConfig(**sizes, attention_probs_dropout_prob=0.0)
    inner, output = LongformerSelfAttention(config, 0), nn.Linear(WIDTH, WIDTH)
    mask = torch.zeros(1, length)
    mask[:, 0] = 10000.0
    first = mask > 0

    def forward(x: torch.Tensor) -> torch.Tensor:
        seen = inner(x, mask, mask < 0, first, True)
        return output(seen[0])

    return forward


def transformers_bigbird(length: int) -> Callable[[torch.Tensor], torch.Tensor]:
    from transformers import BigBirdConfig
    from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention, BigBirdModel

    config = BigBirdConfig(
        hidden_size=WIDTH, num_attention_heads=HEADS, block_size=BLOCK, num_random_blocks=3,
        attention_probs_dropout_prob=0.0, max_position_embeddings=2 * length,
    )  # fmt: skip
    inner, output = BigBirdBlockSparseAttention(config, seed=0), nn.Linear(WIDTH, WIDTH)
    masks = BigBirdModel.create_masks_for_block_sparse_attn(torch.ones(1, length), BLOCK)
    blocked, band, start, end = masks

    def forward(x: torch.Tensor) -> torch.Tensor:
        return output(inner(x, band, start, end, blocked, blocked)[0])

    return forward


def linformer_package(length: int) -> Callable[[torch.Tensor], torch.Tensor]:
    from linformer import LinformerSelfAttention

    return LinformerSelfAttention(WIDTH, length, k=RANK, heads=HEADS)


def performer_pytorch(length: int) -> Callable[[torch.Tensor], torch.Tensor]:
    from performer_pytorch import FastAttention

    return Projected(FastAttention(HEAD))


def performer_linear(length: int) -> Callable[[torch.Tensor], torch.Tensor]:
    from performer_pytorch.performer_pytorch import linear_attention

    positive = lambda x: nn.functional.elu(x) + 1  # noqa: E731
    return Projected(lambda query, key, value: linear_attention(positive(query), positive(key), value))


def transformers_reformer(length: int) -> Callable[[torch.Tensor], torch.Tensor]:
    from transformers import ReformerConfig
    from transformers.models.reformer.modeling_reformer import LSHSelfAttention

    config = ReformerConfig(
        hidden_size=WIDTH, num_attention_heads=HEADS, attention_head_size=HEAD, attn_layers=["lsh"], num_hashes=2,
        num_buckets=buckets(length), lsh_attn_chunk_length=64, lsh_attention_probs_dropout_prob=0.0,
        lsh_num_chunks_after=1,
    )  # fmt: skip
    inner, output = LSHSelfAttention(config), nn.Linear(WIDTH, WIDTH)
    return lambda x: output(inner(x).hidden_states)


THEIRS: dict[str, Callable[[int], Callable[[torch.Tensor], torch.Tensor]]] = {
    "torch sdpa": torch_sdpa,
    "local-attention": local_attention,
    "transformers longformer": transformers_longformer,
    "transformers bigbird": transformers_bigbird,
    "linformer package": linformer_package,
    "performer-pytorch": performer_pytorch,
    "performer-pytorch linear": performer_linear,
    "transformers reformer": transformers_reformer,
}


def decoding(name: str, lengths: list[int]) -> dict[int, float]:
    """Seconds of one more token, after so many."""
    from heedful.model.architecture.decoder_only import DecoderOnlyConfig
    from heedful.model.create import create

    stack = {"layers": 2, "position": "none", "attention": {"heads": HEADS, **OURS[name]}}
    model = create(DecoderOnlyConfig(vocab=100, width=WIDTH, decoder=stack)).eval()
    found = {}
    with torch.inference_mode():
        for length in lengths:
            cache = model.new_cache(length + 64)
            for start in range(0, length, 512):
                model.decode(torch.randint(100, (1, min(512, length - start))), cache=cache)
            model.decode(torch.randint(100, (1, 1)), cache=cache)
            took = []
            for _ in range(20):
                began = time.perf_counter()
                model.decode(torch.randint(100, (1, 1)), cache=cache)
                took.append(time.perf_counter() - began)
            found[length] = sorted(took)[len(took) // 4]
    return found


def show_decoding(lengths: list[int]) -> None:
    print("Milliseconds of one more token, two layers, after a text of so many tokens:\n")
    print(f"| attention | {' | '.join(f'{n:,}' for n in lengths)} |\n|---|{'---:|' * len(lengths)}")
    for name in ("softmax", "window", "performer", "linear"):
        times = run("decoding", name, lengths)
        print(f"| {name} | {' | '.join(f'{1e3 * times[str(n)]:.2f}' for n in lengths)} |", flush=True)


def exponent(points: dict[int, Point], key: str) -> float:
    last = sorted(points)[-4:]
    xs, ys = [math.log(n) for n in last], [math.log(max(points[n][key], 1e-9)) for n in last]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs)


def show(found: dict[str, dict[int, Point]]) -> None:
    lengths = sorted({n for points in found.values() for n in points})
    for key, title, scale in (("seconds", "Time, ms", 1e3), ("bytes", "Peak memory, MiB", 1 / 2**20)):
        print(f"\n### {title}, forward and backward\n")
        print(f"| attention | {' | '.join(f'{n:,}' for n in lengths)} | exponent |")
        print(f"|---|{'---:|' * (len(lengths) + 1)}")
        for name, points in found.items():
            cells = [f"{points[n][key] * scale:,.1f}" if n in points else "" for n in lengths]
            slope = f"{exponent(points, key):.2f}" if len(points) > 1 else ""
            print(f"| {name} | {' | '.join(cells)} | {slope} |")
    print("\n### Speed relative to the other implementation, and to softmax\n")
    print(f"| attention | beside | {' | '.join(f'{n:,}' for n in lengths)} |\n|---|---|{'---:|' * len(lengths)}")
    for name, points in found.items():
        for other in (PAIRS.get(name), "softmax"):
            if name in OURS and other in found and other != name:
                ratio = {n: found[other][n]["seconds"] / points[n]["seconds"] for n in points if n in found[other]}
                cells = [f"{ratio[n]:.2f}" if n in ratio else "" for n in lengths]
                print(f"| {name} | {other} | {' | '.join(cells)} |")


def draw(out: Path, found: dict[str, dict[int, Point]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(13, 5.5), constrained_layout=True)
    for axes, key, title, scale in zip(
        panels, ("seconds", "bytes"), ("time, ms", "peak memory, MiB"), (1e3, 1 / 2**20), strict=True
    ):
        for number, (name, points) in enumerate((name, points) for name, points in found.items() if name in OURS):
            lengths = sorted(points)
            label = f"{name} ({exponent(points, key):.2f})" if len(points) > 1 else name
            values = [points[n][key] * scale for n in lengths]
            axes.plot(lengths, values, marker="o", label=label, color=f"C{number}")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("tokens")
        axes.set_ylabel(title)
        axes.grid(alpha=0.3)
        axes.legend(title="attention (exponent)", fontsize=8)
    figure.suptitle("Forward and backward of one attention layer, width 512, 8 heads, one text")
    figure.savefig(out, dpi=120)
    pyplot.close(figure)


if __name__ == "__main__":
    main()
