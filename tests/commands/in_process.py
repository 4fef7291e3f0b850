"""The command, run in this process: quick, for what ends before any work is done."""

import sys

import pytest

from heedful.commands.main import main


def refused(monkeypatch, capsys, *arguments: object) -> str:
    """What `heedful` says of a mistake: one line on standard error, nothing on standard output, exit code 2."""
    monkeypatch.setattr(sys, "argv", ["heedful", *map(str, arguments)])
    with pytest.raises(SystemExit) as caught:
        main()
    said = capsys.readouterr()
    assert caught.value.code == 2 and not said.out
    assert len(said.err.strip().splitlines()) == 1, said.err
    return said.err


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["heedful", *map(str, arguments)])
    with pytest.raises(SystemExit) as caught:
        main()
    assert not caught.value.code
    return capsys.readouterr().out
