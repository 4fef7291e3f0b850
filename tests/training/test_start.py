"""Training starts from something: a folder of ours or of Hugging Face's; what is frozen stays as it was."""

import json

import pytest
import torch
from safetensors.torch import load_file

import heedful
from heedful.data.columns import DOCUMENT
from heedful.data.inputs import Inputs
from heedful.model.create import create
from heedful.training.recipe import read_recipe
from heedful.training.run import train
from heedful.training.start import take_weights
from heedful.training.step import freeze
from tests.corpora import SMALL, pairs

QUICK = ["training.steps=12", "training.save_every=6", "training.validate_every=12", "training.warmup=4",
         "training.samples=0", "training.batch_tokens=256"]  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("start")


@pytest.fixture(scope="module")
def corpus(place):
    return pairs(place / "p.tsv")


@pytest.fixture(scope="module")
def base(place, corpus):
    recipe = read_recipe("tiny", [*SMALL, *QUICK])
    train(recipe, Inputs((corpus,)), place / "base", cache=place / "cache")
    return place / "base"


def begin(place, corpus, out, base, *changes):
    recipe = read_recipe("tiny", [f"start_from={base}", *QUICK, *changes])
    return train(recipe, Inputs((corpus,)), place / out, cache=place / "cache")


def test_it_goes_on_from_the_weights_and_the_tokenizer_of_a_folder(place, corpus, base, capfd):
    begin(place, corpus, "next", base, "training.learning_rate=1e-9")
    assert f"starting from the weights of {base}" in capfd.readouterr().err
    assert (place / "next" / "tokenizer.json").read_bytes() == (base / "tokenizer.json").read_bytes()
    first, second = (load_file(folder / "model.safetensors") for folder in (base, place / "next"))
    for name in first:
        torch.testing.assert_close(first[name], second[name], atol=1e-5, rtol=0)


def test_another_preset_and_a_folder_that_is_none_are_refused(place, base):
    with pytest.raises(ValueError, match="start_from already defines the model; remove model.preset or start_from"):
        read_recipe("tiny", [f"start_from={base}", "model.preset=vaswani-base"])
    with pytest.raises(ValueError, match="start_from: there is no folder"):
        read_recipe("tiny", ["start_from=/nowhere/at/all"])
    (place / "empty").mkdir(exist_ok=True)
    with pytest.raises(ValueError, match="is neither a Heedful folder .config.yaml. nor a Hugging Face folder"):
        read_recipe("tiny", [f"start_from={place / 'empty'}"])


def test_a_body_that_does_not_fit_is_refused_and_a_head_that_does_not_is_new(base):
    said = []
    recipe = read_recipe("tiny", [f"start_from={base}"])
    wide = recipe.model.model_copy(update={"vocab": recipe.model.vocab + 1})
    with pytest.raises(ValueError, match=r"does not fit the model: embedding.weight is \[\d+, 16\] there and"):
        take_weights(create(wide), base, said.append)
    changed = read_recipe("tiny", [f"start_from={base}", "model.tie=inputs", "model.head.bias=true"]).model
    model = create(changed)
    before = model.head.table.weight.clone()
    take_weights(model, base, said.append)
    assert said == [f"starting from the weights of {base}; new: head"]
    assert torch.equal(model.head.table.weight, before)
    assert torch.equal(model.embedding.weight, load_file(base / "model.safetensors")["embedding.weight"])


def test_frozen_weights_stay_and_are_in_no_checkpoint_and_a_resume_has_them(place, corpus, base):
    freeze = "training.freeze=[embedding, encoder]"
    begin(place, corpus, "frozen", base, freeze)
    first, second = (load_file(folder / "model.safetensors") for folder in (base, place / "frozen"))
    for name in first:
        assert torch.equal(first[name], second[name]) is name.startswith(("embedding", "encoder")), name
    checkpoint = place / "frozen" / "checkpoints" / "12"
    for file in ("model", "optimizer"):
        assert not any(
            name.startswith(("embedding", "encoder")) for name in load_file(checkpoint / f"{file}.safetensors")
        )
    for name in ("12", "damaged-12"):  # as if it had been killed after step 6
        moved = place / "frozen" / "checkpoints" / name
        if moved.exists():
            moved.rename(place / "gone")
    (place / "frozen" / "README.md").unlink()
    begin(place, corpus, "frozen", base, freeze)
    again = load_file(place / "frozen" / "model.safetensors")
    assert all(torch.equal(second[name], again[name]) for name in second)
    assert heedful.load(place / "frozen").translate(["a b c"])[0].text is not None


