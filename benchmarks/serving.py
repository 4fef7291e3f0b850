"""Load test of `heedful serve` on localhost: many concurrent clients, every answer compared with the offline model.

    python benchmarks/serving.py runs/my-model --lines test.en
    python benchmarks/serving.py runs/my-model --lines test.en --clients 1 64 --seconds 5
    python benchmarks/serving.py runs/my-model --lines test.en --soak 10000

Each client sends one sentence at a time and waits for the answer. `one at a time` is the same server, configured to
translate one request after the other (one stream, batches of one sentence, all threads): the baseline without batching.
`--soak` sends that many requests from 64 clients, with a thousand idle connections open at first, and prints the
server's memory along the way; serving_memory.py does so with requests of other kinds.
"""

import argparse
import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Result:
    clients: int
    answers: int
    wrong: int
    lost: int
    rate: float
    latency: list[float]

    def row(self, name: str) -> str:
        p50, p95, p99 = (
            1000 * self.latency[min(len(self.latency) - 1, int(p * len(self.latency)))] for p in (0.5, 0.95, 0.99)
        )
        return (
            f"| {name} | {self.clients} | {self.answers:,} | {self.lost} | {self.wrong} | {self.rate:,.0f} | "
            f"{p50:,.0f} | {p95:,.0f} | {p99:,.0f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--lines", type=Path, required=True, help="sentences to send, one per line")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--soak", type=int, default=0, help="only send this many requests and watch the memory")
    options = parser.parse_args()
    lines = [line for line in options.lines.read_text(encoding="utf-8").splitlines() if line.strip()][:500]
    expected = offline(options.model, lines)
    if options.soak:
        soak(options.model, options.soak, lines, expected)
        return
    print("| server | clients | answers | lost | wrong | sentences/s | p50 ms | p95 ms | p99 ms | its memory, MiB |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    rates: dict[tuple[str, int], float] = {}
    for name, flags in (("engine", []), ("one at a time", ["--streams", "1", "--batch-tokens", "1", "--wait", "0"])):
        server = serving(options.model, flags)
        with server as port:
            asyncio.run(load(port, 4, 1.0, lines, expected))  # warm up
            for clients in options.clients:
                result = asyncio.run(load(port, clients, options.seconds, lines, expected))
                rates[name, clients] = result.rate
                print(f"{result.row(name)} {server.memory():,.0f} |", flush=True)
    for clients in options.clients:
        ratio = rates["engine", clients] / rates["one at a time", clients]
        print(f"{clients} clients: {ratio:.1f} times as many sentences per second as one at a time")


def soak(model: Path, count: int, lines: list[str], expected: dict[str, str]) -> None:
    print("| answers so far | lost | wrong | server's memory, MiB |\n|---:|---:|---:|---:|")
    answers = lost = wrong = shown = 0
    server = serving(model, [])
    with server as port, contextlib.ExitStack() as idle:
        for _ in range(1000):
            idle.enter_context(socket.create_connection(("127.0.0.1", port)))
        while answers < count:
            result = asyncio.run(load(port, 64, 5, lines, expected))
            answers, lost, wrong = answers + result.answers, lost + result.lost, wrong + result.wrong
            if answers >= shown:
                print(f"| {answers:,} | {lost} | {wrong} | {server.memory():,.0f} |", flush=True)
                shown += count // 10


def offline(model: Path, lines: list[str]) -> dict[str, str]:
    """Translations by a separate process, with the server's settings."""
    command = [sys.executable, "-m", "heedful", "translate", str(model), "--num-beams", "4"]
    done = subprocess.run(command, input="\n".join(lines) + "\n", capture_output=True, text=True, check=True)
    return dict(zip(lines, done.stdout.splitlines(), strict=True))


class serving:  # noqa: N801
    """The server in a separate process."""

    def __init__(self, model: Path, flags: list[str]) -> None:
        self.command = [sys.executable, "-m", "heedful", "serve", str(model), "--port", "0", "--no-access-log", *flags]

    def __enter__(self) -> int:
        self.process = subprocess.Popen(self.command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr
        line = self.process.stderr.readline()
        if "http://" not in line:
            sys.exit(line + self.process.stderr.read())
        return int(line.split("http://127.0.0.1:")[1].split()[0])

    def memory(self) -> float:
        """Resident memory, in MiB."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * 4096 / 2**20

    def __exit__(self, *problem: object) -> None:
        self.process.terminate()
        self.process.wait(60)


async def load(port: int, clients: int, seconds: float, lines: list[str], expected: dict[str, str]) -> Result:
    latency: list[float] = []
    wrong = lost = 0
    end = time.monotonic() + seconds

    async def client(number: int) -> None:
        nonlocal wrong, lost
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            turn = number
            while time.monotonic() < end:
                line = lines[turn % len(lines)]
                turn += clients
                began = time.monotonic()
                answer = await ask(reader, writer, line)
                if answer is None:
                    lost += 1
                    return
                latency.append(time.monotonic() - began)
                wrong += answer != expected[line]
        finally:
            writer.close()

    began = time.monotonic()
    await asyncio.gather(*(client(number) for number in range(clients)))
    latency.sort()
    return Result(clients, len(latency), wrong, lost, len(latency) / (time.monotonic() - began), latency)


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: str) -> str | None:
    """One request over an open connection; None if there is no valid answer."""
    body = json.dumps({"text": line, "alignment": False}).encode()
    kind = "Content-Type: application/json"
    head = f"POST /api/translate HTTP/1.1\r\nHost: localhost\r\n{kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    try:
        writer.write(head.encode() + body)
        await writer.drain()
        status = (await asyncio.wait_for(reader.readline(), 120)).split()
        length = 0
        while (header := await reader.readline()) not in (b"\r\n", b""):
            if header.lower().startswith(b"content-length:"):
                length = int(header.split(b":")[1])
        data = json.loads(await reader.readexactly(length))
    except (OSError, asyncio.IncompleteReadError, TimeoutError, ValueError):
        return None
    return str(data["translations"][0]["text"]) if status[1:2] == [b"200"] else None


if __name__ == "__main__":
    main()
