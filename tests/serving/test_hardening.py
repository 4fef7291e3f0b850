"""The server and those who mean it no good: foreign web pages, forged headers, slow clients, requests for too much."""

import asyncio
import hmac
import logging
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
import uvicorn

from heedful.inspection.details import check_weights
from heedful.inspection.reading import inspect as look_at_reader
from heedful.serving import openai, own
from heedful.serving.connections import check_proxy, configured
from heedful.serving.context import Options
from heedful.serving.limits import Keys, RefusedError, allowed_hosts, check_origin
from heedful.serving.models import EngineSettings
from heedful.serving.page import one_file
from tests.serving.readers import of_pairs
from tests.serving.running import running, serving, small_models

ASKED = {"q": "a b", "source": "en", "target": "de"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return small_models(tmp_path_factory.mktemp("hardened"), trained=False)


@pytest.fixture(scope="module")
def server(folders):
    options = Options(hosts=allowed_hosts("127.0.0.1", ["translate.me.org"]), origins=("https://me.org",))
    with running(list(folders), options=options) as (url, _):
        yield url


@contextmanager
def connected(url: str) -> Iterator[socket.socket]:
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as one:
        yield one


# --- whose server it is


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8000", "[::1]:8000", "LOCALHOST.", "translate.me.org:443"])
def test_its_own_names_are_answered(server, host):
    assert httpx.get(f"{server}/health", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.org", "evil.org:8000", "localhost.evil.org", "me@evil.org", ""])
def test_a_foreign_host_is_refused(server, host):
    answer = httpx.post(f"{server}/translate", json=ASKED, headers={"Host": host})
    message = f"the Host header is {host!r}, not a name of this server; to allow it: --allow-host NAME"
    assert (answer.status_code, answer.json()) == (403, {"error": message})
    answer = httpx.get(f"{server}/v1/models", headers={"Host": host})
    assert answer.json()["error"]["message"] == message


def test_a_request_without_a_host_or_with_two_is_refused(server):
    for head, status in ((b"HTTP/1.0\r\n", b"403"), (b"HTTP/1.1\r\nHost: localhost\r\nHost: evil.org\r\n", b"400")):
        with connected(server) as one:
            one.sendall(b"GET /health " + head + b"\r\n")
            assert one.recv(100).split()[1] == status


def test_hosts_are_checked_on_a_loopback_and_elsewhere_if_some_are_named():
    assert allowed_hosts("127.0.0.1", ()) == {"localhost", "127.0.0.1", "::1"}
    assert allowed_hosts("127.0.0.2", ()) == {"localhost", "127.0.0.1", "::1", "127.0.0.2"}
    assert allowed_hosts("::1", ["Me.org."]) == {"localhost", "127.0.0.1", "::1", "me.org"}
    assert not allowed_hosts("0.0.0.0", ()) and not allowed_hosts("192.168.1.7", ())
    assert allowed_hosts("0.0.0.0", ["me.org"]) == {"localhost", "127.0.0.1", "::1", "0.0.0.0", "me.org"}
    for wrong in ("me.org:80", "https://me.org", "me.org/", ""):
        with pytest.raises(ValueError, match=f"--allow-host '{wrong}' is not a host without port"):
            allowed_hosts("127.0.0.1", [wrong])


def test_pages_of_a_named_origin_may_ask_and_no_others(server, folders):
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    answer = httpx.options(f"{server}/translate", headers={"Origin": "https://me.org", **asks})
    assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == "https://me.org"
    assert "content-type" in answer.headers["access-control-allow-headers"]
    answer = httpx.post(f"{server}/translate", json=ASKED, headers={"Origin": "https://me.org"}, timeout=30)
    assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == "https://me.org"
    answer = httpx.options(f"{server}/translate", headers={"Origin": "https://evil.org", **asks})
    assert answer.status_code == 400 and "access-control-allow-origin" not in answer.headers
    with running([folders[1]]) as (url, _):
        answer = httpx.options(f"{url}/translate", headers={"Origin": "https://me.org", **asks})
        assert answer.status_code == 405 and "access-control-allow-origin" not in answer.headers
    assert check_origin("https://me.org:8443") and check_origin("*")
    for wrong in ("me.org", "https://me.org/", "https://me.org/page"):
        with pytest.raises(ValueError, match=f"--allow-origin '{wrong}' is not an origin, such as https://me.org"):
            check_origin(wrong)


# --- what a browser is told


def test_pages_run_their_own_files_only(server):
    for path in ("/", "/docs"):
        answer = httpx.get(f"{server}{path}")
        policy = answer.headers["content-security-policy"]
        assert "default-src 'self'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        scripts = re.findall(r"<script([^>]*)>(.*?)</script>", answer.text, re.S)
        assert scripts and all(re.fullmatch(r' src="\w+\.js"', place) and not body for place, body in scripts)
        assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:|https?://", answer.text)
        for name in re.findall(r'src="(\w+\.js)"', answer.text):
            script = httpx.get(f"{server}/{name}").text
            outside = set(re.findall(r"https?://[^\s'\"`]+", script)) - {"http://www.w3.org/2000/svg"}
            assert not outside and not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(", script)


def test_no_other_answer_can_be_taken_for_a_page(server):
    for answer in (
        httpx.post(f"{server}/translate", json={**ASKED, "q": "<script>"}, timeout=30),
        httpx.post(f"{server}/api/inspect", json={"text": "a b"}, timeout=30),
        httpx.get(f"{server}/<script>"),
        httpx.get(f"{server}/metrics"),
        httpx.get(f"{server}/health", headers={"Host": "evil.org"}),
    ):
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "html" not in answer.headers["content-type"]


def test_the_page_as_a_file_holds_what_a_model_says_as_data():
    hostile = "</script><script>alert(1)</script><!--<script>\u2028"
    html = one_file({"text": hostile, "translation": hostile, "model": hostile})
    assert html.count("<script>") == html.count("</script>") == len(one_file({}).split("<script>")) - 1
    assert "\\u003c/script>\\u003cscript>alert(1)" in html


# --- forged headers, and keys


def client_in_log(caplog, folders, **listening):
    caplog.clear()
    with caplog.at_level(logging.INFO, "heedful.access"), running([folders[1]], **listening) as (url, _):
        httpx.get(f"{url}/health", headers={"X-Forwarded-For": "203.0.113.9", "X-Forwarded-Proto": "https"})
    return [re.search('"client": "(.*?)"', one.message)[1] for one in caplog.records if "/health" in one.message]


def test_forwarded_headers_are_believed_of_a_named_proxy_only(caplog, folders, monkeypatch):
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")  # what uvicorn would believe
    assert client_in_log(caplog, folders) == ["127.0.0.1"]
    assert client_in_log(caplog, folders, proxies=["10.0.0.1"]) == ["127.0.0.1"]
    assert client_in_log(caplog, folders, proxies=["127.0.0.1"]) == ["203.0.113.9"]
    with pytest.raises(ValueError, match=r"--proxy '\*' is not an IP address or network, such as 10.0.0.2"):
        check_proxy("*")


def test_every_key_is_compared_at_the_same_length(monkeypatch):
    compared = []
    same = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda one, other: compared.append((one, other)) or same(one, other))
    keys = Keys(["first", "a much longer second key"])
    keys.check("first")
    with pytest.raises(RefusedError, match="this API key is not valid"):
        keys.check("f")
    assert len(compared) == 4 and {len(one) for pair in compared for one in pair} == {32}


# --- workers that die


def test_a_dead_worker_answers_503_and_is_restarted(folders, monkeypatch):
    with running(list(folders), settings=EngineSettings(streams=1)) as (url, context):
        for model, path, asked in (
            (context.models.translating[0], "/translate", ASKED),
            (context.models.writing[0], "/v1/completions", {"prompt": "the ", "max_tokens": 3}),
        ):
            worker = model.engine.worker
            with monkeypatch.context() as patch:
                patch.setattr(worker, "steps", lambda *given, **more: (_ for _ in ()).throw(SystemExit(1)))
                answer = httpx.post(url + path, json=asked, timeout=30)
            assert answer.status_code == 503 and answer.headers["retry-after"] == "1"
            assert "the worker that had this request stopped and was restarted; try again" in answer.text
            assert httpx.post(url + path, json=asked, timeout=30).status_code == 200
            dead = threading.Thread(target=lambda: None)
            dead.start()
            dead.join()
            model.engine._threads.append(dead)  # however it came about
            assert httpx.post(url + path, json=asked, timeout=30).status_code == 200
            assert all(thread.is_alive() for thread in model.engine._threads)


# --- slow clients


def closed_after(one: socket.socket) -> float:
    """Seconds until the server closes the connection."""
    began = time.monotonic()
    try:
        while one.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    return time.monotonic() - began


def test_who_is_slow_loses_his_place(folders):
    with running([folders[1]], patience=1, options=Options(reading=1.0)) as (url, _):
        with connected(url) as silent, connected(url) as dripping, connected(url) as idle, connected(url) as second:
            idle.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            second.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            time.sleep(0.4)
            second.sendall(b"GET /health HTTP/1.1\r\nHo")
            dripping.sendall(b"GET / HT")
            time.sleep(0.4)
            dripping.sendall(b"TP/1.1\r\nX-")  # another byte is no more time
            for one in (silent, dripping, idle, second):
                assert closed_after(one) < 3
        with connected(url) as body:
            body.sendall(b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
            assert closed_after(body) < 3
        assert httpx.get(f"{url}/health").status_code == 200


def test_who_does_not_read_loses_his_place(folders):
    asked = b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n"
    with running([folders[1]], patience=1) as (url, _), connected(url) as deaf:
        deaf.settimeout(3)
        began = time.monotonic()
        with pytest.raises((ConnectionError, TimeoutError)):
            while time.monotonic() - began < 15:
                deaf.sendall(asked * 50)
                time.sleep(0.01)
        deaf.settimeout(20)
        assert closed_after(deaf) < 5  # what was under way, then the end


@contextmanager
def answering(pieces: list[bytes], pause: float = 0) -> Iterator[tuple[socket.socket, uvicorn.Server]]:
    """A client with a small buffer, and a server with a patience of one second that answers in these pieces."""

    async def app(scope, receive, send):
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                await asyncio.sleep(pause)
            await send({"type": "http.response.body", "body": b""})

    server = uvicorn.Server(configured(app, patience=1))
    with serving(server) as port, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        client.settimeout(20)
        client.connect(("127.0.0.1", port))
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        yield client, server


def read_slowly(client: socket.socket, server: uvicorn.Server, size: int, pause: float) -> tuple[bytes, float]:
    """The last of what arrived, and how long the server kept the connection."""
    found, began = b"", time.monotonic()
    with suppress(ConnectionError):
        while (piece := client.recv(size)) and time.monotonic() - began < 20:
            found, seconds = (found + piece)[-20:], time.monotonic() - began
            if not server.server_state.connections:
                break
            time.sleep(pause)
    return found, seconds


def test_who_reads_a_little_now_and_then_loses_his_place():
    with answering([b"a" * 100_000_000, b"the end"]) as (client, server):
        found, seconds = read_slowly(client, server, 1 << 16, 0.1)
    assert b"the end" not in found and 3.5 < seconds < 8


def test_a_stream_ends_in_time_although_there_is_always_more_to_read():
    async def late():
        written = openai.Written([], asyncio.Queue())
        written.events.put_nowait((0, None))
        deadline = asyncio.get_running_loop().time() + 0.05
        await written.next_event(deadline)
        await asyncio.sleep(0.1)
        written.events.put_nowait((0, None))
        with pytest.raises(TimeoutError):
            await written.next_event(deadline)

    asyncio.run(late())


def test_who_reads_steadily_has_time_for_a_large_answer():
    with answering([b"a" * 20_000_000 + b"the end"]) as (client, server):
        rest, _ = read_slowly(client, server, 1 << 18, 0.01)
        while piece := client.recv(1 << 20):  # what the kernel still held
            rest = (rest + piece)[-20:]
    assert b"the end" in rest


def test_who_keeps_up_with_a_stream_is_not_broken_off():
    with answering([b"a piece"] * 60 + [b"the end"], pause=0.1) as (client, server):  # BEHIND times the patience passes
        found, seconds = read_slowly(client, server, 1 << 16, 0.05)
    assert b"the end" in found and seconds > 5


def test_places_are_bounded_and_headers_too(folders):
    with running([folders[1]], connections=5, patience=1) as (url, _):
        host, port = url.removeprefix("http://").split(":")
        held = [socket.create_connection((host, int(port))) for _ in range(5)]
        assert httpx.get(f"{url}/health").status_code == 503
        time.sleep(1.5)
        assert httpx.get(f"{url}/health").status_code == 200
        for one in held:
            one.close()
        for path, more in (("health", {"X-Long": "a" * 70_000}), (f"health?{'a' * 20_000}", {})):
            answer = httpx.get(f"{url}/{path}", headers=more)
            assert answer.status_code in (400, 431)
            assert answer.status_code == 400 or "more than 16384" in answer.json()["error"]


# --- requests for too much


def test_how_much_is_inspected_is_bounded(folders, monkeypatch):
    with running(list(folders)) as (url, context):
        found = httpx.post(f"{url}/api/inspect", json={"text": "a b c"}, timeout=30).json()
        sizes = [len(rows) * len(heads) * len(weights) * len(weights[0])
                 for kind in found["attention"].values() for rows in [kind["weights"]]
                 for heads in [rows[0]] for weights in [heads[0]]]  # fmt: skip
        monkeypatch.setattr(own, "MOST_WEIGHTS", sum(sizes))
        assert httpx.post(f"{url}/api/inspect", json={"text": "a b c"}, timeout=30).json() == found
        monkeypatch.setattr(own, "MOST_WEIGHTS", sum(sizes) - 1)
        answer = httpx.post(f"{url}/api/inspect", json={"text": "a b c"}, timeout=30)
        source, target = len(found["source"]) + 1, len(found["target"]) + 1
        assert (answer.status_code, answer.json()["error"]) == (400, (
            f"too long to inspect: {source} tokens and {target} tokens in all heads and layers of this model make "
            f"{sum(sizes)} attention weights, more than the limit of {sum(sizes) - 1}; shorten the text"
        ))  # fmt: skip
        answer = httpx.post(f"{url}/api/next", json={"text": "the quick brown fox"}, timeout=30)
        assert answer.status_code == 400 and "too long to inspect: 19 tokens" in answer.json()["error"]
        check_weights(context.models.writing[0].generator.model, {"decoder": 19}, None)


def test_the_time_for_inspecting_is_bounded(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("HEEDFUL_CACHE", str(tmp_path / "cache"))
        folder = of_pairs(tmp_path, "pairs")
    with running([folder]) as (url, context):
        use = context.models.predicting[0].predictor.use
        with pytest.raises(TimeoutError, match="this took too long"):
            look_at_reader(use, "a great film\tlovely", until=time.monotonic() - 1)
        asked = {"text": "a great film\ta great book"}
        assert httpx.post(f"{url}/api/inspect", json=asked, timeout=30).status_code == 200
    with running([folder], options=Options(timeout=0.0)) as (url, _):
        answer = httpx.post(f"{url}/api/inspect", json=asked, timeout=30)
        assert (answer.status_code, answer.json()) == (503, {"error": "this took too long; send less at a time"})


def test_memory_stays_as_it_is(folders):
    """The short form of what benchmarks/serving_memory.py measures."""
    script = Path(__file__).parents[2] / "benchmarks" / "serving_memory.py"
    command = [sys.executable, str(script), *map(str, folders), "--requests", "300"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = [[float(cell.replace(",", "")) for cell in line.strip("|").split("|")]
            for line in done.stdout.splitlines()[2:]]  # fmt: skip
    _, well, refused, failed, _, memory = rows[-1]
    assert not failed and well > 100 and refused > 50, done.stdout
    assert memory - rows[4][-1] < 6, done.stdout
