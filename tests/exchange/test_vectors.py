"""llama.cpp's test vectors: texts and the ids of real vocabularies of BERT, GPT-2 and LLaMA."""

import gzip
import json

import pytest

from heedful.exchange import gguf, gguf_tokenizer, tokenizers
from tests.shared_data import shared

pytest.importorskip("gguf")
FOLDER = "tokenizer-vectors"


def vectors(name):
    texts = shared(f"{FOLDER}/ggml-vocab-{name}.gguf.inp").read_text(encoding="utf-8").split("\n__ggml_vocab_test__\n")
    lines = shared(f"{FOLDER}/ggml-vocab-{name}.gguf.out").read_text(encoding="utf-8").split("\n")
    ids = [[int(number) for number in line.split()] for line in lines[: len(texts)]]
    assert len(texts) == len(ids) > 40
    return texts, ids


def vocabulary(name, folder):
    path = folder / f"{name}.gguf"
    path.write_bytes(gzip.decompress(shared(f"{FOLDER}/ggml-vocab-{name}.gguf.gz").read_bytes()))
    return path


@pytest.mark.parametrize("name", ["bert-bge", "gpt-2", "llama-spm"])
def test_tokenizers_of_gguf_files_give_the_ids_of_their_owners(tmp_path, name):
    texts, ids = vectors(name)
    ours = gguf.tokenizer(vocabulary(name, tmp_path))
    for text, wanted in zip(texts, ids, strict=True):
        assert ours.encode([text])[0] == wanted, text


def test_gpt2_from_vocab_and_merges(tmp_path):
    texts, ids = vectors("gpt-2")
    keys = gguf._File(vocabulary("gpt-2", tmp_path)).keys
    numbered = {token: index for index, token in enumerate(keys["tokenizer.ggml.tokens"])}
    (tmp_path / "vocab.json").write_text(json.dumps(numbered), encoding="utf-8")
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(keys["tokenizer.ggml.merges"]), encoding="utf-8")
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    ours = tokenizers.load(tmp_path)
    assert ours.encode(texts) == ids
    assert ours.decode(ids) == texts


def test_bert_from_vocab_txt(tmp_path):
    texts, ids = vectors("bert-bge")
    made = gguf.tokenizer(vocabulary("bert-bge", tmp_path))
    words = sorted(made.token_ids(), key=made.token_ids().get)
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    ours = tokenizers.load(tmp_path)
    assert ours.encode(texts) == ids
    assert ours.frame.first == (101,) and ours.frame.last == (102,) and ours.mask == 103
    assert made.frame == ours.frame


def test_unknown_tokenizers_are_named():
    with pytest.raises(ValueError, match="x.gguf has no tokenizer that can be read: 'rwkv'; known: llama, t5, gpt2"):
        gguf_tokenizer.build({"tokenizer.ggml.model": "rwkv", "tokenizer.ggml.tokens": ["a"]}, "x.gguf")
    keys = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a"], "tokenizer.ggml.pre": "klingon"}
    with pytest.raises(ValueError, match="x.gguf splits text by the rule 'klingon', which is not known; known: def"):
        gguf_tokenizer.build(keys, "x.gguf")
