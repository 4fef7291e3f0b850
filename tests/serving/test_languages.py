"""A model of several languages on the server, and on the page in a real browser where there is one."""

import json
import urllib.error
import urllib.request

import pytest

import heedful
from heedful.training.files import arranged
from heedful.training.recipe import read_recipe
from heedful.training.run import train
from tests.corpora import SMALL, pairs
from tests.serving.running import running
from tests.serving.test_page import CHROMIUM, FLAGS


def many(place, steps):
    """A model of three languages."""
    pairs(place / "de.tsv", 211, change=str.upper)
    pairs(place / "fr.tsv", 211, seed=1)
    (place / "many.yaml").write_text(
        "model: {preset: vaswani-tiny}\n"
        "data: [{file: de.tsv, source: en, target: de, both: true},"
        " {file: fr.tsv, source: en, target: fr, both: true}]\n"
    )
    changes = [
        *SMALL,
        f"training.steps={steps}",
        "training.learning_rate=0.02",
        f"training.validate_every={steps}",
        "training.samples=0",
    ]
    recipe = read_recipe(str(place / "many.yaml"), changes)
    train(*arranged(recipe, []), place / "many", cache=place / "cache")
    return place / "many"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return many(tmp_path_factory.mktemp("languages"), steps=150)


@pytest.fixture(scope="module")
def url(folder):
    with running([folder]) as (address, _):
        yield address


def ask(url, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(f"{url}/{path}", data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return json.load(error)


def test_every_direction_is_listed_with_those_that_were_not_trained_apart(url):
    assert ask(url, "languages") == [
        {"code": "de", "name": "German", "targets": ["en"], "zero_shot": ["fr"]},
        {"code": "en", "name": "English", "targets": ["de", "fr"]},
        {"code": "fr", "name": "French", "targets": ["en"], "zero_shot": ["de"]},
    ]
    (model,) = ask(url, "api/models")
    assert model["directions"] == [["en", "de"], ["de", "en"], ["en", "fr"], ["fr", "en"]]
    assert model["untrained"] == [["de", "fr"], ["fr", "de"]]


@pytest.mark.parametrize("pair", [("en", "de"), ("en", "fr"), ("fr", "en"), ("de", "fr")])
def test_a_request_goes_in_the_direction_it_names(url, folder, pair):
    source, target = pair
    translator = heedful.load(folder, streams=1)
    wanted = translator.translate("a b c", source=source, target=target, num_beams=4).text
    assert ask(url, "translate", {"q": "a b c", "source": source, "target": target})["translatedText"] == wanted
    found = ask(url, "api/translate", {"text": "a b c", "source": source, "target": target})["translations"][0]
    assert found["text"] == wanted
    assert found["warnings"] == (["de-fr was not trained"] if source == "de" else [])
    seen = ask(url, "api/inspect", {"text": "a b c", "source": source, "target": target})
    assert seen["source"][0]["text"] == f"<2{target}>" and seen["translation"] == wanted


def test_the_directions_give_different_texts(url):
    found = {pair: ask(url, "translate", {"q": "a b c", "source": pair[0], "target": pair[1]})["translatedText"]
             for pair in (("en", "de"), ("en", "fr"))}  # fmt: skip
    assert len(set(found.values())) == 2 and all(found.values()), found


def test_languages_it_does_not_know_are_refused(url):
    assert ask(url, "translate", {"q": "a", "source": "en", "target": "es"})["error"] == "es is not supported"
    assert "name the source and target language" in ask(url, "api/translate", {"text": "a"})["error"]
    assert "does not know the language 'es'" in ask(url, "api/inspect", {"text": "a", "target": "es"})["error"]


@pytest.mark.skipif(not CHROMIUM, reason="no chromium here; .ci/run installs one")
def test_the_page_offers_source_and_target(url, folder, tmp_path):
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright here")
    translator = heedful.load(folder, streams=1)
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1200, "height": 900}, locale="en-US")
        page.goto(url)
        page.fill("#source", "a b c")
        page.select_option("#from", "de")
        assert page.locator("#to option").all_inner_texts() == ["en", "fr (not trained)"]
        with page.expect_response("**/api/inspect"):
            page.select_option("#to", "fr")
        wanted = translator.translate("a b c", source="de", target="fr", num_beams=4).text
        page.wait_for_function("wanted => document.getElementById('target').innerText.replace(/\\s+/g, '') === wanted",
                               arg="".join(wanted.split()))  # fmt: skip
        assert page.locator("#problem").inner_text() == "de-fr was not trained"
        page.wait_for_selector("#inside[aria-busy=false]")
        page.screenshot(path=str(tmp_path / "page.png"))
        page.click("#share")
        assert "source=de" in page.url and "target=fr" in page.url
        page.goto("about:blank")
        page.goto(f"{url}/#text=a&model=many&source=fr&target=en")
        assert (page.input_value("#from"), page.input_value("#to")) == ("fr", "en")
        browser.close()
