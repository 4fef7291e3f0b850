"""Masked language models beside transformers; resumed, split and equal; and from a text file to filled masks."""

import json
import random

import numpy as np
import pytest
import torch
from tokenizers import processors

import heedful
from heedful.checkpoint import steps
from heedful.commands.exchange import export_model, import_model
from heedful.commands.predict import predict
from heedful.data.columns import DOCUMENT
from heedful.data.inputs import Inputs
from heedful.data.prepare import prepare
from heedful.exchange.hugging_face import load
from heedful.objectives import vocabulary_cross_entropy
from heedful.training.recipe import read_recipe
from heedful.training.run import train
from tests.tasks.labelled import built, sentences, write
from tests.text.test_whole_words import wordpiece
from tests.training.test_loop import StopError, interrupt, losses, same, weights

SAYS = {"cat": "meow", "dog": "woof", "cow": "moo", "duck": "quack", "crow": "caw"}
COUNT = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
SMALL = {
    "model.encoder.layers": 2, "model.width": 64, "model.encoder.dropout": 0.0, "model.encoder.feedforward.hidden": 128,
    "model.encoder.attention.heads": 2, "tokenizer.vocab": 340, "data.max_length": 40, "training.steps": 250,
    "training.batch_tokens": 512, "training.warmup": 20, "training.learning_rate": 0.003, "training.samples": 1,
    "training.validate_every": 125, "training.save_every": 125,
}  # fmt: skip
QUICK = {**SMALL, "model.width": 16, "model.encoder.feedforward.hidden": 24, "training.steps": 30,
         "training.save_every": 10, "training.validate_every": 10, "training.log_every": 5,
         "training.batch_tokens": 300}  # fmt: skip
SIZES = [{"width": 22, "hidden": 37, "heads": 2}, {"width": 64, "hidden": 128, "heads": 4}]


def counting(path, *, documents=60, seed=0):
    """Documents that count from anywhere, again and again: a word follows from its neighbours."""
    chance, texts = random.Random(seed), []
    for _ in range(documents):
        start = chance.randrange(len(COUNT))
        texts.append(" ".join(COUNT[(start + place) % len(COUNT)] for place in range(chance.randint(15, 45))) + "\n")
    path.write_text("\n".join(texts), encoding="utf-8")
    return path


