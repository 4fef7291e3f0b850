"""The server, asked by the clients people have, by careless ones and by hostile ones."""

import asyncio
import contextlib
import html
import json
import math
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import torch
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from libretranslatepy import LibreTranslateAPI
from openai import OpenAI

from heedful.inspection.attention import look
from heedful.inspection.details import confidence
from heedful.serving.context import Options
from heedful.serving.models import EngineSettings, _example
from heedful.text.markup import Html
from heedful.text.tokenizer import TokenizerConfig, train_tokenizer
from heedful.translator import load
from tests.serving.running import running, small_models


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return small_models(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def server(folders):
    with running(list(folders)) as (url, _):
        yield url


@pytest.fixture(scope="module")
def offline(folders):
    return load(folders[0])


def translate(server, **fields):
    return httpx.post(f"{server}/translate", json=fields, timeout=30)


def connection(server):
    host, port = server.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


ASKED = {"source": "en", "target": "de"}


# --- LibreTranslate


def test_its_own_client_works_unchanged(server, offline):
    client = LibreTranslateAPI(f"{server}/")
    assert client.translate("a b c", "en", "de") == offline.translate(["a b c"])[0].text
    assert client.languages() == [
        {"code": "de", "name": "German", "targets": []},
        {"code": "en", "name": "English", "targets": ["de"]},
    ]
    assert client.detect("a b c")[0]["language"] == "en"


def test_json_and_forms_and_lists(server, offline):
    texts = ["a b c", "d e", "", "f"]
    expected = [one.text for one in offline.translate(texts)]
    assert translate(server, q=texts, **ASKED).json() == {"translatedText": expected}
    assert translate(server, q="d e", **ASKED).json() == {"translatedText": expected[1]}
    sent = httpx.post(f"{server}/translate", data={"q": "d e", **ASKED}, timeout=30)
    assert sent.json() == {"translatedText": expected[1]}
    sent = httpx.post(f"{server}/translate", data={"q": ["a b c", "d e"], **ASKED}, timeout=30)
    assert sent.json() == {"translatedText": expected[:2]}


def test_auto_and_alternatives(server):
    found = translate(server, q=["a b c", "d"], source="auto", target="de", alternatives=3).json()
    assert [one["language"] for one in found["detectedLanguage"]] == ["en", "en"]
    assert [len(others) for others in found["alternatives"]] == [3, 3]
    assert translate(server, q="a", source="en-GB", target="de", alternatives="1").json()["alternatives"]


def test_lines_and_tags_stay_where_they_are(server, offline):
    first, second = (one.text for one in offline.translate(["a b", "c d"]))
    assert translate(server, q="a b\n\n  c d \r\n", **ASKED).json()["translatedText"] == f"{first}\n\n  {second} \r\n"
    given = '<p class="x">a b</p><script>if (a<b) c()</script><!-- d --> <b>c d</b>'
    found = translate(server, q=given, format="html", **ASKED).json()["translatedText"]
    assert found == given.replace(">a b<", f">{first}<").replace(">c d<", f">{second}<")
    assert translate(server, q="<p>&nbsp;</p> !", format="html", **ASKED).json()["translatedText"] == "<p>&nbsp;</p> !"
    assert translate(server, q="a &lt; b", format="html", **ASKED).json()["translatedText"].count("<") == 0


def test_a_sentence_with_tags_is_translated_whole_and_they_come_back(server, offline):
    text = "<p>a <a href=\"?x=1&y\">b <b class='y'>c</b></a> d</p><ul><li>d &lt; <i>e</i>"
    found = translate(server, q=text, format="html", **ASKED).json()["translatedText"]
    plain = offline.translate(["a b c d", "d < e"], links=True)
    assert re.sub("<.*?>", "\n", found).split() == " ".join(html.escape(one.text) for one in plain).split()
    assert sorted(re.findall("<.*?>", found)) == sorted(re.findall("<.*?>", text))
    assert found == Html(text).join([one.text for one in plain], [one.alignment for one in plain])
    asked = {"q": "a <b>b</b> c", "format": "html", "alternatives": 2, **ASKED}
    several = translate(server, **asked).json()["alternatives"]
    assert [re.sub("</?b>", "", one) for one in several] == [
        one.text for one in offline.translate("a b c", num_return_sequences=3).alternatives[:2]
    ]
    assert all(one.count("<b>") == one.count("</b>") == 1 for one in several)


def test_tags_come_back_from_a_model_without_an_alignment_head(folders, monkeypatch):
    with running([folders[0]]) as (url, context):
        translator = context.models.translating[0].translator
        translator.aligner = None
        (links,) = translator.align_loosely([("a b c", "d e")])
        assert [target for _, target in links] == [0, 1] and all(source < 3 for source, _ in links)
        for known in (True, False):
            if not known:  # nor any attention: by position
                monkeypatch.setattr(translator, "writers", [])
                assert translator.align_loosely([("a", "b")]) is None
            found = translate(url, q="a <b>b</b> c", format="html", **ASKED).json()["translatedText"]
            (plain,) = translator.translate(["a b c"], links=True)
            assert found == Html("a <b>b</b> c").join([plain.text], [plain.alignment])


def test_a_language_into_itself_is_echoed(server):
    assert translate(server, q="a b", source="de", target="de").json() == {"translatedText": "a b"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "Invalid request: missing q parameter"),
        ({"q": "a"}, "Invalid request: missing target parameter"),
        ({"q": "a", "target": "de"}, "Invalid request: missing source parameter"),
        ({"q": 5, **ASKED}, "Invalid request: q is not a string or a list of strings"),
        ({"q": [], **ASKED}, "Invalid request: q is not a string or a list of strings"),
        ({"q": ["a", None], **ASKED}, "Invalid request: q is not a string or a list of strings"),
        ({"q": "a", "source": "zz", "target": "de"}, "zz is not supported"),
        ({"q": "a", "source": "de", "target": "en"}, "en is not available as a target language from de"),
        ({"q": "a", "source": ["en"], "target": "de"}, "Invalid request: source is not a string"),
        ({"q": "a", "format": "pdf", **ASKED}, "pdf is not a supported format; use text or html"),
        ({"q": "a", "alternatives": -1, **ASKED}, "Invalid request: alternatives is not an integer from 0 to 8"),
        ({"q": "a", "alternatives": "x", **ASKED}, "Invalid request: alternatives is not an integer from 0 to 8"),
        ({"q": "a" * 20_001, **ASKED}, "20001 characters exceed the limit of 20000; send less at a time"),
        ({"q": ["a"] * 257, **ASKED}, "257 texts exceed the limit of 256; send fewer at a time"),
    ],
)
def test_requests_that_are_wrong(server, fields, message):
    answer = translate(server, **fields)
    assert (answer.status_code, answer.json()) == (400, {"error": message})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "Invalid request: the body is not JSON"),
        (b"", "Invalid request: the body is not JSON"),
        (b"[1]", "Invalid request: the body is not a JSON object"),
        (b'{"q": "\xff"}', "Invalid request: the body is not UTF-8"),
        (b'{"q": ' + b"9" * 5000 + b"}", "Invalid request: the body is not JSON"),
        (b'{"q": "a", "source": "en", "target": "\\ud800"}', "? is not supported"),
        (b"[" * 100_000, "Invalid request: the body is not JSON"),
    ],
)
def test_bodies_that_are_wrong(server, body, message):
    headers = {"Content-Type": "application/json"}
    answer = httpx.post(f"{server}/translate", content=body, headers=headers, timeout=30)
    assert (answer.status_code, answer.json()) == (400, {"error": message})


