"""Tokenizers of other people's folders give the ids that their owners give."""

import pytest

from heedful.exchange import sentencepiece, tokenizers
from heedful.text.tokenizer import Tokenizer
from tests.exchange.folders import TEXT, bpe_folder, marian, trained, wordpiece_folder, write

TRICKY = [
    *TEXT,
    "",
    "  ",
    "  two  spaces ",
    "The QUICK Brown",
    "Ünïcödé ﬁ ½",
    "漢字 and kana かな",
    "tab\there\nnew line",
    " leading",
    "trailing ",
    "don't can't",
    "a\u3000b\u00a0c",
    "😀 zq",
    "```quoted''",
]


def same_as_theirs(folder, texts=TRICKY, **options):
    hf = pytest.importorskip("transformers")
    if any(folder.glob("*.model")):
        pytest.importorskip("google.protobuf")  # theirs needs it to read SentencePiece models
    theirs, ours = hf.AutoTokenizer.from_pretrained(folder, **options), tokenizers.load(folder)
    for text in texts:
        assert ours.encode([text])[0] == theirs(text, add_special_tokens=False).input_ids, text
    same_frames(ours, theirs)
    return ours, theirs


def same_frames(ours, theirs):
    framed = ours._backend.encode("one two", "three")
    expected = theirs("one two", "three", return_token_type_ids=True)
    assert framed.ids == expected.input_ids
    assert framed.type_ids == expected.token_type_ids
    assert ours._backend.encode("one two").ids == theirs("one two").input_ids


@pytest.mark.parametrize("settings", [
    {}, {"do_lower_case": False}, {"do_lower_case": True, "strip_accents": False},
    {"do_lower_case": False, "strip_accents": True}, {"tokenize_chinese_chars": False},
], ids=str)  # fmt: skip
def test_wordpiece_from_vocab_txt(tmp_path, settings):
    wordpiece_folder(tmp_path, **settings)
    ours, _ = same_as_theirs(tmp_path, **settings)
    assert ours.special("cls") == 2 and ours.mask == 4 and ours.pad == 0
    assert ours.decode(ours.encode(["the quick fox"])) == ["the quick fox"]


