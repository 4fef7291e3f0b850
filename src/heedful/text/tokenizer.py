"""Tokenizers: trained on raw text, lossless, and whole in one file (`tokenizer.json`, Hugging Face's format).

What comes in is what comes out: spaces, case, emoji, marks. Text that looks like a special token ("</s>") is text. Only
`normalise`, where asked for, changes the text, and it does so before anything else.

Special tokens belong to the tokenizer: a model asks it for `eos`, whichever tokenizer it is. Ours have the four of
`SPECIALS` and those a task needs besides; somebody else's (BERT's, GPT-2's, LLaMA's, T5's) are known by their names.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from heedful.config import Config, Probability
from heedful.files import write_text
from heedful.text.words import HAN

SPECIALS = ["<pad>", "<s>", "</s>", "<unk>"]
# The names by which each kind of special token goes, ours first.
ROLES = {
    "pad": ("<pad>", "[PAD]", "<|pad|>"),
    "bos": ("<s>", "[BOS]", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "<|endoftext|>"),
    "eos": ("</s>", "[EOS]", "<eos>", "<|end_of_text|>", "<|endoftext|>", "<|im_end|>"),
    "unk": ("<unk>", "[UNK]"),
    "mask": ("<mask>", "[MASK]"),
    "cls": ("<cls>", "[CLS]"),
    "sep": ("<sep>", "[SEP]"),
}
# What serves where a tokenizer has no token of that name: BERT's texts begin with [CLS], RoBERTa's with <s>.
STAND_INS = {"bos": "cls", "eos": "sep", "cls": "bos", "sep": "eos"}
SENTINEL = re.compile(r"<extra_id_(\d+)>")
LANGUAGE = re.compile(r"<2(\w+)>|>>(\w+)<<|__(\w+)__|([a-z]{2,3}_[A-Z][A-Za-z]{1,3})")
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
    file        a tokenizer.json to take as it is, in place of training one
    """

    kind: Literal["bpe", "byte_bpe", "unigram", "character", "word"] = "bpe"
    vocab: int = Field(0, ge=0)
    joint: bool = True
    normalise: Literal["none", "NFC", "NFKC"] = "none"
    dropout: Probability = 0.0
    file: str = ""

    @model_validator(mode="after")
    def _dropout_needs_merges(self) -> "TokenizerConfig":
        if self.dropout and self.kind != "bpe":
            raise ValueError(f"dropout leaves out merges of bpe, but kind is {self.kind!r}; set dropout to 0")
        return self


