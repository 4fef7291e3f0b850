"""Tokenizers: trained on raw text, lossless, stored in one file (`tokenizer.json`, Hugging Face's format).

Decoding restores the text exactly: spaces, case, emoji, marks. Text that looks like a special token ("</s>") is text.
Only `normalise`, if set, changes the text, before anything else.

Special tokens belong to the tokenizer: a model asks it for `eos`, whichever tokenizer it is. Tokenizers trained here
have the four of `SPECIALS` and those a task needs; others (BERT, GPT-2, LLaMA, T5) are recognised by token name.
"""

import hashlib
import json
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend

from heedful.bounded import opening, read_json, read_text
from heedful.config import Config, Probability
from heedful.files import write_text
from heedful.text.admission import admitted
from heedful.text.words import HAN

SPECIALS = ["<pad>", "<s>", "</s>", "<unk>"]
# The names of each kind of special token, ours first.
ROLES = {
    "pad": ("<pad>", "[PAD]", "<|pad|>"),
    "bos": ("<s>", "[BOS]", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "<|endoftext|>"),
    "eos": ("</s>", "[EOS]", "<eos>", "<|end_of_text|>", "<|endoftext|>", "<|im_end|>"),
    "unk": ("<unk>", "[UNK]"),
    "mask": ("<mask>", "[MASK]"),
    "cls": ("<cls>", "[CLS]"),
    "sep": ("<sep>", "[SEP]"),
}
# Substitutes for missing special tokens: BERT's texts begin with [CLS], RoBERTa's with <s>.
STAND_INS = {"bos": "cls", "eos": "sep", "cls": "bos", "sep": "eos"}
BREAK = "<break>"
# Who writes the messages of a conversation, their special tokens, and how they are put together: see `chat.py`.
CHAT_ROLES = ("system", "user", "assistant")
CHAT_TOKENS = tuple(f"<|{role}|>" for role in CHAT_ROLES)
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ '<|' + message.role + '|>' + message.content + eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SENTINEL = re.compile(r"<extra_id_(\d+)>")
LENGTH = re.compile(r"<length_(\d+)>")
LANGUAGE = re.compile(r"<2([\w-]+)>|>>(\w+)<<|__(\w+)__|([a-z]{2,3}_[A-Z][A-Za-z]{1,3})")
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SMALL = 8000  # tokens
LARGEST_TEMPLATE = 1 << 20  # bytes; published ones have up to 20 kB
FRAMED = 64  # tokens of two texts of one letter each, with the special tokens around them
# Normalisation must not make a text many times as long.
SAMPLE, LONGER = "".join(map(chr, [*range(32, 592), 0x2026, 0x3000, 0xFB03, 0xFDFA])), 100
# A word includes the space before it; digits are separate; the rest is spaces.
WORDS = r" ?[\p{L}\p{M}]+| ?\p{N}| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+"


