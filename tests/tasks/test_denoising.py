"""Denoising: from a text file to filled gaps and to a translator; resumed, split and equal; published models go on."""

import json

import numpy as np
import pytest
import torch

import heedful
from heedful.checkpoint import load_model
from heedful.commands.exchange import export_model
from heedful.commands.predict import predict
from heedful.data.prepare import load_tokenizers
from heedful.text.marks import Marked
from heedful.text.sentence_starts import SentenceStarts
from heedful.training.recipe import read_recipe
from tests.exchange import folders
from tests.tasks.labelled import built
from tests.tasks.test_masked_lm import counting, farm
from tests.training.test_loop import StopError, interrupt, losses, same, weights

SMALL = {
    "model.encoder.layers": 1, "model.decoder.layers": 1, "model.width": 32, "tokenizer.vocab": 420,
    "data.max_length": 40, "training.batch_tokens": 640, "training.warmup": 20, "training.learning_rate": 0.004,
    "training.steps": 30, "training.save_every": 10, "training.validate_every": 10, "training.samples": 1,
    "training.log_every": 5,
}  # fmt: skip


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return farm(tmp_path_factory.mktemp("farm") / "farm.txt")


def run(text, out, **changes):
    heedful.train(text, out=out, recipe="denoise", changes={**SMALL, **changes})
    return out


@pytest.mark.parametrize("kinds", ["spans", ["infilling", "permutation"]], ids=["spans", "bart"])
def test_resumed_training_equals_uninterrupted_training(text, tmp_path, monkeypatch, kinds):
    run(text, tmp_path / "whole", **{"task.noise": kinds})
    with monkeypatch.context() as patch, pytest.raises(StopError):
        interrupt(patch, 23)
        run(text, tmp_path / "cut", **{"task.noise": kinds})
    run(text, tmp_path / "cut", **{"task.noise": kinds})
    same(weights(tmp_path / "whole"), weights(tmp_path / "cut"))
    assert losses(tmp_path / "whole") == losses(tmp_path / "cut")


def test_micro_batches_equal_one_batch(text, tmp_path):
    dry = {"model.encoder.dropout": 0.0, "model.decoder.dropout": 0.0, "training.eps": 0.001, "training.steps": 10,
           "training.samples": 0}  # fmt: skip
    run(text, tmp_path / "one", **dry)
    run(text, tmp_path / "three", **dry, **{"training.accumulate": 3})
    assert losses(tmp_path / "one") == pytest.approx(losses(tmp_path / "three"), abs=1e-5)
    same(weights(tmp_path / "one"), weights(tmp_path / "three"), tolerance=1e-4)


KINDS = ["spans", "infilling", "masking", "deletion", "permutation", "rotation", ["rotation", "permutation", "masking"]]


@pytest.mark.parametrize("kinds", KINDS, ids=str)
def test_a_row_has_the_same_noise_in_any_batch_and_another_in_each_epoch(text, tmp_path, kinds):
    lines = tmp_path / "lines.txt"
    lines.write_text(text.read_text(encoding="utf-8").replace(" says", ". It says"), encoding="utf-8")
    task, _ = built(lines, tmp_path, "denoise", f"task.noise={json.dumps(kinds)}", max_length=31, label_smoothing=0.0)
    rows = np.array([5, 2, 3])
    batch, alone = task.collate(rows, seed=(1, 0)), task.collate(rows[1:2], seed=(1, 0))
    size, wrote = int(alone.source_valid.sum()), int(alone.target_valid.sum())
    assert torch.equal(batch.source[1, :size], alone.source[0]) and torch.equal(
        batch.wanted[1, :wrote], alone.wanted[0]
    )
    assert not batch.source_valid[1, size:].any()
    other = task.collate(rows, seed=(1, 1))
    assert other.source.shape != batch.source.shape or not torch.equal(other.source, batch.source)
    assert (batch.wanted == task.tokenizer.eos).sum(1).tolist() == [1, 1, 1]  # the end is learnt once
    assert [len(np.concatenate(task.train.parts(row))) for row in range(len(task.train) - 1)] == [31] * (
        len(task.train) - 1
    )  # short documents are joined
    assert not task.train.texts.tokens.flags.owndata  # the corpus stays on disk


