"""Words with tags from files of every kind: no word is lost, and none gets its neighbour's tag."""

import gzip
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.data.columns import PAIR, Column
from heedful.data.conll import ORPHAN, OTHER_SCHEME, complete, is_conll, is_iob2, to_iob2
from heedful.data.corpus import Fault, Line, read_rows
from heedful.data.inputs import Inputs
from tests.shared_data import shared

TAGGED = (Column("text", also=("tokens", "words")), Column("tags", "tags", also=("ner_tags",)))
FILE = "EU\tB-ORG\nrejects\tO\n\nPeter\tB-PER\nBlackburn\tI-PER\n"
ROWS = [("EU rejects", "B-ORG O"), ("Peter Blackburn", "B-PER I-PER")]


def read(path, content):
    raw = content.encode()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return list(read_rows([path], TAGGED))


def texts(lines):
    return [line.texts for line in lines if isinstance(line, Line)]


@pytest.mark.parametrize("name", ["a.conll", "a.bio", "a.iob", "a.conll.gz", "a.txt", "a", "a.gz", "a.tsv"])
def test_conll_is_recognised_by_name_or_content(tmp_path, name):
    assert texts(read(tmp_path / name, FILE)) == ROWS


@pytest.mark.parametrize("name", ["a.conll", "a.txt"])
def test_the_tag_is_in_the_last_column_and_spaces_separate_columns_too(tmp_path, name):
    content = (
        "-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\n"
        "Peter NNP B-NP B-PER\nBlackburn NNP I-NP I-PER"
    )
    lines = read(tmp_path / name, content)
    assert texts(lines) == ROWS
    assert [line.number for line in lines] == [3, 6]


def test_windows_line_ends_and_lines_of_a_tab_separate_sentences(tmp_path):
    assert texts(read(tmp_path / "a.conll", FILE.replace("\n\n", "\n\t\n").replace("\n", "\r\n"))) == ROWS


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("# id = 7\n# O\n#\tO\n#tag\tO\n", "# #tag"),
        ("EU O\n# O\n\n# text = EU rejects\n# sent 2\nEU O\n#tag O\n", "EU # EU #tag"),
        ("EU noun\n# noun\n\n# newdoc\n#tag noun\n# NN\n", "EU # #tag #"),
    ],
)
def test_a_comment_is_skipped_only_where_it_has_no_tag(tmp_path, content, words):
    assert " ".join(row[0] for row in texts(read(tmp_path / "a.conll", content))) == words


def test_white_space_inside_a_word_does_not_make_it_two(tmp_path):
    lines = read(tmp_path / "a.conll", "10\u00a0000\tB-N\n\u2028\tO\na b\tI-N\nend\tO\n")
    assert texts(lines) == [("10_000 _ a_b end", "B-N O B-N O")]


@given(st.lists(st.lists(st.text(st.characters(exclude_characters="\t\n\r\0", exclude_categories=["Cs"]), min_size=1),
                         min_size=1), min_size=1))  # fmt: skip
def test_every_word_has_its_own_tag(tmp_path_factory, sentences):
    content = "\n\n".join("\n".join(f"x{word}\tT{place}" for place, word in enumerate(words)) for words in sentences)
    found = texts(read(tmp_path_factory.getbasetemp() / "any.conll", content))
    assert [len(words.split()) for words, _ in found] == [len(words) for words in sentences]
    assert [tags.split() for _, tags in found] == [[f"T{n}" for n in range(len(words))] for words in sentences]


@pytest.mark.parametrize(
    ("content", "number", "reason"),
    [
        (
            "EU\tO\n\nEU\tO\nrejects\n",
            4,
            "'rejects' has no tag; a line must have a word and, in its last column, a tag",
        ),
        ("EU\tO\nrejects\t\n", 2, "the tag '' of 'rejects' is empty"),
        ("EU\tNN\tO\nrejects\tO\n", 2, "2 columns, where the first line has 3"),
        ("EU\tB ORG\n", 1, "the tag 'B ORG' of 'EU' is two words"),
    ],
)
def test_bad_lines_are_refused_by_their_number(tmp_path, content, number, reason):
    (fault,) = (line for line in read(tmp_path / "a.conll", content) if isinstance(line, Fault))
    assert (fault.number, fault.reason) == (number, reason)
    with pytest.raises(ValueError, match=rf"a\.conll:{number}: .*; correct or remove the line"):
        list(Inputs((tmp_path / "a.conll",), columns=TAGGED, strict=True).read("train"))


