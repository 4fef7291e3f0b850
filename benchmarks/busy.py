"""Speed beside other work: how much of its fair share of a busy machine does a program get? Two threads.

    python benchmarks/busy.py                                     all engines, as tables; about ten minutes
    python benchmarks/busy.py --work train --engines heedful torch --waits default passive

Each cell is measured alone, beside one and beside two processes that do nothing but count, and beside a second process
of its own kind. On two cores the fair share of two threads beside one such process is 2/3 of their rate alone, beside
two 1/2, beside two threads of the same kind 1/2. A cell's figures are its rate alone, and the rate beside others as a
part of the fair share. The measurements take turns, so that a change of the machine's load meets all of them.

    default   neither OMP_WAIT_POLICY nor GOMP_SPINCOUNT is set: what an engine chooses by itself
    passive   OMP_WAIT_POLICY=passive: threads sleep as soon as they wait
    a number  GOMP_SPINCOUNT: so many turns before they sleep

The work is that of the tiny model of work.py, with random weights: training steps; translating one sentence, or 32 in
one batch, with 24 tokens each (`one`, `batch`); `serve` is a server with 16 clients. CTranslate2 is left out where it
is not installed (`pip install ctranslate2 transformers`).
"""

import argparse
import contextlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ENGINES = {"train": ["heedful", "torch"], "one": ["heedful", "ctranslate2"], "batch": ["heedful", "ctranslate2"],
           "serve": ["heedful"]}  # fmt: skip
