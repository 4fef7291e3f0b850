"""Bad folders are answered with a line that says what is wrong, and a failed save leaves nothing half-written."""

import contextlib
import json

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

from heedful.exchange import hugging_face
from heedful.exchange.hugging_face import load, save
from heedful.families.gpt2 import gpt2
from heedful.families.vaswani import vaswani
from heedful.model.create import create

ENCODER = {"vocab_size": 53, "hidden_size": 30, "num_hidden_layers": 3, "num_attention_heads": 5,
           "intermediate_size": 17, "max_position_embeddings": 41}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    config = gpt2(width=12, layers=2, heads=3, length=17).model_copy(update={"vocab": 19})
    save(create(config), tmp_path, "gpt2")
    return tmp_path


def change_config(folder, **keys):
    path = folder / "config.json"
    data = {**json.loads(path.read_text()), **keys}
    path.write_text(json.dumps({key: value for key, value in data.items() if value != "gone"}))


def change_weights(folder, change):
    path = folder / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path)


def test_a_folder_without_config(tmp_path):
    with pytest.raises(ValueError, match=r"there is no .*config\.json"):
        load(tmp_path)


def test_a_config_that_is_not_json(folder):
    (folder / "config.json").write_text("{nope")
    with pytest.raises(ValueError, match=r"config\.json is not JSON"):
        load(folder)


def test_an_unknown_model_type(folder):
    change_config(folder, model_type="gpt3")
    with pytest.raises(ValueError, match="unknown model_type 'gpt3'; did you mean 'gpt2'?"):
        load(folder)


def test_a_key_that_is_missing(folder):
    change_config(folder, n_embd="gone")
    with pytest.raises(ValueError, match="has no 'n_embd', which a gpt2 model needs"):
        load(folder)


def test_a_variant_that_would_compute_something_else(folder):
    change_config(folder, scale_attn_by_inverse_layer_idx=True)
    with pytest.raises(ValueError, match="GPT-2 with scale_attn_by_inverse_layer_idx=True is not supported"):
        load(folder)


def test_no_weights(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"has no model\.safetensors"):
        load(folder)
    (folder / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(ValueError, match="a pickle, which can run code; convert it to safetensors"):
        load(folder)


def test_damaged_weights(folder):
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
        load(folder)


def test_a_missing_tensor(folder):
    change_weights(folder, lambda weights: weights.pop("transformer.ln_f.weight"))
    with pytest.raises(ValueError, match=r"has no tensor transformer\.ln_f\.weight, which config\.json requires"):
        load(folder)


def test_a_tensor_nobody_asked_for_is_left_out_with_a_warning(folder):
    logits = load(folder).model.eval()(torch.tensor([[2, 3, 5]]))
    change_weights(folder, lambda weights: weights.update(extra=torch.ones(3)))
    with pytest.warns(UserWarning, match="skipped tensors that the model does not use: extra$") as warned:
        opened = load(folder)
    assert opened.left_out == ["extra"] and torch.equal(opened.model.eval()(torch.tensor([[2, 3, 5]])), logits)
    assert [one.filename for one in warned] == [__file__]


def test_many_that_are_left_out_are_counted(folder):
    change_weights(folder, lambda weights: weights.update({f"extra.{n}": torch.ones(3) for n in range(11)}))
    with pytest.warns(UserWarning, match=r"extra\.0, extra\.1, extra\.10, extra\.2, extra\.3 and 6 more$"):
        assert len(load(folder).left_out) == 11


@pytest.mark.parametrize("name", ["h.2.ln_1.weight", "h.0.attn.adapter.weight", "ln_f.scale"])
def test_a_tensor_of_the_layers_that_the_config_does_not_have_is_refused(folder, name):
    change_weights(folder, lambda weights: weights.update({f"transformer.{name}": torch.ones(12)}))
    with pytest.raises(ValueError, match=r"contains transformer\..*, but the model in config\.json has no such tensor"):
        load(folder)


def test_fewer_layers_in_the_config_than_in_the_file_are_refused(tmp_path):
    hf.BertForMaskedLM(hf.BertConfig(**ENCODER)).save_pretrained(tmp_path)
    change_config(tmp_path, num_hidden_layers=2)
    with pytest.raises(ValueError, match=r"contains bert\.encoder\.layer\.2\..*, but the model in config\.json"):
        load(tmp_path)


def test_a_folder_that_is_used_whole_gives_no_warning(folder, recwarn):
    assert load(folder).left_out == []
    assert not [str(one.message) for one in recwarn if one.category is UserWarning]  # not what is collected meanwhile


@pytest.mark.parametrize(
    ("build", "architecture", "left_out"),
    [
        (lambda: hf.AlbertForPreTraining(hf.AlbertConfig(**ENCODER, embedding_size=11)), "AlbertForMaskedLM",
         {"albert.pooler.weight", "albert.pooler.bias", "sop_classifier.classifier.weight",
          "sop_classifier.classifier.bias"}),
        (lambda: hf.BertForPreTraining(hf.BertConfig(**ENCODER)), "BertForMaskedLM", set()),
        (lambda: hf.RobertaForMaskedLM(hf.RobertaConfig(**ENCODER)), "RobertaModel",
         {"lm_head.bias", "lm_head.dense.weight", "lm_head.dense.bias", "lm_head.layer_norm.weight",
          "lm_head.layer_norm.bias"}),
    ],
)  # fmt: skip
def test_a_head_that_the_architecture_does_not_have_is_left_out(tmp_path, build, architecture, left_out):
    theirs = build().eval()
    theirs.save_pretrained(tmp_path)
    change_config(tmp_path, architectures=[architecture])
    with pytest.warns(UserWarning, match="skipped tensors") if left_out else contextlib.nullcontext():
        opened = load(tmp_path)
    assert set(opened.left_out) == left_out
    same_states(opened.model.eval(), theirs.base_model)


OWN = {
    "BertForMaskedLM": ["masked_lm"],
    "BertForPreTraining": ["masked_lm", "next_sentence"],
    "BertForSequenceClassification": ["sequence_classification"],
    "BertForTokenClassification": ["token_classification"],
    "BertForQuestionAnswering": ["answer_span"],
    "BertModel": ["pooler"],
    "RobertaForSequenceClassification": ["sequence_classification"],
    "RobertaForTokenClassification": ["token_classification"],
    "AlbertForPreTraining": ["masked_lm", "next_sentence"],
}


@pytest.mark.parametrize("name", OWN)
def test_of_an_unknown_architecture_the_tensors_say_which_heads_there_are(tmp_path, name):
    theirs = getattr(hf, name)
    theirs = theirs(theirs.config_class(**ENCODER)).eval()
    theirs.save_pretrained(tmp_path)
    change_config(tmp_path, architectures=["MyOwn"])
    with pytest.warns(UserWarning) as warned:
        opened = load(tmp_path)
    (said,) = [str(one.message) for one in warned]
    assert said.endswith(f"unknown architecture 'MyOwn'; heads inferred from the tensors: {', '.join(OWN[name])}")
    assert list(opened.model.heads) == OWN[name] and opened.left_out == []
    same_states(opened.model.eval(), theirs.base_model)


class Reranker(hf.BertPreTrainedModel):
    """A class of the author's own: BERT, and a head that is nobody else's."""

    def __init__(self, config, *, pooler):
        super().__init__(config)
        self.bert = hf.BertModel(config, add_pooling_layer=pooler)
        self.encoder = torch.nn.Linear(config.hidden_size, 1)
        self.post_init()


@pytest.mark.parametrize("architecture", ["Reranker", "RerankerModel"])
@pytest.mark.parametrize("pooler", [True, False])
def test_a_class_of_the_authors_own_opens_as_the_bare_model(tmp_path, pooler, architecture):
    theirs = Reranker(hf.BertConfig(**ENCODER), pooler=pooler).eval()
    theirs.save_pretrained(tmp_path)
    change_config(tmp_path, architectures=[architecture])
    with pytest.warns(
        UserWarning, match=r"skipped tensors that the model does not use: encoder\.bias, encoder\.weight"
    ):
        opened = load(tmp_path)
    assert list(opened.model.heads) == (["pooler"] if pooler else [])
    assert opened.left_out == ["encoder.bias", "encoder.weight"]
    same_states(opened.model.eval(), theirs.bert)


def test_an_encoder_used_as_a_decoder_is_refused(tmp_path):
    hf.BertLMHeadModel(hf.BertConfig(**ENCODER, is_decoder=True)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="is_decoder is true"):
        load(tmp_path)


def same_states(ours, theirs):
    tokens = torch.randint(2, ENCODER["vocab_size"], (3, 7))  # 0 and 1 are padding
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens), theirs(tokens).last_hidden_state, atol=1e-5, rtol=1e-4)


