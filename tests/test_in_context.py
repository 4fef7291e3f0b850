"""Translation that sees the sentences before: by hand, side by side, in pieces, from the command line, over HTTP."""

import json
import sys

import numpy as np
import pytest
import torch

from heedful.commands import translate as command
from heedful.commands.main import main
from heedful.data.inputs import Inputs
from heedful.data.prepare import load_tokenizers, prepare
from heedful.decoding.runner import Request
from heedful.decoding.stepper import ModuleSteps
from heedful.files import write_text
from heedful.mini.corpus import write
from heedful.model.cpu.decoding import KernelSteps
from heedful.tasks import Settings
from heedful.tasks.translation import TranslationConfig
from heedful.text.tokenizer import BREAK
from heedful.training import loop
from heedful.training.recipe import read_recipe
from heedful.training.run import train
from heedful.translator import Translator, load
from tests.commands.in_process import refused
from tests.corpora import SMALL, pairs

CONTEXT = 2
RECIPE = [*SMALL, "training.batch_tokens=384", "training.steps=4", "training.save_every=2", "training.validate_every=4",
          f"data.context={CONTEXT}", "data.max_length=150"]  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("context")
    write(folder, "en-de", 60, seed=3, documents=True)
    train(read_recipe("tiny", RECIPE), Inputs((folder / "train.tsv",)), folder / "model", cache=folder / "cache")
    return folder


@pytest.fixture(scope="module")
def model(place):
    """Its weights are large enough for what stands before to change what is written."""
    found = load(place / "model", streams=1)
    chance = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in found.models[0].parameters():
            weight += 0.35 * torch.randn(weight.shape, generator=chance)
    return Translator(found.models, [found.source, found.target], limit=1 << 20, context=CONTEXT)


DOCUMENTS = [
    ["The boy sees a lamp.", "It is old.", "It is new.", "The dog sleeps."],
    ["A cat.", "It sleeps."],
    ["The queen sells the old house."],
]


def by_hand(model, text, before):
    """Greedy, one token after the other, with a full pass for each."""
    one, last = model.models[0], model.target
    read = [token for source, _ in before for token in (*model.source.encode([source])[0], model.source.sentence_break)]
    read += [*model.source.encode([text])[0], model.source.eos]
    given = [token for _, target in before for token in (*last.encode([target])[0], last.sentence_break)]
    written = []
    for _ in range(2 * len(model.source.encode([text])[0]) + 10):
        with torch.no_grad():
            logits = one(torch.tensor([read]), torch.tensor([[last.start, *given, *written]]))[0, -1]
        logits[list(last.never)] = -torch.inf
        if (token := int(logits.argmax())) == last.eos:
            break
        written.append(token)
    return last.decode([written])[0].strip()


def test_it_writes_what_is_written_by_hand_after_what_stands_before(model):
    for document in DOCUMENTS:
        found = [one.text for one in model.translate_document(document, num_beams=1)]
        before = []
        for text, one in zip(document, found, strict=True):
            assert one == by_hand(model, text, before[-CONTEXT:]), (text, before)
            before.append((text, one))
    alone = [one.text for one in model.translate(DOCUMENTS[0], num_beams=1)]
    assert alone[0] == model.translate_document(DOCUMENTS[0], num_beams=1)[0].text
    assert alone != [one.text for one in model.translate_document(DOCUMENTS[0], num_beams=1)], "context changes nothing"


@pytest.mark.parametrize("options", [{"num_beams": 1}, {"num_beams": 3}, {"do_sample": True, "seed": 7}])
def test_a_document_does_not_depend_on_others_nor_on_batches(model, options):
    together = model.translate_documents(DOCUMENTS, batch_tokens=5000, **options)
    for document, found in zip(DOCUMENTS, together, strict=True):
        for again in (
            model.translate_document(document, **options),
            model.translate_documents([document], batch_tokens=1, **options)[0],
        ):
            assert [one.text for one in again] == [one.text for one in found]
            assert [one.tokens for one in again] == [one.tokens for one in found]
            scores = np.array([[one.score for one in some] for some in (again, found)])
            assert np.allclose(*scores, atol=1e-4)