UNITS = {"train": "steps/s", "one": "sentences/s", "batch": "sentences/s", "serve": "requests/s"}
FAIR = {"one": 2 / 3, "two": 1 / 2, "own": 1 / 2}  # for two threads on two cores
QUIET, TRIES = 0.1, 2  # the part of a core that other programs may take, or a measurement is repeated
COUNTING = "n = 0\nwhile True: n += 1"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", nargs="+", default=list(ENGINES), choices=list(ENGINES))
    parser.add_argument("--engines", nargs="+", default=["heedful", "torch", "ctranslate2"])
    parser.add_argument("--waits", nargs="+", default=["default", "passive"])
    parser.add_argument("--beside", nargs="+", default=["nothing", "one", "two", "own"])
    parser.add_argument("--seconds", type=float, default=2, help="of a measurement")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each kind; their median is shown")
    parser.add_argument("--inside", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        answer(*options.inside)
        return
    if "ctranslate2" in options.engines and not importlib.util.find_spec("ctranslate2"):
        print("CTranslate2 is not installed and is left out: pip install ctranslate2 transformers")
        options.engines.remove("ctranslate2")
    with tempfile.TemporaryDirectory(prefix="heedful-busy-") as place:
        for work in options.work:
            engines = [engine for engine in ENGINES[work] if engine in options.engines]
            table(work, engines, options, Path(place))


def table(work: str, engines: list[str], options: argparse.Namespace, place: Path) -> None:
    prepare(work, engines, place)
    cells = [(engine, wait) for engine in engines for wait in options.waits]
    rates: dict[tuple[str, str], dict[str, list[float]]] = {}
    count = 2 if "own" in options.beside else 1
    pairs = {cell: [Engine(work, *cell, place) for _ in range(count)] for cell in cells}
    for pair in pairs.values():
        for engine in pair:
            engine.read()  # it is ready
    for _ in range(options.rounds):
        for cell, pair in pairs.items():
            for beside in options.beside:
                found = measured(pair, beside, options.seconds)
                rates.setdefault(cell, {}).setdefault(beside, []).append(found)
    for pair in pairs.values():
        for engine in pair:
            engine.close()
    names = {"one": "beside one", "two": "beside two", "own": "two of its own"}
    beside = [name for name in FAIR if name in options.beside]
    print(f"\n{work}: {UNITS[work]} alone, and what part of the fair share is left\n")
    print("| engine | waits | alone |" + "".join(f" {names[one]} |" for one in beside))
    print("|---|---|---:|" + "---:|" * len(beside))
    for (engine, wait), found in rates.items():
        alone = statistics.median(found["nothing"])
        shares = [f"{statistics.median(found[one]) / alone / FAIR[one]:.2f}" for one in beside]
        print(f"| {engine} | {wait} | {alone:,.1f} | {' | '.join(shares)} |", flush=True)


def measured(pair: "list[Engine]", beside: str, seconds: float) -> float:
    """The rate of the first of the pair; with its own kind, the mean of both. Repeated if somebody else was at work."""
    others = [subprocess.Popen([sys.executable, "-c", COUNTING]) for _ in range({"one": 1, "two": 2}.get(beside, 0))]
    working, found = pair if beside == "own" else pair[:1], []
    try:
        for _ in range(TRIES):
            before = foreign()
            for engine in working:
                engine.go(seconds)
            rate = statistics.mean([engine.rate() for engine in working])
            found.append(((foreign() - before) / seconds, rate))
            if found[-1][0] < QUIET:
                break
        else:
            print(f"others take {min(found)[0]:.0%} of a core", file=sys.stderr)
        return min(found)[1]
    finally:
        for other in others:
            other.kill()
            other.wait()


def foreign() -> float:
    """Seconds of processors' time that went to programs that are not of this benchmark, since the machine's start."""
    first, *_ = Path("/proc/stat").read_text().splitlines()
    user, nice, system, _, _, irq, soft, steal, *_ = map(int, first.split()[1:])
    parents, ticks = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            parents[int(path.parent.name)], ticks[int(path.parent.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    own = sum(count for number, count in ticks.items() if is_ours(number, parents))
    return (user + nice + system + irq + soft + steal - own) / os.sysconf("SC_CLK_TCK")


def is_ours(number: int, parents: dict[int, int]) -> bool:
    while number > 1 and number != os.getpid():
        number = parents.get(number, 0)
    return number == os.getpid()


class Engine:
    """A process that works for some seconds whenever it is asked to."""

    def __init__(self, work: str, engine: str, wait: str, place: Path) -> None:
        unset = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_NUM_THREADS")
        environment = {name: value for name, value in os.environ.items() if name not in unset}
        environment |= {"OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1"}
        if wait != "default":
            environment["GOMP_SPINCOUNT" if wait.isdigit() else "OMP_WAIT_POLICY"] = wait
        command = [sys.executable, __file__, "--inside", work, engine, str(place)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=HERE
        )

    def go(self, seconds: float) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()

    def rate(self) -> float:
        return float(self.read())

    def read(self) -> Any:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            sys.exit("an engine failed")
        return json.loads(line)

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(60)


def answer(work: str, engine: str, place: str) -> None:
    """For each number of seconds that is read, the rate is printed."""
    if engine == "heedful":
        from heedful import busy

        busy.watch()  # as the command does
    if work == "serve":
        rate_of, close = server(Path(place))
    else:
        once = {"train": train, "one": translate, "batch": translate}[work](work, engine, Path(place))
        rate_of, close = (lambda seconds: rate(once, seconds)), lambda: None
        rate_of(1)
    print(json.dumps(True), flush=True)
    for line in sys.stdin:
        print(json.dumps(rate_of(float(line))), flush=True)
    close()


def rate(once: Callable[[], int], seconds: float) -> float:
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        done += once()
    return done / (time.perf_counter() - began)


def train(work: str, engine: str, place: Path) -> Callable[[], int]:
    import training  # not at the top: it starts torch
    from training import BUILD, adam_of
    from work import SIZES, batches

    assert training.DROPOUT == 0.1
    model, loss_of = BUILD[engine](SIZES["tiny"], 0.1)
    model.train()
    optimizer = adam_of(engine)(model.parameters(), lr=1e-4, fused=True)
    todo = batches(SIZES["tiny"], 8)
    turn = iter(range(1 << 30))

    def step() -> int:
        optimizer.zero_grad(set_to_none=True)
        loss_of(todo[next(turn) % len(todo)]).backward()
        optimizer.step()
        return 1

    return step


def translate(work: str, engine: str, place: Path) -> Callable[[], int]:
    import decoding

    decoding.folder = lambda size, kind: place / f"{size}-{kind}"
    rows = decoding._rows(32)[::4]  # of all lengths
    batch = 1 if work == "one" else 32
    if engine == "ctranslate2":
        run = decoding.ctranslate2("tiny", "ct2-float32", 1, batch)
    else:
        run = decoding.ours("tiny", "heedful", 1, batch)
    turn = iter(range(1 << 30))

    def once() -> int:
        if batch > 1:
            return len(run(rows))
        return len(run([rows[next(turn) % len(rows)]]))

    return once


def server(place: Path) -> tuple[Callable[[float], float], Callable[[], None]]:
    import asyncio

    import serving

    lines = [f"a{number % 7} b{number % 11} c{number % 5}" for number in range(50)]
    running = serving.serving(place / "model", [])
    port = running.__enter__()

    def rate_of(seconds: float) -> float:
        return asyncio.run(serving.load(port, 16, seconds, lines, dict.fromkeys(lines, ""))).rate

    rate_of(1)
    return rate_of, lambda: running.__exit__()


def prepare(work: str, engines: list[str], place: Path) -> None:
    if work == "serve":
        pairs = place / "pairs.tsv"
        rows = [f"a{n % 7} b{n % 11} c{n % 5}" for n in range(1000)]
        pairs.write_text("".join(f"{row}\t{' '.join(reversed(row.split()))}\n" for row in rows))
        command = [sys.executable, "-m", "heedful", "train", str(pairs), "--out", str(place / "model"), "--cache"]
        command += [str(place / "cache"), "training.steps=60", "training.batch_tokens=512", "tokenizer.vocab=200"]
        subprocess.run(command, check=True, capture_output=True)
    if work not in ("one", "batch") or (place / "tiny-marian").exists():
        return
    inside = "import decoding, pathlib, sys; decoding.folder = lambda s, k: pathlib.Path(sys.argv[1]) / f'{s}-{k}'; "
    for function in ["write_marian", *(["write_ctranslate2"] if "ctranslate2" in engines else [])]:
        command = [sys.executable, "-c", f"{inside} decoding.{function}('tiny')", str(place)]
        subprocess.run(command, check=True, capture_output=True, cwd=HERE)


if __name__ == "__main__":
    main()
