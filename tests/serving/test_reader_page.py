"""The page of models that read, in a real browser, as in test_page.py. Without one these tests are skipped."""

import shlex
import shutil
import subprocess

import pytest

import heedful
from tests.serving.readers import classifier, of_pairs, regressor, stand_in, stand_ins
from tests.serving.running import running, small_models
from tests.serving.test_page import CHROMIUM, FLAGS

pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no chromium here; .ci/run installs one")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reader-page")
    with pytest.MonkeyPatch.context() as patch, stand_ins():
        patch.setenv("HEEDFUL_CACHE", str(folder / "cache"))
        found = [classifier(folder), of_pairs(folder, "pairs"), regressor(folder), *small_models(folder)]
        yield [*found, *(stand_in(folder, gives) for gives in ("vectors", "tags", "answer", "masks", "labels"))]


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright here")
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield found
        found.close()


@pytest.fixture(scope="module")
def url(folders):
    with running(folders) as (address, _):
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


def read(page, model, first, second=None):
    """Choose a model, give it a text or two, and wait for what it says."""
    page.select_option("#model", model)
    page.fill("#first-text", first)
    if second is not None:
        page.fill("#second-text", second)
    line = first if second is None else f"{first}\t{second}"
    page.wait_for_function("line => state.prediction && state.prediction.line === line", arg=line)
    page.wait_for_selector("#inside[aria-busy=false]", state="attached")


def test_labels_are_bars_and_the_chosen_one_stands_out(page):
    read(page, "mood", "this film was great")
    assert page.locator("#prediction .meters li").count() == 2
    assert page.locator("#prediction li[aria-current] .name").inner_text() == "pos"
    widths = [float(one.get_attribute("style").split()[1].rstrip("%;")) for one in page.locator(".meter i").all()]
    assert widths[0] > 90 > 10 > widths[1] and sum(widths) == pytest.approx(100, abs=0.2)
    assert page.locator("#translate").is_hidden() and page.locator("#write").is_hidden()
    assert page.locator("#second-text").is_hidden()
    read(page, "labels", "hey! you there")
    assert page.locator("#prediction li[aria-current]").count() == 2
    assert page.locator("#inside").is_hidden()


def test_the_word_that_decided_stands_out_in_both_views(page):
    read(page, "mood", "this film was awful")
    assert page.locator("#tab-decisive").get_attribute("aria-selected") == "true"
    for view in ("gradient", "occlusion"):
        page.select_option("#view", view)
        assert page.locator("#decisive-table tr").nth(1).locator("td").first.inner_text() == "awful"
        colours = page.locator("#decisive-words span").evaluate_all("all => all.map((one) => one.style.background)")
        assert max(colours, key=lambda colour: float(colour.split(",")[-1].rstrip(") "))) == colours[3]
    page.click("#tab-attention")
    assert page.locator("#heads button").count() == 2 and page.locator("#kind").input_value() == "encoder"
    assert page.locator("#kind option").inner_text() == "text to text"
    page.click("#tab-tokens")
    assert page.locator("#tokens .token").first.inner_text().startswith("<cls>")
    page.click("#tab-positions")
    assert page.locator("#waves").is_visible()


def test_a_pair_has_two_boxes_with_an_example(page):
    page.select_option("#model", "pairs")
    page.wait_for_selector("#prediction .meters")
    assert page.input_value("#first-text") and page.input_value("#second-text")
    read(page, "pairs", "a great day", "an awful day")
    assert page.locator("#prediction .meters li").count() == 2
    assert page.locator("#decisive-words .words").count() == 2
    page.fill("#second-text", " ")
    page.wait_for_selector("#prediction:empty", state="attached")
    assert page.locator("#problem").is_hidden()


def test_a_number_is_shown_as_one(page):
    read(page, "rating", "this film was great")
    assert float(page.locator("#prediction .number").inner_text()) == pytest.approx(5, abs=1)
    assert "score" in page.locator("#decisive-hint").inner_text()


def test_tags_are_coloured_words_with_a_legend(page):
    read(page, "tags", "Ann met Bob in 1999 again")
    colours = page.locator(".tagged span").evaluate_all("all => all.map((one) => one.style.background)")
    assert colours[0] == colours[2] != colours[4] and colours[1] == colours[3] == colours[5] == ""
    assert page.locator(".tags li").all_inner_texts() == ["PER", "DATE"]
    assert page.locator(".tags li").first.evaluate("one => one.style.background") == colours[0]


