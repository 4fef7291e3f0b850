"""One server, one base, several adapters: a request names the one it wants as its model."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

import heedful
from heedful.serving.models import EngineSettings, Models
from tests.commands.in_process import refused
from tests.serving.running import running, small_models


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("adapters")
    translator, book = small_models(place)
    changes = {"training.steps": 30, "training.samples": 0, "training.learning_rate": 0.02, "adapter": {"kind": "lora"}}
    for seed, name in enumerate(("law", "medicine")):
        heedful.train(place / "p.tsv", out=place / name, start_from=translator, changes={**changes, "seed": seed})
    heedful.train(book.parent / "book.txt", out=place / "poet", recipe="char-gpt", start_from=book,
                  changes={**changes, "training.steps": 5, "task.context": 32})  # fmt: skip
    heedful.train(place / "p.tsv", out=place / "biases", start_from=translator,
                  changes={**changes, "training.steps": 3, "adapter": {"kind": "bias"}})  # fmt: skip
    return place


def test_each_request_is_answered_by_its_adapter(place):
    names = ["en-de", "law", "medicine"]
    alone = {name: heedful.load(place / name, streams=1) for name in names}
    texts = ["a b c", "d c", "b a", "c c a b", "a d d b", "d"]
    asked = [(text, name) for text in texts for name in names]
    with running([place / "en-de"], adapters={name: place / name for name in names[1:]}) as (url, context):
        assert list(context.models.all) == names

        def ask(one):
            text, name = one
            return httpx.post(f"{url}/api/translate", json={"text": text, "model": name}, timeout=30).json()

        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(ask, asked))
        seen = [
            httpx.post(f"{url}/api/inspect", json={"text": "a b", "model": name}, timeout=30).json()["attention"]
            for name in names
        ]
        assert seen[0] != seen[1] != seen[2]
        context.models.reload("law")
        assert list(context.models.all) == names and ask(("d c", "law")) == ask(("d c", "law"))
        wrong = httpx.post(f"{url}/api/translate", json={"text": "a", "model": "lav"}, timeout=30)
        assert wrong.status_code == 404 or wrong.status_code == 400
    for (text, name), one in zip(asked, found, strict=True):
        assert one["translations"][0]["text"] == alone[name].translate(text, num_beams=4).text, (text, name)


def test_a_language_models_adapter_is_a_model_of_openais_api(place):
    with running([place / "book"], adapters={"poet": place / "poet"}) as (url, _):
        listed = [one["id"] for one in httpx.get(f"{url}/v1/models").json()["data"]]
        assert listed == ["book", "poet"]
        for name in listed:
            asked = {"model": name, "prompt": "the quick", "max_tokens": 8, "temperature": 0}
            (found,) = httpx.post(f"{url}/v1/completions", json=asked, timeout=30).json()["choices"]
            (expected,) = heedful.load(place / name, streams=1).generate("the quick", max_new_tokens=8, num_beams=1,
                                                                         do_sample=False)  # fmt: skip
            assert found["text"] == expected.text


@pytest.mark.parametrize(
    ("folders", "adapters", "said"),
    [
        (["en-de", "book"], {"law": "law"}, "adapters share one base; name one model only"),
        (["en-de"], {"en-de": "law"}, "the adapter en-de has its base's name"),
        (["en-de"], {"poet": "poet"}, "is an adapter for"),
        (["en-de"], {"other": "book"}, "holds a whole model, not an adapter"),
        (["en-de"], {"biases": "biases"}, "adapter biases .bias. cannot share its base with others"),
    ],
)
def test_what_cannot_be_served_together(place, folders, adapters, said):
    with pytest.raises(ValueError, match=said):
        Models([place / name for name in folders], EngineSettings(streams=1), lambda name: None, ("", ""),
               {name: place / folder for name, folder in adapters.items()})  # fmt: skip


def test_two_of_a_name_are_refused(monkeypatch, capsys):
    said = refused(monkeypatch, capsys, "serve", "base", "--adapter", "x=law", "--adapter", "x=poet")
    assert "two adapters are called 'x'; name them: --adapter NAME=FOLDER" in said
