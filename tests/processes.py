"""Commands as processes of their own, at a tenth of the price: forked from a process that has imported torch once.

    subprocess.run(program("train", ...), ...)
    subprocess.run("printf 'a b' | heedful translate runs/a", shell=True, env={**os.environ, "PATH": path()}, ...)
    subprocess.run(python("-c", code), ...)
    with Started(program("train", ...), ...) as process: process.kill()

What depends on variables that are read while modules are imported (HEEDFUL_KERNELS, OMP_NUM_THREADS), on the number of
the process or on what has been imported starts a Python of its own instead.
"""

import atexit
import functools
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

FORKING = Path(__file__).parent / "forking"


def program(*words: object, processes: int = 1) -> list[str]:
    """The command that runs `heedful *words`, in several processes if told to."""
    if processes == 1:
        return python("-m", "heedful", *words)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", processes, "--no-python"]
    return python(*launch, programs() / "heedful", *words)


def python(*words: object) -> list[str]:
    """The command that runs `python *words`, which are -m MODULE or -c CODE and their arguments."""
    return [sys.executable, "-IS", str(FORKING / "client.py"), str(programs() / "socket"), *map(str, words)]


def path() -> str:
    """Where a shell finds `heedful`."""
    return os.pathsep.join([str(programs()), os.environ["PATH"]])


class Started(subprocess.Popen):
    """A process that may be killed: whoever waits for the client that stands for it waits for both to be gone."""

    def __init__(self, words: list[str], *, env: dict[str, str] | None = None, **options):
        self.held, held = os.pipe()
        try:
            super().__init__(words, env={**(env or os.environ), "HELD": str(held)}, pass_fds=[held], **options)
        finally:
            os.close(held)

    def wait(self, timeout: float | None = None) -> int:
        code = super().wait(timeout)
        if self.held is not None:
            os.read(self.held, 1)  # at its end when nobody holds the other one
            os.close(self.held)
            self.held = None
        return code


@functools.cache
def programs() -> Path:
    """The folder of the server's socket, and of a `heedful` and a `python` that ask it. It ends with this process."""
    folder = tempfile.TemporaryDirectory(prefix="heedful-tests-")
    place = Path(folder.name)
    command = [sys.executable, str(FORKING / "server.py"), str(place / "socket")]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdout.readline() == b"ready\n"
    ask = shlex.join([sys.executable, "-IS", str(FORKING / "client.py"), str(place / "socket")])
    choice = f'case "$1" in -m | -c) exec {ask} "$@" ;; *) exec {shlex.quote(sys.executable)} "$@" ;; esac'
    for name, line in (("heedful", f'exec {ask} -m heedful "$@"'), ("python", choice)):
        (place / name).write_text(f"#!/bin/sh\n{line}\n")
        (place / name).chmod(0o755)

    def end() -> None:
        server.stdin.close()
        server.wait()
        folder.cleanup()

    atexit.register(end)
    return place