def test_an_answer_is_marked_in_its_context_whatever_the_letters(page):
    read(page, "answer", "who?", "👩‍🚀 it was 𝔑apoleon 😀 again")
    assert page.locator("#prediction mark").inner_text() == "𝔑apoleon"
    assert page.locator(".context").inner_text() == "👩‍🚀 it was 𝔑apoleon 😀 again"
    assert page.locator("label#first-label").inner_text() == "Question"
    page.fill("#second-text", "nothing")
    page.wait_for_selector("#problem:has-text('the context holds no answer')")
    assert page.locator("#prediction").inner_text() == ""


def test_masked_words_are_lists_and_text_is_never_run(page):
    read(page, "masks", "a <mask> and a <mask> <img src=x onerror=alert(1)>")
    assert page.locator("#prediction .meters").count() == 2
    assert page.locator("#prediction .name").nth(1).inner_text() == "<b>dog</b>"
    assert page.locator("main img").count() == 0 and page.locator("#prediction b").count() == 0
    read(page, "vectors", "abc")
    assert "26 numbers, of length 1.000" in page.locator("#prediction").inner_text()


def test_from_a_reader_to_a_translator_and_back(page):
    read(page, "mood", "a great film")
    page.select_option("#model", "en-de")
    page.fill("#source", "a b c")
    page.wait_for_function("() => state.translation && state.data && $('source-words').innerText.trim() === 'a b c'")
    assert page.locator("#read").is_hidden() and page.locator("#tab-decisive").count() == 0
    assert page.locator("#tab-attention").get_attribute("aria-selected") == "true"
    page.select_option("#model", "book")
    page.wait_for_selector("#next li")
    page.select_option("#model", "mood")
    page.wait_for_selector("#decisive-table td")
    assert page.input_value("#first-text") == "a great film"


def test_a_link_brings_both_texts_back(page, url):
    read(page, "pairs", "a great day", "an awful day")
    page.click("#share")
    page.wait_for_selector("#status:not(:empty)")
    link = page.url
    page.goto("about:blank")
    page.goto(link)
    page.wait_for_selector("#prediction .meters")
    assert page.input_value("#first-text") == "a great day" and page.input_value("#second-text") == "an awful day"


def test_both_languages_and_a_phone(page):
    read(page, "answer", "who?", "it was Napoleon")
    page.click("#language")
    assert page.locator("#first-label").inner_text() == "问题"
    page.set_viewport_size({"width": 380, "height": 800})
    for name, first, second in (
        ("answer", "who?", "W" * 200),
        ("tags", "W" * 200, None),
        ("mood", "great " * 30, None),
    ):
        read(page, name, first.strip(), second)
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), name
    assert page.evaluate("Object.keys(WORDS.en).sort().join() === Object.keys(WORDS.zh).sort().join()")


def test_the_page_as_one_file_needs_no_server(browser, folders, tmp_path):
    heedful.inspect(folders[1], "a great </script> day\tan awful day", out=tmp_path / "page.html")
    opened = browser.new_page(locale="en-US")
    problems, asked = [], []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("request", lambda request: asked.append(request.url))
    opened.goto((tmp_path / "page.html").as_uri())
    assert opened.locator("#prediction .meters li").count() == 2
    assert opened.locator("#decisive-words .words").count() == 2
    assert opened.input_value("#first-text") == "a great </script> day"
    opened.select_option("#view", "occlusion")
    opened.click("#tab-attention")
    assert opened.locator("#heads button").count() == 2
    opened.close()
    assert not problems and [one for one in asked if not one.startswith("data:")] == [(tmp_path / "page.html").as_uri()]


@pytest.mark.skipif(not shutil.which("curl"), reason="no curl here")
def test_the_examples_in_the_description_of_the_api_work(page, url):
    page.goto(f"{url}/docs")
    page.wait_for_selector("#post-api-predict")
    for example in page.locator(".route pre").all():
        words = [*shlex.split(example.inner_text()), "--silent", "--write-out", "\n%{http_code}"]
        answer = subprocess.run(words, capture_output=True, text=True, timeout=30, check=True).stdout
        refused = "/api/models/reload" in " ".join(words)
        assert answer.endswith("\n403" if refused else "\n200"), (words, answer)
