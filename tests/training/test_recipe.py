"""Recipes: read, changed, checked; and the schedule and budget that follow from them."""

import math
from itertools import pairwise

import pytest
import torch

from heedful.model.position.rotary import RotaryConfig
from heedful.training.parallel import World
from heedful.training.plan import Budget, parse_budget, readable_words
from heedful.training.recipe import TrainingConfig, differences, merge, read_recipe, recipes
from heedful.training.schedule import learning_rate


@pytest.mark.parametrize("name", recipes())
def test_every_recipe_reads_and_survives_being_written(name, tmp_path):
    import yaml

    recipe = read_recipe(name)
    path = tmp_path / "again.yaml"
    path.write_text(yaml.safe_dump(recipe.model_dump(mode="json")))
    assert read_recipe(str(path)) == recipe


def test_keys_change_on_the_command_line():
    recipe = read_recipe(
        "tiny", ["training.steps=120", "model.decoder.layers=3", "seed=7", "model.encoder.position=rotary"]
    )
    assert (recipe.training.steps, recipe.model.decoder.layers, recipe.seed) == (120, 3, 7)
    assert recipe.model.encoder.layers == 4 and recipe.model.encoder.position.kind == "rotary"
    assert read_recipe("tiny", ["model.preset=vaswani-base"]).model.width == 512


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("tiyn", [], "unknown recipe 'tiyn'; did you mean 'tiny'?"),
        ("tiny", ["training.stpes=3"], "training: unknown key 'stpes'; did you mean 'steps'?"),
        ("tiny", ["trainin.steps=3"], "unknown key 'trainin'; did you mean 'training'?"),
        (
            "tiny",
            ["model.encoder.laeyrs=3"],
            "model.encoder: unknown key 'laeyrs'; did you mean 'layers'?",
        ),
        ("tiny", ["model.preset=vaswni-base"], "unknown preset 'vaswni-base'; did you mean 'vaswani-base'?"),
        ("tiny", ["training.steps"], "'training.steps' is not of the form key=value"),
        ("tiny", ["training.steps=0"], "training.steps: input should be greater than or equal to 1"),
        (
            "tiny",
            ["task=causal_lm"],
            "task causal_lm trains language-model models, and encoder_decoder is not one",
        ),
        ("tiny", ["task=translaton"], "task: unknown task 'translaton'; did you mean 'translation'?"),
        ("tiny", ["tokenizer.joint=false"], "two vocabularies cannot share one embedding table; set model.tie=output"),
        (
            "char-gpt",
            ["training.metric=bleu"],
            "task causal_lm has no metric 'bleu'; known: loss, accuracy, bits_per_byte",
        ),
        ("tiny", ["seed=[1"], "'seed=[1': '[1' is not a value that YAML can read"),
        ("tiny", ["seed=-1"], "seed: input should be greater than or equal to 0"),
        ("tiny", ["model=vaswani-base"], "to name a preset, write model.preset=vaswani-base"),
        (
            "tiny",
            ["model.encoder.position=learned", "model.encoder.position.length=31", "data.max_length=37"],
            "the model learns 31 positions, but texts may have 38 tokens; raise model.encoder.position.length",
        ),
        (
            "tiny",
            ["model.decoder.position={kind: learned, length: 31}", "data.max_length=37"],
            "the model learns 31 positions, but texts may have 38 tokens; raise model.decoder.position.length",
        ),
        ("missing.yaml", [], "there is no recipe missing.yaml"),
    ],
)
def test_mistakes_are_told_in_one_line(name, changes, message):
    with pytest.raises(ValueError) as caught:
        read_recipe(name, changes)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_that_is_no_yaml(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text("a: [1")
    with pytest.raises(ValueError, match=r"r\.yaml is not YAML"):
        read_recipe(str(path))


def test_merge_replaces_a_part_of_another_kind():
    base = {"position": {"kind": "sinusoidal", "base": 1}, "layers": 2}
    assert merge(base, {"position": {"kind": "rotary"}}) == {"position": {"kind": "rotary"}, "layers": 2}
    assert merge(base, {"position": {"base": 5}})["position"] == {"kind": "sinusoidal", "base": 5}


def test_keys_of_a_part_may_follow_its_name():
    changes = ["model.encoder.position=rotary", "model.encoder.position.base=500"]
    position = read_recipe("tiny", changes).model.encoder.position
    assert (position.kind, position.base) == ("rotary", 500)
    assert read_recipe("tiny", changes[::-1]).model.encoder.position == RotaryConfig()  # a name resets the part


def test_a_recipe_file_may_name_a_part_whose_keys_the_command_line_changes(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("model: {preset: vaswani-tiny, encoder: {position: rotary}}")
    assert read_recipe(str(path), ["model.encoder.position.base=500"]).model.encoder.position == RotaryConfig(base=500)


def test_differences_are_named():
    assert differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 3, "c": 2}}) == ["a.b: 1 -> 3"]


