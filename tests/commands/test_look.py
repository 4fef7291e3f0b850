"""`heedful plot`, `recipes`, `recipe show`, `doctor` and `corpus`, run in this process."""

import json
import sys

import pytest
import torch
import yaml

from heedful.commands.main import main
from heedful.data.inputs import Inputs
from heedful.inspection.attention import Attention, look, translated_parts
from heedful.inspection.visibility import pictures
from heedful.training.recipe import read_recipe, recipes
from heedful.training.run import train
from heedful.translator import load
from tests.commands.in_process import refused, run
from tests.corpora import SMALL, pairs

PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("look")
    corpus = pairs(place / "p.tsv", 200, change=lambda text: text)
    train(read_recipe("tiny", [*SMALL, "training.steps=10"]), Inputs((corpus,)), place / "run", cache=place / "cache")
    return place / "run"


def test_recipes_are_listed_and_shown_in_full(monkeypatch, capsys):
    listed = json.loads(run(monkeypatch, capsys, "recipes", "--json"))
    assert set(listed) == set(recipes()) and listed["tiny"]["layers"] == "4+4"
    assert "Translation on a laptop" in run(monkeypatch, capsys, "recipes")
    shown = yaml.safe_load(run(monkeypatch, capsys, "recipe", "show", "tiny", "training.steps=7"))
    assert shown["training"]["steps"] == 7 and shown["model"]["encoder"]["layers"] == 4
    assert json.loads(run(monkeypatch, capsys, "recipe", "show", "tiny", "training.steps=7", "--json")) == shown