class TokenizerConfig(Config):
    """How text is split into tokens.

    kind        bpe         characters merged by frequency (Sennrich et al. 2016), with byte fallback
                byte_bpe    bytes merged by frequency (Radford et al. 2019)
                unigram     pieces chosen by likelihood (Kudo 2018)
                character   one token per character
                word        whole words; unknown words are lost
    vocab       maximum vocabulary size; 0 = chosen by corpus size. Below 8,000, bpe merges at most two Chinese
                characters: without spaces between words, phrases would fill the vocabulary
    joint       one shared vocabulary for source and target, or one each
    normalise   Unicode normal form applied to all text first
    dropout     skip merges at random in training (BPE-dropout, Provilkov et al. 2020); bpe only
    file        an existing tokenizer.json to use instead of training one
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
            raise ValueError(f"tokenizer dropout works only with kind bpe, not {self.kind!r}; set dropout to 0")
        return self


@dataclass(frozen=True)
class Frame:
    """The special tokens around a text, or around and between two: [CLS] first [SEP] second [SEP] for BERT.
    `second_type`: the token type of the second text and of what follows it; that of the rest is 0."""

    first: tuple[int, ...]
    between: tuple[int, ...]
    last: tuple[int, ...]
    second_type: int

    def size(self, texts: int) -> int:
        """The number of special tokens around so many texts."""
        return len(self.first) + len(self.last) + (texts - 1) * len(self.between)


class Tokenizer:
    """Text <-> token ids. `names`: its special tokens by role, if their names are not standard:
    {"bos": "<|im_start|>"}. `chat_template`: how its model reads conversations, in Jinja, as transformers has it."""

    def __init__(
        self, backend: Backend, names: Mapping[str, str] | None = None, chat_template: str | None = None
    ) -> None:
        backend.encode_special_tokens = True  # "</s>" in a text is four characters, not an end
        backend.no_padding()
        backend.no_truncation()
        self._backend = backend
        self._names = dict(names or {})
        self.chat_template = chat_template

    @cached_property
    def vocab(self) -> int:
        """One more than the largest id."""
        return 1 + max(self._backend.get_vocab().values(), default=-1)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of texts, without special tokens: adding BOS and EOS is up to the task."""
        with opening("the tokenizer"):  # the library raises bare exceptions
            return [encoding.ids for encoding in self._backend.encode_batch_fast(list(texts), add_special_tokens=False)]

    def encode_marked(self, text: str, literal: Collection[int] = ()) -> list[int]:
        """Token ids of a text in which special tokens stand by their names, such as a prompt of `chat.py`. `literal`:
        where such a name begins that is just text."""
        with opening("the tokenizer"):
            encoding = self._marking.encode(text, add_special_tokens=False)
        found: list[int] = []
        for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            plain = token in self.specials and start in literal
            found += self.encode([text[start:end]])[0] if plain else [token]
        return found

    @cached_property
    def _marking(self) -> Backend:
        """The same tokenizer, for which names of special tokens are special tokens."""
        backend = Backend.from_str(self._backend.to_str())
        backend.encode_special_tokens = False
        return backend

    @cached_property
    def special_texts(self) -> dict[str, str]:
        """The names of special tokens as chat templates know them: {"eos_token": "</s>"}."""
        held = self.token_ids()
        ours = {role: next((name for name in names if name in held), "") for role, names in ROLES.items()}
        found = self._names or {role: name for role, name in ours.items() if name and held[name] in self.specials}
        return {f"{role}_token": name for role, name in found.items()}

    def decode(self, rows: Iterable[Iterable[int]]) -> list[str]:
        """Texts of token ids, without special tokens."""
        kept = [[int(token) for token in row if token not in self.specials] for row in rows]
        with opening("the tokenizer"):
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
            raise ValueError(f"this tokenizer has no {role} token (such as {ROLES[role][0]}), which the task needs")
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
    def sentence_break(self) -> int:
        """Between the sentences of a document: see `data/context.py`."""
        found = self._backend.token_to_id(BREAK)
        if found not in self.specials:
            raise ValueError(f"this tokenizer has no {BREAK} token, which data.context needs; set data.context=0")
        return int(found)

    @cached_property
    def unk(self) -> int | None:
        return self.special("unk")

    @cached_property
    def pad(self) -> int:
        """The padding token; any token will do, since it is masked."""
        found = self.special("pad")
        return self.special("eos") or 0 if found is None else found

    @cached_property
    def start(self) -> int:
        """The decoder's start token: BOS, or padding if there is none (T5)."""
        found = self.special("bos")
        return self.pad if found is None else found

    @cached_property
    def never(self) -> tuple[int, ...]:
        """Tokens that are never generated: all special tokens except EOS and UNK."""
        return tuple(sorted(self.specials - {self.special("eos"), self.special("unk")}))

    @cached_property
    def sentinels(self) -> list[int]:
        """T5's <extra_id_0>, <extra_id_1>, ... in this order."""
        numbered = {int(found[1]): index for index, found in self._matching(SENTINEL)}
        return [numbered[number] for number in sorted(numbered)]

    @cached_property
    def languages(self) -> dict[str, int]:
        """Language tokens, by language code."""
        return {next(code for code in found.groups() if code): index for index, found in self._matching(LANGUAGE)}

    @cached_property
    def lengths(self) -> dict[int, int]:
        """The tokens that tell a model how long to write, by number: see `data/lengths.py`."""
        known = {int(found[1]): index for index, found in self._matching(LENGTH)}
        return known if sorted(known) == [*range(1, len(known) + 1)] else {}

    def _matching(self, pattern: re.Pattern[str]) -> list[tuple[int, re.Match[str]]]:
        names = [(index, pattern.fullmatch(self.token(index))) for index in sorted(self.specials)]
        return [(index, found) for index, found in names if found is not None]

    @cached_property
    def frame(self) -> Frame:
        """How models that read expect a text, by the tokenizer's post-processor; without one, <cls> before and <sep>
        after each text."""
        with opening("the tokenizer"):
            encoding = self._backend.encode("a", "a")
        owners = encoding.sequence_ids
        if any(owner is None for owner in owners) and {0, 1} <= set(owners):
            first, second = owners.index(0), owners.index(1)
            middle, end = len(owners) - 1 - owners[::-1].index(0) + 1, len(owners) - owners[::-1].index(1)
            ids = tuple(encoding.ids)
            if max(ids) >= self.vocab or max(encoding.type_ids) > 8 or len(ids) > FRAMED:
                raise ValueError("the tokenizer's post-processor adds tokens that it does not have, or very many")
            return Frame(ids[:first], ids[middle:second], ids[end:], encoding.type_ids[second])
        cls, sep = ((found,) if (found := self.special(role)) is not None else () for role in ("cls", "sep"))
        return Frame(cls, sep, sep, 1)

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        """The tokens of each word of a text. A word that the tokenizer drops is one unknown token, so that every word
        has at least one."""
        starts, text = [], ""
        for word in words:
            text += " " if text else ""
            starts.append(len(text))
            text += word
        found: list[list[int]] = [[] for _ in words]
        for token, start, end in self.pieces(text):
            while start < end - 1 and text[start].isspace():
                start += 1
            found[max(0, bisect_right(starts, start) - 1)].append(token)
        unknown = self.unk if self.unk is not None else self.pad
        return [tokens or [unknown] for tokens in found]

    def pieces(self, text: str) -> list[tuple[int, int, int]]:
        """Each token of a text with its character span: (id, start, end)."""
        with opening("the tokenizer"):
            encoding = self._backend.encode(text, add_special_tokens=False)
        return [(token, start, end) for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True)]

    def offsets(self, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        """The character span of each token of each text. A token may include the space before its word; the tokens of
        one character (its bytes) all have its span; a character that the tokenizer drops is in none."""
        with opening("the tokenizer"):
            return [encoding.offsets for encoding in self._backend.encode_batch(list(texts), add_special_tokens=False)]

    def token(self, index: int) -> str:
        """The string of a token; part of a multi-byte character is shown as <0xE4>."""
        found: str | None = self._backend.id_to_token(index)
        if found is None:
            raise ValueError(f"token {index} does not exist; the vocabulary has {self.vocab}")
        return found

    def merges(self) -> list[tuple[str, str]]:
        """The BPE merges in order of rank; empty for other kinds."""
        return [(first, second) for first, second in self._data()["model"].get("merges", [])]

    @cached_property
    def continuation(self) -> str:
        """The mark of tokens that continue a word: ## in WordPiece; empty where beginnings are marked instead."""
        return self._data()["model"].get("continuing_subword_prefix") or ""

    def token_ids(self) -> dict[str, int]:
        return self._backend.get_vocab()

    def split_words(self, text: str) -> list[str]:
        """The words that are tokenised independently of each other, after normalisation."""
        normalizer = self._backend.normalizer
        text = normalizer.normalize_str(text) if normalizer else text
        return [word for word, _ in self._backend.pre_tokenizer.pre_tokenize_str(text)]

    def digest(self) -> str:
        content = self._backend.to_str() + (self.chat_template or "")
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()

    def save(self, path: Path) -> None:
        """Special tokens with non-standard names are saved to special_tokens_map.json next to it."""
        if self._names:
            names = {f"{role}_token": name for role, name in self._names.items()}
            write_text(path.with_name(_names_file(path)), json.dumps(names, indent=2, ensure_ascii=False))
        if self.chat_template is not None:
            write_text(path.with_name("chat_template.jinja"), self.chat_template)
        write_text(path, self._backend.to_str(pretty=True))

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        try:
            data = read_json(path)
        except FileNotFoundError:
            raise ValueError(f"there is no {path}") from None
        try:
            with opening(path):
                backend = Backend.from_str(json.dumps(admitted(data)))
                if backend.normalizer and len(backend.normalizer.normalize_str(SAMPLE)) > LONGER * len(SAMPLE):
                    raise ValueError("its normalisation makes texts very long")
                return cls(backend, special_names(path), chat_template(path.parent))
        except ValueError as error:
            raise ValueError(f"{path} is not a tokenizer: {error}") from None

    def _data(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(self._backend.to_str())
        return data


def _names_file(path: Path) -> str:
    return "special_tokens_map.json" if path.name == "tokenizer.json" else f"{path.stem}.special_tokens_map.json"


def special_names(path: Path) -> dict[str, str]:
    """The names of the special tokens, by role, from Hugging Face's files next to a tokenizer.json."""
    found: dict[str, str] = {}
    for name in ("tokenizer_config.json", _names_file(path)) if path.name == "tokenizer.json" else (_names_file(path),):
        try:
            data = read_json(path.parent / name)
        except (OSError, ValueError):
            continue
        for role in ROLES:
            token = data.get(f"{role}_token") if isinstance(data, dict) else None
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str):
                found[role] = token
    return found


def chat_template(folder: Path) -> str | None:
    """The chat template of a model's folder: its own file, or in tokenizer_config.json."""
    try:
        return read_text(folder / "chat_template.jinja", most=LARGEST_TEMPLATE)
    except FileNotFoundError:
        pass
    try:
        data = read_json(folder / "tokenizer_config.json")
        found = data.get("chat_template") if isinstance(data, dict) else None
    except FileNotFoundError:
        return None
    if isinstance(found, list):  # several by name
        found = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}.get("default")
    return found if isinstance(found, str) else None


