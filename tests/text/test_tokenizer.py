"""Tokenizers lose nothing, hold everything in one file, and agree with a plain reference."""

import json
import random
import subprocess
import sys
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from heedful.text.bpe import MergingBpe
from heedful.text.tokenizer import SPECIALS, Tokenizer, TokenizerConfig, train_tokenizer, vocab_for

TEXTS = [
    "The animal did not cross the street because it was too tired.",
    "Das Tier überquerte die Straße nicht, weil es zu müde war.",
    "那只动物没有过马路，因为它太累了。",
    "2017: 65 million parameters, 37,000 tokens  -- twice\tspaced.",
] * 30
LOSSLESS = ["bpe", "byte_bpe", "unigram", "character"]


@pytest.fixture(scope="module", params=LOSSLESS)
def tokenizer(request):
    return train_tokenizer(TEXTS, TokenizerConfig(kind=request.param), vocab=500)


@settings(max_examples=200, deadline=None)
@given(text=st.text() | st.sampled_from(TEXTS))
def test_what_goes_in_comes_out(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode([text])) == [text]


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "  leading and trailing  ",
        "</s> is text, so are <pad>, <unk> and <0x41>",
        "👩‍👩‍👧‍👦 🇩🇪 ❤️",
        "e\u0301 ä a\u0308 ﬁ ①",
        "中文　全角空格",
        "\u200bzero\ufeffwidth\u00a0\u2028lines\r\n",
        "▁ is a character",
        "\x00\x07\x7f",
        "ʻōlelo Tiếng Việt हिन्दी العربية",
    ],
)
def test_odd_text_survives(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode([text])) == [text]


def test_text_that_looks_special_gives_no_special_token(tokenizer):
    for word in SPECIALS:
        assert min(tokenizer.encode([word])[0]) >= len(SPECIALS)


def test_the_file_holds_everything(tokenizer, tmp_path):
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    again = Tokenizer.load(path)
    assert again.encode(TEXTS) == tokenizer.encode(TEXTS)
    assert again.digest() == tokenizer.digest()
    assert again.decode(again.encode(["</s>"])) == ["</s>"]


def test_training_is_reproducible(tokenizer, request):
    kind = request.node.callspec.params["tokenizer"]
    again = train_tokenizer(TEXTS, TokenizerConfig(kind=kind), vocab=500)
    assert again.encode(TEXTS) == tokenizer.encode(TEXTS)


@settings(max_examples=50, deadline=None)
@given(text=st.text())
@pytest.mark.parametrize("form", ["NFC", "NFKC"])
def test_normalisation_is_all_that_changes(form, text):
    tokenizer = NORMALISED[form]
    assert tokenizer.decode(tokenizer.encode([text])) == [unicodedata.normalize(form, text)]


NORMALISED = {form: train_tokenizer(TEXTS, TokenizerConfig(normalise=form), vocab=400) for form in ("NFC", "NFKC")}


def test_words_are_whole_and_unknown_ones_are_one_token():
    tokenizer = train_tokenizer(TEXTS, TokenizerConfig(kind="word"), vocab=500)
    assert tokenizer.decode(tokenizer.encode(["The street was too tired."])) == ["The street was too tired."]
    assert tokenizer.encode([" zebra"]) == [[tokenizer.unk]]


def test_pieces_point_at_the_characters_they_stand_for(tokenizer):
    text = TEXTS[1]
    for _, start, end in tokenizer.pieces(text):
        assert 0 <= start < end <= len(text)
    assert [token for token, _, _ in tokenizer.pieces(text)] == tokenizer.encode([text])[0]


@settings(max_examples=100, deadline=None)
@given(text=st.text() | st.sampled_from(TEXTS))
def test_the_fast_bpe_equals_the_plain_one(text):
    assert PLAIN.encode(text) == PLAIN.tokenizer.encode([text])[0]


PLAIN = MergingBpe(train_tokenizer(TEXTS, TokenizerConfig(), vocab=500))


def test_bpe_dropout_cuts_differently_but_says_the_same():
    text = TEXTS[0]
    cuts = {tuple(PLAIN.encode(text, dropout=0.3, chance=random.Random(seed))) for seed in range(20)}
    assert len(cuts) > 10
    assert {PLAIN.tokenizer.decode([cut])[0] for cut in cuts} == {text}
    same = [PLAIN.encode(text, dropout=0.3, chance=random.Random(5)) for _ in range(2)]
    assert same[0] == same[1]


