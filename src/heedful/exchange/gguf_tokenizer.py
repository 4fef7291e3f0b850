"""The tokenizer in a GGUF file's metadata.

tokenizer.ggml.model     llama    SentencePiece BPE
                         t5       SentencePiece unigram
                         gpt2     byte-level BPE; tokenizer.ggml.pre names how text is split before merging
                         bert     WordPiece
"""

from collections.abc import Callable, Mapping
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from heedful.exchange import sentencepiece
from heedful.exchange.sentencepiece import CONTROL, SPACE, UNKNOWN, USER, Piece, Pieces
from heedful.exchange.tokenizers import BERT, Habits, byte_level, template
from heedful.text.tokenizer import LARGEST_TEMPLATE, Tokenizer

ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "sep": "seperator", "pad": "padding", "cls": "cls",
         "mask": "mask"}  # fmt: skip
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
SPLITS: dict[str, Callable[[], list[Any]]] = {
    "default": lambda: [pre_tokenizers.ByteLevel(add_prefix_space=False)],
    "gpt-2": lambda: [pre_tokenizers.ByteLevel(add_prefix_space=False)],
    "smollm": lambda: [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)],
    "llama-bpe": lambda: [
        pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ],
}


def build(keys: Mapping[str, Any], place: str) -> Tokenizer:
    """`keys`: the metadata of the file `place`."""
    kind = keys.get("tokenizer.ggml.model")
    makers = {"llama": _sentencepiece, "t5": _sentencepiece, "gpt2": _byte_bpe, "bert": _wordpiece}
    if kind not in makers or "tokenizer.ggml.tokens" not in keys:
        raise ValueError(f"{place} has no tokenizer that can be read: {kind!r}; known: {', '.join(makers)}")
    tokens, types = list(keys["tokenizer.ggml.tokens"]), list(keys.get("tokenizer.ggml.token_type") or ())
    types = types or [1] * len(tokens)
    made = makers[kind](keys, tokens, types, place)
    for token, type_ in zip(tokens, types, strict=True):
        if type_ in (CONTROL, UNKNOWN):
            made.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif type_ == USER and kind != "llama" and kind != "t5":  # SentencePiece finds these by itself
            made.add_tokens([AddedToken(token, special=False, normalized=False)])
    names = {role: tokens[index] for role, name in ROLES.items() if (index := _id(keys, name, tokens)) is not None}
    made.post_processor = template(made, _habits(keys, kind, names), trim=kind == "gpt2")
    return Tokenizer(made, names, _chat_template(keys))


def _chat_template(keys: Mapping[str, Any]) -> str | None:
    found = keys.get("tokenizer.chat_template")
    return found if isinstance(found, str) and len(found) <= LARGEST_TEMPLATE else None


def _id(keys: Mapping[str, Any], name: str, tokens: list[str]) -> int | None:
    found: int | None = keys.get(f"tokenizer.ggml.{name}_token_id")
    return found if found is not None and 0 <= found < len(tokens) else None


def _habits(keys: Mapping[str, Any], kind: str, names: dict[str, str]) -> Habits:
    """What is put around texts. llama.cpp adds BOS by default where the vocabulary is SentencePiece BPE."""
    if kind == "bert":
        return Habits(names, BERT.single, BERT.pair)
    first = "{bos} " if "bos" in names and keys.get("tokenizer.ggml.add_bos_token", kind == "llama") else ""
    last = " {eos}" if "eos" in names and keys.get("tokenizer.ggml.add_eos_token", kind == "t5") else ""
    return Habits(names, f"{first}$A{last}", f"{first}$A{last} $B:1{last}")


def _sentencepiece(keys: Mapping[str, Any], tokens: list[str], types: list[int], place: str) -> Backend:
    scores = list(keys.get("tokenizer.ggml.scores") or [0.0] * len(tokens))
    pieces = [Piece(text, score, type_) for text, score, type_ in zip(tokens, scores, types, strict=True)]
    found = Pieces(
        kind="unigram" if keys["tokenizer.ggml.model"] == "t5" else "bpe",
        pieces=pieces,
        character_map=bytes(keys.get("tokenizer.ggml.precompiled_charsmap") or b""),
        prefix=bool(keys.get("tokenizer.ggml.add_space_prefix", True)),
        tidy=bool(keys.get("tokenizer.ggml.remove_extra_whitespaces", False)),
        byte_fallback=sentencepiece.BYTE in types,
    )
    return sentencepiece.backend(found)


def _byte_bpe(keys: Mapping[str, Any], tokens: list[str], types: list[int], place: str) -> Backend:
    split = keys.get("tokenizer.ggml.pre", "default")
    if split not in SPLITS:
        raise ValueError(f"{place} splits text by the rule {split!r}, which is not known; known: {', '.join(SPLITS)}")
    merges = [tuple(merge.split(" ")) for merge in keys.get("tokenizer.ggml.merges") or ()]
    made = byte_level({token: index for index, token in enumerate(tokens)}, merges, whole=split == "llama-bpe")
    made.pre_tokenizer = pre_tokenizers.Sequence(SPLITS[split]())
    return made


def _wordpiece(keys: Mapping[str, Any], tokens: list[str], types: list[int], place: str) -> Backend:
    """The file marks the beginning of a word; WordPiece marks what goes on."""
    vocabulary = {}
    for index, (token, type_) in enumerate(zip(tokens, types, strict=True)):
        begins = token.startswith(SPACE)
        bare = token[1:] if begins else token
        is_special = type_ in (CONTROL, UNKNOWN) or (token.startswith("[") and token.endswith("]") and len(token) > 2)
        vocabulary[token if is_special else bare if begins else f"##{bare}"] = index
    unknown = _id(keys, "unknown", tokens)
    if len(vocabulary) != len(tokens) or unknown is None:
        raise ValueError(f"{place}: the vocabulary has duplicates, or no unknown token")
    made = Backend(models.WordPiece(vocabulary, unk_token=tokens[unknown], max_input_chars_per_word=100))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece(prefix="##")
    return made
