"""Parts of a person's own, outside the package: found by their files, trained, killed and resumed, counted, refused
where they do not fit, used; with no file of ours touched."""

import json
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

import heedful
from heedful import parts
from heedful.config import kinds
from heedful.inspection.cost import count_parameters
from heedful.model.create import create
from heedful.training.recipe import parse_recipe, read_recipe
from tests.corpora import pairs
from tests.processes import Started, program

EXAMPLES = Path(__file__).parents[1] / "examples"
FAST = {"training": {"steps": 60, "warmup": 10, "batch_tokens": 256, "save_every": 10, "validate_every": 60,
                     "log_every": 10, "label_smoothing": 0.0, "learning_rate": 0.005}}  # fmt: skip
JUDGING = {
    "parts": "./my_parts",
    "task": {"kind": "judging"},
    "tokenizer": {"kind": "character"},
    "model": {
        "kind": "judge_and_writer",
        "width": 16,
        "decoder": {"layers": 2, "attention": {"heads": 2, "mix": "fading"}, "feedforward": {"hidden": 24}},
    },
    **FAST,
}
# An input, a stack and a position whose score needs the query, in a translator.
TRANSLATING = {
    "parts": "./my_parts",
    "tokenizer": {"kind": "character"},
    "model": {
        "kind": "encoder_decoder",
        "width": 16,
        "tie": "output",
        "embedding": "bits",
        "encoder": "gated",
        "decoder": {
            "layers": 1,
            "attention": {"heads": 2},
            "feedforward": {"hidden": 24},
            "position": {"kind": "nearby", "reach": 3},
        },
    },
    **FAST,
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drop-in")
    shutil.copytree(EXAMPLES / "my_parts", folder / "my_parts", ignore=shutil.ignore_patterns("__pycache__"))
    pairs(folder / "pairs.tsv", 200)
    chance = random.Random(0)
    rows = [(label, chance.choices(letters, k=chance.randint(2, 6))) for _ in range(100)
            for label, letters in (("low", "abcx"), ("high", "uvwx"))]  # fmt: skip
    (folder / "labelled.tsv").write_text("".join(f"{' '.join(text)}\t{label}\n" for label, text in rows))
    (folder / "lines.txt").write_text("a b c\nu v w u\n\nb a b\n")
    (folder / "book.txt").write_text("the quick brown fox jumps over the lazy dog\n\n" * 60)
    for name, recipe in (("judging", JUDGING), ("translating", TRANSLATING)):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(recipe))
    return folder


@pytest.fixture
def used(place, monkeypatch):
    """The parts, in this process, until the test ends."""
    monkeypatch.setattr(parts, "_packages", {})
    return parts.use(str(place / "my_parts"))


def command(place, *words, processes=1):
    environment = {**os.environ, "HEEDFUL_CACHE": str(place / "cache"), "OMP_NUM_THREADS": "1"}
    return program(*words, processes=processes), {"cwd": place, "env": environment}


def run(place, *words, processes=1):
    arguments, options = command(place, *words, processes=processes)
    return subprocess.run(arguments, capture_output=True, text=True, timeout=240, **options)


def train(place, data, recipe, out, *changes, processes=1):
    result = run(place, "train", data, "--recipe", recipe, "--out", out, *changes, processes=processes)
    assert result.returncode == 0, result.stderr
    return place / out


@pytest.fixture(scope="module")
def judge(place):
    return train(place, "labelled.tsv", "judging.yaml", "judge")


@pytest.fixture(scope="module")
def translator(place):
    return train(place, "pairs.tsv", "translating.yaml", "translator")


def test_each_is_found_by_its_file(used):
    for folder, kind in (
        ("model/attention", "fading"),
        ("model/position", "nearby"),
        ("model/input", "bits"),
        ("model/stack", "gated"),
        ("model/architecture", "judge_and_writer"),
        ("tasks", "judging"),
    ):
        assert kind in kinds(folder)


