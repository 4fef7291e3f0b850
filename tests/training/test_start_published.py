"""Training starts from published weights of every family, with their own tokenizers; nothing is lost in silence."""

import pytest
import torch
from safetensors.torch import load_file, save_file

import heedful
from heedful.exchange import published, tokenizers
from heedful.model.architecture.encoder_only import EncoderOnlyConfig
from heedful.model.create import create
from heedful.model.heads import SequenceConfig
from heedful.training.start import take_weights, tokenizers_of
from tests.exchange import folders

STILL = {"training.steps": 2, "training.warmup": 1, "training.learning_rate": 1e-9, "training.average": False,
         "training.batch_tokens": 64, "training.samples": 0}  # fmt: skip


def fresh(folder, *heads):
    """A new model for a folder, with these heads."""
    config = published.read_config(folder)
    assert isinstance(config, EncoderOnlyConfig)
    torch.manual_seed(2)
    return create(config.model_copy(update={"heads": list(heads)}), scheme="bert")


@pytest.mark.parametrize("family", ["bert", "roberta", "albert"])
def test_encoders_keep_their_weights_and_new_heads_are_named(tmp_path, family):
    theirs = folders.published(tmp_path, family)
    model = fresh(tmp_path, SequenceConfig(classes=5)).eval()
    said = []
    take_weights(model, tmp_path, said.append)
    assert "new: heads.sequence_classification" in said[0] and "not used: heads.masked_lm" in said[0]
    tokens = torch.randint(0, 50, (3, 11), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = theirs.base_model(tokens).last_hidden_state
        torch.testing.assert_close(model(tokens), expected, atol=1e-5, rtol=1e-4)
    (text,) = tokenizers_of(tmp_path, 1)
    assert text.mask in text.specials and len(text.frame.first) == len(text.frame.last) == 1


@pytest.mark.parametrize("family", ["bert", "albert"])
def test_a_pretrained_pooler_serves_the_classifier(tmp_path, family):
    theirs = folders.published(tmp_path, family)
    pooler = theirs.base_model.pooler
    expected = (pooler.dense if family == "bert" else pooler).weight
    model, said = fresh(tmp_path, SequenceConfig(classes=5)), []
    take_weights(model, tmp_path, said.append)
    assert torch.equal(model.heads["sequence_classification"].pooler.dense.weight, expected)
    assert "new: heads.sequence_classification.output" in said[0] and ".pooler" not in said[0]


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_a_pooler_that_config_json_does_not_announce_is_found(tmp_path, family):
    hf = pytest.importorskip("transformers")
    folders.published(tmp_path, family)
    config = hf.AutoConfig.from_pretrained(tmp_path)
    config.architectures = [f"{family.title()}ForMaskedLM"]
    config.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors = {name: tensor for name, tensor in tensors.items() if "seq_relationship" not in name}
    pooler = torch.randn(32, 32)
    tensors |= {
        f"{family}.pooler.dense.weight": pooler,
        f"{family}.pooler.dense.bias": torch.randn(32),
        "odd": pooler + 1,
    }
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    model, said = fresh(tmp_path, SequenceConfig(classes=5)), []
    take_weights(model, tmp_path, said.append)
    assert torch.equal(model.heads["sequence_classification"].pooler.dense.weight, pooler)
    assert said[0].endswith("new: heads.sequence_classification.output; not used: heads.masked_lm, odd")


def test_a_fine_tuned_head_that_fits_is_kept(tmp_path):
    hf = pytest.importorskip("transformers")
    folders.published(tmp_path / "bert", "bert")
    theirs = hf.BertForSequenceClassification.from_pretrained(tmp_path / "bert", num_labels=3).eval()
    theirs.save_pretrained(tmp_path / "bert")
    model, said = fresh(tmp_path / "bert", SequenceConfig(classes=3)), []
    take_weights(model, tmp_path / "bert", said.append)
    assert "new" not in said[0]
    tokens = torch.randint(0, 50, (3, 11), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found = model.eval().predict("sequence_classification", model(tokens))
        torch.testing.assert_close(found, theirs(tokens).logits, atol=1e-5, rtol=1e-4)
    other = fresh(tmp_path / "bert", SequenceConfig(classes=7))
    take_weights(other, tmp_path / "bert", said.append)
    assert said[1].endswith("new: heads.sequence_classification.output")


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_language_models_go_on(tmp_path, family):
    theirs = folders.published(tmp_path / "base", family)
    (tmp_path / "book.txt").write_text("the quick brown fox jumps over the lazy dog\n\n" * 40)
    changes = {"task": {"kind": "causal_lm", "context": 16}, **STILL}
    generator = heedful.train(
        tmp_path / "book.txt", out=tmp_path / "run", start_from=tmp_path / "base", changes=changes
    )
    rows = torch.tensor(generator.tokenizer.encode(["the quick brown"]))
    assert rows.tolist() == tokenizers.load(tmp_path / "base").encode(["the quick brown"])
    with torch.no_grad():
        torch.testing.assert_close(generator.model(rows), theirs(rows).logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["t5", "bart", "marian"])
def test_encoder_decoders_go_on(tmp_path, family, capfd):
    theirs = folders.published(tmp_path / "base", family)
    lines = [f"{text}\t{text[::-1]}" for text in folders.TEXT] * 9
    (tmp_path / "pairs.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    changes = {"data.max_length": 100, **STILL}
    translator = heedful.train(
        tmp_path / "pairs.tsv", out=tmp_path / "run", start_from=tmp_path / "base", changes=changes
    )
    source, target = tokenizers.load_columns(tmp_path / "base", columns=2)
    assert translator.source.encode(folders.TEXT) == source.encode(folders.TEXT)
    assert translator.target.encode(folders.TEXT) == target.encode(folders.TEXT)
    first = torch.tensor([[*source.encode(["the quick fox"])[0], source.eos]])
    second = torch.tensor([[target.start, *target.encode(["der Fuchs"])[0]]])
    with torch.no_grad():
        expected = theirs(input_ids=first, decoder_input_ids=second).logits
        torch.testing.assert_close(translator.models[0](first, second), expected, atol=1e-4, rtol=1e-4)
    assert ("bart models begin texts with <s> at home" in capfd.readouterr().err) == (family == "bart")


def test_gguf_files_go_on(tmp_path):
    pytest.importorskip("gguf")
    from heedful.exchange import gguf
    from tests.exchange.test_gguf import write

    path = write(tmp_path / "model.gguf")
    (tmp_path / "book.txt").write_text("ab a abba\n\n" * 90)
    changes = {"task": {"kind": "causal_lm", "context": 16}, **STILL}
    generator = heedful.train(tmp_path / "book.txt", out=tmp_path / "run", start_from=path, changes=changes)
    rows = torch.tensor([[1, 260, 259, 262]])
    with torch.no_grad():
        expected = gguf.load(path).model.eval()(rows)
        torch.testing.assert_close(generator.model(rows), expected, atol=1e-4, rtol=1e-4)
    assert generator.tokenizer.token_ids() == gguf.tokenizer(path).token_ids()