def train_tokenizer(
    texts: Iterable[str], config: TokenizerConfig, *, vocab: int, extra: Sequence[str] = ()
) -> Tokenizer:
    """A tokenizer trained on these texts, with at most `vocab` tokens, but at least enough for all bytes. `extra`:
    special tokens that a task needs beyond the four of every tokenizer. The texts are read twice; those of an iterator
    are held in memory."""
    texts = list(texts) if isinstance(texts, Iterator) else texts
    special = [*SPECIALS, *(token for token in extra if token not in SPECIALS)]
    trained = _trained(texts, config, vocab, special)
    if set(CHAT_TOKENS) <= set(special):
        trained.chat_template = CHAT_TEMPLATE
    if {"<cls>", "<sep>"} <= set(special):
        trained._backend.post_processor = processors.TemplateProcessing(
            single="<cls> $A <sep>",
            pair="<cls> $A <sep> $B:1 <sep>:1",
            special_tokens=[(token, special.index(token)) for token in ("<cls>", "<sep>")],
        )
    return trained


def _trained(texts: Iterable[str], config: TokenizerConfig, vocab: int, special: list[str]) -> Tokenizer:
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
        # Rare characters use byte fallback: a vocabulary full of them would have no room for words. Of equally rare
        # ones the trainer would drop any, and another run others.
        kept = _frequent(backend, texts, max(1, (vocab - len(specials)) // 2))
        trainer = trainers.BpeTrainer(initial_alphabet=kept, limit_alphabet=len(kept), **options)
    backend.train_from_iterator(texts, trainer)
    if config.kind == "bpe" and vocab < SMALL:
        backend = _without_phrases(backend)
    return Tokenizer(_with_byte_fallback(backend, len(special)))


def vocab_for(words: int) -> int:
    """A suitable vocabulary size for a corpus of this many running words, both sides together.

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
    characters = _frequent(backend, texts, max(0, vocab - len(special) - len(BYTES)) if vocab else None)
    tokens = {token: index for index, token in enumerate([*special, *BYTES, *characters])}
    backend.model = models.BPE(vocab=tokens, merges=[], unk_token="<unk>", byte_fallback=True)
    backend.add_special_tokens(special)
    return backend


def _frequent(backend: Backend, texts: Iterable[str], most: int | None) -> list[str]:
    """The most frequent characters; of equally frequent ones, those that come first in Unicode."""
    counts: Counter[str] = Counter()
    for text in _normalised(backend, texts):
        counts.update(text)
    return sorted(counts, key=lambda character: (-counts[character], character))[:most]


def _normalised(backend: Backend, texts: Iterable[str]) -> Iterator[str]:
    normalizer = backend.normalizer
    for text in texts:
        yield normalizer.normalize_str(text) if normalizer else text


def _without_phrases(backend: Backend) -> Backend:
    """At most two Chinese characters per token. Without spaces between words, a small vocabulary fills up with frequent
    phrases, from which a model learns little."""
    data = json.loads(backend.to_str())
    model = data["model"]
    model["merges"] = [pair for pair in model["merges"] if len(HAN.findall("".join(pair))) <= 2]
    kept = [token for token in sorted(model["vocab"], key=model["vocab"].get) if len(HAN.findall(token)) <= 2]
    model["vocab"] = {token: index for index, token in enumerate(kept)}
    return Backend.from_str(json.dumps(data))


def _with_byte_fallback(backend: Backend, special: int) -> Backend:
    """Byte tokens belong to the vocabulary, but are not matched in text: "<0x41>" in a text is six characters."""
    data = json.loads(backend.to_str())
    data["added_tokens"] = data["added_tokens"][:special]
    data["model"]["byte_fallback"] = True
    if data["model"]["type"] == "Unigram":  # the trainer orders pieces of equal score at random
        fixed = special + len(BYTES)
        pieces = data["model"]["vocab"]
        data["model"]["vocab"] = pieces[:fixed] + sorted(pieces[fixed:], key=lambda piece: (-piece[1], piece[0]))
    return Backend.from_str(json.dumps(data))