@pytest.mark.parametrize("name", ["judging", "translating"])
def test_killed_and_resumed_it_ends_as_if_left_alone(place, name, request):
    alone = request.getfixturevalue({"judging": "judge", "translating": "translator"}[name])
    data, out = {"judging": "labelled.tsv", "translating": "pairs.tsv"}[name], f"{name}-killed"
    arguments, options = command(place, "train", data, "--recipe", f"{name}.yaml", "--out", out)
    with Started(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options) as process:
        deadline = time.monotonic() + 120
        while not (place / out / "checkpoints" / "20").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    assert not (place / out / "README.md").exists(), "it was through before it could be killed"
    train(place, data, f"{name}.yaml", out)
    files = ["model.safetensors", "checkpoints/60/model.safetensors", "checkpoints/60/optimizer.safetensors"]
    files += ["checkpoints/60/task.0.safetensors"] if name == "judging" else []
    for file in files:
        assert (place / out / file).read_bytes() == (alone / file).read_bytes(), file


def test_what_it_carries_from_step_to_step_is_saved(judge):
    carried = load_file(judge / "checkpoints" / "60" / "task.0.safetensors")
    assert carried["0/share"].shape == (2,) and not torch.allclose(carried["0/share"], torch.tensor([0.5, 0.5]))


