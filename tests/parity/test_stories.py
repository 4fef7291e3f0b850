"""Real weights: a small LLaMA that writes children's stories."""

import struct

import pytest
import torch
import transformers as hf

from heedful.exchange.hugging_face import save
from heedful.exchange.llama2c import load
from tests.shared_data import shared

START = 1


@pytest.fixture(scope="module")
def story():
    """The model, its words, and 120 tokens it writes by itself."""
    folder = shared("weights-small/stories260K")
    model = load(folder / "stories260K.bin").eval()
    written, cache = torch.tensor([[START]]), model.new_cache(128)
    with torch.no_grad():
        for _ in range(120):
            written = torch.cat([written, model(written[:, -1:], cache=cache)[:, -1:].argmax(-1)], dim=1)
    return model, read_words(folder / "tok512.bin"), written


def read_words(path):
    data, place, words = path.read_bytes(), 4, []
    while place < len(data):
        _, length = struct.unpack_from("<fi", data, place)
        words.append(data[place + 8 : place + 8 + length])
        place += 8 + length
    return words


def test_it_writes_simple_english(story):
    _, words, written = story
    text = b"".join(words[token] for token in written[0, 1:]).decode()
    assert "Once upon a time, there was a little girl named Lily." in text
    common = {"the", "a", "she", "to", "and", "was", "her", "in", "day", "with", "he", "it", "play", "loved", "park"}
    assert len(common & set(text.lower().replace(".", " ").replace(",", " ").split())) > 7, text


def test_log_probabilities_equal_those_of_transformers(story, tmp_path):
    model, _, written = story
    save(model, tmp_path, "llama", details={"max_position_embeddings": 512})
    theirs = hf.LlamaForCausalLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        ours = model(written).log_softmax(-1)
        expected = theirs(input_ids=written).logits.log_softmax(-1)
    chosen = written[:, 1:, None]
    assert torch.allclose(ours[:, :-1].gather(-1, chosen), expected[:, :-1].gather(-1, chosen), atol=1e-5)
    assert torch.allclose(ours, expected, atol=1e-4)


def test_a_cut_file_is_refused(tmp_path):
    whole = shared("weights-small/stories260K/stories260K.bin").read_bytes()
    (tmp_path / "cut.bin").write_bytes(whole[:-400])
    with pytest.raises(ValueError, match=r"has 264,028 numbers, but its header requires 264,128"):
        load(tmp_path / "cut.bin")
    (tmp_path / "cut.bin").write_bytes(whole[:20])
    with pytest.raises(ValueError, match="too short for a llama2.c model"):
        load(tmp_path / "cut.bin")