def test_odd_text_is_translated_all_the_same(server):
    for text in ("\x00", "a\x00b", "\ud83d", "👩‍👩‍👧", "\u202ea", "</s>", "%s{}"):
        body = json.dumps({"q": text, **ASKED}).encode()
        answer = httpx.post(
            f"{server}/translate", content=body, headers={"Content-Type": "application/json"}, timeout=30
        )
        assert answer.status_code == 200, (text, answer.text)


def test_halves_of_characters_do_no_harm(server):
    for fields in ({"text": "a \ud800"}, {"text": "a", "target_prefix": "\ud800"}, {"text": "a", "avoid": ["\ud800"]}):
        answer = httpx.post(f"{server}/api/translate", content=json.dumps(fields).encode(), timeout=30)
        assert answer.status_code in (200, 400), answer.text


def test_more_lines_than_could_ever_wait(server):
    answer = translate(server, q="a\n" * 1500, **ASKED)
    assert (answer.status_code, answer.json()) == (
        400,
        {"error": "1500 lines exceed the limit of 1024; send fewer at a time"},
    )


def test_large_bodies_are_refused_said_or_not(server):
    answer = translate(server, q="a" * 10_000_000, **ASKED)
    assert answer.status_code == 413 and "larger than" in answer.json()["error"]

    def endless():
        for _ in range(200):
            yield b"a" * 10_000

    try:
        answer = httpx.post(f"{server}/translate", content=endless(), timeout=30)
        assert answer.status_code == 413
    except httpx.TransportError:
        pass  # the connection was closed on it, which will do
    assert httpx.get(f"{server}/health").json() == {"status": "ok"}