def test_sentences_begin_after_full_stops_and_where_documents_do(tmp_path, text):
    _, data = built(text, tmp_path, "denoise")
    tokenizer = data.tokenizers[0]
    documents = ['He said "no." Then 3.5 men left! Why', " not?\nall at once"]
    parts = [np.array(row) for row in tokenizer.encode(documents)]
    starts = SentenceStarts(tokenizer)(parts)
    sentences = np.split(np.concatenate(parts), np.flatnonzero(starts)[1:])
    found = [sentence.strip() for sentence in tokenizer.decode(sentences)]
    assert found == ['He said "no."', "Then 3.5 men left!", "Why", "not?", "all at once"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    text, test = counting(folder / "text.txt"), counting(folder / "test.txt", documents=20, seed=5)
    small = {**SMALL, "model.width": 64, "training.steps": 100, "training.save_every": 100,
             "training.validate_every": 100, "model.encoder.position": "rotary", "model.decoder.position": "rotary",
             "model.encoder.dropout": 0.0, "model.decoder.dropout": 0.0, "task.span": 2}  # fmt: skip
    heedful.train(text, valid=[test], out=folder / "run", recipe="denoise", changes=small)
    return folder / "run", test


def test_it_learns_to_count_and_fills_in_what_is_missing(trained, capsys):
    denoiser = heedful.load(trained[0], expect=heedful.Translator)
    assert denoiser.evaluate(trained[1])["accuracy"] > 35  # of twelve words, by chance 8
    line = "two three four five six seven eight <extra_id_0> ten eleven twelve one two three four five"
    (found,) = denoiser.predict([line])
    before, after = line.split(" <extra_id_0> ")
    assert found["text"].startswith(before) and found["text"].endswith(after) and "<" not in found["text"]
    assert found["written"].startswith("<extra_id_0>") and found["written"] == denoiser.translate(line).text
    assert denoiser.predict([line.replace("<extra_id_0>", "[MASK]")])[0]["text"] == found["text"]
    predict(trained[0], [line])
    assert capsys.readouterr().out == found["text"] + "\n"
    seen = heedful.inspect(denoiser, line)
    assert "<extra_id_0>" in [one["text"] for one in seen["inspected"]["source"]]


def test_evaluation_repeats_the_validation_of_training(trained):
    folder, test = trained
    card = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    final = next(line["final"] for line in card if "final" in line)
    found = heedful.load(folder).evaluate(test)
    assert {name: found[name] for name in final} == pytest.approx(final, rel=1e-4)


def test_a_translator_starts_from_the_result_with_its_tokenizer(trained, tmp_path):
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"one two {word}\tTWO {word}\n" for word in ("three", "four", "five") * 20))
    keys = {"training.steps": 3, "training.validate_every": 3, "training.save_every": 3, "training.batch_tokens": 200}
    made = heedful.train(pairs, out=tmp_path / "made", start_from=trained[0], changes=keys)
    (old,), (new, _) = load_tokenizers(trained[0], columns=1), load_tokenizers(tmp_path / "made", columns=2)
    assert old.digest() == new.digest() and set(new.sentinels) <= set(new.never)
    assert not set(made.translate("one two three").tokens) & set(new.sentinels)
    assert "<extra_id_0>" in new.decode(new.encode(["<extra_id_0>"]))[0]  # in a pair it is text


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["one two"], "line 1 has nothing to fill in: 'one two'; write <extra_id_0> where words are to be found"),
        (["one <mask>", "one two " * 30 + "<mask>"], r"line 2 has \d+ tokens, but the model reads 39; shorten it"),
    ],
)
def test_texts_that_cannot_be_filled_are_refused_by_line(trained, lines, message):
    with pytest.raises(ValueError, match=message):
        heedful.load(trained[0]).predict(lines)