BEFORE = [("The queen sells the house.", "Die Königin verkauft das Haus."), ("A cat.", "Eine Katze.")]


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("beams", [1, 3])
def test_what_stands_before_is_read_in_one_pass_with_the_output_of_a_step_for_each_token(
    model, monkeypatch, beams, kernels
):
    found = Translator(model.models, [model.source, model.target], limit=1 << 20, context=CONTEXT)
    if not kernels:
        found.starter.quick = [None]
    elif found.starter.quick == [None]:
        pytest.skip("no kernels here")
    passes = []
    for kind in (ModuleSteps, KernelSteps):
        whole, step = kind.read, kind.advance
        monkeypatch.setattr(kind, "read", lambda self, tokens, whole=whole: passes.append(tokens.shape[1]) or whole(
            self, tokens))  # fmt: skip
        with monkeypatch.context() as patch:
            patch.setattr(kind, "read", lambda self, tokens, step=step: [step(self, one) for one in tokens.T])
            slow = found.translate(Request("It is old.", context=BEFORE), num_beams=beams, num_return_sequences=beams)
    quick = found.translate(Request("It is old.", context=BEFORE), num_beams=beams, num_return_sequences=beams)
    (given,) = found.before.starter.written_before([Request("", context=BEFORE)])
    assert passes[-1] == len(given) and slow.tokens == quick.tokens
    assert [one.tokens for one in slow.alternatives] == [one.tokens for one in quick.alternatives]
    assert slow.token_log_probs == pytest.approx(quick.token_log_probs, abs=1e-5)


def test_with_int8_weights_what_stands_before_is_read_too(place):
    found = load(place / "model", streams=1, quantize="int8")
    (one,) = found.translate_document(["It is old."], num_beams=1, context=BEFORE)
    found.starter.quick = [None]
    (other,) = found.translate_document(["It is old."], num_beams=1, context=BEFORE)
    assert one.tokens == other.tokens
    assert one.token_log_probs == pytest.approx(other.token_log_probs, abs=1e-4)


def test_rules_are_for_the_sentence_and_not_for_what_stands_before_it(model):
    text = "It is old."
    for options in ({"no_repeat_ngram_size": 1}, {"repetition_penalty": 2.0}, {"min_new_tokens": 7}, {}):
        one = model.translate(Request(text, context=BEFORE), num_beams=1, max_new_tokens=12, **options)
        if "no_repeat_ngram_size" in options:
            assert len(set(one.tokens)) == len(one.tokens)
        assert len(one.tokens) >= options.get("min_new_tokens", 0)
    stopped = model.translate(Request(text, context=BEFORE), num_beams=1, max_new_tokens=12, stop_strings=["Haus"])
    assert stopped.tokens == one.tokens and "Haus" not in one.text  # which stands in the context
    required = model.translate(Request(text, required=["alt"], context=BEFORE), num_beams=4)
    assert "alt" in required.text
    forced = model.translate(Request(text, "Das", context=BEFORE), num_beams=2)
    assert forced.text.startswith("Das")


def test_scores_and_tokens_are_those_of_the_sentence_alone(model):
    for one in model.translate_document(DOCUMENTS[0], num_beams=2):
        assert one.text == model.target.decode([one.tokens])[0].strip()
        assert len(one.token_log_probs) - len(one.tokens) in (0, 1)
        assert one.score == pytest.approx(np.mean(one.token_log_probs))


def test_pieces_of_a_document_with_what_stands_before_them_equal_the_whole(model):
    whole = model.translate_document(DOCUMENTS[0], num_beams=2)
    before = [(text, one.text) for text, one in zip(DOCUMENTS[0], whole, strict=True)]
    rest = model.translate_document(DOCUMENTS[0][2:], num_beams=2, context=before[:2])
    assert [one.text for one in rest] == [one.text for one in whole[2:]]
    split = Translator(model.models, [model.source, model.target], limit=1 << 20, context=CONTEXT, split=True)
    text = split.translate(" ".join(DOCUMENTS[0]), num_beams=2).text
    assert text == " ".join(one.text for one in whole)


