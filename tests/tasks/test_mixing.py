"""Training on several corpora and languages: learnt, resumed to the bit, scored, translated, looked into."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import heedful
from heedful.checkpoint import load_model
from heedful.data.padding import pad
from heedful.data.prepare import load_tokenizers
from heedful.decoding.runner import Request
from heedful.inspection.attention import look
from heedful.training.files import arranged
from heedful.training.recipe import read_recipe
from heedful.training.run import train
from tests.commands.in_process import refused, run
from tests.corpora import SMALL, pairs, words
from tests.processes import program

STEPS = ["training.validate_every=4", "training.save_every=2", "training.samples=0", "training.average=false"]
CODES = {
    "en": str,
    "de": lambda text: text.upper(),
    "fr": lambda text: text.translate(str.maketrans("abcdefghij", "zyxwvutsrq")),
}


def write(place: Path, name: str, count: int, first: str, second: str, *, seed: int, longest: int = 6) -> None:
    """A corpus of two of the languages: small letters, capitals, and letters from the end of the alphabet."""
    lines = words(count, seed=seed, longest=longest)
    text = "".join(f"{CODES[first](line)}\t{CODES[second](line)}\n" for line in lines)
    (place / name).write_text(text, encoding="utf-8")


def fit(place: Path, out: str, data: str, *changes: str) -> Path:
    (place / f"{out}.yaml").write_text(f"model: {{preset: vaswani-tiny}}\ndata: {data}\n", encoding="utf-8")
    recipe = read_recipe(str(place / f"{out}.yaml"), [*SMALL, *STEPS, *changes])
    train(*arranged(recipe, []), place / out, cache=place / "cache")
    return place / out


MANY = "[{file: de.tsv, source: en, target: de, both: true}, {file: fr.tsv, source: en, target: fr, both: true}]"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("mixing")
    write(place, "de.tsv", 211, "en", "de", seed=1)
    write(place, "fr.tsv", 97, "en", "fr", seed=2)
    return place


@pytest.fixture(scope="module", params=["prefix", "m2m", "mbart"])
def many(request, place):
    layout = request.param
    return fit(place, layout, MANY, "training.steps=4", f"data.language_tokens={layout}")


def test_a_training_interrupted_within_an_epoch_resumes_to_the_bit(place):
    whole = fit(place, "whole", MANY, "training.steps=7", "data.temperature=5")
    fit(place, "parts", MANY, "training.steps=3", "data.temperature=5")
    state = json.loads((place / "parts" / "checkpoints" / "3" / "state.json").read_text())
    assert (state["progress"]["epoch"], state["progress"]["index"]) == (0, 3), state
    parts = fit(place, "parts", MANY, "training.steps=7", "data.temperature=5")
    first, second = (folder / "checkpoints" / "7" / "model.safetensors" for folder in (whole, parts))
    assert first.read_bytes() == second.read_bytes()


def test_the_folder_of_the_recipe_may_move_but_its_content_may_not_change(place, tmp_path):
    fit(place, "moved", MANY, "training.steps=2")
    for name in ("de.tsv", "fr.tsv"):
        (tmp_path / name).write_bytes((place / name).read_bytes())
    (tmp_path / "m.yaml").write_text(f"model: {{preset: vaswani-tiny}}\ndata: {MANY}\n", encoding="utf-8")
    recipe = read_recipe(str(tmp_path / "m.yaml"), [*SMALL, *STEPS, "training.steps=2"])
    train(*arranged(recipe, []), place / "moved", cache=place / "cache")
    assert str(place) not in (place / "moved" / "config.yaml").read_text(encoding="utf-8")
    write(tmp_path, "fr.tsv", 97, "en", "fr", seed=3)
    with pytest.raises(ValueError, match="the files have changed since"):
        train(*arranged(recipe, []), place / "moved", cache=place / "cache")


def test_each_direction_is_scored_by_itself(many):
    lines = [json.loads(line) for line in (many / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    final = next(line["final"] for line in lines if "final" in line)
    assert {"loss", "bleu", "bleu[en-de]", "bleu[de-en]", "bleu[en-fr]", "bleu[fr-en]"} <= set(final)
    assert "bleu[fr-en]" in (many / "README.md").read_text(encoding="utf-8")


def test_translation_begins_as_training_did(many):
    """The log-probabilities of a translation are those of the model that reads what it read in training."""
    translator = heedful.load(many, expect=heedful.Translator, streams=1)
    tokenizer = load_tokenizers(many, columns=2)[0]
    framing = translator.languages.framing("en", "fr")
    found = translator.translate("a b", source="en", target="fr", num_beams=1)
    text = found.tokens[len(framing.forced) :]
    assert tuple(found.tokens[: len(framing.forced)]) == framing.forced
    source, valid = pad([framing.source(tokenizer.encode(["a b"])[0])])
    target, _ = pad([framing.read(text)])
    with torch.inference_mode():
        log_probs = load_model(many).eval()(source, target, source_valid=valid).log_softmax(-1)
    wanted = framing.wanted(text).tolist()[len(framing.forced) : len(found.token_log_probs)]
    picked = log_probs[0, torch.arange(len(framing.forced), len(framing.forced) + len(wanted)), torch.tensor(wanted)]
    given = found.token_log_probs[len(framing.forced) :]
    torch.testing.assert_close(picked, torch.tensor(given[: len(picked)]), atol=1e-4, rtol=1e-4)
    assert not set(found.text) & set("<>2")


def test_rows_of_one_batch_may_have_different_languages(many):
    translator = heedful.load(many, expect=heedful.Translator, streams=1)
    requests = [Request("a b c", source="en", target=target) for target in ("de", "fr")]
    requests.append(Request("A B C", source="de", target="fr"))  # zero-shot
    together = [one.tokens for one in translator.translate(requests)]
    assert together == [translator.translate(one).tokens for one in requests]
    scores = [translator.score([("a b", "a b")], source="en", target=target)[0] for target in ("de", "fr")]
    assert len(scores[0]) == len(scores[1]) == 4 and scores[0] != scores[1]


def test_what_is_seen_inside_has_the_language_tokens(many):
    translator = heedful.load(many, expect=heedful.Translator, streams=1)
    seen = look(translator, "a b", languages=("en", "de"))
    layout = translator.languages.layout
    wanted = {"prefix": "<2de>", "m2m": "<2en>", "mbart": "<2en>"}[layout]
    assert seen.source[-1 if layout == "mbart" else 0] == wanted
    assert (seen.read[0] == "<2de>") == (layout == "mbart") and (seen.target[0] == "<2de>") == (layout == "m2m")
    assert seen.cross.shape[-2:] == (len(seen.target), len(seen.source))
    data = heedful.inspect(many, "a b", source="en", target="de")["inspected"]
    assert wanted in [token["text"] for token in data["source"]]
    links = translator.translate("a b", source="en", target="de", alignment=True).alignment
    assert all(source < 2 for source, _ in links)


def test_a_mixture_tells_languages_and_tasks_apart_when_it_has_learnt_them(tmp_path):
    write(tmp_path, "de.tsv", 400, "en", "de", seed=1, longest=3)
    write(tmp_path, "fr.tsv", 400, "en", "fr", seed=1, longest=3)
    data = "[{file: de.tsv, source: en, target: de}, {file: fr.tsv, source: en, target: fr}]"
    folder = fit(tmp_path, "run", data, "training.steps=400", "training.learning_rate=0.01", "model.width=32",
                 "training.label_smoothing=0", "training.validate_every=400", "training.save_every=400")  # fmt: skip
    translator = heedful.load(folder, expect=heedful.Translator, streams=1)
    lines = words(40, seed=9, longest=3)
    for target in ("de", "fr"):
        found = translator.translate(lines, source="en", target=target, num_beams=1)
        right = np.mean([one.text == CODES[target](line) for one, line in zip(found, lines, strict=True)])
        assert right > 0.8, (target, right)


def test_tasks_with_prefixes_have_their_own_metric_and_test_file(tmp_path, monkeypatch, capsys):
    pairs(tmp_path / "a.tsv", 61)
    pairs(tmp_path / "b.tsv", 61, change=str.upper)
    data = (
        '[{file: a.tsv, prefix: "turn: ", metric: rouge, weight: 3},'
        ' {file: b.tsv, prefix: "shout: ", metric: exact, weight: 1}]'
    )
    folder = fit(tmp_path, "run", data, "training.steps=2", "training.metric=rouge[turn]")
    assert (folder / "test.turn.tsv").read_text(encoding="utf-8").startswith("turn: ")
    printed = run(monkeypatch, capsys, "evaluate", folder, "--json", "--beam-size", 1)
    parts = json.loads(printed)["parts"]
    assert {name: one["metric"]["name"] for name, one in parts.items()} == {"turn": "ROUGE-L", "shout": "exact match"}
    translator = heedful.load(folder)
    assert len(translator.parts("turn: a b. C d.")) == 1  # the prefix is for the whole text


@pytest.mark.parametrize("many", ["m2m"], indirect=True)
def test_the_commands(many, place, monkeypatch, capsys):
    lines = [{"text": "a b", "to": "fr"}, {"text": "a", "to": "xx"}, {"text": "A B", "from": "de", "to": "en"}]
    file = place / "in.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    command = program("translate", many, "-i", file, "--from", "en")
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "line 2: this model does not know the language 'xx'" in done.stderr
    written = [json.loads(line)["translation"] for line in done.stdout.splitlines()]
    assert len(written) == 3 and written[1] == ""
    test = place / "de-fr.tsv"
    write(place, "de-fr.tsv", 7, "de", "fr", seed=5)
    printed = run(monkeypatch, capsys, "evaluate", many, test, "--from", "de", "--to", "fr", "--markdown", "-b", 1)
    assert "(de-fr, not trained)" in printed
    printed = run(monkeypatch, capsys, "evaluate", many, "--markdown", "-b", 1)
    tested = [name for name in ("en-de", "de-en", "en-fr", "fr-en") if (many / f"test.{name}.tsv").exists()]
    assert [line.split(" | ")[0] for line in printed.splitlines()[2 : 2 + len(tested)]] == [f"| {n}" for n in tested]
    assert len(tested) >= 2 and "version:" in printed
    said = refused(monkeypatch, capsys, "evaluate", many, test, "--from", "en")
    assert "name the target language" in said


@pytest.mark.parametrize("many", ["prefix"], indirect=True)
def test_what_the_commands_refuse(many, place, tmp_path, monkeypatch, capsys):
    (place / "x.yaml").write_text(f"data: {MANY}\n", encoding="utf-8")
    arguments = ("--recipe", place / "x.yaml", "--out", tmp_path / "x")
    said = refused(monkeypatch, capsys, "train", place / "de.tsv", *arguments)
    assert "the recipe lists its corpora under data; leave out the files" in said
    assert "no file to train on" in refused(monkeypatch, capsys, "train", "--out", tmp_path / "x")
    said = refused(monkeypatch, capsys, "train", place / "de.tsv", "--recipe", "multilingual", "--out", tmp_path / "x")
    assert "data.language_tokens is for corpora with languages; list your files under data.corpora" in said
    said = refused(monkeypatch, capsys, "train", place / "de.tsv", "--out", tmp_path / "x", "data.temperature=5")
    assert "data.temperature is for several corpora" in said
    said = refused(monkeypatch, capsys, "train", "--recipe", "classify", "--out", tmp_path / "x",
                   f"data.corpora=[{{file: {place / 'de.tsv'}}}]")  # fmt: skip
    assert "task classification trains on one corpus" in said
    said = refused(monkeypatch, capsys, "train", place / "de.tsv", "--out", tmp_path / "y", "--start-from", many)
    assert "this model knows languages by their tokens" in said


def test_fine_tuning_keeps_the_languages(many, place):
    layout = heedful.load(many, streams=1).languages.layout
    data = "[{file: fr.tsv, source: en, target: fr}]"
    (place / "tune.yaml").write_text(f"data: {data}\n", encoding="utf-8")
    changes = [f"start_from={many}", f"data.language_tokens={layout}", "training.steps=2", *STEPS,
               "training.batch_tokens=256"]  # fmt: skip
    recipe = read_recipe(str(place / "tune.yaml"), changes)
    train(*arranged(recipe, []), place / f"tuned-{layout}", cache=place / "cache")
    assert load_file(place / f"tuned-{layout}" / "model.safetensors")
    assert heedful.load(place / f"tuned-{layout}", streams=1).translate("a b", target="fr") is not None
