"""The page in a real browser: Debian's chromium, driven by Playwright. Without them these tests are skipped."""

import json
import shlex
import shutil
import subprocess
import sys

import httpx
import pytest

from heedful.commands.main import main
from tests.serving.running import running, small_models

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no chromium here; .ci/run installs one")
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return small_models(tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright here")
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield found
        found.close()


@pytest.fixture(scope="module")
def url(folders):
    with running(list(folders)) as (address, _):
        yield address


@pytest.fixture
def page(browser, url):
    """A fresh page; what goes wrong in it, or is asked of another host, fails the test."""
    opened = browser.new_page(viewport={"width": 1200, "height": 900}, locale="en-US")
    problems = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("request", lambda asked: problems.append(asked.url) if not asked.url.startswith(("data:", url)) else None)
    opened.goto(url)
    yield opened
    opened.close()
    assert not problems


def type_and_wait(page, text):
    page.fill("#source", text)
    shown_for(page, text)


def shown_for(page, text):
    """Waits until the page shows the translation of this text, and what is inside."""
    page.wait_for_function("text => state.translation && $('source-words').innerText.trim() === text", arg=text)
    page.wait_for_selector("#inside[aria-busy=false]")


def test_typing_shows_a_translation_with_confidence_and_alternatives(page):
    type_and_wait(page, "a b c")
    assert page.locator("#target span").count() >= 1
    assert "probability" in page.locator("#target span").first.get_attribute("title")
    assert page.locator("#alternatives li").count() == 3
    page.locator("#target span").first.hover()
    assert page.locator("#source-words span.lit").count() == 1


def test_it_begins_with_an_example_on_the_head_that_aligns(page, folders):
    example = (folders[0] / "test.tsv").read_text().partition("\t")[0]
    shown_for(page, example)
    assert page.input_value("#source") == example
    aligner = json.loads((folders[0] / "alignment.json").read_text())
    assert page.locator("#tab-attention").get_attribute("aria-selected") == "true"
    chosen = [page.input_value(f"#{name}") for name in ("kind", "layer", "head")]
    assert chosen == ["cross", str(aligner["layer"]), str(aligner["head"])]
    other = 1 - aligner["head"]
    page.locator("#heads button").nth(other).click()
    type_and_wait(page, "a b c")
    assert page.input_value("#head") == str(other)  # from then on it is the reader's choice


def test_another_model_brings_its_example_but_does_not_replace_what_was_typed(browser, folders, tmp_path):
    shutil.copytree(folders[0], tmp_path / "second")
    (tmp_path / "second" / "test.tsv").write_text("j i h\tj i h\n")
    with running([folders[0], tmp_path / "second"]) as (address, _):
        opened = browser.new_page()
        opened.goto(address)
        opened.wait_for_selector("#target span")
        opened.select_option("#model", "second")
        shown_for(opened, "j i h")
        type_and_wait(opened, "a b")
        opened.select_option("#model", "en-de")
        shown_for(opened, "a b")
        opened.close()


def test_the_translation_is_copied(page):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    type_and_wait(page, "a b c")
    page.focus("#copy")
    page.keyboard.press("Enter")
    page.wait_for_selector("#status:has-text('Copied')")
    assert page.evaluate("navigator.clipboard.readText()") == page.evaluate("state.translation.text")


def test_without_a_clipboard_it_is_copied_all_the_same(page):
    """As over plain HTTP from another computer."""
    type_and_wait(page, "a b c")
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    page.evaluate("document.execCommand = () => { window.copied = document.activeElement.value; return true; }")
    page.click("#copy")
    page.wait_for_selector("#status:has-text('Copied')")
    assert page.evaluate("window.copied === state.translation.text")
    page.evaluate("document.execCommand = () => false")
    page.click("#share")
    page.wait_for_selector("#status:has-text('The link is in the address bar')")


def test_a_link_brings_back_what_was_on_the_page_and_is_not_sent(page, url):
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.fill("#beams", "2")
    page.click("#glossary summary")
    page.fill("#required", "j\n\n i ")
    page.fill("#avoid", "小 狗&=+#")
    type_and_wait(page, "a b + c & d#1")
    page.click("#share")
    page.wait_for_selector("#status:not(:empty)")
    link = page.url
    assert link.startswith(f"{url}/#text=")
    text = page.locator("#target").inner_text()
    page.goto("about:blank")
    page.goto(link)
    shown_for(page, "a b + c & d#1")
    assert page.locator("#target").inner_text() == text
    names = ("source", "beams", "required", "avoid")
    assert [page.input_value(f"#{name}") for name in names] == ["a b + c & d#1", "2", "j\ni", "小 狗&=+#"]
    assert page.locator("#required").is_visible()
    assert not [one for one in asked if "#" not in one and ("text=" in one or "%2B" in one)]
    type_and_wait(page, "e f")
    assert "text=e+f&" in page.url  # the address follows
    page.evaluate("location.hash = 'text=g+h&model=nowhere'")
    shown_for(page, "g h")
    assert page.locator("#problem").inner_text() == "The link asks for the model “nowhere”, which is not served here."
    page.evaluate("location.hash = 'text=the+qu&model=book&length=7'")
    page.wait_for_selector("#next li")
    assert page.input_value("#prompt") == "the qu" and page.input_value("#length") == "7"
    assert page.locator("#problem").is_hidden()


def test_beam_and_glossary_are_those_of_the_translation_and_of_what_is_inside(page):
    sent = []
    page.on("request", lambda request: sent.append(request) if request.method == "POST" else None)
    type_and_wait(page, "a b c")
    sent.clear()
    page.click("#glossary summary")
    page.fill("#avoid", "g\nh")
    page.fill("#beams", "1")
    page.fill("#required", "j")
    page.wait_for_function("() => state.data && state.data.translation.split(' ').includes('j')")
    assert page.evaluate("state.data.translation === state.translation.text")
    words = page.locator("#target").inner_text().split()
    assert "j" in words and not {"g", "h"} & set(words)
    for request in sent[-2:]:
        body = request.post_data_json
        assert (body["num_beams"], body["constraints"], body["avoid"]) == (1, ["j"], ["g", "h"])
    assert page.locator("#alternatives-label").is_hidden() and page.locator("#alternatives li").count() == 0
    page.fill("#avoid", "j")
    page.wait_for_selector("#problem:has-text('is required, but')")


OVERLAPS = """selector => {
  const all = [...document.querySelectorAll(selector)].map((one) => one.getBoundingClientRect());
  const boxes = all.filter((one) => one.width);
  const touch = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 4 && b.top < a.bottom - 4;
  return boxes.filter((a, i) => boxes.some((b, j) => i < j && touch(a, b))).length;
}"""


@pytest.mark.parametrize("long", ["Donaudampfschifffahrtsgesellschaft" * 3, "狗" * 40, "WWWWWWWWWWWW"])
def test_long_tokens_neither_overflow_nor_collide(page, long):
    type_and_wait(page, "a b c")
    page.click("#tab-steps")
    page.evaluate(
        """long => {
          state.data.history.forEach((step) => step.forEach((one) => { one.text = long; }));
          state.data.target.forEach((one) => { one.text = long; });
          state.data.attention.cross.queries.fill(long);
          showInside();
        }""",
        long,
    )
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.locator(".step").count() >= 2
    for selector in (".step", ".step button span", "#tree svg text"):
        assert page.evaluate(OVERLAPS, selector) == 0, selector
    inside = "[...document.querySelectorAll('.step')].every((one) => one.scrollWidth <= one.clientWidth)"
    assert page.evaluate(inside)
    assert page.locator(".step button").first.get_attribute("title") == long
    page.click("#tab-attention")
    left = "Math.min(...[...document.querySelectorAll('#lines text')].map((one) => one.getBBox().x))"
    assert page.evaluate(left) >= 0
    page.click("#tab-tokens")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_surer_word_differs_more_from_the_background(browser, url, scheme):
    """Which is what the page says, in both themes."""
    opened = browser.new_page(color_scheme=scheme, locale="en-US")
    opened.goto(url)
    opened.wait_for_selector("#target span")
    assert "The stronger the shading" in opened.locator("[data-say=shading]").inner_text()
    alphas = opened.evaluate(
        """() => {
          state.translation.words = [0.1, 0.5, 1].map((probability) => ({ text: "x", probability }));
          showTranslation();
          const words = [...document.querySelectorAll("#target span")];
          const colours = words.map((one) => getComputedStyle(one).backgroundColor);
          return colours.map((colour) => Number(colour.match(/[\\d.]+(?=\\))/)[0]));
        }"""
    )
    opened.close()
    assert alphas == sorted(alphas) and alphas[0] < alphas[2]


def test_every_text_of_the_page_is_in_both_languages(page):
    assert page.evaluate("Object.keys(WORDS.en).sort().join() === Object.keys(WORDS.zh).sort().join()")
    names = page.evaluate("[...document.querySelectorAll('[data-say]')].every((one) => WORDS.en[one.dataset.say])")
    assert names
    fields = "[...document.querySelectorAll('input, textarea, select')]"
    assert page.evaluate(f"{fields}.filter((one) => !one.labels.length).map((one) => one.id)") == []


# --- the description of the API


def test_the_description_of_the_api_needs_no_other_host(page, url):
    page.goto(f"{url}/docs")
    page.wait_for_selector("#post-translate")
    api = httpx.get(f"{url}/openapi.json").json()
    routes = sum(len(methods) for methods in api["paths"].values())
    assert page.locator(".route h3 code").count() == routes == page.locator("#contents a").count()
    rows = page.locator("#post-api-translate table").first.locator("tr").count()
    assert rows == 1 + len(api["components"]["schemas"]["Asked"]["properties"])
    for target in page.locator("#contents a").all():
        assert page.locator(target.get_attribute("href")).count() == 1
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.click("#language")
    assert page.locator("#post-translate h4").last.inner_text() == "示例"
    assert page.evaluate("Object.keys(WORDS.en).join() === Object.keys(WORDS.zh).join()")


@pytest.mark.skipif(not shutil.which("curl"), reason="no curl here")
def test_the_examples_in_it_work_as_they_are(page, url):
    page.goto(f"{url}/docs")
    page.wait_for_selector("#post-translate")
    for example in page.locator(".route pre").all():
        words = [*shlex.split(example.inner_text()), "--silent", "--write-out", "\n%{http_code}"]
        answer = subprocess.run(words, capture_output=True, text=True, timeout=30, check=True).stdout
        status = {"/api/models/reload": 403}  # without keys nobody changes models
        status |= dict.fromkeys(("/api/predict", "/v1/embeddings", "/v1/rerank"), 404)  # nothing here reads
        wanted = next((code for path, code in status.items() if words[words.index("--silent") - 1].endswith(path)), 200)
        assert answer.endswith(f"\n{wanted}"), (words, answer)


def test_a_head_is_opened_by_keyboard_alone(page):
    type_and_wait(page, "a b c d")
    page.focus("#tab-tokens")
    page.keyboard.press("ArrowRight")
    assert page.locator("#attention").is_visible()
    page.locator("#heads button").nth(1).focus()
    page.keyboard.press("Enter")
    assert page.locator("#heads button").nth(1).get_attribute("aria-pressed") == "true"
    assert page.locator("#map").get_attribute("aria-label").endswith("Layer 0, Head 1")
    page.select_option("#kind", "encoder")
    count = page.locator("#lines svg text").count()
    assert count >= 4 and count % 2 == 0  # the same tokens on both sides


def test_a_word_is_forced_and_the_model_goes_on(page):
    type_and_wait(page, "a b c")
    page.click("#tab-steps")
    other = page.locator(".step").first.locator("button").nth(1)
    word = other.locator("span").first.inner_text().replace("▁", "").strip()
    other.click()
    page.wait_for_selector("#free")
    assert page.locator("#target").inner_text().startswith(word)
    assert page.locator("#tree svg path").count() > 2
    page.click("#free")
    page.wait_for_selector("#free", state="detached")


def test_both_languages_both_themes_and_a_phone(page):
    page.click("#language")
    assert page.locator("label[for=source]").inner_text() == "要翻译的文本"
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    page.set_viewport_size({"width": 380, "height": 800})
    type_and_wait(page, "a b c")
    for tab in ("attention", "steps", "positions"):
        page.click(f"#tab-{tab}")
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_long_texts_and_mistakes_stay_usable(page):
    type_and_wait(page, "a b c")
    page.click("#tab-attention")
    assert page.locator("#map").is_visible() and not page.locator("#part").is_visible()
    page.fill("#source", "a b c d e f g h i j. " * 30)
    page.wait_for_selector("#part:has-text('parts. This is part 1: “a b c')")
    page.fill("#source", "x" * 20_001)
    page.wait_for_selector("#problem:has-text('characters exceed the limit')")
    page.fill("#source", "")
    page.wait_for_selector("#problem", state="hidden")
    assert page.locator("#target span").count() == 0


def test_text_is_shown_never_run(page):
    page.fill("#source", "<img src=x onerror=alert(1)> a")
    page.wait_for_selector("#source-words:has-text('onerror')")
    assert page.locator("main img").count() == 0


def test_a_language_model_goes_on_and_shows_what_comes_next(page):
    page.select_option("#model", "book")
    page.fill("#prompt", "the q")
    page.wait_for_selector("#next li")
    assert page.locator("#next li").count() == 10
    page.fill("#length", "15")
    page.click("#go-on")
    page.wait_for_selector("#go-on[disabled]", state="detached")
    page.wait_for_selector("#go-on:not([disabled])")
    assert len(page.locator("#continuation").inner_text()) > 10
    page.click("#tab-attention")
    assert page.locator("#heads button").count() == 2 * 4


def test_the_page_as_one_file_needs_no_server(browser, folders, tmp_path, monkeypatch, capsys):
    out = tmp_path / "new" / "page.html"
    monkeypatch.setattr(sys, "argv", ["heedful", "inspect", str(folders[0]), "a b </script> c", "--out", str(out)])
    with pytest.raises(SystemExit) as caught:
        main()
    assert not caught.value.code and capsys.readouterr().out.strip() == str(out)
    opened = browser.new_page()
    problems, asked = [], []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("request", lambda request: asked.append(request.url))
    opened.goto(out.as_uri())
    assert opened.locator("#heads button").count() >= 2 and opened.locator("#target span").count() >= 1
    assert opened.locator("#copy").is_visible()
    for name in ("share", "beams", "glossary"):  # which would need a server
        assert opened.locator(f"#{name}").is_hidden()
    opened.click("#tab-steps")
    assert opened.locator(".step").count() >= 1
    opened.close()
    assert not problems and [url for url in asked if not url.startswith("data:")] == [out.as_uri()]
    assert out.stat().st_size < 2_000_000
