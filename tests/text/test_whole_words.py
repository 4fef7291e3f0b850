"""Where words begin, beside what the tokenizers' own pre-tokenizers say."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from heedful.text.tokenizer import Tokenizer, TokenizerConfig, train_tokenizer
from heedful.text.whole_words import WholeWords

TEXT = ["the quick brown fox jumps over the lazy dog", "unbelievable stories, unlikely storms", "42 dogs née Müller"]
WORDS = st.sampled_from(["the", "storyteller", "unfoxlike", "née", "Müllers", "x", "dogs"])
ENDS = st.sampled_from([" ", ", ", ". ", "\n", " 7 ", "? "])


def wordpiece() -> Tokenizer:
    backend = Backend(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    alphabet = [chr(code) for code in range(33, 127)]
    backend.train_from_iterator(
        TEXT * 3, trainers.WordPieceTrainer(vocab_size=200, special_tokens=special, initial_alphabet=alphabet)
    )
    return Tokenizer(backend)


def trained(kind: str) -> Tokenizer:
    return train_tokenizer(TEXT * 3, TokenizerConfig(kind=kind), vocab=330, extra=["<mask>", "<cls>", "<sep>"])


TOKENIZERS = {"wordpiece": wordpiece(), **{kind: trained(kind) for kind in ("bpe", "byte_bpe", "unigram")}}


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(WORDS, ENDS), min_size=1, max_size=12))
def test_words_begin_where_the_pre_tokenizer_says(kind, parts):
    tokenizer = TOKENIZERS[kind]
    encoding = tokenizer._backend.encode("".join(word + end for word, end in parts), add_special_tokens=False)
    owner = encoding.word_ids
    wanted = [place == 0 or owner[place] != owner[place - 1] for place in range(len(owner))]
    assert WholeWords(tokenizer).starts(np.array(encoding.ids)).tolist() == wanted


def test_each_chinese_character_is_a_word_and_its_bytes_stay_together():
    tokenizer = trained("bpe")
    (tokens,) = tokenizer.encode(["猫 dog"])
    assert [tokenizer.token(token) for token in tokens[:3]] == ["<0xE7>", "<0x8C>", "<0xAB>"]
    assert WholeWords(tokenizer).starts(np.array(tokens))[:4].tolist() == [True, False, False, True]


def test_special_tokens_are_words_of_their_own():
    tokenizer = trained("bpe")
    (tokens,) = tokenizer.encode(["fox"])
    row = np.array([*tokens, tokenizer.sep, *tokens])
    starts = WholeWords(tokenizer).starts(row)
    assert starts[len(tokens)] and starts[len(tokens) + 1]
