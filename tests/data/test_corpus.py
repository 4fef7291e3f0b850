"""Every format people have, and every way a file can be broken."""

import gzip
import json

import pytest

from heedful.data.columns import PAIR
from heedful.data.corpus import Fault, Line, near, read_pairs, read_rows, read_texts

PAIRS = [("Hello.", "Hallo."), ("Two words", "Zwei Wörter"), ("日本", "Japan")]


def texts(lines):
    return [line.texts for line in lines if isinstance(line, Line)]


def faults(lines):
    return [(line.number, line.reason) for line in lines if isinstance(line, Fault)]


def write(path, data):
    data = data.encode() if isinstance(data, str) else data
    with gzip.open(path, "wb") if path.suffix == ".gz" else path.open("wb") as file:
        file.write(data)
    return path


def tsv(pairs=PAIRS):
    return "".join(f"{source}\t{target}\n" for source, target in pairs)


@pytest.mark.parametrize("name", ["pairs.tsv", "pairs.tsv.gz", "pairs", "pairs.txt"])
def test_tsv_by_name_or_by_its_first_line(tmp_path, name):
    assert texts(read_pairs([write(tmp_path / name, tsv())])) == PAIRS


@pytest.mark.parametrize("name", ["pairs.jsonl", "pairs.jsonl.gz", "pairs"])
@pytest.mark.parametrize("keys", [("source", "target"), ("src", "tgt"), ("input", "output")])
def test_jsonl(tmp_path, name, keys):
    data = "".join(json.dumps(dict(zip(keys, pair, strict=True))) + "\n" for pair in PAIRS)
    assert texts(read_pairs([write(tmp_path / name, data)])) == PAIRS


def test_jsonl_with_a_translation_inside(tmp_path):
    data = "".join(json.dumps({"translation": {"en": first, "de": second}}) + "\n" for first, second in PAIRS)
    assert texts(read_pairs([write(tmp_path / "pairs.jsonl", data)])) == PAIRS


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_two_parallel_files(tmp_path, suffix):
    sides = [
        write(tmp_path / f"train.{side}{suffix}", "".join(pair[index] + "\n" for pair in PAIRS))
        for index, side in enumerate(("en", "de"))
    ]
    assert texts(read_pairs(sides)) == PAIRS
    assert texts(read_pairs(sides * 2)) == PAIRS * 2


def test_several_files_come_one_after_the_other(tmp_path):
    files = [write(tmp_path / f"{index}.tsv", tsv()) for index in range(3)]
    assert texts(read_pairs(files)) == PAIRS * 3


def test_a_third_column_is_not_used(tmp_path):
    assert texts(read_pairs([write(tmp_path / "p.tsv", "a\tb\tCC-BY 2.0\n")])) == [("a", "b")]


def test_windows_files(tmp_path):
    assert (
        texts(read_pairs([write(tmp_path / "p.tsv", b"\xef\xbb\xbf" + tsv().replace("\n", "\r\n").encode())])) == PAIRS
    )


def test_separators_inside_a_text_do_not_cut_it(tmp_path):
    assert texts(read_pairs([write(tmp_path / "p.tsv", "a\u2028b\x0bc\x85d\te\n")])) == [("a\u2028b\x0bc\x85d", "e")]


def test_bad_lines_are_told_with_their_number(tmp_path):
    data = b"good\tgut\nno tab\n\t\xc3\xa4\n\nbad \xff\tschlecht\nfine\tfein"
    lines = list(read_pairs([write(tmp_path / "p.tsv", data)]))
    assert texts(lines) == [("good", "gut"), ("fine", "fein")]
    assert faults(lines) == [(2, "only one column"), (3, "empty side"), (4, "empty line"), (5, "invalid UTF-8")]


def test_bad_json_lines_are_told_with_their_number(tmp_path):
    data = '{"source": "a", "target": "b"}\n{nope\n[1]\n{"source": "a"}\n{"source": "a", "target": 3}\n'
    lines = list(read_pairs([write(tmp_path / "p.jsonl", data)]))
    reasons = [
        (2, "not a JSON object"),
        (3, "not a JSON object"),
        (4, "no source and target"),
        (5, "no source and target"),
    ]
    assert faults(lines) == reasons


def test_parallel_files_of_unequal_length_stop(tmp_path):
    first, second = write(tmp_path / "t.en", "a\nb\nc\n"), write(tmp_path / "t.de", "a\nb\n")
    with pytest.raises(ValueError, match=r"t\.en has 3 lines and t\.de has 2; parallel files must match line by line"):
        list(read_pairs([first, second]))


def test_one_plain_file_is_no_pair(tmp_path):
    with pytest.raises(ValueError, match="pairs must be TSV .* this is none of them"):
        list(read_pairs([write(tmp_path / "book.txt", "just text\n")]))


