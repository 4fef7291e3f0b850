"""The equivalences of training, and what it does when things go wrong."""

import json
import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from heedful.checkpoint import average, load_model, newest, save_checkpoint, steps
from heedful.config import kinds
from heedful.data.columns import DOCUMENT
from heedful.data.inputs import Inputs
from heedful.training import loop
from heedful.training.loop import DivergedError
from heedful.training.precision import Precision
from heedful.training.recipe import read_recipe
from heedful.training.run import train
from heedful.training.step import StepLoss
from tests.corpora import SMALL, pairs

EVERY = ["training.save_every=10", "training.validate_every=10", "training.log_every=5", "training.samples=0"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return pairs(tmp_path_factory.mktemp("corpus") / "p.tsv")


def run(corpus, out, *changes, recipe="tiny", cache=None):
    chosen = read_recipe(recipe, [*SMALL, *EVERY, "training.steps=30", *changes])
    return train(chosen, Inputs((corpus,)), out, cache=cache or corpus.parent / "cache")


def weights(folder, name="model"):
    return load_file(folder / f"{name}.safetensors")


def same(first, second, tolerance=0.0):
    assert first.keys() == second.keys()
    for name in first:
        if tolerance:
            assert torch.allclose(first[name], second[name], atol=tolerance), name
        else:
            assert torch.equal(first[name], second[name]), name


def losses(out):
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


class StopError(Exception):
    pass


def interrupt(monkeypatch, step):
    """Die in the middle of a step, as a kill would."""
    plain = loop.Trainer._apply

    def dying(self, loss):
        if self.progress.step == step:
            raise StopError
        return plain(self, loss)

    monkeypatch.setattr(loop.Trainer, "_apply", dying)


@pytest.mark.parametrize("extra", [[], ["training.ema=0.9"], ["tokenizer.kind=bpe", "tokenizer.dropout=0.2"]])
def test_resumed_training_equals_uninterrupted_training(corpus, tmp_path, monkeypatch, extra):
    run(corpus, tmp_path / "whole", *extra)
    with monkeypatch.context() as patch, pytest.raises(StopError):
        interrupt(patch, 23)
        run(corpus, tmp_path / "cut", *extra)
    assert steps(tmp_path / "cut" / "checkpoints") == [10, 20]
    run(corpus, tmp_path / "cut", *extra)
    same(weights(tmp_path / "whole"), weights(tmp_path / "cut"))
    for name in ("model", "optimizer"):
        same(*(weights(tmp_path / run / "checkpoints" / "30", name) for run in ("whole", "cut")))
    first, second = (json.loads((tmp_path / r / "checkpoints/30/state.json").read_text()) for r in ("whole", "cut"))
    first["progress"].pop("seconds"), second["progress"].pop("seconds")
    assert first == second
    assert losses(tmp_path / "whole") == losses(tmp_path / "cut")


def test_the_same_seed_gives_the_same_model_and_another_another(corpus, tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        run(corpus, tmp_path / name, f"seed={seed}")
    same(weights(tmp_path / "a"), weights(tmp_path / "b"))
    assert not torch.equal(weights(tmp_path / "a")["embedding.weight"], weights(tmp_path / "c")["embedding.weight"])


def test_micro_batches_equal_one_batch(corpus, tmp_path):
    # A large eps: the bias of the keys has no gradient but rounding, which Adam would blow up to full steps.
    dry = ["model.encoder.dropout=0", "model.decoder.dropout=0", "training.eps=0.001"]
    run(corpus, tmp_path / "one", *dry)
    run(corpus, tmp_path / "three", *dry, "training.accumulate=3")
    assert losses(tmp_path / "one") == pytest.approx(losses(tmp_path / "three"), abs=1e-5)
    same(weights(tmp_path / "one"), weights(tmp_path / "three"), tolerance=1e-4)


def test_recomputing_layers_changes_nothing_but_memory(corpus, tmp_path):
    run(corpus, tmp_path / "plain")
    run(corpus, tmp_path / "recomputed", "training.recompute=true")
    assert losses(tmp_path / "plain") == pytest.approx(losses(tmp_path / "recomputed"), abs=1e-5)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_mixed_precision_learns_alike(corpus, tmp_path, precision):
    run(corpus, tmp_path / "exact", "training.precision=float32")
    run(corpus, tmp_path / "mixed", f"training.precision={precision}")
    assert losses(tmp_path / "mixed") == pytest.approx(losses(tmp_path / "exact"), rel=0.05)
    assert all(tensor.dtype == torch.float32 for tensor in weights(tmp_path / "mixed").values())


def test_auto_precision_takes_what_the_hardware_computes_in():
    chosen = Precision("auto", torch.device("cpu")).name
    assert chosen == ("bfloat16" if torch.cpu._is_amx_tile_supported() else "float32")


def test_compiled_training_equals_plain_training(corpus, tmp_path, monkeypatch):
    """With the compiler's front end only: what it captures is what is trained. Code generation takes a minute."""
    compiled = []
    plain = torch.compile

    def capture(module, **options):
        compiled.append(module)
        return plain(module, backend="eager", **options)

    monkeypatch.setattr(torch, "compile", capture)
    dry = ["model.encoder.dropout=0", "model.decoder.dropout=0", "training.steps=2", "training.log_every=1"]
    run(corpus, tmp_path / "plain", *dry)
    assert not compiled
    run(corpus, tmp_path / "compiled", *dry, "training.compile=true")
    assert compiled
    assert losses(tmp_path / "plain") == pytest.approx(losses(tmp_path / "compiled"), abs=1e-4)


def test_a_bad_step_is_skipped_and_counted(corpus, tmp_path, monkeypatch):
    plain = StepLoss.forward
    calls = {"count": 0}

    def sometimes_nan(self, batch, carried):
        calls["count"] += 1
        factor = math.nan if calls["count"] in (8, 9) else 1.0
        return {name: one * factor for name, one in plain(self, batch, carried)[0].items()}, {}, {}, {}

    monkeypatch.setattr(StepLoss, "forward", sometimes_nan)
    run(corpus, tmp_path / "run")
    state = json.loads((tmp_path / "run/checkpoints/30/state.json").read_text())["progress"]
    assert (state["skipped"], state["bad_in_a_row"], state["step"]) == (2, 0, 30)
    assert all(torch.isfinite(tensor).all() for tensor in weights(tmp_path / "run").values())


def test_too_many_bad_steps_end_training_and_keep_the_last_good_model(corpus, tmp_path, monkeypatch):
    plain = StepLoss.forward
    calls = {"count": 0}

    def soon_nan(self, batch, carried):
        calls["count"] += 1
        factor = math.nan if calls["count"] > 15 else 1.0
        return {name: one * factor for name, one in plain(self, batch, carried)[0].items()}, {}, {}, {}

    monkeypatch.setattr(StepLoss, "forward", soon_nan)
    with pytest.raises(DivergedError, match="4 steps in a row, up to step 18; lower training.learning_rate"):
        run(corpus, tmp_path / "run", "training.bad_steps=4")
    assert steps(tmp_path / "run" / "checkpoints") == [10]
    assert load_model(tmp_path / "run")


def test_early_stopping_counts_validations_without_a_better_one(corpus, tmp_path):
    out = tmp_path / "run"
    run(
        corpus,
        out,
        "training.steps=500",
        "training.patience=2",
        "training.learning_rate=1e-12",
        "training.metric=exact",
        "training.validate_every=5",
    )
    state = newest(out / "checkpoints", print).state["progress"]
    assert state["step"] == 15 and state["stale"] == 2 and state["best_step"] == 5


def test_checkpoints_are_pruned_but_the_best_is_spared(corpus, tmp_path):
    out = tmp_path / "run"
    run(corpus, out, "training.steps=60", "training.keep=2", "training.metric=exact", "training.learning_rate=1e-12")
    assert steps(out / "checkpoints") == [10, 50, 60]  # 10 is the best: none was better


def test_early_stopping_is_remembered(corpus, tmp_path):
    out = tmp_path / "run"
    changes = ["training.patience=1", "training.learning_rate=1e-12", "training.metric=exact", "training.steps=500"]
    for _ in range(2):
        run(corpus, out, *changes)
        assert newest(out / "checkpoints", print).step == 20


def test_a_stop_changes_nothing_in_the_result(corpus, tmp_path, monkeypatch):
    """The checkpoint of a stop is no part of the mean: an undisturbed training has none there."""
    changes = ["training.steps=40", "training.keep=3", "training.schedule=constant", "training.learning_rate=0.05"]
    run(corpus, tmp_path / "whole", *changes)
    plain = loop.Trainer.step

    def stopping(self, rows):
        plain(self, rows)
        self.stopped = self.progress.step == 33

    with monkeypatch.context() as patch:
        patch.setattr(loop.Trainer, "step", stopping)
        assert not run(corpus, tmp_path / "stopped", *changes).finished
    assert 33 in steps(tmp_path / "stopped" / "checkpoints")
    run(corpus, tmp_path / "stopped", *changes)
    same(weights(tmp_path / "whole"), weights(tmp_path / "stopped"))
    assert steps(tmp_path / "stopped" / "checkpoints")[-3:] == steps(tmp_path / "whole" / "checkpoints")[-3:]


@pytest.mark.parametrize("missing", ["asked.json", "config.yaml"])
def test_a_kill_while_the_folder_is_begun_does_not_lock_it(corpus, tmp_path, missing):
    out = tmp_path / "run"
    with pytest.raises(RuntimeError):
        chosen = read_recipe("tiny", [*SMALL, *EVERY, "training.steps=30"])
        train(chosen, Inputs((corpus,)), out, cache=corpus.parent / "cache", show=_die)
    if missing == "asked.json":
        (out / missing).unlink()
    assert run(corpus, out).finished


def _die(prepared, recipe):
    raise RuntimeError


def test_a_damaged_checkpoint_is_passed_over(corpus, tmp_path, capfd):
    out = tmp_path / "run"
    run(corpus, out)
    whole = weights(out / "checkpoints" / "30")
    damaged = out / "checkpoints" / "30" / "optimizer.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-7])
    (out / "README.md").unlink()
    run(corpus, out)
    said = capfd.readouterr().err
    assert "checkpoint 30 is damaged (optimizer.safetensors has changed); falling back to the previous one" in said
    assert "resuming from step 20" in said
    same(whole, weights(out / "checkpoints" / "30"))
    assert newest(out / "checkpoints", print).step == 30  # a whole one has taken its place
    for step in steps(out / "checkpoints"):
        (out / "checkpoints" / str(step) / "model.safetensors").write_bytes(b"gone")
    with pytest.raises(ValueError, match="every checkpoint in .* is damaged; move that folder away to start over"):
        run(corpus, out)


def test_a_half_written_checkpoint_is_never_taken(tmp_path):
    tensors = {"model": {"x": torch.ones(3)}}
    save_checkpoint(tmp_path, 10, tensors, {"progress": 1})
    (tmp_path / ".20.tmp").mkdir()
    (tmp_path / ".20.tmp" / "model.safetensors").write_bytes(b"half")
    (tmp_path / "30").mkdir()  # renamed by hand, say: no checksums
    said = []
    assert newest(tmp_path, said.append).step == 10
    assert said == ["checkpoint 30 is damaged (no checksums); falling back to the previous one"]


def test_a_full_disk_stops_with_a_clear_line_and_leaves_the_last_checkpoint_whole(corpus, tmp_path, monkeypatch):
    from heedful import checkpoint

    plain, out = checkpoint.save_file, tmp_path / "run"

    def full(tensors, path, metadata=None):
        if steps(out / "checkpoints") == [10]:
            path.write_bytes(b"half")
            raise OSError(28, "No space left on device")
        plain(tensors, path, metadata)

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(OSError, match="No space left on device"):
        run(corpus, out, "training.validate_every=1000")
    assert newest(out / "checkpoints", print).step == 10
    assert [path.name for path in (out / "checkpoints").iterdir()] == ["10"]
    monkeypatch.undo()
    run(corpus, out, "training.validate_every=1000")
    assert newest(out / "checkpoints", print).step == 30


def test_a_changed_recipe_is_refused_with_the_difference(corpus, tmp_path):
    out = tmp_path / "run"
    run(corpus, out)
    with pytest.raises(ValueError, match=r"started with another recipe \(training.learning_rate: 0.002 -> 0.01\)"):
        run(corpus, out, "training.learning_rate=0.01")
    with pytest.raises(ValueError, match=r"model.decoder.layers: 1 -> 2"):
        run(corpus, out, "model.decoder.layers=2")


def test_changed_files_are_refused(corpus, tmp_path):
    out = tmp_path / "run"
    run(corpus, out)
    other = pairs(tmp_path / "other.tsv", seed=5)
    with pytest.raises(ValueError, match="the files have changed since .* was started"):
        run(other, out, cache=tmp_path / "cache")


def test_more_steps_are_no_change_and_equal_one_long_training(corpus, tmp_path):
    run(corpus, tmp_path / "whole", "training.steps=40", "training.average=false")
    run(corpus, tmp_path / "longer", "training.steps=20", "training.average=false")
    run(corpus, tmp_path / "longer", "training.steps=40", "training.average=false")
    same(*(weights(tmp_path / name / "checkpoints" / "40") for name in ("whole", "longer")))
    cosine = ["training.schedule=cosine", "training.steps=10"]
    run(corpus, tmp_path / "cosine", *cosine)
    with pytest.raises(ValueError, match="training.steps: 10 -> 20"):
        run(corpus, tmp_path / "cosine", "training.schedule=cosine", "training.steps=20")


def test_a_finished_training_run_again_changes_nothing(corpus, tmp_path):
    out = tmp_path / "run"
    run(corpus, out)
    before = {path: path.read_bytes() for path in out.rglob("*.safetensors")}
    run(corpus, out)
    assert before == {path: path.read_bytes() for path in out.rglob("*.safetensors")}


def test_the_mean_of_checkpoints_is_the_mean(tmp_path):
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, step, {"model": {"x": torch.full((5,), float(step**2))}}, {})
    files = [tmp_path / str(step) / "model.safetensors" for step in (1, 2, 3)]
    assert torch.allclose(average(files)["x"], torch.full((5,), 14 / 3))
    assert torch.equal(average(files, buffers=["x"])["x"], torch.full((5,), 9.0))  # of random features it is the last


def test_the_model_folder_is_complete(corpus, tmp_path):
    out = tmp_path / "run"
    result = run(corpus, out, "training.samples=2")
    for name in ("config.yaml", "model.safetensors", "tokenizer.json", "README.md", "metrics.jsonl"):
        assert (out / name).stat().st_size > 0
    model = load_model(out)
    assert model.config.vocab == 256 + 4 + 11 and not model.training
    card = (out / "README.md").read_text()
    for piece in ("p.tsv", "tokens/s", "peak memory", "| bleu |", "hypothesis"):
        assert piece in card
    assert set(result.numbers) == {"loss", "accuracy", "bleu", "chrf", "exact"}


def test_two_vocabularies_train(corpus, tmp_path):
    run(corpus, tmp_path / "run", "tokenizer.joint=false", "model.tie=output")
    assert (tmp_path / "run" / "source_tokenizer.json").exists()


def test_auto_batches_become_a_number_and_stay_it(corpus, tmp_path):
    from heedful.checkpoint import read_config

    out = tmp_path / "run"
    run(corpus, out, "training.batch_tokens=auto", "training.steps=10")
    assert read_config(out)["training"]["batch_tokens"] == 4096
    run(corpus, out, "training.batch_tokens=auto", "training.steps=20")


def test_a_batch_that_does_not_fit_is_dealt_out(corpus, tmp_path, monkeypatch):
    from heedful.checkpoint import read_config
    from heedful.training import plan

    monkeypatch.setattr(plan, "free_memory", lambda: 12 * 2**20)
    run(corpus, tmp_path / "run", "training.batch_tokens=auto", "training.steps=3")
    assert read_config(tmp_path / "run")["training"]["accumulate"] > 1


def test_a_model_too_large_for_the_memory_is_told_so(corpus, tmp_path, monkeypatch):
    from heedful.training import plan

    monkeypatch.setattr(plan, "free_memory", lambda: 1000)
    with pytest.raises(ValueError, match="does not fit in memory even row by row; choose a smaller one"):
        run(corpus, tmp_path / "run", "training.batch_tokens=auto")


def test_a_high_first_loss_is_no_explosion(corpus, tmp_path):
    run(corpus, tmp_path / "run", "initialise=t5", "training.steps=20", "model.width=128")
    state = newest(tmp_path / "run" / "checkpoints", print).state["progress"]
    assert state["skipped"] == 0 and state["first_loss"] > 20


def test_a_few_pairs_are_enough_and_said_to_be_few(tmp_path, capfd):
    corpus = pairs(tmp_path / "few.tsv", 3)
    run(corpus, tmp_path / "run", "training.steps=10")
    assert "too few rows to hold any out: validating on the training data" in capfd.readouterr().err
    assert "Scores on the training data (nothing was held out)" in (tmp_path / "run" / "README.md").read_text()


def test_more_tokens_than_learned_positions_are_refused_before_anything_is_done(corpus, tmp_path):
    learned = ["model.decoder.position={kind: learned, length: 12}"]
    with pytest.raises(ValueError, match="the model learns 12 positions, but texts may have 257 tokens; raise"):
        run(corpus, tmp_path / "run", *learned)
    run(corpus, tmp_path / "run", *learned, "data.max_length=11", "training.steps=10")


@pytest.mark.parametrize("size", [300, 36 * 8 + 1, 36 * 8])
def test_short_texts_train_too(tmp_path, size):
    text = tmp_path / "short.txt"
    text.write_text("abc def " * (size // 8))
    changes = [
        "model.width=16",
        "model.decoder.layers=1",
        "task.context=64",
        "task.windows=documents",
        "training.steps=6",
        "training.validate_every=2",
        "training.samples=1",
        "training.batch_tokens=128",
    ]
    result = train(
        read_recipe("char-gpt", changes), Inputs((text,), columns=DOCUMENT), tmp_path / "run", cache=tmp_path / "c"
    )
    assert 0 < result.numbers["loss"] < 10


@pytest.mark.parametrize("windows", ["random", "documents"])
def test_language_models_go_through_the_same_loop(tmp_path, windows):
    text = tmp_path / "book.txt"
    text.write_text("\n\n".join(f"the {n}th paragraph of a book" for n in range(400)))
    changes = [
        "model.width=16",
        "model.decoder.layers=1",
        "model.decoder.attention.heads=2",
        "model.decoder.feedforward.hidden=32",
        "model.decoder.position.length=32",
        "task.context=32",
        f"task.windows={windows}",
        "training.steps=30",
        "training.save_every=10",
        "training.validate_every=10",
    ]
    inputs = Inputs((text,), columns=DOCUMENT)
    for name in ("first", "second"):
        result = train(read_recipe("char-gpt", changes), inputs, tmp_path / name, cache=tmp_path / "cache")
    assert result.numbers["loss"] < math.log(300) and result.numbers["bits_per_byte"] > 0
    same(weights(tmp_path / "first"), weights(tmp_path / "second"))


def test_language_keys_may_be_set_afterwards(corpus, tmp_path):
    from heedful.checkpoint import read_config

    run(corpus, tmp_path / "run", "training.steps=4")
    before = (tmp_path / "run" / "model.safetensors").read_bytes()
    run(corpus, tmp_path / "run", "training.steps=4", "data.target_language=de")
    assert read_config(tmp_path / "run")["data"]["target_language"] == "de"
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize("position", kinds("model/position"))
def test_computing_layers_again_changes_nothing_whatever_the_position(corpus, tmp_path, position):
    """What a position adds to the scores is shared by the layers, so it must not be made inside one of them."""
    steps = [f"model.encoder.position={position}", f"model.decoder.position={position}", "training.steps=3",
             "training.log_every=1", "model.encoder.layers=2", "training.samples=0", "data.max_length=64"]  # fmt: skip
    run(corpus, tmp_path / "plain", *steps)
    run(corpus, tmp_path / "again", *steps, "training.recompute=true")
    assert losses(tmp_path / "again") == pytest.approx(losses(tmp_path / "plain"), abs=1e-5)


def test_a_text_is_one_segment_where_one_token_begins_and_ends_it(tmp_path):
    """GPT-2's <|endoftext|>."""
    from heedful.tasks.causal_lm import CausalLm

    class Marks:
        bos = eos = 7

    task = CausalLm.__new__(CausalLm)
    task.packed, task.tokenizer = True, Marks()

    class Rows:
        tokens = (np.array([1, 2, 3, 4], dtype=np.uint16),)

        def __len__(self):
            return 2

        def rows(self, column, numbers):
            return [np.array([1, 2], dtype=np.uint16), np.array([3, 4], dtype=np.uint16)]

    stream = task._stream(Rows())
    assert stream.tolist() == [7, 1, 2, 7, 3, 4]
    assert task._windows(stream, np.array([0]), 5).segments.tolist() == [[1, 1, 1, 2, 2]]


class Counter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.tensor(0))

    def first_weights(self):
        self.seen.fill_(3)


def test_the_running_average_of_weights_copies_whole_numbers(corpus, tmp_path, monkeypatch):
    from heedful.model.architecture.encoder_decoder import EncoderDecoderConfig

    build = EncoderDecoderConfig.build

    def with_counter(self):
        model = build(self)
        model.counter = Counter()
        return model

    monkeypatch.setattr(EncoderDecoderConfig, "build", with_counter)
    run(corpus, tmp_path / "run", "training.ema=0.9", "training.steps=3")
    assert int(load_file(tmp_path / "run" / "model.safetensors")["counter.seen"]) == 3


def test_the_logged_loss_says_whether_it_is_smoothed(corpus, tmp_path, capfd):
    run(corpus, tmp_path / "smooth", "training.steps=2", "training.log_every=1", "training.label_smoothing=0.2")
    assert "smoothed loss" in capfd.readouterr().err
    run(corpus, tmp_path / "plain", "training.steps=2", "training.log_every=1", "training.label_smoothing=0")
    assert "smoothed" not in capfd.readouterr().err
    smooth, plain = ([json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
                     for name in ("smooth", "plain"))  # fmt: skip
    assert smooth[0]["nll"] == pytest.approx(plain[0]["loss"], rel=1e-4)  # the first step has the same weights
    assert smooth[0]["nll"] != smooth[0]["loss"] and "nll" not in plain[0]


def test_the_rate_shown_is_that_of_all_steps_since_the_last_line(corpus, tmp_path, monkeypatch):
    """With a clock that makes step number n take n seconds."""
    monkeypatch.setattr(loop.time, "monotonic", lambda: clock["now"])
    clock, tokens, counted = {"now": 0.0}, [], loop.tokens_in
    plain = loop.Trainer._apply

    def slower_and_slower(self, loss):
        clock["now"] += self.progress.step
        return plain(self, loss)

    monkeypatch.setattr(loop.Trainer, "_apply", slower_and_slower)
    monkeypatch.setattr(loop, "tokens_in", lambda batch: tokens.append(counted(batch)) or tokens[-1])
    run(corpus, tmp_path / "run", "training.log_every=7", "training.steps=14")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    rates = {line["step"]: line["tokens_per_second"] for line in lines if "loss" in line}
    expected = {1: tokens[0], 7: sum(tokens[1:7]) / sum(range(2, 8)), 14: sum(tokens[7:14]) / sum(range(8, 15))}
    assert rates == pytest.approx(expected)
