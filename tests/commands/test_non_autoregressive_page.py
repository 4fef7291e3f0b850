"""The commands of docs/non-autoregressive.md run, in their order, on small files with the names that the page uses;
trainings are cut short, and their models are small. Then the models are served."""

import json
import re
import shlex
from pathlib import Path

import httpx
import pytest

from tests.corpora import pairs
from tests.serving.running import running
from tests.serving.test_page import CHROMIUM, FLAGS

PAGE = Path(__file__).parents[2] / "docs" / "non-autoregressive.md"
SHORT = (
    " model.width=32 model.encoder.layers=1 model.decoder.layers=1 model.encoder.attention.heads=2"
    " model.decoder.attention.heads=2 tokenizer.kind=character training.steps=3 training.validate_every=3"
    " training.save_every=3 training.batch_tokens=256 training.warmup=2 training.samples=0"
)


def commands() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """After the page's commands; what each printed is in printed.json."""
    from typer.testing import CliRunner

    from heedful.commands.main import app

    folder, printed, runner = tmp_path_factory.mktemp("page"), {}, CliRunner()
    for number, name in enumerate(("pairs", "valid", "test")):
        pairs(folder / f"{name}.tsv", 80 if name == "pairs" else 8, seed=number)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("HEEDFUL_CACHE", str(folder / "cache"))
        for line in commands():
            *given, last = line.split(" | ")
            if last.startswith("cut"):
                sources = [one.partition("\t")[0] for one in Path("pairs.tsv").read_text().splitlines()]
                Path("sources.txt").write_text("".join(one + "\n" for one in sources))
            elif last.startswith("paste"):
                both = zip(
                    *(Path(name).read_text().splitlines() for name in ("sources.txt", "written.txt")), strict=True
                )
                Path("distilled.tsv").write_text("".join(f"{one}\t{other or 'a'}\n" for one, other in both))
            else:
                words = shlex.split(last + (SHORT if " train " in last else ""))[1:]
                done = runner.invoke(app, words, input=given[0].removeprefix("echo ").strip('"') if given else None)
                assert done.exit_code == 0, (line, done.output[-800:], done.exception)
                printed[line] = done.output
    (folder / "printed.json").write_text(json.dumps(printed))
    return folder


def test_the_commands_of_the_page_run(place):
    printed = json.loads((place / "printed.json").read_text())
    assert (place / "who.png").exists() and "fertilities" in (place / "morning.html").read_text(encoding="utf-8")
    (table,) = (text for line, text in printed.items() if "--markdown" in line)
    assert "| runs/parallel |" in table and " - |" in table  # no perplexity
    (parts,) = (text for line, text in printed.items() if line.startswith("heedful doctor"))
    assert "decoder.positional" in parts


def test_they_are_served_and_what_they_cannot_do_is_refused(place):
    with running([place / "runs" / "parallel", place / "runs" / "masks"]) as (url, _):
        names = [(one["name"], one["stepwise"]) for one in httpx.get(f"{url}/api/models").json()]
        assert names == [("parallel", False), ("masks", False)]
        asked = {"q": ["a b c", "d"], "source": "src", "target": "tgt", "alternatives": 1}
        found = httpx.post(f"{url}/translate", json=asked)
        assert found.status_code == 200 and len(found.json()["translatedText"]) == 2
        for name in ("parallel", "masks"):
            one = httpx.post(f"{url}/api/translate", json={"text": "a b c", "model": name}).json()["translations"][0]
            assert (one["fertilities"] is None) == (name == "masks")
            seen = httpx.post(f"{url}/api/inspect", json={"text": "a b c", "model": name}).json()
            assert len(seen["attention"]["decoder"]["queries"]) == len(seen["target"]) and seen["history"] == []
        refused = httpx.post(f"{url}/api/translate", json={"text": "a", "avoid": ["b"]})
        assert refused.status_code == 400 and "no required or banned phrases" in refused.json()["error"]
        refused = httpx.post(f"{url}/api/translate", json={"text": "a", "num_beams": 6})
        assert refused.status_code == 400 and "has no beam" in refused.json()["error"]


@pytest.mark.skipif(not CHROMIUM, reason="no chromium here; .ci/run installs one")
def test_the_page_shows_a_number_under_each_word_and_no_beams(place):
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright here")
    with (
        playwright.sync_playwright() as driver,
        running([place / "runs" / "parallel", place / "runs" / "teacher"]) as (
            url,
            _,
        ),
    ):
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page, problems = browser.new_page(locale="en-US"), []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(url)
        page.fill("#source", "a b c d e f g")  # longer than the example that is shown first
        page.wait_for_function("() => document.querySelectorAll('#source-words small').length === 8")  # with </s>
        page.wait_for_selector("#inside[aria-busy=false]")
        counts = page.locator("#source-words small").all_inner_texts()
        asked = httpx.post(f"{url}/api/translate", json={"text": "a b c d e f g"})
        assert list(map(int, counts)) == asked.json()["translations"][0]["fertilities"]
        assert page.locator("#beam-field").is_hidden() and page.locator("#tab-steps").count() == 0
        page.select_option("#model", "teacher")
        page.wait_for_selector("#tab-steps")
        assert page.locator("#beam-field").is_visible()
        browser.close()
        assert not problems
