"""A server with a model that reads context: the sentences of a request are one document."""

import httpx
import pytest

from heedful.data.inputs import Inputs
from heedful.mini.corpus import write
from heedful.training.recipe import read_recipe
from heedful.training.run import train
from heedful.translator import load
from tests.corpora import SMALL, pairs
from tests.serving.running import running

TEXTS = ["The boy sees a lamp.", "It is old.", "It is new."]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """One that reads a sentence before, and one that reads none."""
    folder = tmp_path_factory.mktemp("served")
    write(folder, "en-de", 40, documents=True)
    pairs(folder / "p.tsv", 40)
    for name, file, context in (("context", "train.tsv", 1), ("single", "p.tsv", 0)):
        changes = [*SMALL, "training.steps=2", "training.validate_every=2", "training.samples=0",
                   f"data.context={context}", "data.source_language=en", "data.target_language=de"]  # fmt: skip
        train(read_recipe("tiny", changes), Inputs((folder / file,)), folder / name, cache=folder / "cache")
    return [folder / "context", folder / "single"]


def test_sentences_of_a_request_and_those_before_it_are_one_document(folders):
    model = load(folders[0])
    whole = [one.text for one in model.translate_document(TEXTS)]
    with running(folders) as (url, _):

        def asked(**fields):
            return httpx.post(f"{url}/api/translate", json={"alignment": False, **fields}, timeout=60)

        def texts(answer):
            return [one["text"] for one in answer.json()["translations"]]

        assert texts(asked(text=TEXTS)) == whole
        before = [[TEXTS[1], whole[1]]]
        assert texts(asked(text=TEXTS[2:], context=before)) == whole[2:]
        assert texts(asked(text=TEXTS[2])) == [model.translate(TEXTS[2]).text]
        lines = {"q": "\n".join(TEXTS), "source": "en", "target": "de"}
        found = httpx.post(f"{url}/translate", json=lines, timeout=60).json()["translatedText"]
        assert found == "\n".join(whole)
        refused = asked(text=TEXTS[2], context=before, model="single")
        assert refused.status_code == 400 and "model single reads single sentences; leave out context" in refused.text
