"""Requests of different lengths at one server: does a long text hold up a short one?

    python benchmarks/serving_mixed.py runs/my-model --lines test.en
    python benchmarks/serving_mixed.py runs/my-model --lines test.en --writer runs/book --seconds 4

Prints Markdown tables. Short beside long: eight clients send a sentence each, again and again, alone and beside two
clients whose texts are 200 sentences each. One beside others: the latency of one client of sentences beside 63 others.
`--writer`: a language model, with clients that ask for 32 new tokens each, and the same beside two that ask for 400.
serving.py has the throughput of a translator by the number of clients. `--python`: another installation's, to compare.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from serving import serving

Bodies = Callable[[int], tuple[str, dict[str, object]]]  # the path and the fields of a client's next request


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--lines", type=Path, required=True, help="sentences to send, one per line")
    parser.add_argument("--writer", type=Path, help="a language model")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--python", default=sys.executable)
    options = parser.parse_args()
    lines = [line for line in options.lines.read_text(encoding="utf-8").splitlines() if line.strip()]

    def sentence(turn: int) -> tuple[str, dict[str, object]]:
        return "/api/translate", {"text": lines[turn * 7 % len(lines)], "alignment": False}

    def document(turn: int) -> tuple[str, dict[str, object]]:
        return "/api/translate", {"text": " ".join((lines * 200)[turn : turn + 200])[:20_000], "alignment": False}

    def completion(tokens: int) -> Bodies:
        asked: dict[str, object] = {"prompt": "the quick brown", "max_tokens": tokens, "temperature": 1.0}
        return lambda turn: ("/v1/completions", {**asked, "seed": turn})

    with _served(options.python, options.model) as port:
        asyncio.run(_load(port, [sentence] * 4, 2.0))  # warm up
        print("| clients with | p50 ms | p99 ms | sentences/s | long texts/s |\n|---|---:|---:|---:|---:|")
        for name, others in (("sentences", 0), ("sentences, beside 2 with long texts", 2)):
            _print_beside(name, port, [sentence] * 8, [document] * others, options.seconds)
        print("\n| one client | p50 ms | p99 ms |\n|---|---:|---:|")
        for name, others in (("alone", 0), ("beside 63 others", 63)):
            found = asyncio.run(_load(port, [sentence] * (1 + others), options.seconds))
            print(f"| {name} | {_at(found[0], 0.5)} | {_at(found[0], 0.99)} |", flush=True)
    if options.writer is None:
        return
    with _served(options.python, options.writer) as port:
        asyncio.run(_load(port, [completion(8)] * 4, 1.0))
        print("\n| clients of a language model | p50 ms | p99 ms | tokens/s |\n|---|---:|---:|---:|")
        for clients in options.clients:
            found = [
                one for some in asyncio.run(_load(port, [completion(32)] * clients, options.seconds)) for one in some
            ]
            print(f"| {clients} | {_at(found, 0.5)} | {_at(found, 0.99)} | {32 * len(found) / options.seconds:,.0f} |")
        print("\n| completions | p50 ms | p99 ms | short ones/s | long ones/s |\n|---|---:|---:|---:|---:|")
        for name, others in (("4 clients, 32 tokens each", 0), ("the same, beside 2 with 400 tokens", 2)):
            _print_beside(name, port, [completion(32)] * 4, [completion(400)] * others, options.seconds)


def _served(python: str, model: Path) -> serving:
    server = serving(model, [])
    server.command[0] = python
    return server


def _print_beside(name: str, port: int, short: list[Bodies], long: list[Bodies], seconds: float) -> None:
    every = asyncio.run(_load(port, [*short, *long], seconds))
    found = [one for some in every[: len(short)] for one in some]
    rates = len(found) / seconds, sum(map(len, every[len(short) :])) / seconds
    print(f"| {name} | {_at(found, 0.5)} | {_at(found, 0.99)} | {rates[0]:,.0f} | {rates[1]:.2f} |", flush=True)


def _at(latency: list[float], share: float) -> str:
    ordered = sorted(latency)
    return f"{1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]:,.0f}" if ordered else "-"


async def _load(port: int, clients: list[Bodies], seconds: float) -> list[list[float]]:
    """The latencies of each client, whose requests follow each other."""
    end = time.monotonic() + seconds

    async def client(number: int, bodies: Bodies) -> list[float]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        found, turn = [], number
        try:
            while (began := time.monotonic()) < end:
                await _ask(reader, writer, *bodies(turn))
                found.append(time.monotonic() - began)
                turn += len(clients)
        finally:
            writer.close()
        return found

    return await asyncio.gather(*(client(*both) for both in enumerate(clients)))


async def _ask(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, fields: dict[str, object]
) -> None:
    body = json.dumps(fields).encode()
    kind = "Content-Type: application/json"
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    status, length = (await reader.readline()).split(), 0
    while (header := await reader.readline()) not in (b"\r\n", b""):
        if header.lower().startswith(b"content-length:"):
            length = int(header.split(b":")[1])
    answer = await reader.readexactly(length)
    if status[1:2] != [b"200"]:
        raise ValueError(f"{path} answered {answer[:200]!r}")


if __name__ == "__main__":
    main()
