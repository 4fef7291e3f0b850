"""Tagging beside transformers and torchcrf: losses, gradients; and from a file to entities."""

import json
import random

import numpy as np
import pytest
import torch

import heedful
from heedful.exchange.hugging_face import family_for
from heedful.model.crf import Crf
from heedful.tasks._words import find_words, most_context
from heedful.tasks.tagging import HEAD, Tagger
from heedful.text.tokenizer import TokenizerConfig, train_tokenizer
from tests.tasks.labelled import SMALL, bert, built, word_gradients

SIZES = [{"width": 22, "hidden": 37, "heads": 2}, {"width": 64, "hidden": 128, "heads": 4}]
PEOPLE, LAST, PLACES = ["Peter", "Maria", "John"], ["Blackburn", "Schmidt"], ["Berlin", "York", "Kyoto"]
OTHER = ["lives", "in", "sees", "the", "house", "of", "with", "unquestionably", "."]
QUICK = {**SMALL, "training.steps": 120, "tokenizer.vocab": 400}


def sentences(count, *, seed=0, plain=False):
    """Names of people, one or two words, and of places, among other words."""
    chance, found = random.Random(seed), []
    for _ in range(count):
        rows = []
        for _ in range(chance.randint(1, 4)):
            rows += [(word, "O") for word in chance.choices(OTHER, k=chance.randint(1, 3))]
            if chance.random() < 0.6:
                rows.append((chance.choice(PEOPLE), "B-PER"))
                rows += [(chance.choice(LAST), "I-PER")] * chance.randint(0, 1)
            else:
                rows.append((chance.choice(PLACES), "B-LOC"))
        found.append([(word, {"O": "X", "B-LOC": "NOUN"}.get(tag, "NAME")) for word, tag in rows] if plain else rows)
    return found


