"""A process that has imported what `heedful` imports, and forks a copy of itself for each command it is asked for.

    python server.py SOCKET          until its standard input is closed

It forks before any thread or pool is started, so a copy is in the state of a new process that has just imported these
modules. What ends a copy (a return, an exception, a signal) is what would end a process of its own.
"""

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

SOCKET = sys.argv[1]
MODULES = [
    "torch",
    "torch.distributed.run",
    "heedful.commands.main",
    "heedful.training.run",
    "heedful.translator",
    "heedful.generator",
    "heedful.exchange.hugging_face",
    "matplotlib.pyplot",
    "sacrebleu",
]


def main() -> None:
    for name in MODULES:
        importlib.import_module(name)
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(SOCKET)
        listener.listen(64)
        print("ready", flush=True)
        while sys.stdin not in (ready := select.select([listener, sys.stdin], [], [], 1.0)[0]):
            if ready:
                connection, _ = listener.accept()
                with connection:
                    if not os.fork():
                        listener.close()
                        return serve(connection)
            reap()
    return None


def reap() -> None:
    """Take note of copies that have ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def serve(connection: socket.socket) -> None:
    """Fork the command, tell the client its number and how it ended; if the client is killed, so is the command. A
    fourth file stays open until the command is no more, its locks included."""
    length, files, _, _ = socket.recv_fds(connection, 8, 4)
    with connection.makefile("rb") as stream:
        asked = json.loads(stream.read(int.from_bytes(length, "big")))
    if not (command := os.fork()):
        connection.close()
        return become(asked, files)
    for file in files[:3]:
        os.close(file)
    connection.sendall(b"%d\n" % command)
    ended = os.pidfd_open(command)
    if ended not in select.select([connection, ended], [], [])[0]:
        os.kill(command, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])
    with suppress(BrokenPipeError):
        connection.sendall(b"%d\n" % status)
    os._exit(0)


def become(asked: dict, files: list[int]) -> None:
    """What `python *arguments` does in this folder and environment, with these standard streams."""
    for number, file in enumerate(files[:3]):
        os.dup2(file, number)
    for file in files:
        os.close(file)
    sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace")
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    kind, what, *rest = asked["arguments"]
    sys.path[0] = str(Path.cwd())
    sys.executable = str(Path(SOCKET).with_name("python"))  # what a command starts is forked too
    sys.argv = [kind, *rest]
    if kind == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        exec(compile(what, "<string>", "exec"), {"__name__": "__main__", "__builtins__": __builtins__})


if __name__ == "__main__":
    main()
