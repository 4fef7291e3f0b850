"""Content digests of files. A file is hashed once, and again only if it may have changed."""

import json
import time
from hashlib import blake2b
from pathlib import Path

from heedful.data.lines import UNREADABLE, open_bytes
from heedful.files import write_text

SETTLED = 2  # seconds; within the resolution of a file system's clock a file may change and keep its timestamp


def file_digest(file: Path) -> str:
    """The digest of the uncompressed content, gzipped or not."""
    digest = blake2b(digest_size=16)
    try:
        with open_bytes(file) as opened:
            while block := opened.read(1 << 20):
                digest.update(block)
    except UNREADABLE as error:
        raise ValueError(f"{file} cannot be read: {error}") from None
    return digest.hexdigest()


def known_digest(file: Path, cache: Path) -> str:
    """The same, cached in `cache` as long as the file's inode, size and timestamps are unchanged.

    The inode change time cannot be set by users, so a file that was replaced and given the old modification time is
    still noticed.
    """
    began, facts = time.time(), _facts(file)
    note = cache / "digests" / f"{blake2b(str(file.resolve()).encode(), digest_size=16).hexdigest()}.json"
    try:
        noted = json.loads(note.read_text(encoding="utf-8"))
        if noted["facts"] == facts:
            return str(noted["digest"])
    except (OSError, ValueError, LookupError, TypeError):
        pass  # not cached yet, or not readable: hash it
    digest = file_digest(file)
    if facts == _facts(file) and began - max(facts[2:]) / 1e9 > SETTLED:
        note.parent.mkdir(parents=True, exist_ok=True)
        write_text(note, json.dumps({"facts": facts, "digest": digest}))
    return digest


def _facts(file: Path) -> list[int]:
    found = file.stat()
    return [found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]
