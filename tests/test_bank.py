"""Several adapters of one base: each row of a batch has its own, and is answered as if it were alone with it."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import heedful
from heedful.adapters import AdapterConfig, install
from heedful.bank import choosing, install_bank, numbers
from heedful.data.inputs import Inputs
from heedful.decoding.generation import GenerationConfig
from heedful.decoding.runner import Request
from heedful.generator import Prompt
from heedful.training.recipe import read_recipe
from heedful.training.run import train
from tests.adapters.models import BATCH, SOURCE, TARGET, VOCAB, base, shaken
from tests.corpora import SMALL, pairs

LORAS = {
    "law": {"kind": "lora", "rank": 3, "targets": ["query", "value"]},
    "medicine": {"kind": "lora", "rank": 5, "alpha": 3.0, "targets": ["all"]},
    "code": {"kind": "lora", "rank": 2, "root": True, "targets": ["up", "cross.query"]},
}


def made(architecture, size="primes"):
    """{name: (config, state)}, and {name: the model with that adapter alone}."""
    states, alone = {}, {"": base(architecture, size)}
    for number, (name, given) in enumerate(LORAS.items()):
        if architecture == "decoder_only":
            given = {**given, "targets": [one for one in given["targets"] if not one.startswith("cross")]}
        config, model = AdapterConfig.model_validate(given), base(architecture, size)
        trained = install(config, model)
        shaken(model, trained)
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                if key in trained:
                    parameter.mul_(1 + number)
        states[name] = config, {key: model.get_parameter(key).detach() for key in trained}
        alone[name] = model.eval()
    return states, alone


@pytest.mark.parametrize("size", ["primes", "kernels"])
@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder_only"])
def test_each_row_is_as_with_its_adapter_alone(architecture, size):
    states, alone = made(architecture, size)
    model = base(architecture, size)
    install_bank(model, states)
    torch.manual_seed(7)
    names = ["medicine", "", "law", "code"]
    source, target = torch.randint(3, VOCAB, (4, SOURCE)), torch.randint(3, VOCAB, (4, TARGET))
    inputs = (source, target) if architecture == "encoder_decoder" else (target,)
    with torch.no_grad(), choosing(numbers(names, list(states))):
        found = model(*inputs)
    for row, name in enumerate(names):
        expected = alone[name](*(one[row : row + 1] for one in inputs))[0]
        torch.testing.assert_close(found[row], expected, rtol=1e-4, atol=1e-3)
    with torch.no_grad():
        torch.testing.assert_close(model(*inputs), alone[""](*inputs))
    assert not torch.allclose(found, alone[""](*inputs), atol=0.01)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("bank")
    corpus = pairs(place / "p.tsv")
    quick = ["training.samples=0", "training.warmup=2", "training.learning_rate=0.01", "training.batch_tokens=256"]
    train(
        read_recipe("tiny", [*SMALL, *quick, "training.steps=150", "training.label_smoothing=0"]),
        Inputs((corpus,)),
        place / "base",
        cache=place / "c",
    )
    for number, (name, targets) in enumerate({"law": "[query,value]", "medicine": "[all]"}.items()):
        changes = [f"start_from={place / 'base'}", *quick, f"seed={number}", "adapter=lora"]
        changes += [f"adapter.targets={targets}", "training.steps=8"]
        train(read_recipe("tiny", changes), Inputs((corpus,)), place / name, cache=place / "c")
    return place


TEXTS = ["a b c", "d", "b a d c", "c c a b d a", "a", "d d b"]


@pytest.mark.parametrize("config", [{"num_beams": 1}, {"num_beams": 3}, {"do_sample": True, "seed": 3}])
def test_a_mixed_batch_of_translations_equals_each_alone(config, place):
    config = GenerationConfig(**config)
    names = ["law", "", "medicine", "law", "medicine", ""]
    translator = heedful.load(place / "base", streams=1, adapters={name: place / name for name in ("law", "medicine")})
    found = translator.translate([Request(text, adapter=name) for text, name in zip(TEXTS, names, strict=True)], config)
    for text, name, one in zip(TEXTS, names, found, strict=True):
        alone = heedful.load(place / (name or "base"), streams=1).translate(text, config)
        assert (one.text, one.tokens) == (alone.text, alone.tokens)
        assert one.score == pytest.approx(alone.score, abs=1e-4)
    with pytest.raises(ValueError, match="unknown adapter 'lav'; did you mean 'law'?"):
        translator.translate(Request("a", adapter="lav"))
    with pytest.raises(ValueError, match="unknown adapter 'law'; this model has none"):
        heedful.load(place / "base", streams=1).translate(Request("a", adapter="law"))


def test_requests_at_the_same_time_do_not_switch_each_others_adapter(place):
    translator = heedful.load(place / "base", streams=1, adapters={name: place / name for name in ("law", "medicine")})
    alone = {name: heedful.load(place / (name or "base"), streams=1) for name in ("", "law", "medicine")}
    asked = [(TEXTS[number % 6], ("", "law", "medicine")[number // 6 % 3]) for number in range(64)]
    expected = {pair: alone[pair[1]].translate(pair[0]).text for pair in set(asked)}
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda pair: translator.translate(Request(pair[0], adapter=pair[1])).text, asked))
    assert found == [expected[pair] for pair in asked]
    assert all(len({expected[text, name] for name in alone}) > 1 for text in TEXTS[2:4])  # adapters change something


def test_language_models_too(tmp_path):
    book = tmp_path / "book.txt"
    book.write_text("the quick brown fox jumps over the lazy dog\n" * 40)
    quick = {
        "training.steps": 12,
        "training.samples": 0,
        "model.width": 32,
        "model.decoder.layers": 1,
        "task.context": 16,
    }
    heedful.train(book, out=tmp_path / "base", recipe="char-gpt", changes=quick)
    for seed, name in enumerate(("one", "two")):
        changes = {"adapter": {"kind": "lora", "alpha": 99.0}, "seed": seed, "training.learning_rate": 0.05}
        changes |= {"training.steps": 12, "training.samples": 0, "task.context": 16}
        heedful.train(book, out=tmp_path / name, recipe="char-gpt", start_from=tmp_path / "base", changes=changes)
    config = GenerationConfig(max_new_tokens=9, num_beams=1)
    generator = heedful.load(tmp_path / "base", streams=1, adapters={name: tmp_path / name for name in ("one", "two")})
    prompts = [("the", "one"), ("the quick", "two"), ("fox j", ""), ("lazy", "one")]
    found = generator.write(generator.read([Prompt(text, adapter=name) for text, name in prompts]), config)
    for (text, name), (one,) in zip(prompts, found, strict=True):
        (alone,) = heedful.load(tmp_path / (name or "base"), streams=1).generate(text, config)
        assert one.text == alone.text


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kind": "bias"}, "adapter a .bias. cannot share its base"),
        ({"kind": "lora", "magnitude": True}, "adapter a .lora with magnitude. cannot share its base"),
        ({"kind": "lora", "targets": ["embedding"]}, "cannot share its base with others; serve its folder by itself"),
    ],
)
def test_what_cannot_share_a_base_is_refused(given, said):
    config, model = AdapterConfig.model_validate(given), base("decoder_only")
    state = {name: model.get_parameter(name).detach() for name in install(config, model)}
    with pytest.raises(ValueError, match=said):
        install_bank(base("decoder_only"), {"a": (config, state)})


def test_rows_of_beams_share_their_sentences_adapter():
    assert numbers(["b", "", "a"], ["a", "b"]).tolist() == [2, 0, 1]
    assert numbers(["", ""], []) is None and BATCH