def farm(path, *, documents=60, seed=0):
    """Documents about one animal each."""
    chance, texts = random.Random(seed), []
    for _ in range(documents):
        animal = chance.choice(list(SAYS))
        lines = [f"the {chance.choice(['old', 'small', 'big'])} {animal} says {SAYS[animal]}"
                 for _ in range(chance.randint(5, 9))]  # fmt: skip
        texts.append("\n".join(lines) + "\n")
    path.write_text("\n".join(texts), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return farm(tmp_path_factory.mktemp("farm") / "farm.txt")


def run(text, out, **changes):
    words = [f"{key}={json.dumps(value)}" for key, value in {**QUICK, **changes}.items()]
    train(read_recipe("masked-lm", words), Inputs((text,), columns=DOCUMENT), out, cache=text.parent / "cache")
    return out


def both(folder, family, kind, *, vocab, width, hidden, heads):
    """transformers' model with weights large enough to matter, and the same as ours."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(3)
    own = {
        "Albert": {"embedding_size": 13, "classifier_dropout_prob": 0.0},
        "Roberta": {"pad_token_id": 1, "type_vocab_size": 1},
    }
    config = getattr(transformers, f"{family}Config")(
        vocab_size=vocab, hidden_size=width, intermediate_size=hidden, num_attention_heads=heads, num_hidden_layers=2,
        max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        **own.get(family, {}),
    )  # fmt: skip
    theirs = getattr(transformers, f"{family}{kind}")(config)
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    theirs.save_pretrained(folder)
    return theirs.train(), load(folder).model.train()


@pytest.mark.parametrize("size", SIZES, ids=["odd", "kernels"])
@pytest.mark.parametrize(
    ("family", "kind", "pairs", "label"),
    [
        ("Bert", "ForPreTraining", "next_sentence", "next_sentence_label"),
        ("Albert", "ForPreTraining", "sentence_order", "sentence_order_label"),
        ("Roberta", "ForMaskedLM", "none", ""),
        ("Bert", "ForMaskedLM", "none", ""),
    ],
)
def test_loss_and_gradient_are_transformers(text, tmp_path, size, family, kind, pairs, label):
    task, data = built(text, tmp_path / "cache", "masked-lm", f"task.pairs={pairs}", max_length=41)
    theirs, ours = both(tmp_path / "theirs", family, kind, vocab=data.tokenizers[0].vocab, **size)
    batch = task.collate(np.arange(len(task.train) - 9, len(task.train)), seed=(1, 0))
    terms = task.loss(ours, batch, state={}).terms
    found = sum(term.total / term.count for term in terms.values())
    labels = torch.full_like(batch.tokens, -100)
    labels.view(-1)[batch.places] = batch.wanted
    keys = {"token_type_ids": batch.types} | ({label: batch.labels} if label else {})
    wanted = theirs(input_ids=batch.tokens, attention_mask=batch.valid.long(), labels=labels, **keys).loss
    assert not label or 0 < int(batch.labels.sum()) < 9
    assert len(batch.wanted) > 20 and not batch.valid.all()
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    found.backward()
    wanted.backward()
    torch.testing.assert_close(
        ours.embedding.weight.grad, theirs.get_input_embeddings().weight.grad, rtol=1e-4, atol=2e-5
    )
    head = {"Bert": "cls.predictions.transform.dense", "Albert": "predictions.dense", "Roberta": "lm_head.dense"}
    torch.testing.assert_close(
        ours.heads["masked_lm"].dense.weight.grad,
        theirs.get_submodule(head[family]).weight.grad,
        rtol=1e-4,
        atol=2e-5,
    )


def test_only_masked_positions_are_projected(text, tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    task, data = built(text, tmp_path / "cache", "masked-lm", max_length=41)
    _, ours = both(tmp_path / "bert", "Bert", "ForMaskedLM", vocab=data.tokenizers[0].vocab, **SIZES[0])
    seen = []
    ours.heads["masked_lm"].dense.register_forward_hook(lambda module, given, made: seen.append(given[0].shape[:-1]))
    batch = task.collate(np.arange(3))
    assert task.loss(ours, batch, state={}).terms["masked"].count == len(batch.wanted)
    assert seen == [(len(batch.wanted),)]


def test_a_batch_without_masks_has_no_loss_and_no_gradient():
    states, weight = torch.randn(0, 7, requires_grad=True), torch.randn(11, 7, requires_grad=True)
    term = vocabulary_cross_entropy(states, weight, None, torch.empty(0, dtype=torch.long))
    term.total.backward()
    assert float(term.total.detach()) == term.count == 0 and not weight.grad.any()


def test_fresh_masks_differ_by_epoch_and_static_ones_do_not(text, tmp_path):
    for pairs in ("none", "next_sentence"):
        fresh, _ = built(text, tmp_path / "cache", "masked-lm", f"task.pairs={pairs}")
        static, _ = built(text, tmp_path / "cache", "masked-lm", f"task.pairs={pairs}", "task.fresh=false")
        rows = np.arange(5)
        first, again, other = (fresh.collate(rows, seed=(1, epoch)).tokens for epoch in (0, 0, 1))
        assert torch.equal(first, again) and not (first.shape == other.shape and torch.equal(first, other))
        assert torch.equal(*(static.collate(rows, seed=(1, epoch)).tokens for epoch in (0, 1)))
        alone = static.collate(rows[3:4]).tokens[0]
        assert torch.equal(static.collate(rows).tokens[3][: len(alone)], alone)  # whatever else is in the batch


@pytest.mark.parametrize("changes", [{}, {"task.pairs": "next_sentence", "task.whole_words": True}], ids=["one", "two"])
def test_resumed_training_equals_uninterrupted_training(text, tmp_path, monkeypatch, changes):
    run(text, tmp_path / "whole", **changes)
    with monkeypatch.context() as patch, pytest.raises(StopError):
        interrupt(patch, 23)
        run(text, tmp_path / "cut", **changes)
    assert steps(tmp_path / "cut" / "checkpoints") == [10, 20]
    run(text, tmp_path / "cut", **changes)
    same(weights(tmp_path / "whole"), weights(tmp_path / "cut"))
    for name in ("model", "optimizer"):
        same(*(weights(tmp_path / one / "checkpoints" / "30", name) for one in ("whole", "cut")))
    assert losses(tmp_path / "whole") == losses(tmp_path / "cut")


def test_micro_batches_equal_one_batch(text, tmp_path):
    dry = {"training.eps": 0.001, "task.pairs": "sentence_order"}
    run(text, tmp_path / "one", **dry)
    run(text, tmp_path / "three", **dry, **{"training.accumulate": 3})
    assert losses(tmp_path / "one") == pytest.approx(losses(tmp_path / "three"), abs=1e-5)
    same(weights(tmp_path / "one"), weights(tmp_path / "three"), tolerance=1e-4)


@pytest.mark.parametrize("preset", ["bert-tiny", "roberta-base", "albert-base"])
@pytest.mark.parametrize("pairs", ["none", "sentence_order"])
def test_every_family_trains(text, tmp_path, preset, pairs):
    found = run(text, tmp_path / "run", **{"model.preset": preset, "task.pairs": pairs, "training.steps": 3})
    made = heedful.load(found).model
    assert set(made.heads) == ({"masked_lm"} if pairs == "none" else {"masked_lm", "next_sentence"})
    assert (preset == "albert-base") == (len(made.encoder.layers) == 1 and made.config.embedding.width == 128)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    text, test = counting(folder / "text.txt"), counting(folder / "test.txt", documents=20, seed=5)
    changes = {**SMALL, "task.whole_words": True, "model.encoder.position": "rotary"}
    heedful.train(text, valid=[test], out=folder / "run", recipe="masked-lm", changes=changes)
    return folder / "run", test


def test_it_learns_to_count(trained):
    filler = heedful.load(trained[0])
    found = filler.evaluate(trained[1])
    assert found["accuracy"] > 80 and found["perplexity"] < 2  # of twelve words
    filled = [one["text"] for one in filler.predict(["four five [MASK] seven eight", "<mask> eight nine ten"])]
    assert filled == ["four five six seven eight", "seven eight nine ten"]


def test_it_learns_which_segments_belong_together(tmp_path):
    files = [farm(tmp_path / name, documents=count, seed=count) for name, count in (("a", 300), ("b", 90))]
    changes = {**SMALL, "task.pairs": "next_sentence", "task.mask": 0.05}
    filler = heedful.train(files[0], out=tmp_path / "run", recipe="masked-lm", changes=changes)
    assert filler.evaluate(files[1])["next_sentence_accuracy"] > 70  # of two documents, a fifth are of one animal


def test_evaluation_repeats_the_validation_of_training(trained):
    folder, test = trained
    card = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    final = next(line["final"] for line in card if "final" in line)
    found = heedful.load(folder).evaluate(test)
    assert {name: found[name] for name in final} == pytest.approx(final, rel=1e-4)


def test_masks_are_filled_with_the_best_words_and_five_are_shown(trained):
    filler = heedful.load(trained[0])
    lines = ["two three four five <mask>", "two three four five [MASK]", "two [MASK] four five <mask>"]
    ours, theirs, both_masks = filler.predict(lines)
    assert ours == theirs
    assert len(both_masks["masks"]) == 2 and all(len(best) == 5 for best in both_masks["masks"])
    for best in both_masks["masks"]:
        scores = [one["score"] for one in best]
        assert scores == sorted(scores, reverse=True) and 0 < sum(scores) <= 1
    first, second = (best[0]["text"] for best in both_masks["masks"])
    assert both_masks["text"] == f"two{first} four five{second}"
    assert [filler.predict([line])[0]["text"] for line in lines] == [ours["text"], theirs["text"], both_masks["text"]]


def test_the_command_line_shows_words_with_their_probabilities(trained, capsys):
    predict(trained[0], ["four five [MASK] seven eight"])
    shown = capsys.readouterr().out
    assert shown.startswith("six ") and len(shown.split()) == 10
    predict(trained[0], ["four five [MASK] seven eight"], as_json=True)
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["masks"][0][0]["text"] == " six"


def test_published_models_fill_masks_as_transformers_do(tmp_path, trained):
    """A trained model in transformers' layout: the same words with the same probabilities."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path / "run"
    changes = {**SMALL, "model.encoder.placement": "post", "training.steps": 100, "model.preset": "bert-tiny"}
    filler = heedful.train(trained[1], out=folder, recipe="masked-lm", changes=changes)
    export_model(folder, tmp_path / "theirs")
    import_model(tmp_path / "theirs", tmp_path / "again")
    again = heedful.load(tmp_path / "again")
    (ours,), (back,) = (one.predict(["two three four five [MASK]"])[0]["masks"] for one in (filler, again))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "theirs").eval()
    given = tokenizer("two three four five<mask>", return_tensors="pt")
    place = int((given["input_ids"][0] == tokenizer.mask_token_id).nonzero()[0, 0])
    with torch.no_grad():
        chances = model(**given).logits[0, place].softmax(-1)
    for one, two in zip(ours, back, strict=True):
        assert one["token"] == two["token"] and one["score"] == pytest.approx(two["score"], rel=1e-4)
        assert float(chances[tokenizer.convert_tokens_to_ids(one["token"])]) == pytest.approx(one["score"], rel=1e-3)


