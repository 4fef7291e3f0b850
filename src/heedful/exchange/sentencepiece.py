"""SentencePiece models (Kudo and Richardson 2018) as tokenizers of the `tokenizers` library: unigram and BPE.

A .model file is a Protocol Buffers message; the few fields that matter are read here, so no other package is needed:

    1 pieces            repeated: 1 text, 2 score, 3 type
    2 trainer           3 kind (1 unigram, 2 BPE), 24 whitespace as suffix, 35 byte fallback
    3 normalizer        2 character map, 3 prefix space (default true), 4 remove extra spaces (default true)
"""

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from heedful.bounded import regular

LARGEST, LONGEST = 64 << 20, 1024  # bytes of a file and of a piece, whose cuts are counted
MOST_PIECES = 1 << 20  # the largest published vocabularies have 900,000
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)
KINDS = {1: "unigram", 2: "bpe"}
SPACE = "▁"
UNREACHABLE = " "  # before a piece that no text may become: after normalisation there are no spaces


@dataclass(frozen=True)
class Piece:
    text: str
    score: float
    kind: int = NORMAL


@dataclass(frozen=True)
class Pieces:
    """A SentencePiece model; a piece's id is its index. `character_map`: its compiled normalisation; `prefix`: whether
    a text begins with a space that it does not have; `tidy`: whether outer and repeated spaces are removed."""

    kind: str
    pieces: Sequence[Piece]
    character_map: bytes = b""
    prefix: bool = True
    tidy: bool = True
    byte_fallback: bool = False

    def with_kind(self, kind: int) -> list[str]:
        return [piece.text for piece in self.pieces if piece.kind == kind]

    def unknown(self) -> int:
        found = [index for index, piece in enumerate(self.pieces) if piece.kind == UNKNOWN]
        if len(found) != 1:
            raise ValueError(f"a SentencePiece model needs one unknown piece, but this one has {len(found)}")
        return found[0]


