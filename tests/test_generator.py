"""Prompts in, continuations out: many at once, and each as it would be alone."""

import threading

import pytest
import torch

import heedful
from heedful.data.columns import DOCUMENT
from heedful.data.inputs import Inputs
from heedful.decoding.generation import GenerationConfig
from heedful.decoding.stepper import KernelPromptStepper, PromptStepper
from heedful.generator import Generator, Prompt
from heedful.training.recipe import read_recipe
from heedful.training.run import train

PROMPTS = ["the quick", "", "lazy dog the quick brown", "o", "the quick brown fox jumps over"]


@pytest.fixture(scope="module", params=["learned", "rotary", "alibi"])
def generator(tmp_path_factory, request):
    place = tmp_path_factory.mktemp("generator")
    (place / "book.txt").write_text("the quick brown fox jumps over the lazy dog\n\n" * 100)
    position = "{kind: learned, length: 64}" if request.param == "learned" else request.param
    changes = ["model.width=32", "model.decoder.layers=1", "model.decoder.attention.heads=2", "training.steps=120",
               "model.decoder.feedforward.hidden=48", f"model.decoder.position={position}", "training.samples=0",
               "training.validate_every=120", "training.save_every=120"]  # fmt: skip
    inputs = Inputs((place / "book.txt",), columns=DOCUMENT)
    train(read_recipe("char-gpt", changes), inputs, place / "run", cache=place / "cache")
    return heedful.load(place / "run")


@pytest.mark.parametrize("config", [
    GenerationConfig(num_beams=1, max_new_tokens=12),
    GenerationConfig(num_beams=3, num_return_sequences=2, max_new_tokens=12),
    GenerationConfig(do_sample=True, num_return_sequences=3, seed=5, max_new_tokens=12),
    GenerationConfig(num_beams=2, stop_strings=["o"], max_new_tokens=12),
], ids=["greedy", "beam", "sample", "stop"])  # fmt: skip
def test_prompts_are_continued_together_as_they_are_alone(generator, config):
    together = generator.generate(PROMPTS, config)
    for prompt, found in zip(PROMPTS, together, strict=True):
        alone = generator.generate(prompt, config)
        assert [one.text for one in found] == [one.text for one in alone]
        for one, other in zip(found, alone, strict=True):
            assert one.score == pytest.approx(other.score, abs=1e-4) and one.stopped == other.stopped


def test_the_model_is_called_once_a_step_for_all(generator, monkeypatch):
    calls = []
    for stepper in (PromptStepper, KernelPromptStepper):
        monkeypatch.setattr(stepper, "advance", counted(stepper.advance, calls))
    generator.generate(["the quick", "the lazy", "the"] * 2, GenerationConfig(num_beams=1, max_new_tokens=5))
    assert len(calls) == 5 and calls[0] == 6


def counted(plain, calls):
    def found(self, tokens):
        calls.append(len(tokens))
        return plain(self, tokens)

    return found


def test_parallel_streams_serve_threads_and_draw_different_samples(generator):
    several = Generator(generator.model, generator.tokenizer, streams=2)
    greedy = GenerationConfig(num_beams=1, max_new_tokens=6)
    prompts = {0: ["the quick", "lazy", "fox"] * 4, 1: ["o", "brown fox jumps", "dog the"] * 4}
    alone = {name: generator.generate(texts, greedy) for name, texts in prompts.items()}
    wrong = []

    def ask(name):
        for _ in range(5):
            found = several.write(several.read([Prompt(text) for text in prompts[name]]), greedy, batch_tokens=40)
            wrong.extend(name for one, other in zip(found, alone[name], strict=True) if one[0].text != other[0].text)

    threads = [threading.Thread(target=ask, args=(name,)) for name in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    drawn = several.write(
        several.read([Prompt("t")] * 8),
        GenerationConfig(do_sample=True, temperature=3.0, max_new_tokens=12),
        batch_tokens=4 * 13,
    )
    several.close()
    assert not wrong
    texts = [one[0].text for one in drawn]
    assert texts[:4] != texts[4:], "both workers drew the same"


def test_a_prompt_longer_than_the_model_keeps_its_end(generator):
    found = generator.generate(["x" * 200 + " the quick", "the"], GenerationConfig(num_beams=1, max_new_tokens=5))
    assert len(found) == 2 and all(one.text is not None for (one,) in found)


def test_options_go_by_keyword(generator):
    first, second = (generator.generate("the", seed=3, temperature=0.7, max_length=6)[0].text for _ in range(2))
    assert first == second
    with pytest.raises(ValueError, match="unknown option 'temprature'; did you mean 'temperature'?"):
        generator.generate("the", temprature=0.7)
    assert repr(generator).startswith("<Generator: ") and generator.predict(["the q"])[0]["text"]


def test_padding_does_not_reach_a_continuation(generator):
    model = generator.model
    text = torch.tensor([generator.tokenizer.encode(["the quick"])[0]])
    with torch.inference_mode():
        alone = model(text)[0, -1]
        from heedful.decoding.stepper import PromptStepper

        padded = torch.cat([torch.full((1, 4), 9), text], dim=1)
        valid = torch.tensor([[False] * 4 + [True] * text.shape[1]])
        stepper = PromptStepper(model, padded, length=4, valid=valid)
        torch.testing.assert_close(stepper.advance(text[:, -1])[0], alone.log_softmax(-1), atol=1e-5, rtol=1e-4)


def test_int8_weights(generator):
    folder = generator.folder
    quick = heedful.load(folder, quantize="int8")
    assert sum(weight.numel() for weight in quick.model.parameters()) < sum(
        weight.numel() for weight in generator.model.parameters()
    )
    for text in ("the quick", "lazy dog"):
        one, other = quick.log_probs(text), generator.log_probs(text)
        assert one == pytest.approx(other, abs=0.1) and one != other
    greedy = GenerationConfig(num_beams=1, max_new_tokens=8)
    assert quick.generate("the quick", greedy)[0].text == generator.generate("the quick", greedy)[0].text
    with pytest.raises(ValueError, match="unknown quantize 'int4'; known: int8"):
        heedful.load(folder, quantize="int4")
    with pytest.raises(ValueError, match="adapters share one base in float32; leave out quantize"):
        heedful.load(folder, quantize="int8", adapters={"a": folder})