def test_an_imported_bert_fills_masks_as_transformers_pipeline_does(tmp_path):
    """With WordPiece: lower case, pieces of words marked with ##, [MASK]."""
    transformers = pytest.importorskip("transformers")
    tokenizer = wordpiece()
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    backend = tokenizer._backend
    backend.post_processor = processors.BertProcessing(("[SEP]", tokenizer.sep), ("[CLS]", tokenizer.cls))
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, mask_token="[MASK]", **names)
    model, _ = both(tmp_path / "bert", "Bert", "ForMaskedLM", vocab=tokenizer.vocab, **SIZES[0])
    theirs.save_pretrained(tmp_path / "bert")
    import_model(tmp_path / "bert", tmp_path / "ours")
    line = "The quick [MASK] jumps over the Dog."
    (found,) = heedful.load(tmp_path / "ours").predict([line])
    pipeline = transformers.FillMaskPipeline(model=model.eval(), tokenizer=theirs, top_k=10)
    special = set(theirs.all_special_tokens)
    wanted = [one for one in pipeline(line) if one["token_str"].strip() not in special][:5]
    assert [theirs.convert_tokens_to_ids(one["token"]) for one in found["masks"][0]] == [one["token"] for one in wanted]
    assert [one["score"] for one in found["masks"][0]] == pytest.approx([one["score"] for one in wanted], rel=1e-4)
    best = found["masks"][0][0]["token"]
    spelled = best.removeprefix("##")
    between = "" if best.startswith("##") else " "
    assert found["text"] == f"The quick{between}{spelled} jumps over the Dog."


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["the [MASK] says", "the cow says"], r"line 2 has no mask: 'the cow says'; write \[MASK\]"),
        (["the cow says " * 30 + "[MASK]"], r"line 1 has \d+ tokens, but the model reads 40; shorten it"),
    ],
)
def test_texts_that_cannot_be_filled_are_refused_by_line(trained, lines, message):
    with pytest.raises(ValueError, match=message):
        heedful.load(trained[0]).predict(lines)