def read(path: str | Path) -> Pieces:
    """The model in a .model file."""
    try:
        return _parse(regular(Path(path), LARGEST).read_bytes())
    except FileNotFoundError:
        raise ValueError(f"there is no {path}") from None
    except (IndexError, struct.error, UnicodeDecodeError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a SentencePiece model, or is damaged: {error}") from None


def _parse(data: bytes) -> Pieces:
    message = _fields(data)
    trainer, normalizer = (_fields(message.get(number, [b""])[-1]) for number in (2, 3))
    kind = trainer.get(3, [1])[-1]
    if kind not in KINDS or 1 not in message:
        raise ValueError(f"SentencePiece models of type {kind} are not supported, only unigram (1) and BPE (2)")
    if trainer.get(24, [0])[-1]:
        raise ValueError("SentencePiece models with whitespace as a suffix are not supported")
    return Pieces(
        kind=KINDS[kind],
        pieces=[_piece(_fields(piece)) for piece in message[1]],
        character_map=normalizer.get(2, [b""])[-1],
        prefix=bool(normalizer.get(3, [1])[-1]),
        tidy=bool(normalizer.get(4, [1])[-1]),
        byte_fallback=bool(trainer.get(35, [0])[-1]),
    )


def _piece(fields: dict[int, list[Any]]) -> Piece:
    (score,) = struct.unpack("<f", fields.get(2, [b"\0\0\0\0"])[-1])
    text = fields.get(1, [b""])[-1]
    if len(text) > LONGEST or not math.isfinite(score):
        raise IndexError(f"a piece of {len(text):,} bytes with the score {score}")
    return Piece(text.decode(), score, fields.get(3, [NORMAL])[-1])


def _fields(data: bytes) -> dict[int, list[Any]]:
    """The fields of a message by number: integers, or bytes."""
    found: dict[int, list[Any]] = {}
    for number, value in _walk(data):
        (values := found.setdefault(number, [])).append(value)
        if len(values) > MOST_PIECES:
            raise IndexError(f"more than {MOST_PIECES:,} pieces")
    return found


def _walk(data: bytes) -> Iterator[tuple[int, Any]]:
    place = 0

    def integer() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = data[place]
            place += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise IndexError("a number of more than 64 bits")

    while place < len(data):
        tag = integer()
        wire = tag & 7
        if wire == 0:
            yield tag >> 3, integer()
            continue
        if wire not in (1, 2, 5):
            raise IndexError(f"unknown wire type {wire}")
        size = integer() if wire == 2 else {1: 8, 5: 4}[wire]
        if place + size > len(data):
            raise IndexError("it ends too early")
        yield tag >> 3, data[place : place + size]
        place += size


def backend(found: Pieces, *, before: Sequence[Any] = ()) -> Backend:
    """A tokenizer with the same ids. `before`: normalizers that come first, such as lower-casing."""
    made = Backend(_unigram(found) if found.kind == "unigram" else _bpe(found))
    made.normalizer = normalizers.Sequence([*before, *_normalizers(found)])
    split = _split(found)
    if split is not None:
        made.pre_tokenizer = split
    made.decoder = _decoder(found)
    symbols = [text for text in found.with_kind(USER) if _plain(made.normalizer.normalize_str(text), found) != text]
    if symbols:
        raise ValueError(f"the user-defined piece {symbols[0]!r} would be changed by the model's normalisation")
    return made


def _plain(text: str, found: Pieces) -> str:
    return text[1:] if found.prefix else text


def _normalizers(found: Pieces) -> list[Any]:
    steps: list[Any] = []
    if found.character_map:
        steps.append(normalizers.Precompiled(found.character_map))
    if found.tidy:
        steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if found.prefix:
        steps.append(normalizers.Prepend(SPACE))
    return [*steps, normalizers.Replace(" ", SPACE)]


def _split(found: Pieces) -> Any:
    """What looks like a control piece is split, so that it stays text; BPE's user-defined pieces are cut out. Words are
    split off where no piece crosses their border: the same pieces, found faster."""
    steps: list[Any] = []
    symbols = found.with_kind(USER) if found.kind == "bpe" else []
    if symbols:
        longest_first = sorted(symbols, key=len, reverse=True)
        steps.append(pre_tokenizers.Split(Regex("|".join(_escaped(text) for text in longest_first)), "isolated"))
    if found.kind == "unigram":
        marks = [*found.with_kind(CONTROL), *found.with_kind(UNKNOWN)]
        cuts = [f"{_escaped(text[0])}(?={_escaped(text[1:])})" for text in marks if len(text) > 1]
        cuts += ["<(?=0x[0-9A-F]{2}>)"] if found.byte_fallback else []
        steps.append(pre_tokenizers.Split(Regex("|".join(cuts)), "isolated"))
    texts = [piece.text for piece in found.pieces]
    if not symbols and SPACE in texts and not any(SPACE in text[1:] for text in texts):
        steps.append(pre_tokenizers.Split(SPACE, "merged_with_next"))
    return pre_tokenizers.Sequence(steps) if steps else None


def _escaped(text: str) -> str:
    return "".join(character if character.isalnum() else f"\\x{{{ord(character):x}}}" for character in text)


def _decoder(found: Pieces) -> Any:
    steps: list[Any] = [decoders.Replace(UNREACHABLE, ""), decoders.Replace(SPACE, " ")]
    if found.byte_fallback:
        steps.append(decoders.ByteFallback())
    steps.append(decoders.Fuse())
    if found.prefix:
        steps.append(decoders.Strip(" ", 1, 0))
    return decoders.Sequence(steps)


def _unigram(found: Pieces) -> models.Unigram:
    """User-defined pieces always win: their score is that of their length in the best pieces, as in SentencePiece."""
    normal = [piece.score for piece in found.pieces if piece.kind == NORMAL]
    best, worst = max(normal, default=0.0), min(normal, default=0.0)
    vocabulary = []
    for piece in found.pieces:
        text = UNREACHABLE + piece.text if piece.kind == UNUSED else piece.text
        score = {NORMAL: piece.score, USER: len(text) * best - 0.1}.get(piece.kind, worst)
        vocabulary.append((text, score))
    return models.Unigram(vocabulary, unk_id=found.unknown(), byte_fallback=found.byte_fallback)


def _bpe(found: Pieces) -> models.BPE:
    """SentencePiece always joins the two neighbours that make the best piece; the merges say the same, in order."""
    ids = {piece.text: index for index, piece in enumerate(found.pieces)}
    scores = {piece.text: piece.score for piece in found.pieces if piece.kind == NORMAL}
    merges = []
    for text, score in scores.items():
        halves = [(text[:cut], text[cut:]) for cut in range(1, len(text))]
        pairs = [(first, second) for first, second in halves if first in scores and second in scores]
        merges += [(-score, ids[first], ids[second], first, second) for first, second in pairs]
    return models.BPE(
        vocab=ids,
        merges=[(first, second) for *_, first, second in sorted(merges)],
        unk_token=found.pieces[found.unknown()].text,
        fuse_unk=True,
        byte_fallback=found.byte_fallback,
        ignore_merges=USER in {piece.kind for piece in found.pieces},
    )
