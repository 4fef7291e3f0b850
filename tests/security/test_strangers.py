"""What hand-made attacks on a model folder end in: one line that says what is wrong."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

import heedful
from heedful.bounded import read_yaml
from heedful.data.prepare import DIGESTS, save_tokenizers
from heedful.decoding.generation import GenerationConfig
from heedful.decoding.shortlist import Shortlist
from heedful.exchange import gguf, llama2c, sentencepiece
from heedful.search.vectors import Vectors
from heedful.text.admission import refuse_explosive
from heedful.text.tokenizer import Tokenizer, TokenizerConfig, train_tokenizer
from heedful.translator import load
from tests.commands.in_process import refused
from tests.security import fuzz

FIXTURE = Path(__file__).parents[1] / "fixtures" / "v0_1" / "translator"


@pytest.fixture
def folder(tmp_path):
    return Path(shutil.copytree(FIXTURE, tmp_path / "model"))


def change(folder, **sections):
    data = yaml.safe_load((folder / "config.yaml").read_text())
    (folder / "config.yaml").write_text(yaml.safe_dump({**data, **sections}))


def change_model(folder, **keys):
    model = yaml.safe_load((folder / "config.yaml").read_text())["model"]
    change(folder, model={**model, **keys})


def opens_not(folder, message, **options):
    start = time.process_time()
    with pytest.raises(ValueError, match=message) as caught:
        load(folder, streams=1, **options)
    assert len(str(caught.value).splitlines()) == 1 and time.process_time() - start < 1


def test_aliases_that_unfold_are_refused(folder, monkeypatch, capsys):
    laughs = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{name}: &{name} [{','.join([f'*{chr(ord(name) - 1)}'] * 9)}]\n" for name in "bcdefghi"
    )
    (folder / "config.yaml").write_text(laughs + "model: *i\n")
    assert "unfolds to more than 10,000 values" in refused(monkeypatch, capsys, "predict", folder, "a")


def test_aliases_may_be_used(tmp_path):
    (tmp_path / "a.yaml").write_text("a: &a {x: 1}\nb: {<<: *a, y: 2}\n")
    assert read_yaml(tmp_path / "a.yaml") == {"a": {"x": 1}, "b": {"x": 1, "y": 2}}


@pytest.mark.parametrize("text", ["a: &a [*a]", "[" * 1000, "a: " * 70, "x" * 200_000])
def test_yaml_that_is_deep_long_or_within_itself_is_refused(tmp_path, text):
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(ValueError, match=r"a\.yaml"):
        read_yaml(tmp_path / "a.yaml")


@pytest.mark.parametrize("length", [0, -5, float("nan"), "x", None, 10**12])
def test_a_longest_text_that_is_no_length_is_refused(folder, length):
    change(folder, data={"max_length": length})
    opens_not(folder, "max_length")


def test_sections_must_be_sections(folder):
    change(folder, data=None)
    opens_not(folder, "data: ")


@pytest.mark.parametrize("task", [None, {}, "translation", {"kind": "translation"}])
def test_a_task_may_be_named_or_left_out(folder, task):
    change(folder, task=task)
    assert heedful.load(folder, streams=1).translate("ab")


@pytest.mark.parametrize("task", [[1], 7, {"kind": None}, {"kind": "../evil"}, {"kind": "x"}])
def test_what_is_no_task_is_refused(folder, task):
    change(folder, task=task)
    with pytest.raises(ValueError, match="task") as caught:
        heedful.load(folder, streams=1)
    assert len(str(caught.value).splitlines()) == 1


def test_sizes_are_held_against_the_weights_first(folder):
    stack = yaml.safe_load((folder / "config.yaml").read_text())["model"]["encoder"]
    change_model(folder, encoder={**stack, "layers": 1_000_000})
    opens_not(folder, "layers: input should be less than or equal to 1024")
    change_model(folder, encoder={**stack, "layers": 1000})
    opens_not(folder, "too few for the 1000 layers of the encoder")
    change_model(folder, encoder=stack, width=1_000_000_000_001)
    opens_not(folder, "width is too large")
    change_model(folder, width=2_000_000_000)
    opens_not(folder, "too few for the .* parameters")


def test_tensors_of_another_shape_are_named(folder):
    weights = load_file(folder / "model.safetensors")
    name = sorted(weights)[0]
    save_file({**weights, name: weights[name][:-1].clone()}, folder / "model.safetensors")
    opens_not(folder, f"{name} is .* there and .* in the model")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_numbers_are_refused_by_name(folder, value):
    weights = load_file(folder / "model.safetensors")
    name = sorted(weights)[3]
    weights[name].view(-1)[1] = value
    save_file(weights, folder / "model.safetensors")
    opens_not(folder, f"{name} holds 1 values that are NaN or infinite")


def test_large_finite_weights_are_no_mistake(folder):
    weights = load_file(folder / "model.safetensors")
    name = sorted(weights)[3]
    weights[name].view(-1)[:2] = torch.finfo(torch.float32).max
    save_file(weights, folder / "model.safetensors")
    load(folder, streams=1)


@pytest.mark.parametrize("beams", [1, 2])
@pytest.mark.parametrize("kind", ["translator", "generator", "classifier"])
def test_weights_so_large_that_results_overflow_give_no_result(tmp_path, kind, beams):
    build, _ = fuzz.KINDS[kind]
    build(tmp_path / "it")
    file = tmp_path / "it" / "model.safetensors"
    weights = load_file(file)
    name = next(n for n in sorted(weights) if n.endswith("layers.0.feedforward.input.weight"))
    weights[name][:2] = torch.tensor([[1e38], [-1e38]])
    save_file(weights, file)
    used = heedful.load(tmp_path / "it")
    with pytest.raises(ValueError, match="computes NaN or infinite numbers"):
        if kind == "translator":
            used.translate(["ab cd"], num_beams=beams, max_new_tokens=5)
        elif kind == "generator":
            used.generate(["ab"], GenerationConfig(num_beams=beams, max_new_tokens=5))
        else:
            used.predict(["fox and dog"])


def test_an_alignment_head_must_exist(folder):
    (folder / "alignment.json").write_text('{"layer": 99, "head": 0, "score": 0.1}')
    opens_not(folder, "names head 0 of layer 99, but the model has 2 heads in 1 layers")


@pytest.mark.parametrize("text", ['{"several": "x"}', '{"several": NaN}', "[" * 100_000, "[1]"])
def test_the_share_of_sentences_must_be_one(folder, text):
    (folder / "sentences.json").write_text(text)
    opens_not(folder, r"sentences\.json")


def test_a_shortlist_must_fit(folder):
    vocab = Tokenizer.load(folder / "tokenizer.json").vocab
    for table in (torch.full((vocab, 3), vocab), torch.zeros(vocab - 1, 3), torch.full((vocab, 3), -1)):
        Shortlist(table.long(), torch.tensor([1]), True).save(folder)
        opens_not(folder, "does not fit|outside the vocabulary", shortlist=True)
    save_file({"table": torch.zeros(3)}, folder / "shortlist.safetensors")
    opens_not(folder, "does not hold a shortlist", shortlist=True)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ('{"tag": ["a", "b", "c"]}', "has no names for the column label"),
        ('{"label": ["a", "b"]}', "names 2 labels, but the model has 3 classes"),
        ('{"label": ["a", "b", "a"]}', "names a label twice"),
        ('{"label": "abc"}', "must hold a list of names"),
    ],
)
def test_labels_that_do_not_fit_are_refused(tmp_path, labels, message):
    fuzz.classifier(tmp_path / "it")
    (tmp_path / "it" / "labels.json").write_text(labels)
    with pytest.raises(ValueError, match=message):
        heedful.load(tmp_path / "it")


def test_classes_without_names_are_numbered(tmp_path):
    fuzz.classifier(tmp_path / "it")
    (tmp_path / "it" / "labels.json").unlink()
    (found,) = heedful.load(tmp_path / "it").predict(["fox"])
    assert set(found["scores"]) == {"LABEL_0", "LABEL_1", "LABEL_2"}


def test_a_tokenizer_of_another_model_is_refused(folder):
    own = Tokenizer.load(folder / "tokenizer.json")
    other = train_tokenizer(["other words than those before"] * 9, TokenizerConfig(kind="character"), vocab=269)
    save_tokenizers(folder, [own, own])
    load(folder, streams=1)
    other.save(folder / "tokenizer.json")
    opens_not(folder, "is not the one that the model was trained with")
    for digests in ("{}", '{"tokenizer.json": 7}'):
        (folder / DIGESTS).write_text(digests)
        opens_not(folder, "is not the one that the model was trained with")
    (folder / DIGESTS).unlink()  # as in folders of earlier versions
    load(folder, streams=1)


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(folder):
    data = json.loads((folder / "tokenizer.json").read_text())
    data["model"]["vocab"]["another"] = 5000
    (folder / "tokenizer.json").write_text(json.dumps(data))
    opens_not(folder, "has 5,001 tokens, but its model knows 271")
    data["model"]["vocab"]["another"] = 4_000_000_000
    (folder / "tokenizer.json").write_text(json.dumps(data))
    opens_not(folder, "must be numbered")


def test_padding_and_truncation_of_a_tokenizer_have_no_effect(folder):
    wanted = load(folder, streams=1).translate("ab").tokens
    data = json.loads((folder / "tokenizer.json").read_text())
    strategy = {"Fixed": 4_000_000_000}
    data["padding"] = {"strategy": strategy, "direction": "Right", "pad_to_multiple_of": 0, "pad_id": 0,
                       "pad_type_id": 0, "pad_token": "<pad>"}  # fmt: skip
    data["truncation"] = {"direction": "Right", "max_length": 0, "strategy": "LongestFirst", "stride": 0}
    (folder / "tokenizer.json").write_text(json.dumps(data))
    assert load(folder, streams=1).translate("ab").tokens == wanted


def test_replacements_that_unfold_a_text_are_refused(folder):
    data = json.loads((folder / "tokenizer.json").read_text())
    step = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    data["normalizer"] = {"type": "Sequence", "normalizers": [step] * 40}
    (folder / "tokenizer.json").write_text(json.dumps(data))
    opens_not(folder, "more than 1,000 times as long")


@pytest.mark.parametrize(
    "pattern",
    [
        r"(a+)+$", r"(a|a)*b", "a*a*a*b", r"(?:a?){30}a{30}", "a?" * 20, r"((a{99}){99}){99}", r"a{1,100000}",
        r"(a)\1*", r"(?#[)(a+)+b(?#])", "(?x)#[\n(a+)+b#]\n", r"\c[?(a+)+b]?",
    ],
)  # fmt: skip
def test_explosive_patterns_are_refused(pattern):
    with pytest.raises(ValueError, match="may take too long"):
        refuse_explosive(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
        r"(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s+(?!\S)|\s",
        r" ?[^(\s|[.,!?…。，、।۔،])]+",
        r"\p{N}{1,3}(?=(?:\p{N}{3})*(?:\P{N}|$))",
    ],
)
def test_patterns_of_published_tokenizers_are_admitted(pattern):
    refuse_explosive(pattern)


def test_a_llama2c_header_is_held_against_the_file(tmp_path):
    sizes = (1 << 30, 1 << 30, 1 << 30, 8, 8, 1 << 30, 1 << 30)
    (tmp_path / "model.bin").write_bytes(b"".join(size.to_bytes(4, "little") for size in sizes) + b"\0" * 400)
    with pytest.raises(ValueError, match="has 100 numbers, but its header requires more than"):
        llama2c.load(tmp_path / "model.bin")


def test_a_gguf_list_longer_than_the_file_is_refused(tmp_path):
    head = b"GGUF" + (3).to_bytes(4, "little") + (0).to_bytes(8, "little") + (1).to_bytes(8, "little")
    key = (1).to_bytes(8, "little") + b"x" + (9).to_bytes(4, "little") + (0).to_bytes(4, "little")
    (tmp_path / "model.gguf").write_bytes(head + key + (1 << 60).to_bytes(8, "little"))
    with pytest.raises(ValueError, match="hold more than 1,500,000 values"):
        gguf.load(tmp_path / "model.gguf")


def test_a_sentencepiece_number_without_end_is_refused(tmp_path):
    (tmp_path / "a.model").write_bytes(b"\xff" * 10_000_000)
    with pytest.raises(ValueError, match="more than 64 bits"):
        sentencepiece.read(tmp_path / "a.model")


def test_shards_cannot_be_outside_the_folder(tmp_path):
    from heedful.exchange import hugging_face

    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    index = {"weight_map": {"x": "../../etc/passwd"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="there is no .*passwd, which .* names") as caught:
        hugging_face.load(tmp_path)
    assert str(tmp_path / "passwd") in str(caught.value)


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ("x", "rope_scaling must be an object"), ([1], "rope_scaling must be an object"),
        ({"type": "x"}, "rope_type 'x' is not supported"), ({"rope_type": ["llama3"]}, "rope_type"),
        ({"rope_type": "llama3"}, "factor"), ({"rope_type": "llama3", "factor": "x", "low_freq_factor": 1,
         "high_freq_factor": 4, "original_max_position_embeddings": 8}, "factor: input should be a valid number"),
    ],
)  # fmt: skip
def test_a_rotation_that_is_unknown_or_none_is_refused(tmp_path, scaling, message):
    from heedful.exchange import hugging_face

    fuzz.hugging_face_folder(tmp_path / "it")
    config = json.loads((tmp_path / "it" / "config.json").read_text())
    (tmp_path / "it" / "config.json").write_text(json.dumps({**config, "rope_scaling": scaling}))
    with pytest.raises(ValueError, match=message) as caught:
        hugging_face.load(tmp_path / "it")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["words/data.csc.index.npy", "words/indptr.csc.index.npy"])
def test_nobody_is_advised_to_unpickle_an_index(tmp_path, monkeypatch, capsys, name):
    fuzz.index_folder(tmp_path / "it")
    (tmp_path / "it" / name).write_bytes(b"\x80\x04junk" * 9)
    said = refused(monkeypatch, capsys, "search", tmp_path / "it", "fox")
    assert "words is damaged: its arrays cannot be read; build the index again" in said and "pickle" not in said


def test_vectors_that_are_none_are_refused(tmp_path):
    (tmp_path / "vectors.npy").write_bytes(b"\x80\x04junk" * 9)
    with pytest.raises(ValueError, match=r"vectors\.npy is damaged: it cannot be read; build the index again"):
        Vectors.load(tmp_path, documents=3)


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(folder):
    import os

    (folder / "sentences.json").unlink(missing_ok=True)
    os.mkfifo(folder / "sentences.json")
    opens_not(folder, "is not a regular file")
    (folder / "sentences.json").unlink()
    os.mkfifo(folder / "chat_template.jinja")
    opens_not(folder, "is not a regular file")


def test_a_training_that_ends_without_a_number_fails(tmp_path, monkeypatch):
    from heedful.training.loop import Trainer

    rows = "".join(f"a b {number}\tc d {number}\n" for number in range(60))
    (tmp_path / "pairs.tsv").write_text(rows)
    monkeypatch.setattr(Trainer, "score", lambda self: ({"loss": float("nan")}, []))
    changes = {"training.steps": 2, "model.width": 16, "tokenizer.vocab": 60, "training.batch_tokens": 256}
    monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ValueError, match="the training has failed: loss is nan on the validation set"):
        heedful.train(tmp_path / "pairs.tsv", out=tmp_path / "run", changes=changes)


HOLD = """
import sys, time
from pathlib import Path
from heedful.files import locked
with locked(Path(sys.argv[1]), "making it"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_second_process_waits_for_the_first_or_its_death(tmp_path):
    from heedful.files import locked

    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "lock")], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    message = f"making it is already running in .*process {holder.pid}"
    with pytest.raises(ValueError, match=message), locked(tmp_path / "lock", "making it"):
        pass
    said = []

    def waiting(message):
        said.append(message)
        holder.kill()

    with locked(tmp_path / "lock", "making it", wait=waiting):
        pass
    holder.wait()
    assert said == [f"waiting for process {holder.pid}, which is making it"]
