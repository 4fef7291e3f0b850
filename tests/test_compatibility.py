"""Model folders of earlier versions still open, and give the same output."""

import json
from pathlib import Path

import pytest

import heedful
from heedful.decoding.generation import GenerationConfig

FOLDER = Path(__file__).parent / "fixtures" / "v0_1"  # made by tests/fixtures/make.py
EXPECTED = json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))


def test_a_translator_of_0_1_translates_as_it_did():
    wanted = EXPECTED["translations"]
    translator = heedful.load(FOLDER / "translator")
    found = translator.translate([one["source"] for one in wanted], GenerationConfig(num_beams=4), alignment=True)
    for one, expected in zip(found, wanted, strict=True):
        assert (one.text, one.tokens) == (expected["text"], expected["tokens"])
        assert one.score == pytest.approx(expected["score"], abs=1e-5)
        assert [list(link) for link in one.alignment] == expected["alignment"]


def test_a_language_model_of_0_1_continues_as_it_did():
    wanted = EXPECTED["continuations"]
    generator = heedful.load(FOLDER / "generator")
    config = GenerationConfig(num_beams=1, max_new_tokens=20)
    for (one,), expected in zip(generator.generate([one["prompt"] for one in wanted], config), wanted, strict=True):
        assert one.text == expected["text"]
        assert one.score == pytest.approx(expected["score"], abs=1e-5)