def test_the_task_adds_to_the_folder_and_each_term_is_logged(judge):
    assert json.loads((judge / "judge.json").read_text()) == {"classes": 2}
    lines = [json.loads(line) for line in (judge / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    assert steps
    for line in steps:
        assert line["loss"] == pytest.approx(line["loss_words"] + line["loss_labels"])
    assert "BLEU" not in (judge / "README.md").read_text()


def test_it_has_learned_and_is_used_by_predict_and_evaluate(place, judge):
    result = run(place, "predict", judge, "-i", "lines.txt", "-o", "out.txt", "--parts", "my_parts")
    assert result.returncode == 0, result.stderr
    answers = (place / "out.txt").read_text().splitlines()
    assert len(answers) == 4 and [answers[0], answers[1], answers[3]] == ["low", "high", "low"]
    result = run(place, "evaluate", judge, "labelled.tsv", "--json", "--parts", "my_parts")
    assert json.loads(result.stdout)["accuracy"] > 90, result.stderr


def test_a_translator_of_such_parts_translates(place, translator):
    result = run(place, "predict", translator, "a b c", "--json", "--parts", "my_parts")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["input"] == "a b c" and isinstance(found["text"], str) and found["score"] < 0
    result = run(place, "translate", translator, "--parts", "my_parts", "-i", "lines.txt")
    assert result.returncode == 0 and len(result.stdout.splitlines()) == 4, result.stderr


def test_only_attention_that_was_at_work_is_shown(place, translator):
    """Its encoder has no attention at all."""
    result = run(place, "inspect", translator, "a b c", "--json", "--parts", "my_parts")
    assert result.returncode == 0, result.stderr
    assert set(json.loads(result.stdout)["inspected"]["attention"]) == {"decoder", "cross"}
    result = run(place, "plot", "attention", translator, "a b c", "--kind", "encoder", "--parts", "my_parts")
    assert result.returncode == 2 and "this model's encoder attention has no weights to show" in result.stderr


def test_an_architecture_of_ones_own_translates_and_is_planned_for(place):
    """It keeps the contract of a sequence-to-sequence model and nothing more; aligned, inspected and scored as ours
    is."""
    model = {"kind": "small_pair", "width": 16}
    stack = {"layers": 1, "attention": {"heads": 2}, "feedforward": {"hidden": 24}}
    recipe = {**TRANSLATING, "model": {**model, "encoder": "gated", "decoder": stack}}
    (place / "pair.yaml").write_text(yaml.safe_dump(recipe))
    out = train(place, "pairs.tsv", "pair.yaml", "pair")
    assert (out / "alignment.json").exists()
    for words in (["translate", out, "-i", "lines.txt", "--format", "words"], ["inspect", out, "a b", "--json"],
                  ["score", out, "pairs.tsv"], ["evaluate", out], ["params", "pair.yaml"]):  # fmt: skip
        result = run(place, *words, *([] if words[0] == "params" else ["--parts", "my_parts"]))
        assert result.returncode == 0 and result.stdout, result.stderr
    train(place, "pairs.tsv", "pair.yaml", "planned", "--budget", "2s")


def test_a_head_that_the_task_does_not_use_is_no_trouble_for_several_processes(place):
    """The next token is learned; the head that judges has no gradient."""
    words = ["task={kind: causal_lm, context: 16}", "training.steps=4", "training.batch_tokens=64"]
    out = train(place, "book.txt", "judging.yaml", "unused-head", *words, processes=2)
    assert (out / "model.safetensors").exists() and (out / "README.md").exists()


def test_parts_named_on_the_command_line_are_named_by_the_folder(place):
    recipe = {key: value for key, value in JUDGING.items() if key != "parts"}
    (place / "nameless.yaml").write_text(yaml.safe_dump(recipe))
    out = train(place, "labelled.tsv", "nameless.yaml", "named", "--parts", "my_parts", "training.steps=2")
    assert yaml.safe_load((out / "config.yaml").read_text())["parts"] == ["my_parts"]
    result = run(place, "predict", out, "a b")
    assert result.returncode == 2 and "needs custom parts (my_parts), which are code" in result.stderr


def test_load_takes_a_name_or_several(place, judge, monkeypatch):
    monkeypatch.setattr(parts, "_packages", {})
    monkeypatch.chdir(place)
    for names in ("./my_parts", place / "my_parts", ["my_parts"]):
        assert heedful.load(judge, parts=names).predict(["a b c"])[0]["text"] == "low"
    assert parts.used() == ["my_parts"]


@pytest.mark.parametrize("names", [5, ["a", 3], {"a": 1}])
def test_parts_that_are_no_names_are_refused(judge, tmp_path, names):
    shutil.copytree(judge, tmp_path / "copy")
    config = yaml.safe_load((judge / "config.yaml").read_text())
    (tmp_path / "copy" / "config.yaml").write_text(yaml.safe_dump({**config, "parts": names}))
    with pytest.raises(ValueError, match="parts is a name or a list of names, not"):
        heedful.load(tmp_path / "copy")


def test_a_recipe_may_be_called_config(place, monkeypatch):
    monkeypatch.setattr(parts, "_packages", {})
    (place / "config.yaml").write_text(yaml.safe_dump(JUDGING))
    assert read_recipe(str(place / "config.yaml")).parts == ("my_parts",)


@pytest.mark.parametrize("name", ["judging", "translating"])
def test_parameters_are_counted(place, used, name):
    config = read_recipe(str(place / f"{name}.yaml")).model
    formula = {part: count for part, count in config.parameters().items() if count}
    assert sum(formula.values()) == sum(count_parameters(config).values())
    assert sum(parameter.numel() for parameter in create(config).parameters()) == sum(formula.values())
    result = run(place, "params", f"{name}.yaml", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["total"] == sum(formula.values())


@pytest.mark.parametrize(("change", "text"), [
    ({"model": {"decoder": {"attention": {"mix": "fading", "window": 3}}}},
     "decoder: attention fading does not support window; remove attention.window, or choose mix softmax"),
    ({"model": {"decoder": {"attention": {"mix": "fading", "kv_heads": 1}}}},
     "decoder: attention fading does not support groups; remove attention.kv_heads"),
    ({"model": {"decoder": {"position": "alibi"}}}, "decoder: attention fading does not support bias"),
    ({"model": {"decoder": {"position": "nearby"}}}, "decoder: attention fading does not support score"),
    ({"task": {"kind": "translation"}},
     "task translation trains sequence-to-sequence models, and judge_and_writer is not one"),
    ({"training": {"metric": "bleu"}}, "task judging has no metric 'bleu'; known: loss, accuracy"),
    ({"task": {"kind": "judgeing"}}, "task: unknown task 'judgeing'; did you mean 'judging'?"),
])  # fmt: skip
def test_what_does_not_fit_is_refused_with_a_remedy(used, change, text):
    from heedful.training.recipe import merge

    with pytest.raises(ValueError, match=text):
        parse_recipe(merge({**JUDGING, "parts": [used]}, change))


def test_a_stack_that_cannot_look_at_a_memory_is_refused_as_a_decoder(used):
    model = {**TRANSLATING["model"], "decoder": "gated"}
    with pytest.raises(ValueError, match="decoder: gated has no cross-attention; use it in an encoder"):
        parse_recipe({**TRANSLATING, "parts": [used], "model": model})


def test_documents_packed_into_one_row_need_an_attention_that_keeps_them_apart(used):
    task = {"kind": "causal_lm", "windows": "documents", "context": 8}
    with pytest.raises(ValueError, match="task causal_lm needs an attention that supports segments"):
        parse_recipe({**JUDGING, "parts": [used], "task": task})
    with pytest.raises(ValueError, match="attention fading does not support segments"):
        model = create(parse_recipe({**JUDGING, "parts": [used]}).model)
        model.decode(torch.zeros(1, 4, dtype=torch.long), segments=torch.zeros(1, 4, dtype=torch.long))


def test_cross_attention_does_not_inherit_a_mix_that_cannot(used):
    decoder = {"layers": 1, "attention": {"heads": 2, "mix": "fading"}, "feedforward": {"hidden": 24}}
    model = {"kind": "encoder_decoder", "width": 16, "decoder": decoder, "encoder": decoder}
    config = parse_recipe({"parts": [used], "model": model}).model
    assert config.decoder.attention.mix.kind == "fading" and config.decoder.cross_attention.mix.kind == "softmax"


@pytest.mark.parametrize("decoder", [
    {"layers": 2, "attention": {"heads": 2, "mix": "fading"}, "feedforward": {"hidden": 24}},
    {"layers": 2, "attention": {"heads": 2}, "feedforward": {"hidden": 24}, "position": "nearby"},
    {"layers": 2, "attention": {"heads": 2, "mix": "reference"}, "feedforward": {"hidden": 24}, "position": "nearby"},
    "gated",
])  # fmt: skip
@torch.no_grad()
def test_what_holds_for_our_parts_holds_for_these(used, decoder):
    """The future cannot change the past, padding cannot reach the output, cached decoding equals the full pass."""
    model = create(parse_recipe({**JUDGING, "parts": [used], "model": {**JUDGING["model"], "decoder": decoder}}).model)
    model.eval()
    text = torch.randint(0, 100, (3, 11), generator=torch.Generator().manual_seed(0))
    whole = model.decode(text)
    changed = text.clone()
    changed[:, 7:] = (changed[:, 7:] + 1) % 100
    torch.testing.assert_close(model.decode(changed)[:, :7], whole[:, :7], atol=1e-5, rtol=1e-4)
    assert not torch.allclose(model.decode(changed)[:, 7:], whole[:, 7:])
    cache = model.new_cache(11)
    steps = [model.decode(text[:, [step]], cache=cache) for step in range(11)]
    torch.testing.assert_close(torch.cat(steps, dim=1), whole, atol=1e-5, rtol=1e-4)
    cache.select(torch.tensor([2, 0]))
    assert cache.length == 11
    valid = torch.arange(11) < torch.tensor([[11], [5], [2]])
    other = torch.where(valid, text, (text + 5) % 100)
    found = model.decode(text, valid=valid), model.decode(other, valid=valid)
    torch.testing.assert_close(found[0][valid], found[1][valid], atol=1e-5, rtol=1e-4)


def test_the_score_of_a_position_reaches_every_exact_attention_alike(used):
    results = []
    for mix in ("reference", "softmax"):
        decoder = {"layers": 2, "attention": {"heads": 2, "mix": mix}, "feedforward": {"hidden": 24},
                   "position": "nearby"}  # fmt: skip
        recipe = parse_recipe({**JUDGING, "parts": [used], "model": {**JUDGING["model"], "decoder": decoder}})
        torch.manual_seed(0)
        model = create(recipe.model)
        states = model.decode(
            torch.arange(11)[None].expand(3, -1), valid=torch.arange(11) < torch.tensor([[11], [5], [2]])
        )
        (states * torch.linspace(-1, 1, 16)).sum().backward()
        results.append((states, {name: one.grad for name, one in model.named_parameters() if one.grad is not None}))
    (plain, plain_gradients), (fast, fast_gradients) = results
    torch.testing.assert_close(plain, fast, atol=1e-5, rtol=1e-4)
    assert plain_gradients["decoder.position.weight"].abs().sum() > 0
    for name, gradient in plain_gradients.items():
        torch.testing.assert_close(gradient, fast_gradients[name], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(("changes", "processes"), [(["training.accumulate=3"], 1), ([], 2)])
def test_every_term_is_the_same_in_micro_batches_and_processes(place, changes, processes):
    """`balanced` is off: what is carried from step to step is of each part by itself."""
    words = ["task.balanced=false", "model.decoder.dropout=0", "training.steps=10", "training.log_every=1",
             "training.validate_every=5"]  # fmt: skip
    name = f"terms-{len(changes)}-{processes}"
    plain = train(place, "labelled.tsv", "judging.yaml", f"{name}-plain", *words)
    dealt = train(place, "labelled.tsv", "judging.yaml", name, *words, *changes, processes=processes)
    logs = [[json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()] for out in (plain, dealt)]
    for first, second in zip(*logs, strict=True):
        for key in ("loss", "loss_words", "loss_labels"):
            assert first.get(key) == pytest.approx(second.get(key), abs=1e-4)
        if "valid" in first:
            assert first["valid"] == pytest.approx(second["valid"], abs=1e-3)


def test_each_process_carries_a_state_of_its_own(place):
    words = ["training.steps=20", "model.decoder.layers=1"]
    out = train(place, "labelled.tsv", "judging.yaml", "two-states", *words, processes=2)
    first, second = (load_file(out / "checkpoints" / "20" / f"task.{rank}.safetensors") for rank in (0, 1))
    assert not torch.equal(first["0/share"], second["0/share"])
    for name in ("README.md", "checkpoints/20"):  # as if it had been killed after step 10
        shutil.rmtree(out / name, ignore_errors=True)
    result = run(place, "train", "labelled.tsv", "--recipe", "judging.yaml", "--out", out, *words)
    assert result.returncode == 2 and "was started with 2 processes" in result.stderr
    again = train(place, "labelled.tsv", "judging.yaml", "two-states", *words, processes=2)
    resumed = load_file(again / "checkpoints" / "20" / "task.1.safetensors")
    assert torch.equal(resumed["0/share"], second["0/share"])


def test_a_loss_over_another_count_than_its_batch_said_is_refused(place, used):
    from heedful.objectives import Loss, Term
    from heedful.training.step import StepLoss

    class Batch:
        counts = {"words": 3}  # noqa: RUF012

    class Task:
        def loss(self, model, batch, *, state):
            return Loss({"words": Term(torch.zeros(()), 4)})

    with pytest.raises(TypeError, match=r"the loss counts \{'words': 4\}, but its batch \{'words': 3\}"):
        StepLoss(torch.nn.Identity(), Task())(Batch(), {})


def test_a_loss_that_does_not_add_up_is_not_dealt_out(used, monkeypatch):
    from heedful.config import part_config
    from heedful.tasks import TaskConfig

    monkeypatch.setattr(part_config(TaskConfig, "judging"), "adds_up", False)
    with pytest.raises(ValueError, match="compares the rows of a batch with each other"):
        parse_recipe({**JUDGING, "parts": [used], "training": {**FAST["training"], "accumulate": 2}})


def test_a_strangers_folder_runs_no_code(place, judge, tmp_path):
    """It gets one clear line, and even parts that stand beside it are not looked at."""
    stranger = tmp_path / "stranger"
    shutil.copytree(judge, stranger)
    trap = stranger / "my_parts" / "tasks"
    trap.mkdir(parents=True)
    (trap / "judging.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    for words in (
        ["predict", stranger, "a b"],
        ["evaluate", stranger, place / "labelled.tsv"],
        ["translate", stranger],
    ):
        arguments, options = command(place, *words)
        result = subprocess.run(arguments, capture_output=True, text=True, timeout=60, input="a b\n",
                                env=options["env"], cwd=stranger)  # fmt: skip
        assert result.returncode == 2 and not result.stdout
        assert "needs custom parts (my_parts), which are code; if you trust them" in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1
    with pytest.raises(ValueError, match=r"needs custom parts \(my_parts\)"):
        heedful.load(stranger)
    with pytest.raises(ValueError, match=r"needs custom parts \(my_parts\)"):
        read_recipe(str(stranger / "config.yaml"))
    assert not (tmp_path / "ran").exists()


def test_names_that_clash_are_refused(used, tmp_path):
    (tmp_path / "theirs" / "attention").mkdir(parents=True)
    (tmp_path / "theirs" / "attention" / "softmax.py").write_text("raise SystemExit\n")
    with pytest.raises(ValueError, match="attention/softmax.py has the same name as a built-in part"):
        parts.use(str(tmp_path / "theirs"))
    with pytest.raises(ValueError, match="no parts 'nowhere': it is neither a folder nor an installed package"):
        parts.use("nowhere")


def test_a_broken_folder_does_not_vanish(used, tmp_path):
    folder = tmp_path / "torn" / "attention"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("import nothing_of_that_name\n")
    with pytest.raises(ValueError, match="cannot be used: No module named 'nothing_of_that_name'"):
        parts.use(str(tmp_path / "torn"))


def test_a_helper_is_no_kind_and_a_broken_part_is_said_in_one_line(used, tmp_path):
    folder = tmp_path / "mine" / "attention"
    folder.mkdir(parents=True)
    (folder / "_helper.py").write_text("FACTOR = 2\n")
    (folder / "broken.py").write_text("from ._helper import FACTOR\nimport nothing_of_that_name\n")
    parts.use(str(tmp_path / "mine"))
    assert "broken" in kinds("model/attention") and "_helper" not in kinds("model/attention")
    model = {**JUDGING["model"], "decoder": {"attention": {"mix": "broken"}}}
    with pytest.raises(ValueError, match="the part attention/broken.py cannot be used: ModuleNotFoundError"):
        parse_recipe({**JUDGING, "parts": [used], "model": model})


def test_parts_may_come_in_an_installed_package(used, place, tmp_path, monkeypatch):
    package, facts = tmp_path / "their_package", tmp_path / "their_package-1.0.dist-info"
    shutil.copytree(place / "my_parts" / "position", package / "position")
    (package / "__init__.py").write_text("")
    (package / "position" / "nearby.py").rename(package / "position" / "nearer.py")
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[heedful.parts]\ntheirs = their_package\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "nearer" not in kinds("model/position")
    assert parts.use("theirs") == "theirs"
    decoder = {"layers": 1, "attention": {"heads": 2}, "position": {"kind": "nearer", "reach": 2}}
    config = parse_recipe({**JUDGING, "parts": [used, "theirs"], "model": {**JUDGING["model"], "decoder": decoder}})
    assert config.model.decoder.position.reach == 2
