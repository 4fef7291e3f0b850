"""The workload, the same for all engines: sizes, sentences, batches; and how it is timed.

Imported by every peer in its own environment, so it needs only torch, and imports it only where it is used.
"""

import json
import random
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch  # not at run time: it would add to the memory of engines that do not need it

VOCAB = 10_000  # source, target and output share one table
EOS, FIRST_WORD, PAD = 0, 4, VOCAB - 1  # as in Marian's vocabularies: EOS first, padding last
OUT = 24  # tokens generated per sentence
THREADS = 2


@dataclass(frozen=True)
class Size:
    name: str
    layers: int
    width: int
    hidden: int
    heads: int
    batch_tokens: int  # target tokens in a training batch, padding included


SIZES = {
    "tiny": Size("tiny", layers=4, width=128, hidden=256, heads=4, batch_tokens=4096),
    "base": Size("base", layers=6, width=512, hidden=2048, heads=8, batch_tokens=2048),
}


def length(chance: random.Random) -> int:
    """A sentence length in tokens: 3 to 60, median 14, as in a corpus of everyday sentences."""
    return max(3, min(60, round(chance.lognormvariate(2.64, 0.5))))


def sentences(count: int, seed: int = 1) -> list[list[int]]:
    """Sorted by length, as every engine would sort them."""
    chance = random.Random(seed)
    rows = [[chance.randrange(FIRST_WORD, PAD) for _ in range(length(chance))] for _ in range(count)]
    return sorted(rows, key=len)


@dataclass(frozen=True)
class Batch:
    """Rows padded at the end with PAD. The decoder reads `target_in` and must predict `target_out`."""

    source: "torch.Tensor"
    target_in: "torch.Tensor"
    target_out: "torch.Tensor"
    tokens: int  # real target tokens, including EOS


def batches(size: Size, count: int, seed: int = 1) -> list[Batch]:
    """Pairs sorted by length and cut into batches, which are shuffled."""
    chance = random.Random(seed)
    pairs = []
    for _ in range(30_000):
        source = length(chance)
        target = max(2, round(source * chance.uniform(0.8, 1.25)))
        pairs.append(([chance.randrange(FIRST_WORD, PAD) for _ in range(source)],
                      [chance.randrange(FIRST_WORD, PAD) for _ in range(target)]))  # fmt: skip
    pairs.sort(key=lambda pair: (len(pair[1]), len(pair[0])))
    groups, group = [], []
    for pair in pairs:
        if (len(group) + 1) * (len(pair[1]) + 1) > size.batch_tokens:
            groups.append(group)
            group = []
        group.append(pair)
    chance.shuffle(groups)
    return [_batch(group) for group in groups[:count]]


def _batch(group: list[tuple[list[int], list[int]]]) -> Batch:
    return Batch(
        source=padded([[*source, EOS] for source, _ in group]),
        target_in=padded([[EOS, *target] for _, target in group]),
        target_out=padded([[*target, EOS] for _, target in group]),
        tokens=sum(len(target) + 1 for _, target in group),
    )


def padded(rows: list[list[int]]) -> "torch.Tensor":
    import torch

    longest = max(map(len, rows))
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])


def best_of(function: Callable[[], object], *, rounds: int = 5, least: float = 0.5) -> list[float]:
    """Seconds of each round, after a warm-up. Short work is repeated within a round."""
    began = time.perf_counter()
    function()
    repeats = max(1, int(least / max(1e-6, time.perf_counter() - began)))
    found = []
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in range(repeats):
            function()
        found.append((time.perf_counter() - began) / repeats)
    return found


def gemm_rate() -> float:
    """Float32 operations per second in a 1024 x 1024 matrix product: the upper bound for matrix work."""
    import torch

    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    return 2 * 1024**3 / min(best_of(lambda: a @ b, rounds=10, least=0.1))


def read_rate() -> float:
    """Bytes per second read from memory: the upper bound for work that reads all weights at each step."""
    import torch

    numbers = torch.ones(64 << 20)
    return numbers.numel() * 4 / min(best_of(numbers.sum, rounds=5, least=0.1))


def peak_memory() -> int:
    """The peak so far of this process or of its largest child process, in bytes."""
    own, others = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return 1024 * max(own, others)


def say(**figures: object) -> None:
    """Print one line for the parent process."""
    print(json.dumps(figures), flush=True)
