"""Ask the server for a command and end as it ends.

python client.py SOCKET -m heedful translate ...        in this folder and environment, with these standard streams
python client.py SOCKET -c CODE ...
"""

import json
import os
import signal
import socket
import sys


def main() -> None:
    path, *arguments = sys.argv[1:]
    asked = {"arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ)}  # noqa: PTH109
    text = json.dumps(asked).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        socket.send_fds(connection, [len(text).to_bytes(8, "big")], [0, 1, 2, *held()])
        connection.sendall(text)
        with connection.makefile("r") as answer:
            command = int(answer.readline())
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda number, frame: os.kill(command, number))
            status = int(answer.readline())
    if status < 0:
        signal.signal(-status, signal.SIG_DFL) if -status not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -status)
    sys.exit(status)


def held() -> list[int]:
    """A file that is to be kept open until the command has ended, if there is one."""
    return [int(os.environ.pop("HELD"))] if "HELD" in os.environ else []


if __name__ == "__main__":
    main()
