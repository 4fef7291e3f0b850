"""Bad folders are answered with a line that says what is wrong, and a failed save leaves nothing half-written."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from heedful.exchange import hugging_face
from heedful.exchange.hugging_face import load, save
from heedful.families.gpt2 import gpt2
from heedful.families.vaswani import vaswani
from heedful.model.create import create


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
    with pytest.raises(ValueError, match="model_type 'gpt3' is not one we have; did you mean 'gpt2'?"):
        load(folder)


def test_a_key_that_is_missing(folder):
    change_config(folder, n_embd="gone")
    with pytest.raises(ValueError, match="has no 'n_embd', which a gpt2 model needs"):
        load(folder)


def test_a_variant_that_would_compute_something_else(folder):
    change_config(folder, scale_attn_by_inverse_layer_idx=True)
    with pytest.raises(ValueError, match="GPT-2 with scale_attn_by_inverse_layer_idx=True is not known here"):
        load(folder)


def test_no_weights(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"has no model\.safetensors"):
        load(folder)
    (folder / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(ValueError, match="a pickle, which may run code; convert it to safetensors"):
        load(folder)


def test_damaged_weights(folder):
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
        load(folder)


def test_a_missing_tensor(folder):
    change_weights(folder, lambda weights: weights.pop("transformer.ln_f.weight"))
    with pytest.raises(ValueError, match=r"has no tensor transformer\.ln_f\.weight, which config\.json asks for"):
        load(folder)


def test_a_tensor_nobody_asked_for(folder):
    change_weights(folder, lambda weights: weights.update(extra=torch.ones(3)))
    with pytest.raises(ValueError, match=r"holds extra, for which the model of config\.json has no place"):
        load(folder)


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
        ValueError, match="a Hugging Face vaswani cannot hold this model: it would lose encoder.placement"
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
