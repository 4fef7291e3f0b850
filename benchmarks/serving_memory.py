"""Does a server's memory grow? Sends requests of mixed kinds to `heedful serve`, right, wrong and broken off.

    python benchmarks/serving_memory.py runs/my-model runs/book                   10,000 requests
    python benchmarks/serving_memory.py runs/my-model runs/book --requests 500

Needs a translator; with a language model too, completions are among the requests. Prints a Markdown table: the resident
memory of the server after each tenth of the requests.
"""

import argparse
import contextlib
import json
import random
import re
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

JSON = "Content-Type: application/json\r\n"
FORM = "Content-Type: application/x-www-form-urlencoded\r\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--requests", type=int, default=10_000)
    options = parser.parse_args()
    print(
        "| requests | answered 2xx | 4xx | 5xx | broken off | server's memory, MiB |\n|---:|---:|---:|---:|---:|---:|"
    )
    for sent, answers, memory in growth(options.models, options.requests):
        counts = " | ".join(str(answers[kind]) for kind in ("2", "4", "5", "-"))
        print(f"| {sent:,} | {counts} | {memory / 2**20:,.1f} |", flush=True)


def growth(models: Sequence[Path], count: int, *, seed: int = 0) -> Iterator[tuple[int, Counter[str], int]]:
    """After each tenth of the requests: how many were sent, how they were answered, and the server's bytes."""
    command = [sys.executable, "-m", "heedful", "serve", *map(str, models), "--port", "0", "--no-access-log"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr
    try:
        if not (found := re.search(r"http://127\.0\.0\.1:(\d+)", line := server.stderr.readline())):
            raise ValueError(f"the server did not start: {line}{server.stderr.read()}")
        threading.Thread(target=server.stderr.read, daemon=True).start()  # a full pipe would stop the server
        answers, numbers = Counter[str](), random.Random(seed)
        for sent in range(1, count + 1):
            answers[send(int(found[1]), numbers)] += 1
            if sent % max(1, count // 10) == 0:
                yield sent, answers, int(Path(f"/proc/{server.pid}/statm").read_text().split()[1]) * 4096
    finally:
        server.terminate()
        server.wait(60)
        server.stderr.close()


def send(port: int, numbers: random.Random) -> str:
    """One request of a random kind, over a connection of its own; the first digit of the answer's status, or "-" if it
    was broken off."""
    text = " ".join(numbers.choice("abcdefghij") for _ in range(numbers.randint(1, 20)))
    kind = numbers.choice(KINDS)
    method, path, head, body = kind(text, numbers) if callable(kind) else kind
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{head}"
    raw = f"{head}Content-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=60) as one:
        if numbers.random() < 0.05:  # the client goes away
            one.sendall((raw.encode() + body)[: numbers.randint(1, len(raw) + len(body))])
            return "-"
        first = b""
        with contextlib.suppress(ConnectionError):  # refused before all of it was read
            one.sendall(raw.encode() + body)
            while piece := one.recv(1 << 16):
                first = first or piece
        return first[9:10].decode() or "-"


def _of(path: str, **fields: object) -> tuple[str, str, str, bytes]:
    return "POST", path, JSON, json.dumps(fields).encode()


KINDS = [
    lambda text, numbers: _of("/translate", q=text, source="en", target="de"),
    lambda text, numbers: _of("/translate", q=[text, text[:9]], source="auto", target="de", alternatives=2),
    lambda text, numbers: _of("/translate", q=f"<p>{text}</p>\n<b>{text}</b>", source="en", target="de", format="html"),
    lambda text, numbers: ("POST", "/translate", FORM, f"q={text.replace(' ', '+')}&source=en&target=de".encode()),
    lambda text, numbers: _of("/translate", q=text, source=f"x{numbers.randint(0, 10**6)}", target="de"),
    lambda text, numbers: _of("/detect", q=text),
    lambda text, numbers: _of("/api/translate", text=text, num_beams=numbers.randint(1, 6), avoid=["a b"]),
    lambda text, numbers: _of("/api/inspect", text=text, num_beams=numbers.randint(1, 4)),
    lambda text, numbers: _of("/api/translate", text=text, model=str(numbers.random())),
    lambda text, numbers: _of("/v1/completions", prompt=text, max_tokens=9, stream=numbers.random() < 0.5),
    lambda text, numbers: _of("/api/next", text=text, top=3),
    lambda text, numbers: _of(f"/{numbers.random()}"),
    lambda text, numbers: ("POST", "/translate", JSON, b"{" * numbers.randint(1, 10_000)),
    lambda text, numbers: ("POST", "/translate", JSON, b"a" * (1 << 20 | 1)),
    lambda text, numbers: ("GET", "/health", f"Host: {numbers.random()}\r\n", b""),
    lambda text, numbers: ("GET", "/health", f"X-Long: {'a' * 20_000}\r\n", b""),
    *[("GET", path, "", b"") for path in ("/", "/docs", "/page.js", "/openapi.json", "/languages", "/metrics")],
]

if __name__ == "__main__":
    main()
