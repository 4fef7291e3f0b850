"""A real encoder-decoder that nobody here trained, with the outputs CTranslate2 itself gives."""

import json

import pytest
import torch

from heedful.data.padding import pad
from heedful.decoding.beam import search
from heedful.decoding.generation import GenerationConfig
from heedful.decoding.rules import Rules
from heedful.decoding.stepper import SourceStepper
from heedful.exchange.ctranslate2 import load
from tests.shared_data import shared

# CTranslate2 stops at as many finished hypotheses as beams, and lets no text be empty.
BEAM = GenerationConfig(
    num_beams=4, num_return_sequences=4, early_stopping=True, min_new_tokens=1, renormalize_logits=True
)
GREEDY = GenerationConfig(num_beams=1, min_new_tokens=1, renormalize_logits=True)


@pytest.fixture(scope="module")
def expected():
    path = shared("weights-small/ct2-aren-transliteration/expected-ctranslate2-4.8.4.jsonl")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write(opened, sources, config):
    ids = {word: index for index, word in enumerate(opened.source)}
    source, valid = pad([[ids.get(word, ids["<unk>"]) for word in words] for words in sources])
    bos, eos = opened.target.index("<s>"), opened.target.index("</s>")
    stepper = SourceStepper(opened.model, source, valid, length=64)
    found = search(
        stepper,
        torch.full((len(sources),), bos),
        config,
        eos=eos,
        limits=[256] * len(sources),
        rules=Rules(config=config, eos=eos),
    )
    return [[([opened.target[token] for token in h.tokens], h.score) for h in hypotheses] for hypotheses in found]


@pytest.mark.parametrize("size", [1, 7, 100])
@pytest.mark.parametrize("kind", ["greedy", "beam4"])
def test_every_output_and_score_is_reproduced(expected, kind, size):
    opened = load(shared("weights-small/ct2-aren-transliteration"))
    for start in range(0, len(expected), size):
        lines = expected[start : start + size]
        found = write(opened, [line["source"] for line in lines], BEAM if kind == "beam4" else GREEDY)
        for line, hypotheses in zip(lines, found, strict=True):
            wanted = line["beam4"] if kind == "beam4" else [line["greedy"]]
            assert [tokens for tokens, _ in hypotheses] == [one["tokens"] for one in wanted]
            for (_, score), one in zip(hypotheses, wanted, strict=True):
                assert score == pytest.approx(one["score"], abs=1e-4)


def test_int8_weights_are_read_and_write_nearly_the_same(expected):
    opened = load(shared("weights-small/ct2-aren-transliteration-i8"))
    found = write(opened, [line["source"] for line in expected], GREEDY)
    same = sum(tokens == line["greedy"]["tokens"] for [(tokens, _)], line in zip(found, expected, strict=True))
    assert same >= 90


def test_a_damaged_file_is_refused(tmp_path):
    (tmp_path / "model.bin").write_bytes(shared("weights-small/ct2-aren-transliteration/model.bin").read_bytes()[:1000])
    with pytest.raises(ValueError, match="is not a CTranslate2 model, or is damaged"):
        load(tmp_path)
    with pytest.raises(ValueError, match="there is no"):
        load(tmp_path / "nowhere")
