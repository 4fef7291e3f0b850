"""/v1/chat/completions, for a model of dialogues and for a language model, and the conversation on the page."""

import json

import httpx
import pytest

import heedful
from heedful.text.chat import Chat
from tests.serving.running import running, small_models
from tests.serving.test_page import CHROMIUM, FLAGS
from tests.tasks.test_dialogue import talks

SIZE = {
    "model.width": 16, "model.decoder.layers": 1, "model.decoder.attention.heads": 2, "training.steps": 3,
    "training.warmup": 1, "training.batch_tokens": 400, "tokenizer.kind": "character", "data.max_length": 40,
}  # fmt: skip
CODER = {"model.preset": "vaswani-tiny", "model.encoder.layers": 1, "model.encoder.attention.heads": 2}
HELLO = [{"role": "user", "content": "red 1"}]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    place = tmp_path_factory.mktemp("chat")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEEDFUL_CACHE", str(place / "cache"))
        file = talks(place / "t.jsonl")
        for name, more in (("talk", {}), ("coder", CODER)):
            heedful.train(file, out=place / name, recipe="dialogue", changes={**more, **SIZE})
        heedful.train(file, out=place / "told", recipe="instruct", changes=SIZE)
        yield [place / "talk", place / "coder", place / "told", *small_models(place)]


@pytest.fixture(scope="module")
def url(folders):
    with running(folders) as (address, _):
        yield address


def ask(url, **body):
    return httpx.post(f"{url}/v1/chat/completions", json={"model": "talk", "temperature": 0, "max_tokens": 7, **body})


def events(answer):
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("name", ["talk", "coder", "told"])
def test_the_reply_is_that_of_the_terminal_and_streams_in_pieces(url, folders, name):
    chatter = heedful.load(next(folder for folder in folders if folder.name == name))
    greedy = heedful.GenerationConfig(do_sample=True, top_k=1, max_new_tokens=7)
    wanted = chatter.reply(HELLO, greedy)
    answer = ask(url, model=name, messages=HELLO).json()
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": wanted.text}
    assert choice["finish_reason"] == wanted.stopped and answer["object"] == "chat.completion"
    count = answer["usage"]["completion_tokens"]
    assert answer["usage"] == {"prompt_tokens": wanted.prompt_tokens, "completion_tokens": count,
                               "total_tokens": wanted.prompt_tokens + count} and 0 < count <= 7  # fmt: skip
    found = events(ask(url, model=name, messages=HELLO, stream=True, stream_options={"include_usage": True}))
    assert found[0]["choices"][0]["delta"]["role"] == "assistant" and found[-1]["usage"] == answer["usage"]
    text = "".join(one["choices"][0]["delta"].get("content", "") for one in found[:-1])
    assert text.strip() == wanted.text and found[-2]["choices"][0]["finish_reason"] == wanted.stopped


def test_several_replies_stops_and_parts_of_a_message(url):
    parts = [{"role": "user", "content": [{"type": "text", "text": "red"}, {"type": "text", "text": " 1"}]}]
    assert ask(url, messages=parts).json()["choices"] == ask(url, messages=HELLO).json()["choices"]
    several = ask(url, messages=HELLO, n=3, temperature=1, seed=5, max_completion_tokens=5).json()
    assert [choice["index"] for choice in several["choices"]] == [0, 1, 2]
    whole = ask(url, messages=HELLO).json()["choices"][0]["message"]["content"]
    if len(whole) > 1:
        stopped = ask(url, messages=HELLO, stop=whole[1]).json()["choices"][0]
        assert stopped["message"]["content"] == whole[: whole.index(whole[1])].strip()


def test_the_oldest_messages_are_dropped_and_it_is_said(url, folders):
    long = [{"role": ("user", "assistant")[place % 2], "content": f"message {place}"} for place in range(9)]
    answer = ask(url, messages=long).json()
    chat = Chat(heedful.load(folders[0]).tokenizer)
    prompt = chat.prompt(long, limit=40)
    assert answer["dropped_messages"] == prompt.dropped > 0
    assert answer["usage"]["prompt_tokens"] == len(prompt.tokens) <= 40
    assert "dropped_messages" not in ask(url, messages=HELLO).json()


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "bot", "content": "a"}]}, 400, "'system', 'user' or 'assistant'"),
        ({"messages": [{"role": "user", "content": "a" * 60}]}, 400, "but the model reads 40 at once; shorten it"),
        ({"messages": HELLO, "model": "nobody"}, 404, "there is no language model 'nobody'"),
        ({"messages": HELLO, "stop": ""}, 400, "stop"),
    ],
)
def test_errors_say_what_to_do(url, body, status, said):
    answer = ask(url, **body)
    assert answer.status_code == status and said in answer.json()["error"]["message"]


def test_language_models_without_a_template_chat_too(url):
    models = {one["name"]: one for one in httpx.get(f"{url}/api/models").json()}
    (name,) = (one["name"] for one in models.values() if one["kind"] == "language model" and not one["chats"])
    assert models["talk"]["chats"] and models["coder"]["chats"]
    assert ask(url, model=name, messages=HELLO).json()["choices"][0]["message"]["role"] == "assistant"


@pytest.mark.skipif(not CHROMIUM, reason="no chromium here; .ci/run installs one")
def test_a_conversation_on_the_page(url):
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright here")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page, problems = browser.new_page(locale="en-US"), []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(url)
        page.wait_for_selector("#message", state="visible")
        assert page.locator("#write").is_hidden() and page.locator("#inside").is_hidden()
        for count, text in ((2, "red <b>1</b>"), (4, "again")):
            page.fill("#message", text)
            page.press("#message", "Enter")
            page.wait_for_function("count => talk.messages.length === count && !$('send').disabled", arg=count)
        assert page.locator("#talk .user .said").all_inner_texts() == ["red <b>1</b>", "again"]
        assert page.evaluate("talk.messages.map((one) => one.role)") == ["user", "assistant"] * 2
        page.click("#new-talk")
        assert page.locator("#talk li").count() == 0 and page.locator("#talk-empty").is_visible()
        page.fill("#message", "a" * 90)
        page.click("#send")
        page.wait_for_selector("#problem:not([hidden])")
        assert "shorten it" in page.inner_text("#problem") and page.input_value("#message") == "a" * 90
        browser.close()
        assert not problems