def test_what_is_not_there_cannot_be_frozen(base):
    model = create(read_recipe("tiny", [f"start_from={base}"]).model)
    with pytest.raises(
        ValueError, match="names 'encodr', which this model does not have; its parts: embedding, encoder"
    ):
        freeze(model, ("encodr",))
    with pytest.raises(ValueError, match="names the whole model"):
        freeze(model, ("embedding", "encoder", "decoder"))


def test_a_base_that_has_changed_since_is_refused(place, corpus, base):
    begin(place, corpus, "changing", base)
    weights = (base / "model.safetensors").read_bytes()
    try:
        (base / "model.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
        with pytest.raises(ValueError, match="was started with another recipe"):
            begin(place, corpus, "changing", base)
    finally:
        (base / "model.safetensors").write_bytes(weights)


def test_a_hugging_face_folder_goes_on_with_its_own_tokenizer(place, tmp_path):
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet)
    backend.train_from_iterator(["the quick brown fox"] * 20, trainer)
    folder = tmp_path / "gpt2"
    config = transformers.GPT2Config(
        vocab_size=backend.get_vocab_size() + 5, n_positions=32, n_embd=16, n_layer=1, n_head=2
    )
    torch.manual_seed(0)
    theirs = transformers.GPT2LMHeadModel(config)
    theirs.save_pretrained(folder)
    backend.save(str(folder / "tokenizer.json"))
    (tmp_path / "book.txt").write_text("the quick brown fox jumps over the lazy dog\n\n" * 60)
    changes = [f"start_from={folder}", "task={kind: causal_lm, context: 16}", *QUICK,
               "training.learning_rate=1e-9", "training.average=false"]  # fmt: skip
    recipe = read_recipe("tiny", changes)
    train(recipe, Inputs((tmp_path / "book.txt",), columns=DOCUMENT), tmp_path / "run", cache=tmp_path / "cache")
    generator = heedful.load(tmp_path / "run")
    assert generator.tokenizer.eos == generator.tokenizer.bos == backend.token_to_id("<|endoftext|>")
    assert generator.model.vocab == config.vocab_size  # the rows beyond the tokenizer's tokens are kept
    tokens = torch.tensor([backend.encode("the quick").ids])
    with torch.no_grad():
        torch.testing.assert_close(generator.model(tokens), theirs.eval()(tokens).logits, atol=1e-4, rtol=1e-4)
    recorded = json.loads((tmp_path / "run" / "asked.json").read_text())
    assert recorded["start"]


def test_another_tokenizer_than_that_of_the_weights_is_refused(place, corpus, base, tmp_path):
    from heedful.text.tokenizer import TokenizerConfig, train_tokenizer

    train_tokenizer(["x y z"], TokenizerConfig(kind="character"), vocab=0).save(tmp_path / "other.json")
    with pytest.raises(ValueError, match="the weights of start_from require its own tokenizer; remove tokenizer.file"):
        begin(place, corpus, "other", base, f"tokenizer.file={tmp_path / 'other.json'}")
    begin(place, corpus, "same", base, f"tokenizer.file={base / 'tokenizer.json'}")


def test_the_kind_of_model_may_be_written_out(base):
    written = read_recipe("tiny", [f"start_from={base}", "model.kind=encoder_decoder", "model.head.bias=true"])
    assert written.model.width == 16 and written.model.head.bias


def test_what_is_left_out_is_named_by_its_layer(base):
    said = []
    recipe = read_recipe("tiny", [f"start_from={base}"])
    model = recipe.model.model_copy(update={"decoder": recipe.model.decoder.model_copy(update={"layers": 2})})
    with pytest.raises(ValueError, match="it has no decoder.layers.1"):
        take_weights(create(model), base, said.append)