def test_training_goes_on_from_a_published_model_and_a_classifier_starts_from_the_result(text, tmp_path):
    pytest.importorskip("transformers")
    changes = {**QUICK, "model.preset": "bert-tiny", "model.encoder.placement": "post", "task.pairs": "next_sentence"}
    heedful.train(text, out=tmp_path / "first", recipe="masked-lm", changes={**changes, "training.steps": 3})
    export_model(tmp_path / "first", tmp_path / "published")
    more = {"data.max_length": 30, "training.steps": 3, "training.save_every": 3}
    again = heedful.train(
        text, out=tmp_path / "again", recipe="masked-lm", start_from=tmp_path / "published", changes=more
    )
    assert list(again.model.heads) == ["masked_lm"]
    rows = write(tmp_path / "rows.tsv", sentences(60))
    keys = {"training.steps": 3, "data.max_length": 30}
    made = heedful.train(rows, out=tmp_path / "made", recipe="classify", start_from=tmp_path / "again", changes=keys)
    assert made.predict(["a good day"])[0]["label"] in ("pos", "neg")


def test_next_sentence_needs_two_documents(tmp_path):
    file = tmp_path / "one.txt"
    file.write_text("the cat says meow\n" * 30)
    with pytest.raises(ValueError, match="needs at least two documents.*blank lines.*task.pairs=sentence_order"):
        built(file, tmp_path / "cache", "masked-lm", "task.pairs=next_sentence")


def test_windows_too_short_for_text_are_refused(text, tmp_path):
    with pytest.raises(ValueError, match=r"windows of 4 tokens have no room for text; raise data.max_length"):
        built(text, tmp_path / "cache", "masked-lm", "task.pairs=next_sentence", max_length=4)


def test_the_corpus_stays_on_disk(text, tmp_path):
    """Training reads the memory-mapped store; nothing holds a copy of its tokens."""
    for pairs in ("none", "next_sentence"):
        task, data = built(text, tmp_path / "cache", "masked-lm", f"task.pairs={pairs}")
        tokens = task.train.texts.tokens
        assert not tokens.flags.owndata and len(tokens) == data.facts["tokens"][0]


def test_one_file_per_document_is_read_as_one_file_with_blank_lines(text, tmp_path):
    recipe = read_recipe("masked-lm", ["tokenizer.vocab=300"])
    files = []
    for number, document in enumerate(text.read_text().split("\n\n")):
        files.append(tmp_path / f"{number}.txt")
        files[-1].write_text(document)
    inputs = Inputs(tuple(files), columns=DOCUMENT)
    data = prepare(inputs, recipe.data, recipe.tokenizer, cache=tmp_path / "cache", specials=recipe.task.specials)
    assert sum(data.facts["rows"].values()) in (len(files), len(files) + 1)  # one may be cut by the held-out tenth