def test_dropout_without_merges_is_refused():
    with pytest.raises(ValueError, match="tokenizer dropout works only with kind bpe, not 'unigram'; set dropout to 0"):
        TokenizerConfig(kind="unigram", dropout=0.1)


def test_chinese_phrases_do_not_fill_a_small_vocabulary():
    texts = ["因为它太累了。", "因为它太宽了。ありがとう because"] * 50
    small, large = (train_tokenizer(texts, TokenizerConfig(), vocab=vocab) for vocab in (600, 9000))
    cut = lambda tokenizer, text: [text[start:end] for _, start, end in tokenizer.pieces(text)]  # noqa: E731
    assert max(map(len, cut(small, "因为它太累了。"))) == 2
    assert max(map(len, cut(large, "因为它太累了。"))) > 2
    assert cut(small, "ありがとう because") == ["ありがとう", " because"]


def test_the_vocabulary_grows_with_the_corpus():
    sizes = [vocab_for(words) for words in (100, 10**4, 10**5, 10**6, 10**7, 10**9)]
    assert sizes == sorted(sizes) and sizes[0] == 512 and sizes[-1] == 32000
    assert 2500 < vocab_for(500_000) < 3500


def test_a_file_that_is_no_tokenizer(tmp_path):
    with pytest.raises(ValueError, match=r"there is no .*tokenizer\.json"):
        Tokenizer.load(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="is not a tokenizer"):
        Tokenizer.load(tmp_path / "tokenizer.json")


# Tokenizers as others publish them, in small.
def wordpiece(path):
    backend = Backend(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer, backend.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    backend.train_from_iterator(SAMPLES, trainers.WordPieceTrainer(vocab_size=120, special_tokens=special))
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    backend.enable_padding(length=32)
    backend.enable_truncation(4)
    return save(backend, path)


def byte_level(path):
    backend = Backend(models.BPE())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    backend.train_from_iterator(SAMPLES, trainer)
    return save(backend, path)


def sentencepiece(path, special):
    backend = Backend(models.Unigram())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=120, special_tokens=special, unk_token="<unk>")
    backend.train_from_iterator(SAMPLES, trainer)
    return save(backend, path)


def save(backend, path):
    backend.save(str(path))
    return Tokenizer.load(path)


SAMPLES = ["the cat sat on the mat", "a dog sees the bird", "birds and cats and dogs"] * 5


def test_berts_special_tokens_are_known_by_their_names(tmp_path):
    tokenizer = wordpiece(tmp_path / "tokenizer.json")
    assert (tokenizer.pad, tokenizer.unk, tokenizer.cls, tokenizer.sep, tokenizer.mask) == (0, 1, 2, 3, 4)
    assert (tokenizer.bos, tokenizer.eos, tokenizer.start) == (2, 3, 2)  # [CLS] and [SEP] serve
    (tokens,) = tokenizer.encode(["The cat sat on the mat"])
    assert len(tokens) > 4 and not set(tokens) & tokenizer.specials  # neither padded, cut nor framed
    assert tokenizer.decode([[2, *tokens, 3, 0, 0]]) == ["the cat sat on the mat"]
    assert tokenizer.never == (0, 2, 4)


def test_gpt2_has_one_special_token_for_everything(tmp_path):
    tokenizer = byte_level(tmp_path / "tokenizer.json")
    end = tokenizer.token_ids()["<|endoftext|>"]
    assert tokenizer.bos == tokenizer.eos == tokenizer.pad == tokenizer.start == end
    assert tokenizer.unk is None and tokenizer.never == ()
    text = " <|endoftext|> is text here, ä ✓"
    assert tokenizer.decode(tokenizer.encode([text])) == [text]
    with pytest.raises(ValueError, match=r"this tokenizer has no mask token \(such as <mask>\), which the task needs"):
        _ = tokenizer.mask


def test_t5_starts_with_padding_and_has_sentinels(tmp_path):
    special = ["<pad>", "</s>", "<unk>", *(f"<extra_id_{number}>" for number in reversed(range(5)))]
    tokenizer = sentencepiece(tmp_path / "tokenizer.json", special)
    assert (tokenizer.pad, tokenizer.eos, tokenizer.start) == (0, 1, 0)
    assert tokenizer.sentinels == [7, 6, 5, 4, 3]  # <extra_id_0> first, wherever it stands


