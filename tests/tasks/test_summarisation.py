"""Summarisation: lists in JSONL, long documents, several references, and that it learns."""

import json
import random

import pytest

import heedful
from heedful.data.corpus import read_rows
from heedful.data.prepare import prepare
from heedful.tasks import Settings
from heedful.tasks.summarisation import SummarisationConfig
from heedful.training.files import arranged
from heedful.training.recipe import read_recipe
from tests.shared_data import shared

pytest.importorskip("rouge_score")
COLUMNS = SummarisationConfig(kind="summarisation").columns


def test_a_list_of_sentences_is_one_text_and_a_list_of_summaries_several_rows(tmp_path):
    file = tmp_path / "t.jsonl"
    objects = [
        {"source": ["One. ", "Two."], "target": ["a", "b"]},
        {"document": "Three.", "summary": "c"},
        {"source": ["Four."], "target": []},
        {"source": "Five.", "target": [1]},
    ]
    file.write_text("".join(json.dumps(one) + "\n" for one in objects))
    found = list(read_rows([file], COLUMNS))
    assert [line.texts for line in found[:3]] == [("One. Two.", "a"), ("One. Two.", "b"), ("Three.", "c")]
    assert [(line.number, line.reason) for line in found[3:]] == [
        (3, "no source and target"),
        (4, "no source and target"),
    ]
    table = tmp_path / "t.tsv"
    table.write_text("document\tsummary\nOne. Two.\ta\n")
    assert [line.texts for line in list(read_rows([table], COLUMNS))[1:]] == [("One. Two.", "a")]


def test_long_documents_are_cut_and_counted_where_translation_skips_them(tmp_path):
    file = tmp_path / "t.tsv"
    file.write_text("".join(f"{'word ' * length}\tshort\n" for length in (3, 5, 19, 23)))
    changes = ["tokenizer.kind=word", "data.max_length=5"]
    recipe, inputs = arranged(read_recipe("summarise", changes), [file])
    data = prepare(inputs, recipe.data, recipe.tokenizer, cache=tmp_path / "cache", specials=recipe.task.specials)
    task = recipe.task.build(data, Settings(max_length=5))
    assert data.facts["rows"]["train"] == 4 and data.facts["cut"] == 2 and data.facts["too_long"] == 0
    assert task.notes == ["2 texts are longer than 5 tokens (data.max_length): only their beginning is read"]
    assert sorted(map(len, data.store("train").rows(0, range(4)))) == [3, 5, 5, 5]
    other, inputs = arranged(read_recipe("tiny", changes), [file])
    skipped = prepare(inputs, other.data, other.tokenizer, cache=tmp_path / "cache")
    assert skipped.facts["rows"]["train"] == 2 and skipped.facts["cut"] == 0 and skipped.facts["too_long"] == 2


@pytest.fixture(scope="module")
def summariser(tmp_path_factory):
    """Copies the second of seven words."""
    place, chance = tmp_path_factory.mktemp("summaries"), random.Random(2)
    lines = [" ".join(chance.choices("abcdefg", k=7)) for _ in range(400)]
    (place / "t.tsv").write_text("".join(f"{line}\t{line.split()[1]}\n" for line in lines))
    keys = {"training.steps": 150, "training.warmup": 15, "training.learning_rate": 0.005, "training.batch_tokens": 600,
            "training.validate_every": 150, "training.save_every": 150, "tokenizer.kind": "word", "model.width": 32,
            "model.encoder.layers": 1, "model.decoder.layers": 1, "data.max_length": 7,
            "model.encoder.dropout": 0.0, "model.decoder.dropout": 0.0}  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEEDFUL_CACHE", str(place / "cache"))
        yield heedful.train(place / "t.tsv", out=place / "out", recipe="summarise", changes=keys), place


def test_it_learns_and_reads_the_beginning_of_what_is_too_long(summariser):
    model, place = summariser
    short, long = model.translate(["a b c d e f g", "a b c d e f g a a a a"])
    assert short.text == long.text == "b" and short.tokens == long.tokens
    assert short.warnings == [] and long.warnings == ["too long for the model: cut to 7 of 11 tokens"]
    assert model.predict(["a b c d e f g a"])[0]["warnings"] == ["too long for the model: cut to 7 of 8 tokens"]
    again = heedful.load(place / "out", expect=heedful.Translator)
    assert again.translate("a b c d e f g a a a a") == long


def test_figures_show_the_first_sentences_beside_the_model(summariser, tmp_path):
    model, _ = summariser
    test = tmp_path / "test.jsonl"
    rows = [{"source": ["a b c d e f g"], "target": ["x", "b"]}, {"source": ["c d a b e f g", "a a"], "target": ["d"]}]
    test.write_text("".join(json.dumps(one) + "\n" for one in rows))
    figures = SummarisationConfig(kind="summarisation").figures(model, test, heedful.GenerationConfig(num_beams=1))
    assert figures["documents"] == 2 and figures["model"]["rouge1"] == pytest.approx(100)
    assert figures["lead-1"]["rouge1"] < figures["model"]["rouge1"] and "refs:1-2,best" in figures["signature"]
    assert figures["documents cut to fit the model"] == 1 and figures["summaries cut off by the length limit"] == 0
    cut = SummarisationConfig(kind="summarisation").figures(
        model, test, heedful.GenerationConfig(num_beams=1, max_new_tokens=1)
    )
    assert cut["summaries cut off by the length limit"] == 2


def test_scitldr_is_read_whole():
    lines = list(read_rows([shared("scitldr/dev.jsonl.gz")], COLUMNS))
    assert len(lines) == 94 + 2 * 236 + 3 * 267 + 4 * 21  # so many abstracts have one to four summaries