@pytest.mark.parametrize(
    ("noise", "message"),
    [
        (
            "[spans, deletion]",
            "with spans only what is hidden is written, so deletion could not be undone; set task.no",
        ),
        ("[masking, masking]", "noise masking is named twice; name it once, and raise task.density"),
        ("[]", "leaves nothing to learn; name some, such as"),
        ("[shuffling]", "task.noise"),
    ],
)
def test_combinations_that_make_no_sense_are_refused(noise, message):
    with pytest.raises(ValueError, match=message):
        read_recipe("denoise", [f"task.noise={noise}"])


def test_more_spans_than_sentinels_are_refused(text, tmp_path):
    with pytest.raises(ValueError, match="up to 151 hidden spans, but the tokenizer has 100 sentinels; lower data.max"):
        built(text, tmp_path, "denoise", "task.density=0.5", "task.span=1", max_length=300)


def test_marks_are_numbered_by_their_order(text, tmp_path):
    _, data = built(text, tmp_path, "denoise")
    tokenizer = Marked(data.tokenizers[0], data.tokenizers[0].sentinels)
    rows = tokenizer.encode(["the <extra_id_5> says <mask>", "[MASK] cat", "no mark"])
    plain = data.tokenizers[0].encode(["the", " says", " cat", "no mark"])
    first, second = tokenizer.sentinels[:2]
    assert rows == [[*plain[0], first, *plain[1], second], [first, *plain[2]], plain[3]]


GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
PUBLISHED = {"t5": ("t5", {}), "t5-v1.1": ("t5", GATED), "bart": ("bart", {}), "mbart": ("mbart", {})}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_go_on_and_transformers_agrees_with_the_result(name, text, tmp_path):
    hf = pytest.importorskip("transformers")
    family, more = PUBLISHED[name]
    before = folders.published(tmp_path / "theirs", family, **more)
    keys = {"training.steps": 3, "training.validate_every": 3, "training.save_every": 3, "training.batch_tokens": 200,
            "data.max_length": 40, "training.samples": 1, "training.learning_rate": 0.05,
            "training.warmup": 1}  # fmt: skip
    found = heedful.train(text, out=tmp_path / "on", recipe="denoise", start_from=tmp_path / "theirs", changes=keys)
    tokenizer = found.source
    assert len(tokenizer.marks) == (100 if family == "t5" else 1)
    if family == "t5":
        assert tokenizer.marks == sorted(tokenizer.marks, reverse=True)
    export_model(tmp_path / "on", tmp_path / "again")
    after = hf.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "again").eval()
    ours = load_model(tmp_path / "on").eval()
    source = torch.tensor([[*tokenizer.encode(["the old <mask> says"])[0], tokenizer.eos]])
    target = torch.tensor([[tokenizer.start, *tokenizer.encode(["meow meow"])[0]]])
    with torch.no_grad():
        logits, theirs = ours(source, target), after(input_ids=source, decoder_input_ids=target).logits
        old = before(input_ids=source, decoder_input_ids=target).logits
        written = target[:, :1]
        for _ in range(7):
            written = torch.cat([written, ours(source, written)[:, -1:].argmax(-1)], dim=1)
    torch.testing.assert_close(logits, theirs, atol=1e-4, rtol=1e-4)
    assert (theirs - old).abs().max() > 0.01  # it has learnt something
    wanted = after.generate(
        source, max_new_tokens=7, do_sample=False, num_beams=1, use_cache=False, eos_token_id=None,
        forced_eos_token_id=None, forced_bos_token_id=None, decoder_start_token_id=tokenizer.start, pad_token_id=0,
    )  # fmt: skip
    assert written.tolist() == wanted.tolist()


def test_a_noise_that_the_tokenizer_cannot_mark_is_refused_with_what_it_can(text, tmp_path):
    folders.published(tmp_path / "bart", "bart")
    folders.published(tmp_path / "t5", "t5")
    for family, noise, remedy in (("bart", "spans", "infilling"), ("t5", "masking", "spans")):
        with pytest.raises(ValueError, match=f"noise {noise} needs .* lacks; set task.noise={remedy}"):
            heedful.train(text, out=tmp_path / "on", recipe="denoise", start_from=tmp_path / family,
                          changes={"task.noise": noise})  # fmt: skip