def test_a_shown_recipe_can_be_used_as_one(monkeypatch, capsys, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(run(monkeypatch, capsys, "recipe", "show", "small"))
    assert read_recipe(str(file)) == read_recipe("small")


def test_an_unknown_recipe(monkeypatch, capsys):
    assert "unknown recipe 'tinny'; did you mean 'tiny'?" in refused(monkeypatch, capsys, "recipe", "show", "tinny")


def test_the_doctor_says_what_there_is(monkeypatch, capsys):
    found = json.loads(run(monkeypatch, capsys, "doctor", "--json"))
    assert found["torch"] and found["cores"] and found["trains on"].startswith(("cpu", "cuda"))
    assert "memory free:" in run(monkeypatch, capsys, "doctor")


def test_the_doctor_says_what_runs_each_part_of_a_model(monkeypatch, capsys, folder):
    found = json.loads(run(monkeypatch, capsys, "doctor", folder, "--json"))
    (cross,) = (row for row in found["parts"] if row["part"] == "decoder.cross")
    lines = run(monkeypatch, capsys, "doctor", folder).splitlines()
    assert lines[0].startswith("model:") and lines[1].startswith("kernels:")
    assert [" ".join(cross.values())] == [" ".join(line.split()) for line in lines if line.startswith("decoder.cross")]
    assert "there is no config.yaml in it" in refused(monkeypatch, capsys, "doctor", folder / "nowhere")


def test_a_corpus_is_written(monkeypatch, capsys, tmp_path):
    asked = ["corpus", "mini", "--pair", "en-zh", "--lines", 40, "--out", tmp_path / "c"]
    assert json.loads(run(monkeypatch, capsys, *asked, "--json"))["train"] == 40
    assert "train.tsv 40" in run(monkeypatch, capsys, *asked)
    assert len((tmp_path / "c" / "train.tsv").read_text().splitlines()) == 40
    said = refused(monkeypatch, capsys, "corpus", "mini", "--pair", "en-xx", "--out", tmp_path / "d")
    assert "there is no pair 'en-xx'; known: en-de, en-zh" in said


@pytest.mark.parametrize(
    "words",
    [["positions", "--length", 9, "--width", 8], ["schedule", "base", "training.warmup=10"],
     ["visibility", "window", "linformer", "--length", 8], ["attention", "MODEL", "a b c"],
     ["attention", "MODEL", "a b c", "--kind", "encoder", "--head", "0.1"],
     ["attention", "MODEL", "a 狗 " + "x" * 40, "--kind", "decoder"], ["attention", "MODEL", "", "--head", "aligner"]],
)  # fmt: skip
def test_pictures(monkeypatch, capsys, tmp_path, folder, words):
    words = [folder if word == "MODEL" else word for word in words]
    path = tmp_path / "new" / "p.png"
    assert json.loads(run(monkeypatch, capsys, "plot", *words, "--out", path, "--json")) == {"picture": str(path)}
    assert path.read_bytes().startswith(PNG)


def test_pictures_of_who_sees_whom_are_those_of_the_mathematics(monkeypatch, capsys, tmp_path):
    found = {one.title: one.seen for one in pictures(length=12)}
    assert len(found) >= 20 and "linformer, decoder" not in found
    full, past = torch.ones(12, 12, dtype=torch.bool), torch.ones(12, 12, dtype=torch.bool).tril()
    for name in ("softmax", "reference", "flash", "linear", "performer", "additive", "multiplicative"):
        assert found[f"{name}, encoder"].equal(full) and found[f"{name}, decoder"].equal(past), name
    near = (torch.arange(12)[:, None] - torch.arange(12)).abs() < 4
    assert found["window, encoder"].equal(near) and found["window, decoder"].equal(near & past)
    assert not (found["lsh, decoder"] & ~past).any() and found["longformer, encoder"][:, 0].all()
    said = refused(monkeypatch, capsys, "plot", "visibility", "softmix", "--out", tmp_path / "p.png")
    assert "unknown attention 'softmix'; known: additive, bigbird" in said


def test_the_complexity_table_is_measured(monkeypatch, capsys, tmp_path):
    asked = ["plot", "complexity", "--out", tmp_path / "c.png", "--longest", 512, "--widest", 128, "--json"]
    found = {row["layer"]: row for row in json.loads(run(monkeypatch, capsys, *asked))["layers"]}
    reach = {name: row["reach of a layer"] for name, row in found.items()}
    assert reach.pop("recurrent") > 64  # in principle the whole text, but its gradients vanish
    assert reach == {"self-attention": 512, "convolutional": 2, "restricted self-attention": 32}
    assert (tmp_path / "c.png").read_bytes().startswith(PNG)


def drawn(monkeypatch):
    """Catches figures where they would be written."""
    from heedful.inspection import plots

    caught = []
    save = plots._save
    monkeypatch.setattr(plots, "_save", lambda figure, path: caught.append(figure) or save(figure, path))
    return caught


@pytest.mark.parametrize(
    ("options", "rows", "columns"),
    [
        ([], "target token being predicted (query)", "source token (key)"),
        (["--kind", "encoder"], "source token (query)", "source token (key)"),
        (["--kind", "decoder", "--head", "0.1"], "target token read (query)", "target token read (key)"),
    ],
)
def test_a_picture_of_attention_says_what_it_shows(monkeypatch, capsys, tmp_path, folder, options, rows, columns):
    figures, text = drawn(monkeypatch), r"a $b$ \\frac c"
    run(monkeypatch, capsys, "plot", "attention", folder, text, "--out", tmp_path / "p.png", *options)
    (figure,) = figures
    assert figure.get_suptitle() == f"{text}\n{load(folder).translate(text).text}".strip()
    assert (figure.get_supylabel(), figure.get_supxlabel()) == (rows, columns)
    *heads, bar = figure.axes
    assert bar.get_ylabel() == "attention weight" and bar.get_ylim() == (0, 1)
    assert len(heads) == (1 if "--head" in options else 2)


def test_a_long_sentence_is_shortened_in_the_title(monkeypatch, tmp_path):
    from heedful.inspection.plots import draw_attention

    figures = drawn(monkeypatch)
    seen = Attention(["dog", "</s>"], ["狗", "</s>"], *(torch.eye(2)[None, None] for _ in range(3)))
    draw_attention(seen, tmp_path / "p.png", title="the dog " * 90 + "\n" + "小狗" * 90)
    figure = figures[0]
    lines = figure.get_suptitle().splitlines()
    assert len(lines) == 6 and lines[2].endswith("…") and lines[5].endswith("…")
    assert figure._suptitle.get_window_extent().width < figure.bbox.width


def test_the_picture_of_a_training(monkeypatch, capsys, tmp_path, folder):
    (folder / "training.png").unlink(missing_ok=True)
    run(monkeypatch, capsys, "plot", "training", folder)
    assert (folder / "training.png").read_bytes().startswith(PNG)
    assert "has no metrics.jsonl: nothing has been trained there" in refused(
        monkeypatch, capsys, "plot", "training", tmp_path
    )


def test_mistakes_about_heads(monkeypatch, capsys, tmp_path, folder):
    out = ["--out", tmp_path / "p.png"]
    said = refused(monkeypatch, capsys, "plot", "attention", folder, "a", "--head", "7.0", *out)
    assert "there is no head 7.0; layers are 0 to" in said
    said = refused(monkeypatch, capsys, "plot", "attention", folder, "a", "--head", "first", *out)
    assert "head 'first' is not LAYER.HEAD, such as 0.3, nor `aligner`" in said
    said = refused(monkeypatch, capsys, "plot", "attention", folder, "a", "--kind", "both", *out)
    assert "attention 'both' is not one of cross, encoder, decoder" in said
    assert not (tmp_path / "p.png").exists()


def test_chinese_has_a_font(tmp_path, caplog):
    """Also where the system has none; what no font has is said in one line."""
    pytest.importorskip("zhplot")
    from heedful.inspection.plots import draw_attention

    def draw(word):
        seen = Attention(["dog", "</s>"], [word, "</s>"], *(torch.eye(2)[None, None] for _ in range(3)))
        caplog.clear()
        draw_attention(seen, tmp_path / "p.png")
        return [record.message for record in caplog.records]

    assert draw("小狗。") == []
    (said,) = draw("\U00013080")  # a hieroglyph
    assert "no installed font has some characters, shown as boxes" in said


def test_weights_belong_to_their_tokens(folder):
    seen = look(load(folder), "a b c")
    assert seen.source[-1] == "</s>" and seen.read[0] == "<s>" and len(seen.read) == len(seen.target)
    for kind in ("cross", "encoder", "decoder"):
        weights, queries, keys = seen.of(kind)
        assert weights.shape[2:] == (len(queries), len(keys))
        assert weights.sum(-1).allclose(weights.new_ones(()), atol=1e-5)
    assert not seen.decoder.triu(1).any()


def test_a_text_translated_in_parts_has_no_attention_as_a_whole(folder):
    translator, text = load(folder), "a b c d e f g h. " * 20
    with pytest.raises(ValueError, match=r"this text is translated in \d+ parts, each with its own attention"):
        look(translator, text)
    parts = translated_parts(translator, text)
    assert [part for part, _ in parts] == translator.parts(text)
    assert [token for _, found in parts for token in found.tokens] == translator.translate([text])[0].tokens
    for part, found in parts:
        assert len(look(translator, part, found.tokens).target) == len(found.tokens) + 1


@pytest.mark.parametrize("number", [1, 3])
def test_the_picture_is_of_the_part_that_was_asked_for(monkeypatch, capsys, folder, number):
    translator, text, drawn = load(folder), "a b c. d e f g. h i. " * 30, []
    monkeypatch.setattr("heedful.inspection.plots.draw_attention", lambda seen, out, **_: drawn.append(seen) or out)
    monkeypatch.setattr(sys, "argv", ["heedful", "plot", "attention", str(folder), text, "--part", str(number)])
    with pytest.raises(SystemExit) as caught:
        main()
    parts = translated_parts(translator, text)
    expected = f"the text was translated in {len(parts)} parts; this is part {number} (--part)"
    assert not caught.value.code and expected in capsys.readouterr().err
    part, found = parts[number - 1]
    assert torch.equal(drawn[0].cross, look(translator, part, found.tokens).cross)


def test_a_part_that_is_not_there(monkeypatch, capsys, folder):
    said = refused(monkeypatch, capsys, "plot", "attention", folder, "a b c", "--part", "2")
    assert "there is no part 2; the text was translated in 1" in said


def test_inspect_shows_the_first_part_as_it_was_translated(monkeypatch, capsys, folder):
    translator, text = load(folder), "a b c d e f g h. " * 20
    data = json.loads(run(monkeypatch, capsys, "inspect", folder, text, "--json"))
    parts = translator.parts(text)
    assert data["inspected"]["part"] == {"number": 1, "count": len(parts), "text": parts[0]}
    shown = [one["id"] for one in data["inspected"]["target"]]
    assert shown == translator.translate([parts[0]])[0].tokens
    whole = [one["id"] for one in data["translation"]["tokens"]]
    assert whole[: len(shown)] == shown and len(whole) > len(shown)
    assert len(data["inspected"]["attention"]["cross"]["keys"]) == len(translator.source.encode(parts[:1])[0]) + 1
    assert data["inspected"]["translation"] == translator.target.decode([shown])[0].strip()
    short = json.loads(run(monkeypatch, capsys, "inspect", folder, "a b", "--json"))
    assert short["inspected"]["part"] == {"number": 1, "count": 1, "text": "a b"}