def test_llamas_and_many_languages(tmp_path):
    tokenizer = sentencepiece(tmp_path / "tokenizer.json", ["<unk>", "<s>", "</s>", "de_DE", "zh_CN", ">>fr<<"])
    assert (tokenizer.unk, tokenizer.bos, tokenizer.eos, tokenizer.start) == (0, 1, 2, 1)
    assert tokenizer.languages == {"de_DE": 3, "zh_CN": 4, "fr": 5}
    assert tokenizer.pad == tokenizer.eos  # it has none, and any will do


def test_names_that_do_not_tell_are_told_by_the_file_beside_it_and_kept(tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "ours").mkdir()
    names = {"bos_token": {"content": "<unk>"}, "eos_token": "zh_CN", "pad_token": None}
    (tmp_path / "theirs" / "tokenizer_config.json").write_text(json.dumps(names))
    tokenizer = sentencepiece(tmp_path / "theirs" / "tokenizer.json", ["<unk>", "<s>", "</s>", "de_DE", "zh_CN"])
    assert (tokenizer.bos, tokenizer.eos) == (0, 4)
    tokenizer.save(tmp_path / "ours" / "tokenizer.json")
    again = Tokenizer.load(tmp_path / "ours" / "tokenizer.json")
    assert (again.bos, again.eos) == (0, 4)


@pytest.mark.parametrize("kind", ["bpe", "byte_bpe", "unigram", "character", "word"])
def test_a_tokenizer_of_ours_has_the_special_tokens_a_task_needs(kind):
    extra = ["<mask>", "<cls>", "<extra_id_0>"]
    tokenizer = train_tokenizer(SAMPLES, TokenizerConfig(kind=kind), vocab=400, extra=extra)
    assert (tokenizer.pad, tokenizer.bos, tokenizer.eos, tokenizer.unk) == (0, 1, 2, 3)
    assert (tokenizer.mask, tokenizer.cls, tokenizer.sentinels) == (4, 5, [6])
    assert tokenizer.sep == tokenizer.eos
    if kind != "word":
        text = "a <mask> is text, <cls> too: ✓"
        assert tokenizer.decode(tokenizer.encode([text])) == [text]
        assert not set(tokenizer.encode([text])[0]) & tokenizer.specials


def test_a_file_is_taken_as_it_is(tmp_path):
    from heedful.data.inputs import DataConfig, Inputs
    from heedful.data.prepare import prepare
    from tests.corpora import pairs

    byte_level(tmp_path / "their.json")
    inputs = Inputs((pairs(tmp_path / "p.tsv"),))
    config = TokenizerConfig(file=str(tmp_path / "their.json"))
    prepared = prepare(inputs, DataConfig(), config, cache=tmp_path / "cache")
    assert prepared.tokenizers[0].token_ids() == Tokenizer.load(tmp_path / "their.json").token_ids()


def test_the_vocabulary_reaches_to_the_largest_id(tmp_path):
    backend = Backend(models.WordLevel({"a": 0, "b": 7, "<unk>": 1}, unk_token="<unk>"))
    assert save(backend, tmp_path / "tokenizer.json").vocab == 8


def test_two_tokenizers_in_a_folder_keep_their_own_names(tmp_path):
    first = Tokenizer(Backend.from_str(byte_level(tmp_path / "a.json")._backend.to_str()), {"eos": "<|endoftext|>"})
    special = ["<unk>", "<s>", "</s>", "zh_CN"]
    second = Tokenizer(
        Backend.from_str(sentencepiece(tmp_path / "b.json", special)._backend.to_str()), {"eos": "zh_CN"}
    )
    first.save(tmp_path / "source_tokenizer.json")
    second.save(tmp_path / "tokenizer.json")
    assert Tokenizer.load(tmp_path / "source_tokenizer.json").eos == first.eos
    assert Tokenizer.load(tmp_path / "tokenizer.json").eos == 3


RARE = """
from heedful.text.tokenizer import TokenizerConfig, train_tokenizer
texts = [chr(0x4E00 + number) for number in range(2000)]
print(train_tokenizer(texts, TokenizerConfig(), vocab=600).digest())
"""


def test_which_of_equally_rare_characters_are_kept_does_not_depend_on_the_process():
    run = [sys.executable, "-c", RARE]
    assert len({subprocess.run(run, capture_output=True, text=True, check=True).stdout for _ in range(3)}) == 1