def test_a_tied_weight_that_differs(folder):
    change_weights(folder, lambda weights: weights.update({"lm_head.weight": torch.ones(19, 12)}))
    with pytest.raises(ValueError, match=r"lm_head\.weight differs from transformer\.wte\.weight, but config"):
        load(folder)


def test_a_tensor_of_the_wrong_shape(folder):
    change_weights(folder, lambda weights: weights.update({"transformer.wpe.weight": torch.ones(16, 12)}))
    with pytest.raises(ValueError, match=r"decoder\.position\.weight should have the shape \(17, 12\)"):
        load(folder)


def test_a_shard_index_cannot_point_outside_the_folder(folder, tmp_path):
    secret = tmp_path / "elsewhere"
    secret.mkdir()
    (folder / "model.safetensors").rename(secret / "model.safetensors")
    names = dict.fromkeys(load_file(secret / "model.safetensors"), "../elsewhere/model.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    with pytest.raises((ValueError, OSError)):
        load(folder)


def test_what_a_family_cannot_hold_is_said_not_lost(tmp_path):
    config = vaswani(vocab=19, width=12, hidden=7, heads=3, layers=2, dropout=0.1)
    pre = config.model_copy(update={"encoder": config.encoder.model_copy(update={"placement": "pre"})})
    with pytest.raises(
        ValueError, match="a Hugging Face vaswani cannot represent this model: it would lose encoder.placement"
    ):
        save(create(pre), tmp_path, "vaswani")
    assert not list(tmp_path.iterdir())


def test_a_failed_save_leaves_the_old_files_whole(folder, monkeypatch):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def full_disk(tensors, path, metadata):
        path.write_bytes(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr(hugging_face, "save_file", full_disk)
    with pytest.raises(OSError, match="No space left"):
        save(load(folder).model, folder, "gpt2")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_half_precision_files_keep_their_precision_if_asked(folder, tmp_path):
    model = load(folder).model.to(torch.bfloat16)
    save(model, tmp_path / "half", "gpt2")
    assert json.loads((tmp_path / "half" / "config.json").read_text())["dtype"] == "bfloat16"
    assert next(load(tmp_path / "half", dtype=None).model.parameters()).dtype == torch.bfloat16
    assert next(load(tmp_path / "half").model.parameters()).dtype == torch.float32
