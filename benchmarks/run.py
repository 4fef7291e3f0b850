"""All benchmarks against peers, one after the other: `make bench`. Prints Markdown, and writes it to a file.

    python benchmarks/run.py --out bench.md

The limits of the machine are printed first, so that figures can be related to them. Nothing else should be running.
"""

import argparse
import os
import platform
import subprocess
import sys
from pathlib import Path

import torch
from work import THREADS, gemm_rate, read_rate

HERE = Path(__file__).resolve().parent
PARTS = [
    ["training.py"],
    ["training.py", "--curve"],
    ["language_model.py"],
    ["training_families.py"],
    ["decoding.py"],
    ["shares.py"],
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("bench.md"))
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    with options.out.open("w", encoding="utf-8") as file:

        def tell(line: str) -> None:
            print(line, flush=True)
            print(line, file=file, flush=True)

        name = next(
            (line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), ""
        )
        tell(f"{name or platform.processor()}, {os.cpu_count()} cores, torch {torch.__version__}")
        tell(f"float32 GEMM {gemm_rate() / 1e9:,.0f} GFLOPS, memory read {read_rate() / 1e9:,.0f} GB/s")
        growth = ["growth.py", "--out", str(options.out.with_name("growth.png"))]
        for part in [*PARTS, growth]:
            tell(f"\n## {' '.join(part[:2] if '--curve' in part else part[:1])}")
            command = [sys.executable, str(HERE / part[0]), *part[1:]]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                for line in process.stdout or ():
                    tell(line.rstrip("\n"))
            if process.returncode:
                sys.exit(f"{part[0]} failed")


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


if __name__ == "__main__":
    main()
