"""Text that grows token by token is the text of all tokens, and no token is more work than another."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers

from heedful.text.growing import MOST, GrowingText
from heedful.text.tokenizer import BYTES, Tokenizer, TokenizerConfig, train_tokenizer

TEXTS = ["the quick brown fox jumps", "小狗看见一个球。", "äöü ß é", "don't stop, now.", "\n  two\n\n"] * 20


def sentencepiece():
    """As LLaMA 2's: a space before the text, which decoding takes off; characters without a token are bytes."""
    pieces = ["<unk>", "<s>", "</s>", *BYTES, "▁", *"thequickbrownfx.,", "▁the", "qu", "ick", "▁fox"]
    merges = [("q", "u"), ("i", "c"), ("ic", "k"), ("t", "h"), ("th", "e"), ("▁", "the")]
    pieces += [token for token in ("ic", "th", "the") if token not in pieces]
    vocab = {token: number for number, token in enumerate(pieces)}
    merges = [pair for pair in merges if "".join(pair) in vocab]
    backend = Backend(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return Tokenizer(backend)


def wordpiece():
    pieces = ["[PAD]", "[UNK]", "[SEP]", "the", "##s", "fox", "##y", ".", ",", "'", "don", "t", "小"]
    backend = Backend(models.WordPiece({token: n for n, token in enumerate(pieces)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(cleanup=True)
    backend.add_special_tokens(["[PAD]", "[SEP]"])
    return Tokenizer(backend)


MADE = {kind: train_tokenizer(TEXTS, TokenizerConfig(kind=kind), vocab=400) for kind in ("bpe", "byte_bpe", "unigram")}
MADE |= {"sentencepiece": sentencepiece(), "wordpiece": wordpiece()}
KINDS = pytest.mark.parametrize("kind", MADE)


def grown(tokenizer, tokens):
    text = GrowingText(tokenizer)
    return [*map(text.add, tokens), text.rest()]


PARTS = st.sampled_from(["the fox", " ", "小狗", "👩‍👩‍👧", "ß", "\n", ".", "日本語" * 9, "e\u0301"])


@KINDS
@settings(max_examples=60, deadline=None)
@given(text=st.lists(PARTS | st.text(max_size=9)).map("".join))
def test_the_pieces_of_a_text_are_the_text(kind, text):
    tokenizer = MADE[kind]
    (tokens,) = tokenizer.encode([text.replace("\ufffd", "")])
    pieces = grown(tokenizer, tokens)
    assert "".join(pieces) == tokenizer.decode([tokens])[0]
    assert all("\ufffd" not in piece for piece in pieces), "half a character was shown"


@KINDS
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_so_are_those_of_tokens_in_any_order(kind, data):
    """Also where a character is cut across tokens that do not belong together. With SentencePiece's bytes, one that is
    wrong turns all before it into replacement characters, some of which have been shown as what they were."""
    tokenizer = MADE[kind]
    tokens = data.draw(st.lists(st.integers(0, tokenizer.vocab - 1), max_size=80))
    whole = tokenizer.decode([tokens])[0]
    if kind in ("byte_bpe", "wordpiece") or "\ufffd" not in whole:
        assert "".join(grown(tokenizer, tokens)) == whole
    else:
        assert len("".join(grown(tokenizer, tokens))) <= len(whole) + len(tokens)


@KINDS
def test_a_character_comes_with_its_last_token_and_a_word_with_its_own(kind):
    tokenizer = MADE[kind]
    (tokens,) = tokenizer.encode(["the fox"])
    pieces = grown(tokenizer, tokens)
    assert "".join(pieces) == "the fox" and pieces[-1] == "" and all(pieces[:-1])


@pytest.mark.parametrize("text", ["the fox " * 200, "🦊" * 200, "\ufffd" * 200, b"\xe4\xb8" * 200])
@KINDS
def test_the_work_for_a_token_does_not_grow_with_the_text(kind, text, monkeypatch):
    tokenizer = MADE[kind]
    if isinstance(text, bytes):  # never a whole character
        if kind == "wordpiece":
            return
        byte = tokenizer.token_ids()
        tokens = [byte.get(f"<0x{one:02X}>", 5) for one in text]
    else:
        (tokens,) = tokenizer.encode([text])
    sizes, plain = [], tokenizer.decode
    monkeypatch.setattr(tokenizer, "decode", lambda rows: sizes.extend(map(len, rows)) or plain(rows))
    growing = GrowingText(tokenizer)
    for token in tokens:
        growing.add(token)
    assert max(sizes) <= 2 * MOST + 1 and sum(sizes) < 2 * MOST * len(tokens)
    assert len(growing.window) <= 2 * MOST