class Tokenizer:
    """Text <-> token ids. `names`: what its special tokens are called, by role, where that does not follow from their
    names: {"bos": "<|im_start|>"}."""

    def __init__(self, backend: Backend, names: Mapping[str, str] | None = None) -> None:
        backend.encode_special_tokens = True  # "</s>" in a text is four characters, not an end
        backend.no_padding()
        backend.no_truncation()
        self._backend = backend
        self._names = dict(names or {})

    @cached_property
    def vocab(self) -> int:
        """One more than the largest id."""
        return 1 + max(self._backend.get_vocab().values(), default=-1)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """No special tokens are added: where a sentence starts and ends is the task's business."""
        return [encoding.ids for encoding in self._backend.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode(self, rows: Iterable[Iterable[int]]) -> list[str]:
        """Special tokens are left out."""
        kept = [[int(token) for token in row if token not in self.specials] for row in rows]
        return self._backend.decode_batch(kept, skip_special_tokens=False)

    @cached_property
    def specials(self) -> frozenset[int]:
        """All special tokens."""
        added = self._backend.get_added_tokens_decoder().items()
        return frozenset(index for index, token in added if token.special)

    def special(self, role: str) -> int | None:
        """The token with this role, of `ROLES`; None if there is none."""
        for one in (role, STAND_INS.get(role, role)):
            names = [self._names[one]] if one in self._names else ROLES[one]
            for name in names:
                found: int | None = self._backend.token_to_id(name)
                if found is not None and found in self.specials:
                    return found
        return None

    def has(self, token: str) -> bool:
        """Whether there is this special token, or one with its role: [CLS] for <cls>."""
        index = self._backend.token_to_id(token)
        role = next((role for role, names in ROLES.items() if token in names), None)
        return (index is not None and index in self.specials) or (role is not None and self.special(role) is not None)

    def _needed(self, role: str) -> int:
        found = self.special(role)
        if found is None:
            raise ValueError(f"this tokenizer has no {role} token, which the task needs; known as {ROLES[role][0]}")
        return found

    @cached_property
    def bos(self) -> int:
        return self._needed("bos")

    @cached_property
    def eos(self) -> int:
        return self._needed("eos")

    @cached_property
    def mask(self) -> int:
        return self._needed("mask")

    @cached_property
    def cls(self) -> int:
        return self._needed("cls")

    @cached_property
    def sep(self) -> int:
        return self._needed("sep")

    @cached_property
    def unk(self) -> int | None:
        return self.special("unk")

    @cached_property
    def pad(self) -> int:
        """What fills up rows: any token will do, since nobody sees it."""
        found = self.special("pad")
        return self.special("eos") or 0 if found is None else found

    @cached_property
    def start(self) -> int:
        """What a decoder begins with: the start of a text, or padding where there is no such token (T5)."""
        found = self.special("bos")
        return self.pad if found is None else found

    @cached_property
    def never(self) -> tuple[int, ...]:
        """What is never written: every special token but the end and the unknown."""
        return tuple(sorted(self.specials - {self.special("eos"), self.special("unk")}))

    @cached_property
    def sentinels(self) -> list[int]:
        """T5's <extra_id_0>, <extra_id_1>, ... in this order."""
        numbered = {int(found[1]): index for index, found in self._matching(SENTINEL)}
        return [numbered[number] for number in sorted(numbered)]

    @cached_property
    def languages(self) -> dict[str, int]:
        """The tokens that stand for a language, by its code."""
        return {next(code for code in found.groups() if code): index for index, found in self._matching(LANGUAGE)}

    def _matching(self, pattern: re.Pattern[str]) -> list[tuple[int, re.Match[str]]]:
        names = [(index, pattern.fullmatch(self.token(index))) for index in sorted(self.specials)]
        return [(index, found) for index, found in names if found is not None]

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
        """What its special tokens are called goes to special_tokens_map.json beside it, where their names do not
        tell."""
        if self._names:
            names = {f"{role}_token": name for role, name in self._names.items()}
            write_text(path.with_name(_names_file(path)), json.dumps(names, indent=2, ensure_ascii=False))
        write_text(path, self._backend.to_str(pretty=True))

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        try:
            return cls(Backend.from_str(path.read_text(encoding="utf-8")), _special_names(path))
        except FileNotFoundError:
            raise ValueError(f"there is no {path}") from None
        except Exception as error:  # the library raises bare Exception
            raise ValueError(f"{path} is not a tokenizer: {error}") from None

    def _data(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(self._backend.to_str())
        return data


def _names_file(path: Path) -> str:
    return "special_tokens_map.json" if path.name == "tokenizer.json" else f"{path.stem}.special_tokens_map.json"


def _special_names(path: Path) -> dict[str, str]:
    """What the special tokens are called, by role, as Hugging Face's files beside a tokenizer.json say it."""
    found: dict[str, str] = {}
    for name in ("tokenizer_config.json", _names_file(path)) if path.name == "tokenizer.json" else (_names_file(path),):
        try:
            data = json.loads((path.parent / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        for role in ROLES:
            token = data.get(f"{role}_token") if isinstance(data, dict) else None
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str):
                found[role] = token
    return found


def train_tokenizer(
    texts: Iterable[str], config: TokenizerConfig, *, vocab: int, extra: Sequence[str] = ()
) -> Tokenizer:
    """A tokenizer for texts like these, with at most `vocab` tokens, but never fewer than the bytes need. `extra`:
    special tokens that a task needs beyond the four of every tokenizer."""
    special = [*SPECIALS, *(token for token in extra if token not in SPECIALS)]
    backend = Backend(models.BPE())
    if config.normalise != "none":
        backend.normalizer = {"NFC": normalizers.NFC(), "NFKC": normalizers.NFKC()}[config.normalise]
    if config.kind == "byte_bpe":
        return Tokenizer(_train_byte_bpe(backend, texts, vocab, special))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(WORDS), behavior="isolated")
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    if config.kind == "character":
        return Tokenizer(_train_characters(backend, texts, vocab, special))
    if config.kind == "word":
        backend.model = models.WordLevel(unk_token="<unk>")
        trainer: Any = trainers.WordLevelTrainer(vocab_size=vocab, special_tokens=special, show_progress=False)
        backend.train_from_iterator(texts, trainer)
        return Tokenizer(backend)
    specials = [*special, *BYTES]
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
    return Tokenizer(_with_byte_fallback(backend, len(special)))


def vocab_for(words: int) -> int:
    """How many tokens suit a corpus of this many running words, both sides together.

    8 w^0.45, which gives about 3,000 for half a million words, 8,000 for five million and 32,000 for a hundred
    million: the sizes that work well in practice, small ones for small corpora (Gowda and May 2020).
    """
    return min(32000, max(512, round(8 * words**0.45 / 8) * 8))


def _train_byte_bpe(backend: Backend, texts: Iterable[str], vocab: int, special: list[str]) -> Backend:
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=max(vocab, len(special) + len(alphabet)),
        special_tokens=special,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return backend


def _train_characters(backend: Backend, texts: Iterable[str], vocab: int, special: list[str]) -> Backend:
    """BPE without a single merge."""
    counts: Counter[str] = Counter()
    for text in _normalised(backend, texts):
        counts.update(text)
    room = max(0, vocab - len(special) - len(BYTES)) if vocab else None
    characters = [character for character, _ in sorted(counts.most_common(room), key=lambda pair: (-pair[1], pair[0]))]
    tokens = {token: index for index, token in enumerate([*special, *BYTES, *characters])}
    backend.model = models.BPE(vocab=tokens, merges=[], unk_token="<unk>", byte_fallback=True)
    backend.add_special_tokens(special)
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


def _with_byte_fallback(backend: Backend, special: int) -> Backend:
    """The bytes are tokens of the model, but not to be found in text: "<0x41>" in a text is six characters."""
    data = json.loads(backend.to_str())
    data["added_tokens"] = data["added_tokens"][:special]
    data["model"]["byte_fallback"] = True
    if data["model"]["type"] == "Unigram":  # the trainer orders pieces of equal score by chance
        fixed = special + len(BYTES)
        pieces = data["model"]["vocab"]
        data["model"]["vocab"] = pieces[:fixed] + sorted(pieces[fixed:], key=lambda piece: (-piece[1], piece[0]))
    return Backend.from_str(json.dumps(data))
