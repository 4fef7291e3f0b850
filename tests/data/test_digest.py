import gzip
import json
import os

from heedful.data import digest
from heedful.data.digest import file_digest, known_digest


def settled(path, text):
    path.write_text(text)
    os.utime(path, (1e9, 1e9))
    return path


def known(path, cache, monkeypatch):
    """As if the file had been left alone for a while."""
    monkeypatch.setattr(digest, "SETTLED", -1)
    return known_digest(path, cache)


def test_the_content_counts_gzipped_or_not(tmp_path):
    plain, packed = tmp_path / "a.tsv", tmp_path / "b.tsv.gz"
    plain.write_bytes(b"a\tb\n")
    packed.write_bytes(gzip.compress(b"a\tb\n"))
    assert file_digest(plain) == file_digest(packed)


def test_a_file_left_alone_is_hashed_once(tmp_path, monkeypatch):
    file = settled(tmp_path / "a.tsv", "a\tb\n")
    first = known(file, tmp_path / "cache", monkeypatch)
    monkeypatch.setattr(digest, "file_digest", lambda file: "hashed again")
    assert known_digest(file, tmp_path / "cache") == first == file_digest(file)


def test_another_content_with_the_old_size_and_date_is_noticed(tmp_path, monkeypatch):
    file = settled(tmp_path / "a.tsv", "a\tb\n")
    first = known(file, tmp_path / "cache", monkeypatch)
    settled(file, "c\td\n")
    assert known_digest(file, tmp_path / "cache") == file_digest(file) != first


def test_a_file_that_may_still_be_changing_is_not_remembered(tmp_path):
    known_digest(settled(tmp_path / "a.tsv", "a\tb\n"), tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_a_damaged_note_is_no_harm(tmp_path, monkeypatch):
    file = settled(tmp_path / "a.tsv", "a\tb\n")
    known(file, tmp_path / "cache", monkeypatch)
    (note,) = (tmp_path / "cache" / "digests").iterdir()
    for text in ("", "[]", json.dumps({"facts": 1})):
        note.write_text(text)
        assert known_digest(file, tmp_path / "cache") == file_digest(file)
