"""Kernels compiled with the address and undefined-behaviour sanitizers of gcc: their tests, and the fuzzer.

    python -m tests.model.cpu.sanitized                what `make sanitize` runs: tests, and 3,000 cases of fuzz.py
    python -m tests.model.cpu.sanitized --cases 40     cases only: the short form, for CI

Both for each kind of processor that this one can be (AVX-512, AVX2). They are compiled into build/sanitized; those in
use are not touched. Does nothing where there is no gcc, or no sanitizer.
"""

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

PLACE = Path("build/sanitized")
NATIVE = Path("src/heedful/model/cpu/native")
FLAGS = ["-shared", "-fPIC", "-g1", "-O1", "-fno-omit-frame-pointer", "-fopenmp", "-fsanitize=address,undefined",
         "-fno-sanitize-recover=all"]  # fmt: skip
TESTS = ["kernels", "training", "decoding", "reading", "int8"]
ELSEWHERE = "not lesser and not turned_off and not asked_for"  # these start a Python of their own
# Python finds the kernels in the first folder of the package's path.
START = f"import sys, runpy, heedful.model.cpu as cpu; cpu.__path__.insert(0, {str(PLACE.resolve())!r}); "


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=0, help="only this many of fuzz.py")
    options = parser.parse_args()
    libraries = [library(name) for name in ("libasan.so", "libubsan.so", "libstdc++.so")]
    if None in libraries or not Path(sysconfig.get_path("include"), "Python.h").exists():
        print("no gcc with sanitizers here: nothing to run")
        return
    build()
    environment = {
        **os.environ,
        "LD_PRELOAD": " ".join(filter(None, libraries)),
        "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0",  # Python keeps what it has
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONPATH": os.pathsep.join(filter(None, ["src", ".", os.environ.get("PYTHONPATH")])),
    }
    for kind in ("", "avx2"):
        start({**environment, "HEEDFUL_KERNELS": kind}, "tests.model.cpu.fuzz", "--cases", str(options.cases or 3000))
        if not options.cases:
            files = [f"tests/model/cpu/test_{name}.py" for name in TESTS]
            start({**environment, "HEEDFUL_KERNELS": kind}, "pytest", "-q", "-p", "no:xdist", "-k", ELSEWHERE, *files)


def library(name: str) -> str | None:
    """Where gcc has it."""
    if not shutil.which("gcc"):
        return None
    path = subprocess.run(
        ["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()
    return path if Path(path).is_absolute() else None


def build() -> None:
    """Compile what has changed, both kinds at once."""
    PLACE.mkdir(parents=True, exist_ok=True)
    newest = max(file.stat().st_mtime for file in NATIVE.iterdir())
    running = []
    for name in ("native", "native_avx512"):
        made = PLACE / f"_{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
        if not made.exists() or made.stat().st_mtime < newest:
            command = ["gcc", *FLAGS, f"-I{sysconfig.get_path('include')}", str(NATIVE / f"{name}.c")]
            running.append(subprocess.Popen([*command, "-o", str(made), "-lm"]))
    codes = [one.wait() for one in running]
    if any(codes):
        raise SystemExit("the kernels could not be compiled with sanitizers")


def start(environment: dict[str, str], module: str, *arguments: str) -> None:
    code = f"{START}sys.argv = {[module, *arguments]!r}; "
    code += f"from heedful.model.cpu.kernels import NATIVE; assert {str(PLACE)!r} in NATIVE.__file__; "
    code += f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    done = subprocess.run([sys.executable, "-c", code], env=environment)
    if done.returncode:
        raise SystemExit(f"{module} failed with kernels for {environment['HEEDFUL_KERNELS'] or 'this processor'}")


if __name__ == "__main__":
    main()