def test_a_missing_file(tmp_path):
    with pytest.raises(ValueError, match="there is no file .*missing.tsv"):
        list(read_pairs([tmp_path / "missing.tsv"]))


def test_a_file_that_only_claims_to_be_gzipped(tmp_path):
    path = tmp_path / "p.tsv.gz"
    path.write_bytes(b"not gzip at all")
    with pytest.raises(ValueError, match=r"p\.tsv\.gz cannot be read"):
        list(read_pairs([path]))


def test_a_gzipped_file_that_was_cut(tmp_path):
    path = write(tmp_path / "p.tsv.gz", tsv() * 1000)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"p\.tsv\.gz cannot be read"):
        list(read_pairs([path]))


def test_plain_text_comes_as_documents_and_nothing_is_lost(tmp_path):
    text = "First line\nsecond\n\nAnother document\n\n\nlast"
    found = texts(read_texts([write(tmp_path / "book.txt", text)]))
    assert "".join(document for (document,) in found) == text + "\n"
    assert found[0] == ("First line\nsecond\n\n",)


def test_jsonl_texts(tmp_path):
    lines = list(read_texts([write(tmp_path / "t.jsonl", '{"text": "one"}\n{"x": 1}\n{"text": "two\\nlines"}\n')]))
    assert texts(lines) == [("one",), ("two\nlines",)]
    assert faults(lines) == [(2, "no text")]


def test_near_ignores_case_spaces_and_punctuation():
    assert near("Hello, World!") == near("hello world") != near("hello worlds")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_a_byte_order_mark_tells_the_encoding(tmp_path, encoding):
    path = tmp_path / "p.tsv"
    path.write_bytes("Größe\t尺寸\nzwei\t二\n".encode(encoding))
    assert [line.texts for line in read_pairs([path])] == [("Größe", "尺寸"), ("zwei", "二")]
    path.rename(tmp_path / "plain")  # and where only the content tells the format
    assert [line.texts for line in read_pairs([tmp_path / "plain"])] == [("Größe", "尺寸"), ("zwei", "二")]


def test_utf_16_without_a_mark_is_refused_and_not_trained_on_as_debris(tmp_path):
    path = tmp_path / "p.tsv"
    path.write_bytes("one\ttwo\nthree\tfour\n".encode("utf-16-le"))
    with pytest.raises(ValueError, match="p.tsv:1 contains a NUL byte, so it is not UTF-8 text; is it UTF-16 without"):
        list(read_pairs([path]))
    path.write_bytes(b"\xff\xfeo\x00n\x00e\x00\t")
    with pytest.raises(ValueError, match="has the byte-order mark of UTF-16, but is not valid"):
        list(read_pairs([path]))


def test_a_header_row_is_noticed_and_left_out(tmp_path):
    lines = list(read_pairs([write(tmp_path / "p.tsv", "Source\tTarget\na\tb\nsource\ttarget\n")]))
    assert faults(lines) == [(1, "header row")]
    assert [line.texts for line in lines if isinstance(line, Line)] == [("a", "b"), ("source", "target")]
    lines = list(read_pairs([write(tmp_path / "q.tsv", "House\tHaus\n")]))
    assert not faults(lines)


def test_csv_and_quoted_tsv_are_read_as_spreadsheets_write_them(tmp_path):
    data = 'source,target\n"one, two","eins, zwei"\n"say ""hi""",sag\n"a\nb",c\nlone\nlast,ende\n'
    lines = list(read_pairs([write(tmp_path / "p.csv", data)]))
    texts = [("one, two", "eins, zwei"), ('say "hi"', "sag"), ("a b", "c"), ("last", "ende")]
    assert [line.texts for line in lines if isinstance(line, Line)] == texts
    assert faults(lines) == [(1, "header row"), (6, "only one column")]
    quoted = write(tmp_path / "q.tsv", '"one\ttwo"\teins\nzwei\t"a ""b"""\n')
    assert [line.texts for line in read_pairs([quoted])] == [("one\ttwo", "eins"), ("zwei", 'a "b"')]
    plain = write(tmp_path / "r.tsv", '"Go!" he said\tb\na "b" c\td\n')  # quotes that belong to the text
    assert [line.texts for line in read_pairs([plain])] == [('"Go!" he said', "b"), ('a "b" c', "d")]


def test_json_with_other_fields_says_which_and_takes_them(tmp_path):
    path = write(tmp_path / "p.jsonl", '{"english": "a", "chinese": "b"}\n')
    assert faults(list(read_pairs([path]))) == [
        (1, "no source and target (it has english, chinese; name them with --fields)")
    ]
    assert [line.texts for line in read_rows([path], PAIR, ["chinese", "english"])] == [("b", "a")]


def test_more_columns_are_mentioned(tmp_path):
    (line,) = read_pairs([write(tmp_path / "p.tsv", "a\tb\tCC-BY 2.0\n")])
    assert line.texts == ("a", "b") and line.more == 3
