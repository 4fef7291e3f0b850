"""`heedful import` and `heedful export`: published folders in, and out again with the same output."""

import json

import pytest
import torch

import heedful
from heedful.checkpoint import load_model
from heedful.commands.exchange import export_model, import_model
from heedful.config import kinds
from heedful.translator import Translator
from tests.exchange import folders


@pytest.mark.parametrize("family", ["gpt2", "llama", "t5", "marian"])
def test_there_and_back_again(tmp_path, family):
    hf = pytest.importorskip("transformers")
    theirs = folders.published(tmp_path / "theirs", family)
    import_model(tmp_path / "theirs", tmp_path / "ours")
    opened = heedful.load(tmp_path / "ours")
    export_model(tmp_path / "ours", tmp_path / "again", "hugging_face")
    again = type(theirs).from_pretrained(tmp_path / "again").eval()
    text = hf.AutoTokenizer.from_pretrained(tmp_path / "again")
    tokenizer = opened.source if hasattr(opened, "source") else opened.tokenizer
    row = tokenizer.encode(["the quick fox"])
    assert text("the quick fox", add_special_tokens=False).input_ids == row[0]
    rows = torch.tensor(row)
    more = {"decoder_input_ids": rows} if family in ("t5", "marian") else {}
    with torch.no_grad():
        torch.testing.assert_close(again(rows, **more).logits, theirs(rows, **more).logits, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("name", "kind"), [
    ("SequenceClassification", "classification"), ("TokenClassification", "tagging"),
])  # fmt: skip
@pytest.mark.parametrize("family", ["bert", "roberta", "albert"])
def test_classifiers_open_in_transformers_with_the_names_of_their_labels(tmp_path, family, name, kind):
    hf = pytest.importorskip("transformers")
    from heedful.checkpoint import save_weights, state_of
    from heedful.data.prepare import save_tokenizers
    from heedful.exchange import published

    folders.published(tmp_path / "base", family)
    auto = getattr(hf, f"AutoModelFor{name}")
    theirs = auto.from_pretrained(tmp_path / "base", num_labels=3).eval()
    theirs.save_pretrained(tmp_path / "base")
    model = published.load(tmp_path / "base").model
    ours = tmp_path / "ours"
    ours.mkdir()
    data = {"task": {"kind": kind}, "model": model.config.model_dump(mode="json")}
    (ours / "config.yaml").write_text(json.dumps(data))
    (ours / "labels.json").write_text(json.dumps(["bad", "good", "mixed"]))
    save_weights(ours, state_of(model))
    save_tokenizers(ours, published.load_tokenizers(tmp_path / "base", columns=1))
    export_model(ours, tmp_path / "out", "hugging_face")
    again, text = auto.from_pretrained(tmp_path / "out").eval(), hf.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert again.config.id2label == {0: "bad", 1: "good", 2: "mixed"} and again.config.label2id["mixed"] == 2
    read = text("the quick fox", "the dog", return_tensors="pt")
    with torch.no_grad():
        torch.testing.assert_close(again(**read).logits, theirs(**read).logits, atol=1e-5, rtol=1e-4)
    (ours / "labels.json").write_text(json.dumps(["bad", "good"]))
    with pytest.raises(ValueError, match="2 labels are named, but the model has 3 classes"):
        export_model(ours, tmp_path / "wrong", "hugging_face")
    assert load_model(ours).config == model.config


def test_mistakes_are_named(tmp_path):
    folders.published(tmp_path / "gpt2", "gpt2")
    with pytest.raises(ValueError, match=r"none is not a Hugging Face folder \(config.json\), a sentence-transf"):
        import_model(tmp_path / "none", tmp_path / "x")
    import_model(tmp_path / "gpt2", tmp_path / "ours")
    with pytest.raises(ValueError, match="already holds a model; choose another --out"):
        import_model(tmp_path / "gpt2", tmp_path / "ours")
    with pytest.raises(ValueError, match="a model for causal_lm; only models for embedding have sentence-tr"):
        export_model(tmp_path / "ours", tmp_path / "out", "sentence_transformers")
    with pytest.raises(ValueError, match="is not empty; choose another --out"):
        export_model(tmp_path / "ours", tmp_path / "gpt2", "hugging_face")


def test_a_model_without_its_task_is_refused(tmp_path):
    folders.published(tmp_path / "bert", "bert")
    if "masked_lm" in kinds("tasks"):
        import_model(tmp_path / "bert", tmp_path / "ours")
        assert (tmp_path / "ours" / "config.yaml").exists()
    else:
        with pytest.raises(ValueError, match="is a model for masked_lm, a task that this version does not have"):
            import_model(tmp_path / "bert", tmp_path / "ours")


def multilingual(folder, kind="MBart"):
    """A tiny mBART folder whose tokenizer knows three languages; transformers' model of it."""
    codes = ["en_XX", "de_DE", "ro_RO"]
    theirs = folders.published(folder, "mbart", languages=codes)
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": f"{kind}Tokenizer",
        "added_tokens_decoder": {str(5 + place): {"content": code, "special": True}
                                 for place, code in enumerate(codes)},
    }))  # fmt: skip
    return theirs


@pytest.mark.parametrize(("source", "target"), [("en", "de"), ("ro_RO", "en_XX")])
def test_an_mbart_writes_in_the_language_asked_for_as_it_does_at_home(tmp_path, source, target):
    theirs = multilingual(tmp_path / "theirs")
    import_model(tmp_path / "theirs", tmp_path / "ours")
    ours = heedful.load(tmp_path / "ours", expect=Translator)
    assert ours.languages.layout == "mbart" and ours.languages.codes == ["de_DE", "en_XX", "ro_RO"]
    known = ours.target.languages
    text = "the quick brown fox"
    (tokens,) = ours.source.encode([text])
    first, second = (next(known[code] for code in known if code.startswith(one[:2])) for one in (source, target))
    wanted = theirs.generate(
        torch.tensor([[*tokens, ours.source.eos, first]]), decoder_start_token_id=second, max_new_tokens=9,
        do_sample=False, num_beams=1, suppress_tokens=list(ours.target.never), forced_eos_token_id=None,
    )  # fmt: skip
    found = ours.translate(text, source=source, target=target, num_beams=1, max_new_tokens=9)
    ended = [ours.target.eos] if found.ended else []
    assert wanted[0].tolist() == [second, *found.tokens, *ended]


def test_an_mbart_says_which_languages_it_knows(tmp_path):
    multilingual(tmp_path / "theirs")
    import_model(tmp_path / "theirs", tmp_path / "ours")
    ours = heedful.load(tmp_path / "ours", expect=Translator)
    with pytest.raises(ValueError, match="name the source and target language; its languages: de_DE, en_XX, ro_RO"):
        ours.translate("the quick fox")
    with pytest.raises(ValueError, match="does not know the language 'xx'; its languages: de_DE"):
        ours.translate("the quick fox", source="en", target="xx")
    longest = ours.translate("fox " * 500, source="en", target="de", num_beams=1, max_new_tokens=2)
    assert longest.warnings  # its parts and their language tokens fit the positions


@pytest.mark.parametrize(("family", "kind"), [("bart", ""), ("mbart", ""), ("mbart", "MBart50")])
def test_others_have_no_language_tokens(tmp_path, family, kind):
    if kind:
        multilingual(tmp_path / "theirs", kind)
    else:
        folders.published(tmp_path / "theirs", family)
    import_model(tmp_path / "theirs", tmp_path / "ours")
    assert not heedful.load(tmp_path / "ours", expect=Translator).languages.layout
