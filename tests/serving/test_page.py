"""The page in a real browser: Debian's chromium, driven by Playwright. Without them these tests are skipped."""

import shutil
import sys

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
    page.wait_for_selector("#target span")
    page.wait_for_selector("#tokens .token", state="attached")


def test_typing_shows_a_translation_with_confidence_and_alternatives(page):
    type_and_wait(page, "a b c")
    assert page.locator("#target span").count() >= 1
    assert "probability" in page.locator("#target span").first.get_attribute("title")
    assert page.locator("#alternatives li").count() == 3
    page.locator("#target span").first.hover()
    assert page.locator("#source-words span.lit").count() == 1


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
    page.wait_for_selector("#problem:has-text('characters are more than')")
    page.fill("#source", "")
    page.wait_for_selector("#problem", state="hidden")
    assert page.locator("#target span").count() == 0


def test_text_is_shown_never_run(page):
    type_and_wait(page, "<img src=x onerror=alert(1)> a")
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
    opened.click("#tab-steps")
    assert opened.locator(".step").count() >= 1
    opened.close()
    assert not problems and [url for url in asked if not url.startswith("data:")] == [out.as_uri()]
    assert out.stat().st_size < 2_000_000
