"""Tokenizers: trained on raw text, lossless, and whole in one file (`tokenizer.json`, Hugging Face's format).

What comes in is what comes out: spaces, case, emoji, marks. Text that looks like a special token ("</s>") is text. Only
`normalise`, where asked for, changes the text, and it does so before anything else.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from heedful.config import Config, Probability
from heedful.files import write_text
from heedful.text.words import HAN

PAD, BOS, EOS, UNK = 0, 1, 2, 3
SPECIALS = ["<pad>", "<s>", "</s>", "<unk>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SMALL = 8000  # tokens
# A word carries the space before it; digits stand alone; what is left over is spaces.
WORDS = r" ?[\p{L}\p{M}]+| ?\p{N}| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+"


class TokenizerConfig(Config):
    """How text is cut.

    kind        bpe         characters merged by frequency (Sennrich et al. 2016); what is unknown falls back to bytes
                byte_bpe    bytes merged by frequency (Radford et al. 2019)
                unigram     pieces chosen by likelihood (Kudo 2018)
                character   one token a character
                word        whole words; unknown ones are lost
    vocab       at most so many tokens; 0 = from the size of the corpus. Below 8,000, bpe merges at most two Chinese
                characters: no spaces keep words apart there, and phrases would fill it
    joint       one vocabulary for source and target, or one each
    normalise   Unicode normal form applied to all text first
    dropout     leave out merges at random in training (BPE-dropout, Provilkov et al. 2020); bpe only
    """

    kind: Literal["bpe", "byte_bpe", "unigram", "character", "word"] = "bpe"
    vocab: int = Field(0, ge=0)
    joint: bool = True
    normalise: Literal["none", "NFC", "NFKC"] = "none"
    dropout: Probability = 0.0

    @model_validator(mode="after")
    def _dropout_needs_merges(self) -> "TokenizerConfig":
        if self.dropout and self.kind != "bpe":
            raise ValueError(f"dropout leaves out merges of bpe, but kind is {self.kind!r}; set dropout to 0")
        return self


class Tokenizer:
    """Text <-> token ids."""

    def __init__(self, backend: Backend) -> None:
        backend.encode_special_tokens = True  # "</s>" in a text is four characters, not an end
        self._backend = backend

    @property
    def vocab(self) -> int:
        return self._backend.get_vocab_size()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """No special tokens are added: where a sentence starts and ends is the task's business."""
        return [encoding.ids for encoding in self._backend.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode(self, rows: Iterable[Iterable[int]]) -> list[str]:
        """Special tokens are left out."""
        kept = [[int(token) for token in row if token >= len(SPECIALS)] for row in rows]
        return self._backend.decode_batch(kept, skip_special_tokens=False)

    def pieces(self, text: str) -> list[tuple[int, int, int]]:
        """Each token of a text with the characters it stands for: (id, start, end)."""
        encoding = self._backend.encode(text, add_special_tokens=False)
        return [(token, start, end) for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True)]

    def token(self, index: int) -> str:
        """How one token is written; a piece of a character shows as <0xE4>."""
        found: str | None = self._backend.id_to_token(index)
        if found is None:
            raise ValueError(f"token {index} does not exist; the vocabulary has {self.vocab}")
        return found

    def merges(self) -> list[tuple[str, str]]:
        """The merges of bpe in order of rank; of another kind, none."""
        return [(first, second) for first, second in self._data()["model"].get("merges", [])]

    def token_ids(self) -> dict[str, int]:
        return self._backend.get_vocab()

    def split_words(self, text: str) -> list[str]:
        """The words that are cut independently of each other, after normalisation."""
        normalizer = self._backend.normalizer
        text = normalizer.normalize_str(text) if normalizer else text
        return [word for word, _ in self._backend.pre_tokenizer.pre_tokenize_str(text)]

    def digest(self) -> str:
        return hashlib.blake2b(self._backend.to_str().encode(), digest_size=16).hexdigest()

    def save(self, path: Path) -> None:
        write_text(path, self._backend.to_str(pretty=True))

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        try:
            return cls(Backend.from_str(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise ValueError(f"there is no {path}") from None
        except Exception as error:  # the library raises bare Exception
            raise ValueError(f"{path} is not a tokenizer: {error}") from None

    def _data(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(self._backend.to_str())
        return data


def train_tokenizer(texts: Iterable[str], config: TokenizerConfig, *, vocab: int) -> Tokenizer:
    """A tokenizer for texts like these, with at most `vocab` tokens, but never fewer than the bytes need."""
    backend = Backend(models.BPE())
    if config.normalise != "none":
        backend.normalizer = {"NFC": normalizers.NFC(), "NFKC": normalizers.NFKC()}[config.normalise]
    if config.kind == "byte_bpe":
        return Tokenizer(_train_byte_bpe(backend, texts, vocab))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(WORDS), behavior="isolated")
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    if config.kind == "character":
        return Tokenizer(_train_characters(backend, texts, vocab))
    if config.kind == "word":
        backend.model = models.WordLevel(unk_token="<unk>")
        trainer: Any = trainers.WordLevelTrainer(vocab_size=vocab, special_tokens=SPECIALS, show_progress=False)
        backend.train_from_iterator(texts, trainer)
        return Tokenizer(backend)
    specials = [*SPECIALS, *BYTES]
    options: dict[str, Any] = {"special_tokens": specials, "show_progress": False}
    options["vocab_size"] = max(vocab, len(specials) + 1)
    if config.kind == "unigram":
        backend.model = models.Unigram()
        trainer = trainers.UnigramTrainer(unk_token="<unk>", **options)
    else:
        backend.model = models.BPE(unk_token="<unk>", byte_fallback=True)
        # Rare characters are left to the bytes: a vocabulary full of them would have no room for words.
        trainer = trainers.BpeTrainer(limit_alphabet=max(1, (vocab - len(specials)) // 2), **options)
    backend.train_from_iterator(texts, trainer)
    if config.kind == "bpe" and vocab < SMALL:
        backend = _without_phrases(backend)
    return Tokenizer(_with_byte_fallback(backend))


def vocab_for(words: int) -> int:
    """How many tokens suit a corpus of this many running words, both sides together.

    8 w^0.45, which gives about 3,000 for half a million words, 8,000 for five million and 32,000 for a hundred
    million: the sizes that work well in practice, small ones for small corpora (Gowda and May 2020).
    """
    return min(32000, max(512, round(8 * words**0.45 / 8) * 8))


def _train_byte_bpe(backend: Backend, texts: Iterable[str], vocab: int) -> Backend:
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=max(vocab, len(SPECIALS) + len(alphabet)),
        special_tokens=SPECIALS,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return backend


def _train_characters(backend: Backend, texts: Iterable[str], vocab: int) -> Backend:
    """BPE without a single merge."""
    counts: Counter[str] = Counter()
    for text in _normalised(backend, texts):
        counts.update(text)
    room = max(0, vocab - len(SPECIALS) - len(BYTES)) if vocab else None
    characters = [character for character, _ in sorted(counts.most_common(room), key=lambda pair: (-pair[1], pair[0]))]
    tokens = {token: index for index, token in enumerate([*SPECIALS, *BYTES, *characters])}
    backend.model = models.BPE(vocab=tokens, merges=[], unk_token="<unk>", byte_fallback=True)
    backend.add_special_tokens(SPECIALS)
    return backend


def _normalised(backend: Backend, texts: Iterable[str]) -> Iterator[str]:
    normalizer = backend.normalizer
    for text in texts:
        yield normalizer.normalize_str(text) if normalizer else text


def _without_phrases(backend: Backend) -> Backend:
    """At most two Chinese characters in a token. No space keeps words apart there, so a small vocabulary fills with
    phrases that happen to be frequent, of which a model learns little."""
    data = json.loads(backend.to_str())
    model = data["model"]
    model["merges"] = [pair for pair in model["merges"] if len(HAN.findall("".join(pair))) <= 2]
    kept = [token for token in sorted(model["vocab"], key=model["vocab"].get) if len(HAN.findall(token)) <= 2]
    model["vocab"] = {token: index for index, token in enumerate(kept)}
    return Backend.from_str(json.dumps(data))


def _with_byte_fallback(backend: Backend) -> Backend:
    """The bytes are tokens of the model, but not to be found in text: "<0x41>" in a text is six characters."""
    data = json.loads(backend.to_str())
    data["added_tokens"] = data["added_tokens"][: len(SPECIALS)]
    data["model"]["byte_fallback"] = True
    if data["model"]["type"] == "Unigram":  # the trainer orders pieces of equal score by chance
        fixed = len(SPECIALS) + len(BYTES)
        pieces = data["model"]["vocab"]
        data["model"]["vocab"] = pieces[:fixed] + sorted(pieces[fixed:], key=lambda piece: (-piece[1], piece[0]))
    return Backend.from_str(json.dumps(data))
