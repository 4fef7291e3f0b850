"""Rewards and preferences as tasks: what is read, what is refused, what stays equal."""

import json
import math

import pytest
import torch

import heedful
from heedful.checkpoint import load_model
from heedful.data.inputs import Inputs
from heedful.data.lines import Line
from heedful.data.preferences import PAIRED, as_jsonl, prompt_of, read_prompted
from heedful.data.prepare import load_tokenizers
from heedful.exchange.hugging_face import family_for
from heedful.tasks import _answers
from heedful.tasks._answers import Writers
from heedful.tasks.preference import Preference
from heedful.training import loop
from heedful.training.recipe import read_recipe
from tests.tasks.preferred import KINDS, bases, compared, metrics, run

SHORT = ["training.steps=6", "training.validate_every=3", "training.save_every=2", "training.batch_tokens=300",
         "training.learning_rate=0.003"]  # fmt: skip
kinds = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return bases(tmp_path_factory.mktemp("bases"))


def written(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def said(content, role="user"):
    return {"role": role, "content": content}


def test_the_shapes_of_other_peoples_files_are_read(tmp_path):
    file = written(
        tmp_path / "p.jsonl",
        {"prompt": "q", "chosen": " a", "rejected": " b"},
        {"prompt": [said("q")], "chosen": [said("a", "assistant")], "rejected": [said("b", "assistant")]},
        {"chosen": [said("q"), said("a", "assistant")], "rejected": [said("q"), said("b", "assistant")]},
        {"instruction": "q", "input": "i", "output": "a", "chosen": "a", "rejected": "b"},
        {"source": "q", "better": "a", "worse": "b"},
    )
    rows = list(read_prompted([file], PAIRED))
    assert [prompt_of(row.texts[0]) for row in rows] == ["q", [said("q")], [said("q")], [said("q\ni")], "q"]
    assert [row.texts[1:] for row in rows] == [(" a", " b"), *[("a", "b")] * 4]
    again = tmp_path / "again.jsonl"
    again.write_text("".join(as_jsonl(row.texts, PAIRED) for row in rows), encoding="utf-8")
    assert [row.texts for row in read_prompted([again], PAIRED)] == [row.texts for row in rows]
    table = tmp_path / "p.tsv"
    table.write_text("worse\tsource\tbetter\nb\tq\ta\n", encoding="utf-8")
    (row,) = (line for line in read_prompted([table], PAIRED) if isinstance(line, Line))
    assert (prompt_of(row.texts[0]), *row.texts[1:]) == ("q", "a", "b")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "q", "chosen": "a", "rejected": "a"}, r"p.jsonl:2: chosen and rejected are the same text; correct"),
        ({"prompt": "q", "chosen": "a"}, r"p.jsonl:2: no rejected, or it is neither a text nor one message"),
        ({"prompt": "q", "chosen": " ", "rejected": "b"}, r"p.jsonl:2: empty chosen"),
        ({"chosen": "a", "rejected": "b"}, r"p.jsonl:2: no prompt and chosen and rejected; name them so"),
        ([1], r"p.jsonl:2: not a JSON object; correct or remove the line"),
        ({"prompt": [said("a", "assistant")], "chosen": "a", "rejected": "b"}, "end with one of the user"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(row, message, tmp_path):
    file = written(tmp_path / "p.jsonl", {"prompt": "q", "chosen": "a", "rejected": "b"}, row)
    with pytest.raises(ValueError, match=message):
        list(Inputs((file,), columns=PAIRED, strict=True).read("train"))


def test_answers_that_cannot_teach_are_refused_by_line(base, tmp_path):
    rows = [{"prompt": f"a b {n}", "chosen": "b a", "rejected": "a"} for n in "abcdefgh"]
    long = {"prompt": "a", "chosen": "a b c d e f g h", "rejected": "a"}
    with pytest.raises(ValueError, match=r"p.jsonl:9: chosen has 15 tokens, and data.max_length is 7, so it would be "
                                         r"cut off; raise data.max_length, or shorten or remove the line"):  # fmt: skip
        run("prefer", written(tmp_path / "p.jsonl", *rows, long), tmp_path / "x", "data.max_length=7",
            start=base["translator"])  # fmt: skip
    same = {"prompt": "a", "chosen": "e\u0301", "rejected": "\u00e9"}  # one letter, written in two ways
    with pytest.raises(ValueError, match=r"q.jsonl:9: chosen and rejected are the same tokens, so there is nothing to "
                                         r"learn from them; remove the line"):  # fmt: skip
        run("prefer", written(tmp_path / "q.jsonl", *rows, same), tmp_path / "y", start=base["translator"])


def test_preferences_need_a_model_to_start_from(tmp_path):
    with pytest.raises(ValueError, match="task preference moves a model away from what it prefers now, so it must "
                                         "start from one; name one: --start-from MODEL"):  # fmt: skip
        run("prefer", compared(tmp_path / "p.jsonl"), tmp_path / "x")


def test_models_that_do_not_write_word_by_word_are_refused():
    with pytest.raises(ValueError, match="task reward trains models that write word by word, and encoder_only is not"):
        _answers.fitted_writer("reward", {"kind": "encoder_only"}, None)


@kinds
@pytest.mark.parametrize(("loss", "first"), [("dpo", math.log(2)), ("ipo", 25.0)])
def test_before_the_first_step_the_policy_is_its_reference(kind, loss, first, base, tmp_path):
    run("prefer", compared(tmp_path / "p.jsonl"), tmp_path / "out", *SHORT, f"task.loss={loss}", start=base[kind])
    lines = [line for line in metrics(tmp_path / "out") if "figures" in line]
    assert lines[0]["loss"] == pytest.approx(first, rel=1e-5)
    assert lines[0]["figures"]["margin"] == pytest.approx(0, abs=1e-5)
    assert lines[-1]["loss"] < first
    assert set(lines[0]["figures"]) == {"accuracy", "margin", "chosen_log_prob", "rejected_log_prob"}
    assert lines[0]["figures"]["chosen_log_prob"] < 0


@kinds
@torch.inference_mode()
def test_the_log_probability_of_an_answer_is_the_same_in_any_company(kind, base):
    model, tokenizers = load_model(base[kind]), load_tokenizers(base[kind], columns=2)
    writers, end = Writers(tokenizers, joined=kind == "generator"), tokenizers[1].eos
    prompts = [[7, 5, end, 9], [8], [6, 7, 8, 9, 10, 6, 7]]  # an end within a prompt is a token like any other
    answers = [[9, 8], [7, end, 6, 5, 9], [6]]
    together = _answers.log_probs(model, writers.batch(prompts, answers))
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        alone = writers.batch([prompt], [answer])
        assert int(alone.valid.sum()) == len(answer) + 1
        assert alone.wanted[alone.valid].tolist() == [*answer, end]
        assert float(together[row].sum()) == pytest.approx(float(_answers.log_probs(model, alone).sum()), abs=1e-4)
    cut = writers.batch(prompts, answers, ended=[False, True, True])
    assert cut.wanted[0, cut.valid[0]].tolist() == answers[0]


@torch.inference_mode()
def test_the_log_probabilities_are_those_of_the_translator_and_the_generator(base):
    translator = heedful.load(base["translator"])
    writers = Writers([translator.source, translator.target], joined=False)
    rows = [translator.source.encode([text])[0] for text in ("a b c", "c a", "d")]
    batch = writers.batch(rows[:2], rows[1:])
    found = _answers.log_probs(translator.models[0], batch)
    for row, wanted in enumerate(translator.score([("a b c", "c a"), ("c a", "d")])):
        assert found[row, batch.valid[row]].tolist() == pytest.approx(wanted, abs=1e-4)
    generator = heedful.load(base["generator"])
    prompt, answer = generator.tokenizer.encode(["a b = ", "b a"])
    batch = Writers([generator.tokenizer], joined=True).batch([prompt], [answer], [False])
    found = _answers.log_probs(generator.model, batch)[0, batch.valid[0]]
    assert found.tolist() == pytest.approx(generator.log_probs("a b = b a")[-len(answer) :], abs=1e-4)


@kinds
def test_the_reference_is_computed_once(kind, base, tmp_path, monkeypatch):
    file, calls, plain = compared(tmp_path / "p.jsonl"), [], Preference._keep_references
    monkeypatch.setattr(Preference, "_keep_references", lambda self, model: (calls.append(1), plain(self, model))[1])
    run("prefer", file, tmp_path / "one", *SHORT, start=base[kind])
    run("prefer", file, tmp_path / "two", *SHORT, "task.beta=0.2", start=base[kind])
    assert len(calls) == 1
    (held,) = (tmp_path / "cache").glob("*/reference-*.safetensors")
    before = held.read_bytes()
    held.unlink()
    run("prefer", file, tmp_path / "one", *SHORT, start=base[kind])  # again: validates, for which it is needed
    assert len(calls) == 2 and held.read_bytes() == before


class StopError(Exception):
    pass


def interrupted(monkeypatch, step):
    plain = loop.Trainer._apply

    def dying(self, loss):
        if self.progress.step == step:
            raise StopError
        return plain(self, loss)

    monkeypatch.setattr(loop.Trainer, "_apply", dying)


@kinds
@pytest.mark.parametrize("recipe", ["reward", "prefer"])
def test_resumed_training_equals_uninterrupted_training(recipe, kind, base, tmp_path, monkeypatch):
    file = compared(tmp_path / "p.jsonl")
    run(recipe, file, tmp_path / "whole", *SHORT, start=base[kind])
    with monkeypatch.context() as patch, pytest.raises(StopError):
        interrupted(patch, 5)
        run(recipe, file, tmp_path / "cut", *SHORT, start=base[kind])
    run(recipe, file, tmp_path / "cut", *SHORT, start=base[kind])
    for name in ("model.safetensors", "checkpoints/6/model.safetensors", "checkpoints/6/optimizer.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes()


@kinds
def test_micro_batches_equal_one_batch(kind, base, tmp_path):
    file = compared(tmp_path / "p.jsonl")
    for parts in (1, 3):
        run("prefer", file, tmp_path / str(parts), *SHORT, "training.eps=0.001", f"training.accumulate={parts}",
            start=base[kind])  # fmt: skip
    losses = [[line["loss"] for line in metrics(tmp_path / name) if "loss" in line] for name in ("1", "3")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@kinds
def test_a_reward_is_read_at_the_last_token_whatever_stands_before_and_beside_it(kind, base, tmp_path):
    run("reward", compared(tmp_path / "p.jsonl"), tmp_path / "out", *SHORT, start=base[kind])
    judge = heedful.load(tmp_path / "out")
    end, pad = judge.tokenizers[1].eos, judge.tokenizers[1].pad
    prompts = [[7, end, 9], [8, pad, 7, end], [6, 7, 8, 9, 10]]
    answers = [[9, 8], [7, end, 6, 5, 9, 8, 7], [6, end]]
    together = judge.score_tokens(prompts, answers)
    for row in range(3):
        assert judge.score_tokens([prompts[row]], [answers[row]])[0] == pytest.approx(together[row], abs=1e-5)
    assert len(set(together)) == 3
    ended, cut = (judge.score_tokens([[7, 9]], [[8, 6]], [end])[0] for end in (True, False))
    assert ended != cut
    if kind == "generator":  # by hand: the state of the last token of the row alone
        states = judge.model.decode(torch.tensor([[*prompts[0], *answers[0], end]]))
        assert float(judge.model.heads["reward"](states)[0, -1]) == pytest.approx(together[0], abs=1e-5)


@kinds
def test_rewards_are_numbers_for_prompt_and_answer(kind, base, tmp_path):
    run("reward", compared(tmp_path / "p.jsonl"), tmp_path / "out", *SHORT, start=base[kind])
    judge = heedful.load(tmp_path / "out")
    lines = ["a b\tb a", "a b c\tc"]
    found = judge.predict(lines)
    assert [one["score"] for one in found] == pytest.approx(judge.score(["a b", "a b c"], ["b a", "c"]))
    assert all(one["text"] == f"{one['score']:.4f}" for one in found)
    with pytest.raises(ValueError, match="line 2 must be a prompt and an answer, separated by a tab"):
        judge.predict(["a\tb", "a"])
    with pytest.raises(ValueError, match="a reward model cannot be exported; use it with heedful predict or heedful"):
        family_for(judge.model)
    figures = judge.evaluate(tmp_path / "out" / "test.jsonl")
    assert figures["pairs"] > 0 and 0 <= figures["accuracy"] <= 100
    with pytest.raises(ValueError, match="this model has no reward head; train it with the recipe reward"):
        type(judge)(base[kind])


@kinds
def test_a_preferred_model_opens_as_what_it_was(kind, base, tmp_path):
    run("prefer", compared(tmp_path / "p.jsonl"), tmp_path / "out", *SHORT, start=base[kind])
    use, before = heedful.load(tmp_path / "out"), heedful.load(base[kind])
    assert type(use) is type(before)
    found = read_recipe("prefer").task.figures(use, tmp_path / "out" / "test.jsonl", None)
    assert found["pairs"] > 0 and found["log_prob of the chosen"] < 0
    if kind == "translator":
        assert use.aligner == before.aligner is not None