@pytest.mark.parametrize("name", ["roberta", "bart", "longformer", "led"])
def test_byte_bpe_from_vocab_and_merges(tmp_path, name):
    bpe_folder(tmp_path, name, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    ours, _ = same_as_theirs(tmp_path)
    assert (ours.bos, ours.pad, ours.eos, ours.unk, ours.mask) == (0, 1, 2, 3, 4)
    assert ours.decode(ours.encode(TRICKY)) == TRICKY
    assert ours.pieces("the fox")[-1][1] == 4  # the span of a word does not include the space before it


@pytest.mark.parametrize("prefix", [False, True])
def test_gpt2_has_no_frame(tmp_path, prefix):
    bpe_folder(tmp_path, "gpt2", ["<|endoftext|>"], add_prefix_space=prefix)
    ours, _ = same_as_theirs(tmp_path)
    assert ours.bos == ours.eos == 0 and ours._backend.encode("fox").ids == ours.encode(["fox"])[0]


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("normal", ["nmt_nfkc", "identity", "nmt_nfkc_cf"])
@pytest.mark.parametrize("tidy", [True, False])
@pytest.mark.parametrize("more", [
    {}, {"byte_fallback": True, "vocab_size": 421}, {"user_defined_symbols": "<sep>,::"},
    {"add_dummy_prefix": False}, {"split_by_whitespace": False, "vocab_size": 181},
], ids=str)  # fmt: skip
def test_sentencepiece_models_give_the_ids_of_sentencepiece(tmp_path, kind, normal, tidy, more):
    path = tmp_path / "x.model"
    options = {"model_type": kind, "normalization_rule_name": normal, "remove_extra_whitespaces": tidy}
    theirs = trained(path, **options, **more)
    ours = Tokenizer(sentencepiece.backend(sentencepiece.read(path)))
    texts = [*TRICKY, "a<sep>b <sep> c::d", "<sep>", "x <0x41>"]
    assert ours.encode(texts) == theirs.encode(texts)
    known = [text for text in TEXT if theirs.unk_id() not in theirs.encode(text)]
    assert len(known) > 2
    assert ours.decode(theirs.encode(known)) == theirs.decode(theirs.encode(known))


def test_what_looks_like_a_control_piece_is_text(tmp_path):
    path = tmp_path / "x.model"
    theirs = trained(path)
    ours = Tokenizer(sentencepiece.backend(sentencepiece.read(path)))
    for text in ("</s>", "a</s>b", "<s> x", "<unk>"):
        (ids,) = ours.encode([text])
        assert theirs.eos_id() not in ids and theirs.bos_id() not in ids and len(ids) > 2, text


def test_t5_ends_with_its_sentinels_in_reverse(tmp_path):
    theirs = trained(tmp_path / "spiece.model", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    write(tmp_path, config={"model_type": "t5"}, tokenizer_config={"tokenizer_class": "T5Tokenizer"})
    ours = tokenizers.load(tmp_path)
    assert ours.encode(TRICKY) == theirs.encode(TRICKY)
    assert (ours.pad, ours.eos, ours.unk, ours.start) == (0, 1, 2, 0)
    size = theirs.get_piece_size()
    assert ours.vocab == size + 100 and ours.token(size) == "<extra_id_99>" and ours.sentinels[0] == size + 99
    same_as_theirs(tmp_path, TEXT)


def test_albert_lowers_case_and_drops_accents(tmp_path):
    trained(tmp_path / "spiece.model", pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, control_symbols="[CLS],[SEP],[MASK]")
    write(tmp_path, config={"model_type": "albert"}, tokenizer_config={"tokenizer_class": "AlbertTokenizer"})
    ours = tokenizers.load(tmp_path)
    assert ours.encode(["Résumé  THE ``fox''"]) == ours.encode(['resume the "fox"'])
    assert ours._backend.encode("fox", "dog").tokens[0] == "[CLS]" and ours.sep == 3
    same_as_theirs(tmp_path, TEXT)


def test_llama_begins_with_bos_and_keeps_every_space(tmp_path):
    theirs = trained(tmp_path / "tokenizer.model", model_type="bpe", byte_fallback=True, vocab_size=421,
                     normalization_rule_name="identity", remove_extra_whitespaces=False)  # fmt: skip
    write(tmp_path, config={"model_type": "llama"}, tokenizer_config={"tokenizer_class": "LlamaTokenizer"})
    ours = tokenizers.load(tmp_path)
    assert ours.encode(TRICKY) == theirs.encode(TRICKY)
    assert ours.decode(ours.encode(TRICKY)) == TRICKY
    assert ours._backend.encode("fox").ids == [ours.bos, *theirs.encode("fox")]
    write(tmp_path, tokenizer_config={"add_eos_token": True, "add_bos_token": False})
    again = tokenizers.load(tmp_path)
    assert again._backend.encode("fox").ids == [*theirs.encode("fox"), ours.eos]


def test_fairseq_numbers_are_shifted(tmp_path):
    theirs = trained(tmp_path / "sentencepiece.bpe.model")
    write(tmp_path, config={"model_type": "xlm-roberta"}, tokenizer_config={"tokenizer_class": "XLMRobertaTokenizer"})
    ours = tokenizers.load(tmp_path)
    expected = [[3 if index == theirs.unk_id() else index + 1 for index in row] for row in theirs.encode(TRICKY)]
    assert ours.encode(TRICKY) == expected
    assert ours.mask == theirs.get_piece_size() + 1
    same_as_theirs(tmp_path, TEXT)


def test_marian_has_a_model_for_each_side_and_one_vocabulary(tmp_path):
    hf = pytest.importorskip("transformers")
    *_, texts = marian(tmp_path)
    ours = tokenizers.load_columns(tmp_path, columns=2)
    theirs = hf.AutoTokenizer.from_pretrained(tmp_path)
    assert [one.vocab for one in ours] == [len(texts)] * 2
    for text in TRICKY:
        assert ours[0].encode([text])[0] == theirs(text).input_ids[:-1], text
        assert ours[1].encode([text])[0] == theirs(text_target=text).input_ids[:-1], text
    assert ours[0].languages == {"deu": 2} and ours[0].pad == len(texts) - 1 and ours[1].eos == 0
    assert ours[0]._backend.encode("fox").ids == theirs("fox").input_ids
    rows = [[index for index in theirs(text_target=text).input_ids if index != 1] for text in TEXT]
    assert ours[1].decode(rows) == theirs.batch_decode(rows, skip_special_tokens=True)
    (alone,) = tokenizers.load_columns(tmp_path, columns=1)
    assert alone.digest() == ours[1].digest()


def test_marian_pieces_without_an_id_are_reported(tmp_path):
    source, _, texts = marian(tmp_path)
    pieces = [source.id_to_piece(index) for index in range(len(source))]
    lost = max((piece for piece in pieces if piece.startswith("▁")), key=len)
    write(tmp_path, vocab={text: index for index, text in enumerate(text for text in texts if text != lost)})
    with pytest.warns(UserWarning, match=r"1 of \d+ pieces of source.spm are not in vocab.json; their texts are split"):
        tokenizers.load_columns(tmp_path, columns=2)
    write(tmp_path, vocab={text: index + 1 for index, text in enumerate(texts)})
    with pytest.raises(ValueError, match=r"vocab.json does not number its \d+ tokens from 0 to"):
        tokenizers.load_columns(tmp_path, columns=2)
    (tmp_path / "vocab.json").unlink()
    with pytest.raises(ValueError, match="has target.spm, but no vocab.json with the ids of its pieces"):
        tokenizers.load_columns(tmp_path, columns=2)


def test_added_tokens_keep_their_ids(tmp_path):
    backend = bpe_folder(tmp_path, "gpt2", ["<|endoftext|>"])
    size = backend.get_vocab_size()
    write(tmp_path, added_tokens={"<tool>": size, "[PAD]": size + 1}, tokenizer_config={"pad_token": "[PAD]"})
    ours = tokenizers.load(tmp_path)
    assert ours.pad == size + 1 and ours.encode(["a<tool>b"])[0][1] == size
    write(tmp_path, added_tokens={"<tool>": size + 3})
    with pytest.raises(ValueError, match=rf"the added token '<tool>' should have the id {size + 3}, but"):
        tokenizers.load(tmp_path)


def test_every_tokenizer_survives_being_saved(tmp_path):
    trained(tmp_path / "a" / "tokenizer.model", model_type="bpe", user_defined_symbols="<sep>")
    ours = tokenizers.load(tmp_path / "a")
    ours.save(tmp_path / "tokenizer.json")
    again = tokenizers.load(tmp_path)
    assert again.encode([*TRICKY, "a<sep>b"]) == ours.encode([*TRICKY, "a<sep>b"])
    assert again.digest() == ours.digest()


def test_mistakes_are_named(tmp_path):
    with pytest.raises(ValueError, match="has no tokenizer that can be read; looked for tokenizer.json, vocab.txt"):
        tokenizers.load(tmp_path)
    (tmp_path / "spiece.model").write_bytes(b"\x0a\xff\x01nonsense")
    with pytest.raises(ValueError, match="spiece.model is not a SentencePiece model, or is damaged: it ends too early"):
        tokenizers.load(tmp_path)
    (tmp_path / "spiece.model").unlink()
    (tmp_path / "vocab.txt").write_text("a\nb\n")
    with pytest.raises(ValueError, match=r"vocab.txt has no \[UNK\], which WordPiece needs"):
        tokenizers.load(tmp_path)
    write(tmp_path, tokenizer_config=[1])
    with pytest.raises(ValueError, match="tokenizer_config.json is not a JSON object"):
        tokenizers.load(tmp_path)
