"""As many lines out as in, whatever bytes they hold; never onto the input; quiet when nobody reads."""

import gzip
import io
import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from heedful.commands.main import main

MODEL = Path(__file__).parents[1] / "fixtures" / "v0_1" / "translator"
HOSTILE = (
    b"ab\xe2\x80\xa8cd\n"  # U+2028
    b"ab\xc2\x85cd\n"  # U+0085
    b"ab\rcd\n"
    b"a\0b\n"
    b"\xff\xfe\x80\n"
    b"\n"
    b"ab\r\n"
    b"\xe2\x80\xa8\n"
    b"\x0b\x0c\x1c\x1d\x1e\n"
    b"the last one"
)
COUNT = 10
SHORT = ["--max-new-tokens", "4", "--num-beams", "1", "--streams", "1"]


def command(*arguments):
    return [sys.executable, "-m", "heedful", *map(str, arguments)]


@pytest.fixture
def run(monkeypatch, capfdbinary):
    """The command in this process: what it writes, and its exit code."""

    def call(*arguments, given=b""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        monkeypatch.setattr(sys, "argv", ["heedful", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            main()
        said = capfdbinary.readouterr()
        return said.out, said.err, caught.value.code or 0

    return call


@pytest.mark.parametrize("form", ["plain", "nbest", "jsonl", "pharaoh", "words"])
def test_translate_writes_a_line_for_each_line(tmp_path, run, form):
    (tmp_path / "in.txt").write_bytes(HOSTILE)
    (tmp_path / "in.gz").write_bytes(gzip.compress(HOSTILE))
    options = ["--format", form, *SHORT]
    found = [run("translate", MODEL, *options, given=HOSTILE)[0]]
    for name in ("in.txt", "in.gz"):
        found.append(run("translate", MODEL, *options, "-i", tmp_path / name)[0])
    run("translate", MODEL, *options, "-i", tmp_path / "in.txt", "-o", tmp_path / "out.txt")
    found.append((tmp_path / "out.txt").read_bytes())
    assert [one.count(b"\n") for one in found] == [COUNT] * 4 and len(set(found)) == 1
    assert all(one.count(b"\r") == 0 for one in found)


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_predict_writes_a_line_for_each_line(tmp_path, run, options):
    (tmp_path / "in.gz").write_bytes(gzip.compress(HOSTILE))
    first, *_ = run("predict", MODEL, *options, given=HOSTILE)
    second, *_ = run("predict", MODEL, *options, "-i", tmp_path / "in.gz")
    assert first == second and first.count(b"\n") == COUNT


def test_json_lines_that_are_no_text_are_reported_by_number(run):
    rows = [{"text": "ab"}, {"text": "\ud800"}, [1], {"text": 5}, {"text": "cd", "avoid": 1}]
    given = b"".join(json.dumps(row).encode() + b"\n" for row in rows) + b"[" * 100_000 + b"\n"
    out, said, code = run("translate", MODEL, *SHORT, "--input-format", "jsonl", given=given)
    assert out.count(b"\n") == 6 and code == 1
    assert [f"line {n}: " in said.decode() for n in range(1, 7)] == [False, *[True] * 5]


def test_a_line_of_a_megabyte_is_one_line(run):
    out, _, code = run("predict", MODEL, given=b" " * (1 << 20) + b"\nab\n")
    assert out.count(b"\n") == 2 and not code


@pytest.mark.parametrize("verb", ["translate", "predict"])
def test_a_truncated_gzip_is_one_line_of_error(tmp_path, run, verb):
    (tmp_path / "in.gz").write_bytes(gzip.compress(os.urandom(30_000).replace(b"\n", b"x"))[:-2000])
    out, said, code = run(verb, MODEL, "-i", tmp_path / "in.gz")
    assert code == 2 and b"cannot be read" in said and len(said.splitlines()) == 1 and not out


@pytest.mark.parametrize("verb", ["translate", "predict"])
@pytest.mark.parametrize("link", ["same", "symlink", "hardlink"])
def test_the_input_is_never_written_to(tmp_path, run, verb, link):
    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("ab\n")
    {"same": lambda a, b: None, "symlink": os.symlink, "hardlink": os.link}[link](source, output)
    _, said, code = run(verb, MODEL, "-i", source, "-o", source if link == "same" else output)
    assert code == 2 and b"the input would be overwritten" in said and source.read_text() == "ab\n"


def test_nor_by_the_shell(tmp_path):
    source = tmp_path / "in.txt"
    source.write_text("ab\n")
    with source.open("rb") as given, source.open("ab") as out:
        ended = subprocess.run(command("predict", MODEL), stdin=given, stdout=out, stderr=subprocess.PIPE, check=False)
    assert ended.returncode == 2 and b"overwritten" in ended.stderr and source.read_text() == "ab\n"


def test_a_broken_pipe_ends_quietly():
    running = subprocess.Popen(command("translate", MODEL, *SHORT), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)  # fmt: skip
    running.stdout.close()
    running.stdin.write(b"ab\n" * 600)
    with suppress(BrokenPipeError):
        running.stdin.close()
    said = running.stderr.read()
    assert running.wait() in (0, 141) and not said