def test_a_text_in_parts_reads_its_context_once_and_then_its_own_parts(model):
    first, *rest = DOCUMENTS[0]
    whole = [one.text for one in model.translate_document([first, *rest[:2]])]
    together = model.translate_document([first, " ".join(rest[:2])], split=True)
    assert [one.text for one in together] == [whole[0], " ".join(whole[1:])]


def test_an_empty_line_is_no_context_and_stays_a_line(model):
    texts = [DOCUMENTS[0][0], "  ", DOCUMENTS[0][1]]
    found = model.translate_document(texts, num_beams=1)
    without = model.translate_document(DOCUMENTS[0][:2], num_beams=1)
    assert [one.text for one in found] == [without[0].text, "", without[1].text]
    assert model.translate_document([]) == []


def test_a_context_that_is_too_long_loses_its_oldest_sentences(model):
    text, before = "It is old.", [("The queen sells the house.", "Die Königin."), ("A cat.", "Eine Katze.")]
    for limit, kept in ((150, 2), (33, 1), (12, 0)):
        tight = Translator(model.models, [model.source, model.target], limit=limit, context=CONTEXT)
        (found,) = tight.translate_document([text], num_beams=1, context=before)
        (expected,) = model.translate_document([text], num_beams=1, context=before[len(before) - kept :])
        assert found.text == expected.text


def test_the_loss_is_that_of_each_sentence_after_those_before_it(place):
    found = load(place / "model")
    (folder,) = (path.parent for path in (place / "cache").glob("*/facts.json"))
    assert (folder / "train.places").exists()
    inputs = Inputs((place / "train.tsv",), documents=True)
    recipe = read_recipe("tiny", RECIPE)
    tokenizers = load_tokenizers(place / "model", columns=2)
    prepared = prepare(inputs, recipe.data, recipe.tokenizer, cache=place / "cache", given=tokenizers, specials=[BREAK])
    task = TranslationConfig().build(prepared, Settings(max_length=150, context=CONTEXT))
    store = prepared.store("train")
    rows = np.arange(len(store))[:17]
    texts = list(zip(*(tokenizers[side].decode(store.rows(side, rows)) for side in (0, 1)), strict=True))
    places = prepared.places("train")[:17].tolist()
    scores = found.score(texts, places=places)
    batch = task.collate(rows)
    with torch.inference_mode():
        term = task.loss(found.models[0], batch, state={}).terms["tokens"]
    tokens = sum(len(row) + 1 for row in store.rows(1, rows))
    assert int(term.count) == batch.counts["tokens"] == sum(map(len, scores)) == tokens
    assert float(term.total) == pytest.approx(-sum(map(sum, scores)), rel=1e-4)
    assert found.score(texts) != scores


def test_interrupted_training_ends_as_if_left_alone(place, monkeypatch):
    plain = loop.Trainer._apply

    def dying(self, loss):
        if self.progress.step == 3:
            raise KeyboardInterrupt
        return plain(self, loss)

    inputs, out = Inputs((place / "train.tsv",)), place / "cut"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(loop.Trainer, "_apply", dying)
        train(read_recipe("tiny", RECIPE), inputs, out, cache=place / "cache")
    train(read_recipe("tiny", RECIPE), inputs, out, cache=place / "cache")
    for name in ("checkpoints/4/model.safetensors", "checkpoints/4/optimizer.safetensors", "model.safetensors"):
        assert (out / name).read_bytes() == (place / "model" / name).read_bytes()


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["heedful", *map(str, arguments)])
    with pytest.raises(SystemExit) as caught:
        main()
    assert not caught.value.code
    return capsys.readouterr()


