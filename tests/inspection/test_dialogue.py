"""What is seen inside a model of dialogues is what it wrote its reply with."""

import json

import pytest
import torch

import heedful
from heedful.chatter import Chatter
from heedful.inspection.dialogue import look
from tests.commands.in_process import refused, run
from tests.tasks.test_dialogue import CODER, talks

SIZE = ["model.width=16", "model.decoder.layers=2", "model.decoder.attention.heads=2", "initialise=xavier",
        "training.steps=3", "training.validate_every=3", "tokenizer.kind=word", "training.samples=0"]  # fmt: skip
KINDS = {"language model": [], "encoder-decoder": [*CODER, "model.encoder.layers=2", "model.encoder.attention.heads=2"]}
TALK = "red 3\tapple\tagain"


@pytest.fixture(scope="module", params=KINDS)
def folder(request, tmp_path_factory):
    place = tmp_path_factory.mktemp("talk")
    changes = dict(change.split("=") for change in [*KINDS[request.param], *SIZE])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEEDFUL_CACHE", str(place / "cache"))
        heedful.train(talks(place / "t.jsonl"), out=place / "out", recipe="dialogue", changes=changes)
    return place / "out"


def test_weights_belong_to_the_tokens_of_prompt_and_reply(folder):
    chatter = heedful.load(folder, expect=Chatter)
    seen = look(chatter, TALK)
    assert seen.text == chatter.predict([TALK])[0]["text"]
    reads_both = "encoder" not in seen.attention.kinds()
    assert seen.attention.kinds() == (["decoder"] if reads_both else ["encoder", "decoder", "cross"])
    for kind in seen.attention.kinds():
        weights, queries, keys = seen.attention.of(kind)
        assert weights.shape == (2, 2, len(queries), len(keys))
        assert torch.allclose(weights.sum(-1), torch.ones(()), atol=1e-5)
        if kind == "decoder":
            assert not weights.triu(1).any()  # nobody sees the future
    read = seen.attention.of("decoder")[1] if reads_both else seen.attention.of("encoder")[1]
    assert "".join(read).replace("▁", " ").startswith("<s><|user|>red 3")


def test_the_page_and_the_picture(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    data = json.loads(run(monkeypatch, capsys, "inspect", folder, TALK, "--json"))
    inside = data["inspected"]
    assert len(inside["target"]) == len(inside["token_log_probs"]) and data["translation"]["text"] == inside[
        "translation"
    ]  # fmt: skip
    run(monkeypatch, capsys, "inspect", folder, TALK, "--out", "talk.html")
    assert "again" in (tmp_path / "talk.html").read_text(encoding="utf-8")
    run(monkeypatch, capsys, "plot", "attention", folder, TALK, "--out", "talk.png")
    run(monkeypatch, capsys, "plot", "attention", folder, "red 3", "--kind", "decoder", "--head", "1.0")
    assert (tmp_path / "talk.png").stat().st_size > 5000
    said = refused(monkeypatch, capsys, "plot", "attention", folder, "red 3", "--from", "en")
    assert "languages and parts are for translators; leave them out" in said
    assert "no alignment head" in refused(monkeypatch, capsys, "plot", "attention", folder, "a", "--head", "aligner")
    said = refused(monkeypatch, capsys, "inspect", folder, "red 3", "--label", "x")
    assert "languages, target_prefix and label are not for dialogues; leave them out" in said
    if len(inside["attention"]) == 1:
        said = refused(monkeypatch, capsys, "plot", "attention", folder, "red 3", "--kind", "cross")
        assert "this model's cross attention has no weights to show" in said


def test_other_models_have_no_such_picture(tmp_path, monkeypatch, capsys):
    from tests.security import fuzz

    fuzz.classifier(tmp_path / "it")
    said = refused(monkeypatch, capsys, "plot", "attention", tmp_path / "it", "fox")
    assert "holds a Classifier, not a Translator or Chatter" in said