def write(path, found):
    text = "\n\n".join("\n".join(f"{word}\t{tag}" for word, tag in rows) for rows in found)
    path.write_text(text + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("size", SIZES, ids=["primes", "kernels"])
def test_loss_and_gradient_are_transformers(tmp_path, size):
    """Their labels are -100 on all but the first token of a word. Some sentences are read in several windows."""
    pytest.importorskip("transformers")
    task, data = built(write(tmp_path / "rows.conll", sentences(60)), tmp_path / "cache", "tag", max_length=40)
    assert data.labels["tags"] == ["B-LOC", "B-PER", "I-LOC", "I-PER", "O"]
    theirs, ours = bert(
        tmp_path / "bert", "BertForTokenClassification", vocab=data.tokenizers[0].vocab, num_labels=5, **size
    )
    batch = task.collate(np.arange(13))
    texts = batch.words.texts
    assert len(texts.tokens) > 13, "every sentence fits a window"
    assert len(batch.wanted) < int(texts.valid.sum()) / 2, "few words have several tokens"
    loss = task.loss(ours, batch, state=None).terms["tags"]
    labels = torch.full_like(texts.tokens, -100)
    labels[batch.words.window, batch.words.place] = batch.wanted
    wanted = theirs(
        input_ids=texts.tokens, attention_mask=texts.valid.long(), token_type_ids=texts.types, labels=labels
    ).loss
    found = loss.total / loss.count
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    found.backward()
    wanted.backward()
    torch.testing.assert_close(*word_gradients(theirs, ours), rtol=1e-4, atol=1e-5)


def test_the_loss_of_a_crf_is_torchcrfs(tmp_path):
    crf = pytest.importorskip("torchcrf").CRF(5, batch_first=True)
    pytest.importorskip("transformers")
    file = write(tmp_path / "rows.conll", sentences(60))
    task, data = built(file, tmp_path / "cache", "tag", "task.crf=true", max_length=40)
    _, ours = bert(
        tmp_path / "bert", "BertForTokenClassification", vocab=data.tokenizers[0].vocab, num_labels=5, **SIZES[0]
    )
    head = ours.get_submodule(f"heads.{HEAD}")
    head.crf = Crf(5)
    weights = {"first": crf.start_transitions, "last": crf.end_transitions, "transitions": crf.transitions}
    head.crf.load_state_dict(weights)
    batch = task.collate(np.arange(13))
    loss = task.loss(ours, batch, state=None).terms["tags"]
    words = batch.words
    logits = ours.predict(HEAD, ours(words.texts.tokens, token_types=words.texts.types, valid=words.texts.valid))
    scores = torch.nn.utils.rnn.pad_sequence(
        logits[words.window, words.place].split(words.counts.tolist()), batch_first=True
    )
    wanted = torch.nn.utils.rnn.pad_sequence(batch.wanted.split(words.counts.tolist()), batch_first=True)
    torch.testing.assert_close(loss.total, -crf(scores, wanted, mask=words.valid, reduction="sum"))


def test_each_word_is_read_once_where_most_is_around_it(tmp_path):
    tokenizer = train_tokenizer(["a b c"], TokenizerConfig(kind="word"), vocab=50, extra=["<mask>", "<cls>", "<sep>"])
    rows = [np.arange(41) + 100, np.arange(3) + 100]
    words = find_words(rows, [np.arange(0, 41, 2), np.arange(3)], tokenizer, length=12)
    assert words.counts.tolist() == [21, 3] and words.texts.tokens.shape[1] == 12
    tokens = words.texts.tokens[words.window, words.place] - 100
    assert tokens.tolist() == [*range(0, 41, 2), 0, 1, 2]
    inner = words.place[(tokens > 5) & (tokens < 35)]
    assert inner.min() >= 2 and inner.max() <= 9, "a word stands at the edge of its window"


def test_the_window_with_most_context_is_the_best_of_all():
    starts, sizes = np.array([0, 7, 14, 17]), np.array([10, 10, 10, 10])
    for token, found in zip(range(27), most_context(np.arange(27), starts, sizes), strict=True):
        context = [min(token - s, s + n - 1 - token) if s <= token < s + n else -1
                   for s, n in zip(starts, sizes, strict=True)]  # fmt: skip
        assert context[found] == max(context) >= 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("tagger")
    heedful.train(write(made / "train.conll", sentences(400)), out=made / "run", recipe="tag", changes=QUICK)
    return made / "run"


@pytest.fixture(scope="module")
def tagger(folder):
    return heedful.load(folder)


def test_it_learns_names(tagger, tmp_path):
    test = sentences(60, seed=7)
    found = tagger.evaluate(write(tmp_path / "test.conll", test))
    assert found["rows"] == 60
    assert found["words"] == sum(map(len, test))
    assert found["f1"] > 90 and found["accuracy"] > 90
    assert set(found["f1_by_type"]) == {"LOC", "PER"}


def test_scores_are_seqevals_for_the_tags_it_predicts(tagger, tmp_path):
    metrics = pytest.importorskip("seqeval.metrics")
    from seqeval.scheme import IOB2

    test = sentences(40, seed=8)
    for row in test:  # half of the truth is wrong, so that scores are not all 100
        row[:1] = [(row[0][0], "B-LOC")]
    found = tagger.evaluate(write(tmp_path / "test.conll", test))
    answers = [row["tags"] for row in tagger.predict([" ".join(word for word, _ in row) for row in test])]
    truth = [[tag for _, tag in row] for row in test]
    assert found["f1"] == pytest.approx(100 * metrics.f1_score(truth, answers, mode="strict", scheme=IOB2))
    assert found["accuracy"] == pytest.approx(100 * metrics.accuracy_score(truth, answers))


def test_entities_come_with_their_characters(tagger):
    line = "  the house  of Peter \u00a0Blackburn in Kyoto"
    (found, empty) = tagger.predict([line, " "])
    assert found["words"] == line.split() and len(found["tags"]) == len(found["words"])
    assert found["text"] == " ".join(found["tags"])
    assert [(entity["type"], entity["text"]) for entity in found["entities"]] == [
        ("PER", "Peter \u00a0Blackburn"), ("LOC", "Kyoto"),
    ]  # fmt: skip
    assert all(line[entity["start"] : entity["end"]] == entity["text"] for entity in found["entities"])
    assert empty == {"text": "", "words": [], "tags": [], "entities": []}


def test_a_long_text_and_odd_words_keep_one_tag_for_each_word(tagger):
    words = [word for row in sentences(60, seed=3) for word, _ in row] + ["\u200b", "\x07", "東京", "👩‍👧"]
    (found,) = tagger.predict([" ".join(words)])
    assert found["words"] == words and len(found["tags"]) == len(words)
    assert sum(tag == "B-LOC" for tag in found["tags"]) >= 0.8 * sum(word in PLACES for word in words)


def test_answers_do_not_depend_on_the_company(tagger):
    lines = [" ".join(word for word, _ in row) for row in sentences(30, seed=2)]
    assert tagger.predict(lines) == [tagger.predict([line])[0] for line in lines]


def test_int8_weights_give_nearly_the_same_tags(folder, tmp_path):
    quick = heedful.load(folder, quantize="int8")
    assert isinstance(quick, Tagger)
    assert quick.evaluate(write(tmp_path / "test.conll", sentences(40, seed=9)))["f1"] > 90


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("EU\tO\n\nhere\tB-XYZ\n", r"test.conll:3: tag 'B-XYZ' does not occur in the training data"),
        ("EU\tO\n\nhere\n", r"test.conll:3: 'here' has no tag"),
        ("\n", r"no rows|no usable"),
    ],
)
def test_bad_rows_of_a_test_file_are_refused_by_line(tagger, tmp_path, content, message):
    (tmp_path / "test.conll").write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        tagger.evaluate(tmp_path / "test.conll")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.conll", "EU\tO\n\n" * 30, "only one tag, 'O'"),
        ("a.tsv", "EU is\tO O\nPeter is here\tB-PER O\n" * 30, "a.tsv:2: 3 words, but 2 tags; give one for each word"),
        ("a.txt", "Just some text.\nWord\n" * 30, "must be TSV .*CoNLL; this is none of them"),
    ],
)
def test_bad_training_files_are_refused(tmp_path, name, content, message):
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        built(tmp_path / name, tmp_path / "cache", "tag")


