"""Answers from sources: the prompt fits, the model reads it, the figures are shares of words."""

import json
import sys

import pytest

import heedful
from heedful.commands.exchange import import_model
from heedful.commands.main import main
from heedful.decoding.generation import GenerationConfig
from heedful.search.answer import Answer, Prompt, answer, fitted, measured, read_questions, support
from heedful.search.documents import Document
from heedful.search.index import Hit, Index, build
from tests.commands.in_process import refused
from tests.exchange import folders

pytest.importorskip("bm25s")
DOCUMENTS = [
    Document("fox", "Foxes", "the quick brown fox jumps over the lazy dog"),
    Document("count", "", "one two three four five six seven " * 30),
    Document("dog", "Dogs", "the lazy dog"),
]
GREEDY = GenerationConfig(num_beams=1, max_new_tokens=5)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lm")
    pytest.importorskip("transformers")
    folders.published(folder / "theirs", "gpt2")
    import_model(folder / "theirs", folder / "ours")
    return folder / "ours"


@pytest.fixture(scope="module")
def generator(model):
    return heedful.load(model)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("answers") / "index"
    build(DOCUMENTS, folder)
    return folder


TEMPLATE = "{sources}\n{question}?"


def test_everything_is_in_a_prompt_that_has_room(generator):
    made = fitted("who jumps", DOCUMENTS, generator.tokenizer, 10_000)
    assert made.truncated == []
    assert all(document.text.strip() in made.text for document in DOCUMENTS)
    assert "[1] Foxes\nthe quick" in made.text and made.text.endswith("Question: who jumps\nAnswer:")


@pytest.mark.parametrize("room", [60, 83, 127])
def test_a_prompt_that_has_too_little_room_truncates_the_longest_document(generator, room):
    made = fitted("who", DOCUMENTS, generator.tokenizer, room, TEMPLATE)
    assert len(generator.tokenizer.encode([made.text])[0]) <= room
    assert "count" in made.truncated and "dog" not in made.truncated
    assert "the lazy dog" in made.text and made.text.endswith("\nwho?")


def test_a_prompt_without_room_and_a_template_without_its_fields_are_refused(generator):
    with pytest.raises(ValueError, match="has room for 9 tokens, which leaves none for the sources; lower -k or"):
        fitted("who", DOCUMENTS, generator.tokenizer, 9)
    with pytest.raises(ValueError, match=r"the template must contain \{sources\} once"):
        fitted("who", DOCUMENTS, generator.tokenizer, 90, "{question}")


def test_the_model_continues_the_prompt(generator, place):
    index = Index(place, load=heedful.load)
    found = answer(index, generator, "lazy dog", GREEDY, k=2, template=TEMPLATE)
    assert [hit.document.id for hit in found.sources] == ["dog", "fox"]
    assert found.text == generator.generate(found.prompt.text, GREEDY)[0].text.strip()
    assert len(generator.tokenizer.encode([found.prompt.text])[0]) + 5 < (generator.limit or 2048)
    with pytest.raises(ValueError, match="no document shares a word with the question; ask in other words"):
        answer(index, generator, "zebra", GREEDY)


def test_figures_are_shares_of_words():
    hits = [Hit(rank, 1.0, document) for rank, document in enumerate(DOCUMENTS, start=1)]
    answers = [Answer("q", "The QUICK zebra", hits, Prompt("", [])), Answer("q", "six", hits[1:], Prompt("", []))]
    found = measured(answers, [("q", "fox", "quick fox"), ("q", "dog", "eight")])
    assert found == {
        "questions": 2, "first": 0.5, "found": 1.0, "supported": pytest.approx((2 / 3 + 1) / 2), "answerable": 0.5,
        "answered": 0.25,
    }  # fmt: skip
    assert support("", ["a"]) == 0.0


def test_questions_are_read(tmp_path):
    (tmp_path / "q.tsv").write_text("question\tdocument\twho jumps\n".replace("who jumps", "answer") + "a\tfox\tyes\n")
    assert read_questions(tmp_path / "q.tsv") == [("a", "fox", "yes")]
    (tmp_path / "two.tsv").write_text("a\tfox\nb\t\n")
    with pytest.raises(ValueError, match=r"two.tsv:2: empty question or document; fill it in"):
        read_questions(tmp_path / "two.tsv")
    (tmp_path / "one.tsv").write_text("a\n")
    with pytest.raises(ValueError, match="questions are rows of question, tab, document, and perhaps tab, answer"):
        read_questions(tmp_path / "one.tsv")


def test_the_command_prints_the_answer_and_its_sources(monkeypatch, capsys, model, place, tmp_path):
    def said(*words):
        command = ["heedful", "answer", place, "--model", model, "--max-new-tokens", 4, *words]
        monkeypatch.setattr(sys, "argv", [str(word) for word in command])
        with pytest.raises(SystemExit) as caught:
            main()
        found = capsys.readouterr()
        assert caught.value.code in (0, None), found.err
        return found

    (tmp_path / "prompt.txt").write_text(TEMPLATE)
    short = ["--template", tmp_path / "prompt.txt"]
    assert said("lazy dog", "-k", 2, *short).out.endswith("\nSources:\n[1] dog  Dogs\n[2] fox  Foxes\n")
    cut = said("seven", *short, "--json")
    assert "truncated to fit the model's context: count" in cut.err
    data = json.loads(cut.out)
    assert data["truncated"] == ["count"] and data["sources"][0]["id"] == "count" and "prompt" in data
    (tmp_path / "q.tsv").write_text("lazy dog\tdog\nbrown\tfox\n")
    figures = json.loads(said("--questions", tmp_path / "q.tsv", *short, "--json").out)
    assert figures["questions"] == 2 and figures["first"] == 1.0
    assert "give a question" in refused(monkeypatch, capsys, "answer", place, "--model", model)