def test_the_papers_schedule():
    """lrate = width^-0.5 * min(step^-0.5, step * warmup^-1.5), equation 3"""
    config = TrainingConfig(warmup=4000)
    for step in (1, 100, 3999, 4000, 4001, 100_000):
        expected = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
        assert learning_rate(config, step, width=512) == pytest.approx(expected)


@pytest.mark.parametrize("schedule", ["inverse_sqrt", "linear", "cosine", "constant"])
def test_every_schedule_warms_up_and_never_rises_again(schedule):
    config = TrainingConfig(schedule=schedule, warmup=10, steps=100, learning_rate=0.5)
    rates = [learning_rate(config, step, width=7) for step in range(1, 101)]
    assert rates[:10] == pytest.approx([0.05 * step for step in range(1, 11)])
    assert all(first >= second > 0 for first, second in pairwise(rates[9:]))
    assert max(rates) == pytest.approx(0.5)
    if schedule in ("linear", "cosine"):
        assert rates[-1] == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("20m", (1200, "seconds")),
        ("1h30m", (5400, "seconds")),
        ("90s", (90, "seconds")),
        ("5000steps", (5000, "steps")),
        ("3 epochs", (3, "epochs")),
        ("10Mtokens", (1e7, "tokens")),
        ("1.5ksteps", (1500, "steps")),
    ],
)
def test_budgets(text, expected):
    assert parse_budget(text) == expected


@pytest.mark.parametrize("text", ["", "soon", "20", "m", "-5m", "5 parsecs"])
def test_bad_budgets(text):
    with pytest.raises(ValueError, match="is not one of 20m, 1h30m, 5000steps, 3epochs, 10Mtokens"):
        parse_budget(text)


def test_smoothed_loss_is_its_formula():
    import torch

    from heedful.objectives import cross_entropy

    logits, targets = torch.randn(5, 11), torch.randint(0, 11, (5,))
    log_probs = logits.log_softmax(-1)
    nll = -log_probs[range(5), targets]
    expected = 0.9 * nll.sum() + 0.1 * -log_probs.mean(-1).sum()
    assert torch.allclose(cross_entropy(logits, targets, smoothing=0.1).total, expected)
    assert cross_entropy(logits, targets).count == 5
    assert math.isclose(float(cross_entropy(logits, targets).total), float(nll.sum()), rel_tol=1e-5)


def test_a_short_budget_reads_fewer_words_and_wants_a_smaller_vocabulary():
    world = World(device=torch.device("cpu"))
    assert readable_words(Budget("5000steps"), "tiny", world) == 0
    short, long = readable_words(Budget("1m"), "tiny", world), readable_words(Budget("64m"), "tiny", world)
    assert short & (short - 1) == 0 and long > 8 * short


@pytest.mark.parametrize(("changes", "key", "value"), [
    (["tokenizer.vocab=8000", "tokenizer.kind=unigram"], "tokenizer.vocab", 8000),
    (["tokenizer.kind=unigram", "tokenizer.vocab=700"], "tokenizer.kind", "unigram"),
    (["model.encoder.norm.eps=0.01", "model.encoder.norm.kind=rms"], "model.encoder.norm.eps", 0.01),
    (["model.encoder.layers=2", "model.encoder.kind=transformer"], "model.encoder.layers", 2),
    (["task.kind=translation", "model.width=64"], "model.width", 64),
])  # fmt: skip
def test_naming_a_kind_keeps_the_other_keys(changes, key, value):
    found = read_recipe("tiny", changes)
    for name in key.split("."):
        found = getattr(found, name)
    assert found == value


def test_a_plan_for_single_words_takes_characters(tmp_path):
    from heedful.data.inputs import Inputs, look_over
    from heedful.training.plan import with_characters

    said = []
    (tmp_path / "w.tsv").write_text("".join(f"word{n}\tW ER D {n}\n" for n in range(50)))
    (tmp_path / "s.tsv").write_text("".join(f"two words {n}\tzwei {n}\n" for n in range(50)))
    words, sentences = (look_over(Inputs((tmp_path / name,))) for name in ("w.tsv", "s.tsv"))
    assert with_characters(read_recipe("tiny"), words, said.append).tokenizer.kind == "character"
    assert said == ["plan: sources are single words, so tokens are characters (tokenizer.kind=character)"]
    assert with_characters(read_recipe("tiny"), sentences, said.append).tokenizer.kind == "bpe"
    assert with_characters(read_recipe("tiny", ["tokenizer.vocab=500"]), words, said.append).tokenizer.kind == "bpe"
    assert (
        with_characters(read_recipe("tiny", ["tokenizer.kind=unigram"]), words, said.append).tokenizer.kind == "unigram"
    )