def test_iob1_is_read_as_iob2_and_said(tmp_path):
    iob1 = [[(word, tag.replace("B-", "I-")) for word, tag in row] for row in sentences(60)]
    file = write(tmp_path / "a.conll", iob1)
    task, data = built(file, tmp_path / "cache", "tag")
    assert data.labels["tags"] == ["B-LOC", "B-PER", "I-LOC", "I-PER", "O"]
    assert any("I- tags that continue nothing, read as B-" in note and "a.conll:1" in note for note in task.notes)


def test_parts_of_speech_are_scored_by_accuracy(tmp_path):
    file = write(tmp_path / "train.conll", sentences(300, plain=True))
    made = heedful.train(file, out=tmp_path / "run", recipe="tag", changes={**QUICK, "training.steps": 90})
    found = made.evaluate(write(tmp_path / "test.conll", sentences(40, seed=4, plain=True)))
    assert found["accuracy"] > 80 and "f1" not in found
    assert set(found["f1_by_tag"]) == {"NAME", "NOUN", "X"}
    assert made.predict(["Peter lives"])[0]["entities"] == []


def test_a_crf_learns_too_and_breaks_no_rule(tmp_path):
    file = write(tmp_path / "train.conll", sentences(300))
    changes = {**QUICK, "task.crf": True, "training.steps": 60, "model.encoder.feedforward.kernel": 3}
    made = heedful.train(file, out=tmp_path / "run", recipe="tag", changes=changes)
    lines = [" ".join(random.Random(seed).choices(PEOPLE + LAST + PLACES + OTHER, k=20)) for seed in range(50)]
    for found in made.predict(lines):
        for before, tag in zip(["O", *found["tags"]], found["tags"], strict=False):
            assert not tag.startswith("I") or before[1:] == tag[1:]
    again = heedful.load(tmp_path / "run")
    assert again.predict(lines) == made.predict(lines)
    with pytest.raises(ValueError, match=r"no family .* CRF; train with task.crf=false"):
        family_for(made.opened.model)
    with pytest.raises(ValueError, match=r"label_smoothing.*task.crf"):
        built(file, tmp_path / "cache", "tag", "task.crf=true", label_smoothing=0.1)


def test_the_command_line_trains_predicts_and_evaluates(folder, tmp_path):
    runner = pytest.importorskip("typer.testing").CliRunner()
    from heedful.commands.main import app

    said = runner.invoke(app, ["predict", str(folder), "Peter lives in Berlin"])
    assert said.exit_code == 0 and len(said.stdout.split()) == 4
    test = write(tmp_path / "test.conll", sentences(9, seed=5))
    said = runner.invoke(app, ["evaluate", str(folder), str(test), "--json"])
    assert said.exit_code == 0
    assert json.loads(said.stdout)["rows"] == 9
    held_out = runner.invoke(app, ["evaluate", str(folder), "--json"])
    assert held_out.exit_code == 0 and json.loads(held_out.stdout)["f1"] > 90


def test_a_tagger_goes_to_transformers_and_back(tmp_path):
    """Exported, it is a BertForTokenClassification with the names of its tags; imported again, it says the same."""
    transformers = pytest.importorskip("transformers")
    runner = pytest.importorskip("typer.testing").CliRunner()
    from heedful.commands.main import app

    changes = {**QUICK, "training.steps": 30, "model.encoder.placement": "post"}
    file = write(tmp_path / "train.conll", sentences(200))
    heedful.train(file, out=tmp_path / "run", recipe="tag", changes=changes)
    made = heedful.load(tmp_path / "run")
    for command in (["export", "run", "--out", "theirs"], ["import", "theirs", "--out", "again"]):
        places = [str(tmp_path / word) if word in ("run", "theirs", "again") else word for word in command]
        result = runner.invoke(app, places)
        assert result.exit_code == 0, result.output
    theirs = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path / "theirs").eval()
    assert type(theirs).__name__ == "BertForTokenClassification"
    assert list(theirs.config.id2label.values()) == made.tags
    words = ["the", "house", "of", "Peter", "Blackburn", "in", "Kyoto"]
    inputs = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")(" ".join(words), return_tensors="pt")
    with torch.no_grad():
        best = theirs(**inputs).logits[0].argmax(-1).tolist()
    firsts = np.cumsum([1, *map(len, made.opened.tokenizer.encode_words(words))])[:-1]
    assert made.tag([words])[0] == [made.tags[best[place]] for place in firsts]
    assert heedful.load(tmp_path / "again").tag([words]) == made.tag([words])