def test_tables_and_json_with_words_and_tags(tmp_path):
    assert texts(read(tmp_path / "a.tsv", "".join("\t".join(row) + "\n" for row in ROWS))) == ROWS
    assert texts(read(tmp_path / "b.tsv", "text\ttags\nEU\tB-ORG\n")) == [("EU", "B-ORG")]
    data = [{"id": 1, "text": "a\u00a0b c", "tokens": ["a\u00a0b", "", "c"], "ner_tags": ["B-X", "I-X", "O"]},
            {"words": ["a"], "tags": ["O"]}, {"text": "a b", "tags": "O O"}]  # fmt: skip
    lines = read(tmp_path / "c.jsonl", "".join(json.dumps(row) + "\n" for row in data))
    assert texts(lines) == [("a_b _ c", "B-X I-X O"), ("a", "O"), ("a b", "O O")]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"tokens": ["a", "b"], "tags": ["O"]}, "2 words, but 1 tags; give one for each word"),
        ({"tokens": ["a", "b"], "ner_tags": [0, 3]}, "tags are numbers; write their names, such as B-PER"),
    ],
)
def test_rows_whose_tags_do_not_fit_are_refused(tmp_path, row, reason):
    assert [line.reason for line in read(tmp_path / "a.jsonl", json.dumps(row))] == [reason]


def test_other_tasks_read_no_conll(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text(FILE)
    assert is_conll(path, TAGGED) and not is_conll(path, PAIR)


@pytest.mark.parametrize(
    ("tags", "wanted", "note"),
    [
        ("B-A I-A O B-B", "B-A I-A O B-B", ""),
        ("I-A I-A O I-B B-B I-A", "B-A I-A O B-B B-B B-A", ORPHAN),
        ("S-A B-A E-A O B-B I-B E-B", "B-A B-A I-A O B-B I-B I-B", OTHER_SCHEME),
        ("U-A B-A L-A O", "B-A B-A I-A O", OTHER_SCHEME),
        ("S-A I-A O", "B-A B-A O", ORPHAN),
        ("NN O U E", "NN O U E", ""),
        ("U E O", "U E O", ""),
        ("I I O", "B I O", ORPHAN),
    ],
)
def test_tags_of_entities_are_read_as_iob2(tags, wanted, note):
    assert to_iob2(tags.split()) == (wanted.split(), note)


@pytest.mark.parametrize("scheme", ["IOB1", "IOBES", "BILOU"])
def test_reading_keeps_the_entities_that_seqeval_finds(scheme):
    """Entities written in another scheme are the same ones in IOB2."""
    schemes = pytest.importorskip("seqeval.scheme")
    chance = random.Random(3)
    for _ in range(300):
        tags, before = [], "O"
        for _ in range(chance.randint(0, 6)):
            kind, size = chance.choice("AB"), chance.randint(1, 3)
            last, single = {"IOB1": ("I", "I"), "IOBES": ("E", "S"), "BILOU": ("L", "U")}[scheme]
            if scheme == "IOB1":
                start = "B" if before == kind else "I"
                entity = [start] + ["I"] * (size - 1)
            else:
                entity = [single] if size == 1 else ["B"] + ["I"] * (size - 2) + [last]
            outside = ["O"] * chance.randint(0, 2)
            tags += [f"{prefix}-{kind}" for prefix in entity] + outside
            before = "O" if outside else kind
        theirs = schemes.Tokens(tags, getattr(schemes, scheme)).entities
        ours = schemes.Tokens(to_iob2(tags)[0], schemes.IOB2).entities
        assert [(e.tag, e.start, e.end) for e in ours] == [(e.tag, e.start, e.end) for e in theirs], tags


def test_a_type_that_was_seen_can_always_be_continued():
    assert complete(["B-A", "I-B"]) == {"O", "B-A", "I-A", "B-B", "I-B"}
    assert complete(["NN", "VB"]) == {"NN", "VB"}
    assert not is_iob2(["O"]) and not is_iob2(["B-A", "NN"])


def test_no_word_of_wnut_is_lost():
    file = shared("wnut17/test.conll")
    lines = list(read_rows([file], TAGGED))
    wanted = [line.split("\t") for line in file.read_text(encoding="utf-8").split("\n") if line.strip()]
    assert [word for row in lines for word in row.texts[0].split()] == [word for word, _ in wanted]
    assert [tag for row in lines for tag in row.texts[1].split()] == [tag.strip() for _, tag in wanted]