@pytest.mark.parametrize("ahead", [2, 3, 512])
def test_files_keep_their_lines_and_documents_however_they_are_read(place, monkeypatch, capsys, ahead):
    lines = [line for document in DOCUMENTS for line in (*document, "")]
    (place / "in.txt").write_text("".join(line + "\n" for line in lines))
    monkeypatch.setattr(command, "READ_AHEAD", ahead)
    run(monkeypatch, capsys, "translate", place / "model", "-i", place / "in.txt", "-o", place / "out.txt", "-b", 2)
    found = load(place / "model").translate_documents(DOCUMENTS, num_beams=2)
    expected = [line for document in found for line in (*(one.text for one in document), "")]
    assert (place / "out.txt").read_text().split("\n") == [*expected, ""]
    rows = [{"doc": place, "text": text} for place, document in enumerate(DOCUMENTS) for text in document]
    (place / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run(monkeypatch, capsys, "translate", place / "model", "-i", place / "in.jsonl", "-o", place / "out.jsonl", "-b", 2)
    written = [json.loads(line)["translation"] for line in (place / "out.jsonl").read_text().splitlines()]
    assert written == [one.text for document in found for one in document]


def test_lines_that_have_no_context_are_not_passed_over_in_silence(place, monkeypatch, capsys):
    (place / "ids.jsonl").write_text("".join(json.dumps({"id": n, "text": "A cat."}) + "\n" for n in range(5)))
    (place / "apart.txt").write_text("A cat.\n\nA dog.\n\n")
    (place / "whole.txt").write_text("A cat.\nA dog.\n")
    for name, alone in (("ids.jsonl", True), ("apart.txt", True), ("whole.txt", False)):
        said = run(monkeypatch, capsys, "translate", place / "model", "-i", place / name, "-b", 1)
        assert ("every line is a document of its own, so none was translated in context" in said.err) == alone


def test_evaluation_keeps_documents_together(place, monkeypatch, capsys):
    said = run(monkeypatch, capsys, "evaluate", place / "model", place / "valid.tsv", "-b", 1, "--json")
    data = json.loads(said.out)
    lines = (place / "valid.tsv").read_text().split("\n\n")
    documents = [[row.split("\t") for row in some.strip().split("\n")] for some in lines]
    translator = load(place / "model")
    pairs = [(row[0], row[1]) for some in documents for row in some]
    scores = translator.score(pairs, places=[place for some in documents for place in range(len(some))])
    tokens = sum(map(len, scores))
    (numbers,) = data["models"].values()
    assert data["sentences"] == len(pairs)
    assert numbers["perplexity"] == pytest.approx(np.exp(-sum(map(sum, scores)) / tokens), rel=1e-4)
    from heedful.evaluation.metrics import score

    texts = [one.text for some in translator.translate_documents([[r[0] for r in d] for d in documents], num_beams=1)
             for one in some]  # fmt: skip
    assert numbers["chrf"]["score"] == score(texts, [[target for _, target in pairs]])["chrf"].value
    (place / "flat.tsv").write_text("".join("\t".join(row) + "\n" for some in documents for row in some))
    said = run(monkeypatch, capsys, "evaluate", place / "model", place / "flat.tsv", "-b", 1, "--json")
    assert "flat.tsv is read as one document" in said.err


def test_held_out_documents_are_saved_as_documents(place):
    text = (place / "model" / "test.tsv").read_text()
    assert all(len(document.strip().split("\n")) == 2 for document in text.split("\n\n"))


def test_what_does_not_go_together_is_refused(place, model, monkeypatch, capsys):
    plain = pairs(place / "plain.tsv", 40)
    out = ["--out", place / "x", "--cache", place / "cache"]
    recipe = read_recipe("tiny", [*SMALL, "data.context=1"])
    with pytest.raises(
        ValueError, match=r"plain.tsv: it has no documents, but data.context needs the sentences before"
    ):
        train(recipe, Inputs((plain,)), place / "x", cache=place / "cache")
    write_text(place / "book.txt", "a book")
    capsys.readouterr()
    said = refused(monkeypatch, capsys, "train", place / "book.txt", *out, "--recipe", "char-gpt", "data.context=1")
    assert "data.context is for translation; task causal_lm has no sentences before: set data.context=0" in said
    said = refused(monkeypatch, capsys, "translate", place / "model", "-i", plain, "--mbr", 2)
    assert "--mbr chooses for each line by itself" in said
    before = [("A cat.", "Eine Katze.")]
    single = Translator(model.models, [model.source, model.target])
    with pytest.raises(ValueError, match=r"this model reads single sentences; leave out the context, or train with"):
        single.translate(Request("It is old.", context=before))
    texts = [text for document in DOCUMENTS for text in document]
    flat = [one.text for some in single.translate_documents(DOCUMENTS, num_beams=2) for one in some]
    assert flat == [one.text for one in single.translate(texts, num_beams=2)]