@pytest.mark.parametrize(("path", "error"), [("/api/translate", str), ("/v1/completions", dict)])
def test_every_api_refuses_in_its_own_words_what_is_too_large_or_too_slow(folders, path, error):
    with running(list(folders), options=Options(body=1000, reading=0.5)) as (url, _):
        answer = httpx.post(url + path, content=(b"a" * 100 for _ in range(100)))
        assert answer.status_code == 413 and isinstance(answer.json()["error"], error)
        with connection(url) as slow:
            slow.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{{".encode())
            assert slow.recv(100).startswith(b"HTTP/1.1 408")


def test_thousands_of_open_connections(server):
    """As many as this process may open; both ends of each are here."""
    count = min(2000, (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 200) // 2)
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(connection(server)) for _ in range(count)]
        assert translate(server, q="a b", **ASKED).status_code == 200
        opened[-1].sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert opened[-1].recv(100).startswith(b"HTTP/1.1 200")
    assert translate(server, q="a b", **ASKED).status_code == 200


def test_what_is_not_there(server):
    answer = httpx.get(f"{server}/nothing")
    assert (answer.status_code, answer.json()) == (404, {"error": "Not Found"})
    assert httpx.get(f"{server}/translate").status_code == 405


def test_the_description_of_the_api_is_our_own(server):
    for path, kind in (("docs", "text/html"), ("docs.js", "text/javascript")):
        answer = httpx.get(f"{server}/{path}")
        assert answer.status_code == 200 and answer.headers["content-type"].startswith(kind)
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        assert "http://" not in answer.text and "https://" not in answer.text
    assert httpx.get(f"{server}/redoc").status_code == 404
    assert {"/translate", "/api/inspect", "/v1/completions"} <= set(httpx.get(f"{server}/openapi.json").json()["paths"])


def test_settings_and_metrics(server):
    assert httpx.get(f"{server}/frontend/settings").json()["language"]["target"] == {"code": "de", "name": "German"}
    text = httpx.get(f"{server}/metrics").text
    for name in (
        "heedful_requests_total",
        "heedful_request_seconds",
        "heedful_queue_length",
        "heedful_batch_sentences",
    ):
        assert name in text


# --- languages that the recipe does not name


@pytest.fixture(scope="module")
def unnamed(folders, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unnamed") / "plain"
    shutil.copytree(folders[0], folder)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["data"] |= {"source_language": "", "target_language": ""}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


def test_a_model_without_languages_is_src_to_tgt_and_the_refusal_says_what_to_do(unnamed):
    with running([unnamed]) as (url, _):
        assert translate(url, q="a b", source="src", target="tgt").status_code == 200
        said = translate(url, q="a b", **ASKED).json()["error"]
    assert said == (
        "en is not supported; a model's languages are unknown: use src and tgt, "
        "or start the server with --from and --to"
    )


def test_languages_named_at_the_start_are_those_of_the_models_that_lack_them(unnamed, folders):
    with running([unnamed], languages=("fr", "pt-BR")) as (url, context):
        assert translate(url, q="a b", source="fr", target="pt-BR").status_code == 200
        assert [one["code"] for one in httpx.get(f"{url}/languages").json()] == ["fr", "pt-BR"]
        context.models.reload("plain")
        (model,) = context.models.translating
        assert (model.source, model.target, model.translator.language) == ("fr", "pt-BR", "fr")
    with running([folders[0], unnamed], languages=("fr", "it")) as (_, context):
        assert [(one.source, one.target) for one in context.models.translating] == [("en", "de"), ("fr", "it")]


@pytest.mark.parametrize(
    ("languages", "message"),
    [
        (("fr", "it"), "no model needs --from or --to: en-de is en to de"),
        (("auto", "de"), "'auto' is not a language code, such as en or pt-BR"),
    ],
)
def test_languages_that_cannot_be_named(folders, languages, message):
    with pytest.raises(ValueError, match=message), running([folders[0]], languages=languages):
        pass


def test_the_command_warns_of_languages_that_are_not_named(unnamed):
    process, _ = start(unnamed)
    try:
        assert "the languages of plain are unknown, so LibreTranslate clients must ask for src and tgt" in (
            process.stderr.readline()
        )
    finally:
        process.kill()
        process.wait(20)
        process.stderr.close()
    process, url = start(unnamed, "--from", "en", "--to", "de")
    try:
        assert translate(url, q="a b", **ASKED).status_code == 200
        assert "does not know" not in process.stderr.readline()  # the access log
    finally:
        process.kill()
        process.wait(20)
        process.stderr.close()


def test_no_web_site_may_ask_unless_told(server, folders):
    header = {"Origin": "https://elsewhere.org"}
    assert "access-control-allow-origin" not in httpx.get(f"{server}/health", headers=header).headers
    with running([folders[1]], options=Options(origins=("https://elsewhere.org",))) as (url, _):
        answer = httpx.get(f"{url}/health", headers=header)
        assert answer.headers["access-control-allow-origin"] == "https://elsewhere.org"


# --- many at once


def test_answers_are_those_of_the_offline_model_whoever_else_asks(server, offline):
    texts = [f"{' '.join('abcdefghij'[i % (n + 3)] for i in range(n % 9 + 1))}" for n in range(64)]
    expected = [one.text for one in offline.translate(texts)]
    with httpx.Client(timeout=60, limits=httpx.Limits(max_connections=64)) as client:
        ask = lambda text: client.post(f"{server}/translate", json={"q": text, **ASKED}).json()["translatedText"]  # noqa: E731
        with ThreadPoolExecutor(32) as pool:
            assert list(pool.map(ask, texts)) == expected


def test_what_one_is_shown_is_never_anothers(server, offline):
    """Alignments and attention are noted while others use the same model."""
    texts = [" ".join("abcdefghij"[(n + i) % 10] for i in range(n % 7 + 1)) for n in range(40)]
    expected = offline.translate(texts, alignment=True)

    def ask(text):
        asked = httpx.post(f"{server}/api/translate", json={"text": text}, timeout=60).json()["translations"][0]
        seen = httpx.post(f"{server}/api/inspect", json={"text": text}, timeout=60).json()
        return asked["text"], asked["alignment"], len(seen["attention"]["cross"]["keys"])

    with ThreadPoolExecutor(8) as pool:
        for text, one, found in zip(texts, expected, pool.map(ask, texts), strict=True):
            keys = len(offline.source.encode([text])[0]) + 1
            assert found == (one.text, [list(link) for link in one.alignment], keys)


def test_a_full_queue_sends_away_and_says_when_to_come_back(folders):
    settings = EngineSettings(streams=1, queue=4, wait=1.0, batch_tokens=100_000)
    with running([folders[0]], settings=settings) as (url, _):
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(translate, url, q=["a"] * 3, **ASKED)
            time.sleep(0.3)
            answer = translate(url, q=["a"] * 3, **ASKED)
            assert first.result().status_code == 200
        assert answer.status_code == 429 and answer.headers["retry-after"] == "1"
        assert answer.json() == {"error": "Slowdown: too many requests are waiting"}
        assert translate(url, q=["a"] * 4, **ASKED).status_code == 200


def test_what_takes_too_long_is_given_up(folders):
    with running([folders[0]], options=Options(timeout=0.2), settings=EngineSettings(streams=1, wait=1.0)) as (
        url,
        context,
    ):
        answer = translate(url, q="a b c", **ASKED)
        assert answer.status_code == 503 and "took too long" in answer.json()["error"]
        time.sleep(1.2)
        assert context.models.translating[0].engine.waiting == 0


def test_a_client_that_goes_away_frees_its_place(folders):
    with running([folders[0]], settings=EngineSettings(streams=1, wait=1.0)) as (url, context):
        engine = context.models.translating[0].engine
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/translate", json={"q": ["a b c"] * 9, **ASKED}, timeout=0.1)
        deadline = time.monotonic() + 5
        while any(not job.gone for job in list(engine._queue)) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert all(job.gone for job in list(engine._queue))


def test_slow_clients_do_not_stop_others(server):
    slow = [connection(server) for _ in range(100)]
    try:
        for one in slow:
            one.sendall(b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        assert translate(server, q="a b", **ASKED).status_code == 200
    finally:
        for one in slow:
            one.close()


# --- keys, and models that change


def test_keys(folders):
    with running(list(folders), keys=("first", "secönd")) as (url, _):
        assert translate(url, q="a", **ASKED).json()["error"].startswith("an API key is required")
        assert translate(url, q="a", api_key="x", **ASKED).json() == {"error": "this API key is not valid"}
        assert translate(url, q="a", api_key="x", **ASKED).status_code == 403
        assert translate(url, q="a", api_key="secönd", **ASKED).status_code == 200
        bearer = {"Authorization": "Bearer first"}
        assert httpx.post(f"{url}/translate", json={"q": "a", **ASKED}, headers=bearer).status_code == 200
        assert httpx.get(f"{url}/v1/models").status_code == 403
        assert httpx.get(f"{url}/frontend/settings").json()["keyRequired"] is True


def test_a_model_is_changed_while_the_server_runs(folders, tmp_path):
    place = tmp_path / "mine"
    shutil.copytree(folders[0], place)
    head = {"Authorization": "Bearer k"}
    with running([place], keys=("k",)) as (url, _):
        before = translate(url, q="a b c", api_key="k", **ASKED).json()
        answer = httpx.post(f"{url}/api/models/reload", json={"model": "mine"}, headers=head, timeout=30)
        assert answer.json() == {"reloaded": "mine"}
        assert translate(url, q="a b c", api_key="k", **ASKED).json() == before
        shutil.rmtree(place)
        answer = httpx.post(f"{url}/api/models/reload", json={"model": "mine"}, headers=head, timeout=30)
        assert answer.status_code == 400 and answer.json()["error"].startswith("the old model is kept:")
        assert translate(url, q="a b c", api_key="k", **ASKED).json() == before
        answer = httpx.post(f"{url}/api/models/reload", json={"model": "other"}, headers=head)
        assert (answer.status_code, answer.json()) == (404, {"error": "there is no model 'other'"})


def test_without_keys_nobody_changes_models(server):
    answer = httpx.post(f"{server}/api/models/reload", json={"model": "en-de"})
    assert answer.status_code == 403 and "start the server with --api-keys" in answer.json()["error"]


# --- our own API


def test_a_translation_carries_all_there_is(server, offline):
    asked = {"text": ["a b c", "d"], "num_return_sequences": 3, "avoid": ["a"], "constraints": ["j"]}
    found = httpx.post(f"{server}/api/translate", json=asked, timeout=30).json()
    first = found["translations"][0]
    assert "j" in first["text"].split() and "a" not in first["text"].split()
    assert len(first["alternatives"]) == 2 and len(first["tokens"]) + 1 >= len(first["token_log_probs"]) - 1
    assert " ".join(word["text"] for word in first["words"]) == first["text"]
    assert all(0 < word["probability"] <= 1 for word in first["words"])
    assert first["source_words"] == ["a", "b", "c"]
    assert len(first["alignment"]) == len(first["text"].split())


def test_the_confidence_of_words_without_spaces_and_of_bytes():
    tokenizer = train_tokenizer(["小狗看见", "ball"] * 20, TokenizerConfig(), vocab=400)
    text = "小狗看見 ball"  # 見 is three bytes
    (tokens,) = tokenizer.encode([text])
    log_probs = [math.log(0.9)] * len(tokens)
    log_probs[[tokenizer.token(token) for token in tokens].index("<0xE8>")] = math.log(0.5)
    shown = confidence(tokenizer, text, tokens, log_probs)
    assert [word["text"] for word in shown] == ["小", "狗", "看", "見", "ball"]
    assert [round(word["probability"], 3) for word in shown] == [0.9, 0.9, 0.9, 0.5, 0.9]


def test_contradictions_are_refused(server):
    answer = httpx.post(f"{server}/api/translate", json={"text": "a", "avoid": ["b"], "constraints": ["a b"]})
    assert (answer.status_code, answer.json()["error"]) == (400, "the phrase 'a b' is required, but 'b' is banned")
    answer = httpx.post(f"{server}/api/translate", json={"text": "a", "model": "x"})
    assert (answer.status_code, answer.json()["error"]) == (404, "there is no translator 'x'")
    answer = httpx.post(f"{server}/api/translate", json={"text": "a", "beams": 3})
    assert answer.status_code == 400 and "beams: Extra inputs are not permitted" in answer.json()["error"]


def test_the_attention_shown_is_what_the_model_used(server, offline):
    found = httpx.post(f"{server}/api/inspect", json={"text": "a b c"}, timeout=30).json()
    tokens = [one["id"] for one in found["target"]]
    assert tokens == offline.translate(["a b c"])[0].tokens
    seen = look(offline, "a b c", tokens)
    for kind in ("encoder", "decoder", "cross"):
        weights, queries, keys = seen.of(kind)
        shown = found["attention"][kind]
        assert shown["queries"] == queries and shown["keys"] == keys
        assert torch.allclose(torch.tensor(shown["weights"]), weights, atol=6e-4)


def test_what_is_looked_into_obeys_the_glossary(server):
    asked = {"text": "a b c", "avoid": ["a"], "constraints": ["j"]}
    found = httpx.post(f"{server}/api/inspect", json=asked, timeout=30).json()
    words = found["translation"].split()
    assert "j" in words and "a" not in words and found["part"]["count"] == 1
    told = httpx.post(f"{server}/api/translate", json=asked, timeout=30).json()["translations"][0]
    assert told["text"] == found["translation"]
    answer = httpx.post(f"{server}/api/inspect", json={"text": "a", "avoid": ["b"], "constraints": ["a b"]})
    assert (answer.status_code, answer.json()["error"]) == (400, "the phrase 'a b' is required, but 'b' is banned")


@pytest.mark.parametrize("must", [{"constraints": ["j"]}, {"target_prefix": "j"}])
def test_sentences_that_are_translated_together_are_shown_together(server, must):
    text = "a b. Then c d."
    shown = httpx.post(f"{server}/api/inspect", json={"text": text, **must}, timeout=30).json()
    told = httpx.post(f"{server}/api/translate", json={"text": text, **must}, timeout=30).json()["translations"][0]
    assert shown["part"] == {"number": 1, "count": 1, "text": text} and shown["translation"] == told["text"]


def test_a_translator_brings_a_sentence_to_begin_with(server, folders, tmp_path):
    translator, writer = httpx.get(f"{server}/api/models").json()
    first = (folders[0] / "test.tsv").read_text().partition("\t")[0]
    assert translator["example"] == first and writer["example"] is None
    assert _example(tmp_path) is None
    (tmp_path / "test.tsv").write_bytes(b"\t\n" + b"x" * 1000 + b"\ty\n caf\xc3\xa9 \tz\n")
    assert _example(tmp_path) == "café"


def test_too_much_to_look_inside(server, offline):
    found = httpx.post(f"{server}/api/inspect", json={"text": "a b " * 300}, timeout=30).json()
    parts = offline.parts("a b " * 300)
    assert found["part"] == {"number": 1, "count": len(parts), "text": parts[0]}
    assert found["warnings"] == ["the text was translated in parts; only the first is inspected"]
    assert len(found["source"]) < 40


def test_no_request_that_the_schema_allows_breaks_the_server(folders):
    """Schemathesis makes them up. Some ask for more than can be done in the time, which is 503."""
    schemathesis = pytest.importorskip("schemathesis", reason="no schemathesis here")
    with running(list(folders), options=Options(timeout=5)) as (url, _):
        for operation in schemathesis.openapi.from_url(f"{url}/openapi.json").get_all_operations():

            @settings(
                max_examples=15,
                deadline=None,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.ok().as_strategy())
            def ask(case):
                answer = case.call(timeout=60)
                late = answer.status_code == 503 and "too long" in answer.text
                assert answer.status_code < 500 or late, (case.as_curl_command(), answer.text)

            ask()


def test_a_forced_word_is_taken_and_gone_on_from(server):
    found = httpx.post(f"{server}/api/inspect", json={"text": "a b c", "target_prefix": "j"}, timeout=30).json()
    assert found["translation"].startswith("j") and len(found["history"]) >= len(found["target"])


# --- OpenAI


@pytest.fixture
def client(server):
    return OpenAI(base_url=f"{server}/v1", api_key="none", max_retries=0)


def test_models_are_listed(client):
    assert [model.id for model in client.models.list()] == ["book"]
    assert client.models.retrieve("book").owned_by == "heedful"


def test_completions(client):
    asked = {"model": "book", "prompt": "the ", "max_tokens": 12, "seed": 3}
    found = client.completions.create(**asked, n=2, logprobs=3)
    assert [choice.index for choice in found.choices] == [0, 1] and found.usage.prompt_tokens == 4
    first = found.choices[0]
    assert len(first.logprobs.tokens) == 12 and len(first.logprobs.top_logprobs[0]) == 3
    assert "".join(first.logprobs.tokens) == first.text and first.finish_reason == "length"
    assert client.completions.create(**asked).choices[0].text == first.text
    assert client.completions.create(**asked, echo=True).choices[0].text == "the " + first.text
    cold = [client.completions.create(**{**asked, "seed": seed}, temperature=0).choices[0].text for seed in (1, 2)]
    assert cold[0] == cold[1]
    several = client.completions.create(**{**asked, "prompt": ["the ", "a "]})
    assert len(several.choices) == 2


def test_completions_are_streamed(client):
    asked = {"model": "book", "prompt": "the ", "max_tokens": 20, "seed": 5}
    whole = client.completions.create(**asked).choices[0]
    pieces = list(client.completions.create(**asked, stream=True))
    assert "".join(piece.choices[0].text for piece in pieces) == whole.text
    assert pieces[-1].choices[0].finish_reason == whole.finish_reason and len(pieces) > 5
    echoed = client.completions.create(**asked, stream=True, echo=True)
    assert "".join(piece.choices[0].text for piece in echoed) == "the " + whole.text


def test_completions_stop_at_strings(client):
    asked = {"model": "book", "prompt": "the ", "max_tokens": 30, "seed": 5}
    whole = client.completions.create(**asked).choices[0].text
    stop = whole[8:10]
    found = client.completions.create(**asked, stop=stop).choices[0]
    assert found.text == whole[: whole.index(stop)] and found.finish_reason == "stop"
    streamed = client.completions.create(**asked, stop=[stop], stream=True)
    assert "".join(piece.choices[0].text for piece in streamed) == found.text


def test_completions_that_are_wrong(server):
    answer = httpx.post(f"{server}/v1/completions", json={"model": "other", "prompt": "a"})
    assert answer.status_code == 404 and answer.json()["error"]["message"] == "there is no language model 'other'"
    answer = httpx.post(f"{server}/v1/completions", json={"model": "book", "prompt": "a", "max_tokens": 0})
    assert answer.status_code == 400 and answer.json()["error"]["type"] == "invalid_request_error"
    answer = httpx.post(f"{server}/v1/completions", json={"model": "book", "prompt": []})
    assert answer.json()["error"]["message"] == "prompt is an empty list; send at least one"


def test_what_a_language_model_would_write_next(server):
    found = httpx.post(f"{server}/api/next", json={"text": "the q", "top": 4}).json()
    assert len(found["next"]) == 4 and len(found["tokens"]) == 5
    assert torch.tensor(found["attention"]["weights"]).shape[2:] == (5, 5)


def test_those_who_wait_for_a_language_model_are_bounded_and_so_is_their_time(folders):
    asked = {"model": "book", "prompt": ["the "] * 200, "max_tokens": 500, "n": 16}
    with running(list(folders), options=Options(timeout=0.05)) as (url, context):
        assert httpx.post(f"{url}/v1/completions", json=asked, timeout=60).status_code == 503
        streamed = httpx.post(f"{url}/v1/completions", json={**asked, "stream": True}, timeout=60)
        assert "this took too long" in streamed.text and streamed.text.endswith("data: [DONE]\n\n")
        (model,) = context.models.writing
        model.engine.limit = 2
        for stream in (True, False):
            answer = httpx.post(f"{url}/v1/completions", json={**asked, "stream": stream}, timeout=60)
            assert answer.status_code == 400 and "200 lines exceed the limit of 2" in answer.text
        until = time.monotonic() + 10
        while model.engine.waiting and time.monotonic() < until:
            time.sleep(0.05)
        assert not model.engine.waiting, "who gave up still writes"
        model.engine.close()
        answer = httpx.post(f"{url}/v1/completions", json={**asked, "prompt": "the "}, timeout=60)
        assert answer.status_code == 503 and answer.headers["Retry-After"] == "1"


def test_completions_that_arrive_together_are_written_together(folders):
    """Each as it would be alone, and the model is called once a token for all of them."""
    asked = [{"model": "book", "prompt": prompt, "max_tokens": 8, "temperature": 0} for prompt in ("the q", "the", "f")]
    with running([folders[1]], settings=EngineSettings(streams=1, wait=0.5)) as (url, context):
        alone = [httpx.post(f"{url}/v1/completions", json=one, timeout=60).json()["choices"] for one in asked]
        (model,) = context.models.writing
        rows: list[int] = []
        plain = model.generator.model.decode

        def counted(tokens, **facts):
            rows.append(len(tokens))
            return plain(tokens, **facts)

        model.generator.model.decode = counted

        async def all_at_once():
            async with httpx.AsyncClient(timeout=60) as client:
                return await asyncio.gather(*(client.post(f"{url}/v1/completions", json=one) for one in asked))

        together = [answer.json()["choices"] for answer in asyncio.run(all_at_once())]
        assert together == alone and max(rows) == 3 and len(rows) <= 9


# --- the process


def start(folder, *options):
    command = [sys.executable, "-m", "heedful", "serve", str(folder), "--port", "0", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=os.environ)
    line = process.stderr.readline()
    assert "http://127.0.0.1:" in line, line + process.stderr.read()
    return process, line.split()[1]


def test_it_finishes_what_it_accepted_and_stops(folders):
    process, url = start(folders[0], "--wait", "0.8", "--no-access-log")
    try:

        async def ask_and_stop():
            async with httpx.AsyncClient(timeout=30) as client:
                asked = asyncio.create_task(client.post(f"{url}/translate", json={"q": "a b c", **ASKED}))
                await asyncio.sleep(0.3)
                process.send_signal(signal.SIGTERM)
                return await asked

        assert asyncio.run(ask_and_stop()).status_code == 200
        assert process.wait(20) in (0, -signal.SIGTERM)
    finally:
        process.kill()
        process.stderr.close()


def test_killed_in_the_middle_it_leaves_nobody_waiting(folders):
    process, url = start(folders[0], "--wait", "0.8", "--no-access-log")
    with connection(url) as client:
        client.sendall(b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: 38\r\n\r\n")
        client.sendall(b'{"q":"a b","source":"en","target":"de"')
        process.kill()
        process.wait(20)
        process.stderr.close()
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(100) == b""
    again, url = start(folders[0], "--port", url.rsplit(":", 1)[1], "--no-access-log")
    try:
        assert translate(url, q="a b", **ASKED).status_code == 200
    finally:
        again.kill()
        again.wait(20)
        again.stderr.close()
