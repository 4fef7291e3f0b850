"""Instructions as a task: what is read, what is learned, what is refused, and that packing changes nothing."""

import json
import random
from itertools import chain

import numpy as np
import pytest
import torch

import heedful
from heedful.data.dialogues import read_dialogues
from heedful.data.packing import packed
from heedful.data.prepare import prepare
from heedful.model.create import create
from heedful.tasks import Settings
from heedful.tasks._replies import together
from heedful.tasks.instructions import InstructionsConfig
from heedful.text.chat import Chat
from heedful.training.files import arranged
from heedful.training.recipe import read_recipe
from heedful.training.run import train
from tests.tasks.test_dialogue import CODER, written
from tests.training.test_loop import StopError, interrupt

SMALL = ["tokenizer.kind=character", "model.width=44", "model.decoder.layers=2", "model.decoder.attention.heads=2",
         "model.decoder.feedforward.hidden=53", "model.decoder.dropout=0", "model.decoder.attention.dropout=0",
         "data.max_length=67",
         "task.pack=true"]  # fmt: skip
COLOURS = {"apple": "red", "sky": "blue", "grass": "green", "snow": "white"}
POSITIONS = {
    "rotary": "rotary", "learned": "{kind: learned, length: 67}", "sinusoidal": "sinusoidal", "alibi": "alibi"
}  # fmt: skip


def examples(path, count=60, seed=0):
    """Answers of very different lengths."""
    chance = random.Random(seed)
    rows = []
    for number in range(count):
        thing = chance.choice(list(COLOURS))
        rows.append({"instruction": f"colour of {number}", "input": thing, "output": COLOURS[thing] * (1 + number % 5)})
    return written(path, *rows)


def rows(path, **keys):
    return list(read_dialogues([path], InstructionsConfig(kind="instructions", **keys).columns))


def built(tmp_path, file, *changes):
    recipe, inputs = arranged(read_recipe("instruct", [*SMALL, *changes]), [file])
    data = prepare(inputs, recipe.data, recipe.tokenizer, cache=tmp_path / "cache", specials=recipe.task.specials)
    fitted = recipe.fitted(data)
    return fitted, data, fitted.task.build(data, Settings(max_length=recipe.data.max_length))


def test_the_names_that_people_give_are_one_conversation(tmp_path):
    file = written(
        tmp_path / "i.jsonl",
        {"instruction": "name it", "input": "the sky", "output": "blue"},
        {"instruction": "name it", "input": "", "output": "blue"},
        {"instruction": "name it", "context": "the sky", "response": "blue", "category": "qa"},
        {"system": "be brief", "instruction": "name it", "output": "blue"},
        {"prompt": "name it", "completion": "blue"},
        {"prompt": [{"role": "user", "content": "name it"}, {"role": "assistant", "content": "which?"},
                    {"role": "user", "content": "all"}],
         "completion": [{"role": "assistant", "content": "blue"}]},
        {"messages": [{"role": "user", "content": "name it"}, {"role": "assistant", "content": "blue"},
                      {"role": "user", "content": "and?"}, {"role": "assistant", "content": "red"}]},
    )  # fmt: skip
    found = [(json.loads(line.texts[0])["messages"], line.texts[1]) for line in rows(file)]
    shown = [("|".join(f"{one['role'][0]}:{one['content']}" for one in asked), answer) for asked, answer in found]
    assert shown == [
        ("u:name it\n\nthe sky", "blue"), ("u:name it", "blue"), ("u:name it\n\nthe sky", "blue"),
        ("s:be brief|u:name it", "blue"), ("u:name it", "blue"), ("u:name it|a:which?|u:all", "blue"),
        ("u:name it", "blue"), ("u:name it|a:blue|u:and?", "red"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"instruction": "name it", "output": " "}, "empty output; correct or remove the line"),
        ({"instruction": "", "output": "blue"}, "empty instruction; correct"),
        ({"instruction": "name it", "input": "sky"}, r"no output \(it has instruction, input\); correct"),
        ({"prompt": "name it", "output": "blue"}, r"no completion \(it has prompt, output\); correct"),
        ({"question": "name it"}, r"no messages, turns, or instruction and output \(it has question\); correct"),
        ({"instruction": "name it", "output": ["blue"]}, "output is not a text; correct"),
        ({"instruction": "name it", "input": 3, "output": "blue"}, "input is not a text; correct"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "oracle", "content": "b"}]},
         "the speaker 'oracle' is unknown; set task.speakers={oracle: user}, or assistant"),
        ({"messages": [{"role": "user", "content": "a"}]}, "no message of assistant after another one"),
        ([1], "no messages, turns, or instruction and output; correct"),
    ],
)  # fmt: skip
def test_a_line_that_cannot_be_used_is_refused_by_its_number(tmp_path, bad, message):
    good = {"instruction": "name it", "output": "blue"}
    with pytest.raises(ValueError, match=f"i.jsonl:3: {message}"):
        built(tmp_path, written(tmp_path / "i.jsonl", good, good, bad, *[good] * 9))
    with pytest.raises(ValueError, match=f"i.jsonl:1: {message}"):  # and in a test file
        config = InstructionsConfig(kind="instructions")
        config.figures(None, written(tmp_path / "i.jsonl", bad), heedful.GenerationConfig())


def test_an_answer_that_would_be_cut_off_is_refused_by_its_number_or_skipped_and_counted(tmp_path):
    good = [{"instruction": f"ask {number}", "output": "yes"} for number in range(40)]
    long = {"instruction": "ask 77", "output": "y" * 56}
    file = written(tmp_path / "i.jsonl", *good[:30], long, *good[30:], long)
    message = (
        "i.jsonl:31: the prompt takes 10 tokens and the answer 57, more than data.max_length=66 together; raise "
        "that, shorten the line, or leave out such lines with task.too_long=skip"
    )
    with pytest.raises(ValueError, match=message):
        built(tmp_path, file, "data.max_length=66")
    _, data, task = built(tmp_path, file, "data.max_length=66", "task.too_long=skip")
    assert task.notes == ["2 examples take more than 66 tokens, instruction and answer together, and are skipped"]
    assert sum(data.facts["rows"].values()) == 40
    _, data, _ = built(tmp_path, file, "model.decoder.position={kind: learned, length: 67}")
    assert sum(data.facts["rows"].values()) == 42  # a model that learns 67 positions reads the longest example
    with pytest.raises(ValueError, match="the model learns 66 positions, but texts may have 67 tokens"):
        read_recipe("instruct", ["data.max_length=67", "model.decoder.position={kind: learned, length: 66}"])


def test_the_oldest_messages_of_a_long_conversation_are_left_out_but_never_the_orders(tmp_path):
    said = [{"role": ("user", "assistant")[place % 2], "content": f"m{place}" * 5} for place in range(8)]
    talk = {"messages": [{"role": "system", "content": "sys"}, *said]}
    _, data, task = built(tmp_path, written(tmp_path / "i.jsonl", *[talk] * 10), "task.pack=false")
    batch = task.collate(np.arange(4))
    texts = data.tokenizers[0].decode(batch.tokens.tolist())
    assert all(text.startswith("sys") and f"m{2 * row}m{2 * row}" in text for row, text in enumerate(texts))
    assert "m0" not in texts[3] and batch.tokens.shape[1] < 67
    assert data.facts["cut"] and "oldest messages are left out" in task.notes[0]
    orders = {"messages": [{"role": "system", "content": "s" * 60}, *said[:2]]}
    with pytest.raises(ValueError, match="i.jsonl:1: the prompt takes 76 tokens and the answer 11"):
        built(tmp_path, written(tmp_path / "i.jsonl", *[orders] * 10))


@pytest.mark.parametrize("pack", ["true", "false"])
def test_what_is_learned_is_the_answers_and_their_ends_and_nothing_else(tmp_path, pack):
    file = examples(tmp_path / "i.jsonl")
    _, data, task = built(tmp_path, file, f"task.pack={pack}")
    tokenizer, chat = data.tokenizers[0], Chat(data.tokenizers[0])
    batch, taken = task.collate(np.arange(20)), np.arange(20)
    stored = list(
        zip(tokenizer.decode(task.train.rows(0, taken)), tokenizer.decode(task.train.rows(1, taken)), strict=True)
    )
    segments = torch.ones_like(batch.tokens) if batch.segments is None else batch.segments
    found = []
    for row, numbers in enumerate(segments):
        for number in numbers.unique().tolist():
            mine, learned = numbers == number, batch.learned[row] & (numbers == number)
            if not bool(learned.any()):
                assert number == 0  # padding
                continue
            answer = batch.wanted[row][learned].tolist()
            assert answer[-1] == tokenizer.eos and tokenizer.eos not in answer[:-1]
            first = int(learned.nonzero()[0]) + 1
            prompt = batch.tokens[row][:first][mine[:first]].tolist()
            found.append((tokenizer.decode([prompt])[0], tokenizer.decode([answer])[0]))
            # The prompt is that of a chat, and the answer follows it.
            messages = [{"role": "user", "content": found[-1][0]}]
            assert prompt == chat.prompt(messages).tokens
            assert batch.tokens[row][first : first + len(answer) - 1].tolist() == answer[:-1]
    assert sorted(found) == sorted(stored)
    assert batch.counts == {"tokens": sum(map(len, task.train.rows(1, taken))) + 20}  # each answer has an end


@pytest.mark.parametrize("position", POSITIONS)
def test_packed_examples_have_the_loss_and_the_gradient_of_examples_in_rows_of_their_own(tmp_path, position):
    fitted, data, task = built(
        tmp_path, examples(tmp_path / "i.jsonl"), f"model.decoder.position={POSITIONS[position]}"
    )
    torch.manual_seed(3)
    model = create(fitted.model, scheme="xavier")
    prompts, replies = (task.train.rows(column, np.arange(23)) for column in (0, 1))
    found = []
    for window in (0, 67):
        batch = together(prompts, replies, data.tokenizers[0], window=window)
        assert (len(batch.tokens) < 23) == bool(window)
        model.zero_grad()
        term = task.loss(model, batch, state={}).terms["tokens"]
        (term.total / term.count).backward()
        loss = float((term.total / term.count).detach())
        found.append((loss, {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}))
    assert found[1][0] == pytest.approx(found[0][0], rel=1e-6)
    assert found[0][1].keys() == found[1][1].keys()
    for name, one in found[0][1].items():
        assert torch.allclose(found[1][1][name], one, atol=2e-6, rtol=1e-4), name


def test_without_segments_packed_examples_would_see_each_other(tmp_path):
    """What the test above would miss if `segments` had no effect in it."""
    fitted, data, task = built(tmp_path, examples(tmp_path / "i.jsonl"))
    torch.manual_seed(3)
    model = create(fitted.model, scheme="xavier").eval()
    prompts, replies = (task.train.rows(column, np.arange(23)) for column in (0, 1))
    batch = together(prompts, replies, data.tokenizers[0], window=67)
    with torch.no_grad():
        apart, leaking = (model.decode(batch.tokens, segments=one) for one in (batch.segments, None))
    later = batch.segments > batch.segments[:, :1]
    assert torch.allclose(apart[~later & (batch.segments > 0)], leaking[~later & (batch.segments > 0)], atol=1e-5)
    assert not torch.allclose(apart[later], leaking[later], atol=1e-2)


def test_batches_hold_every_row_once_within_the_budget(tmp_path):
    _, _, task = built(tmp_path, examples(tmp_path / "i.jsonl", count=200))
    first, again, second = (
        [rows.tolist() for rows in task.epoch(number, budget=67 * 3, seed=5)] for number in (0, 0, 1)
    )
    assert sorted(chain(*first)) == sorted(chain(*second)) == list(range(len(task.train)))
    assert first == again != second
    batches = [task.collate(np.array(rows)) for rows in first]
    assert max(len(batch.tokens) for batch in batches) == 3 and max(batch.tokens.shape[1] for batch in batches) <= 67
    real, places = (sum(count(batch) for batch in batches) for count in (lambda one: int((one.segments > 0).sum()), lambda one: one.tokens.numel()))  # noqa: E501  # fmt: skip
    assert real / places > 0.8
    assert task.worst(67 * 3).tolist() in [rows.tolist() for rows in task.epoch(0, budget=67 * 3, seed=0)]


def test_first_fit_opens_a_window_only_when_none_has_room():
    assert packed([5, 4, 3, 2, 11], 7) == [[0, 3], [1, 2], [4]]
    assert packed([], 7) == []


def test_labels_loss_and_gradient_are_those_of_trl_where_padding_is_the_end_token(tmp_path):
    """TRL 1.16: SFTTrainer on prompts and completions, from text to loss."""
    pytest.importorskip("trl")
    from datasets import Dataset
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    from heedful.exchange.hugging_face import load

    _, data, task = built(tmp_path, examples(tmp_path / "i.jsonl"))
    tokenizer = data.tokenizers[0]
    tokenizer.save(tmp_path / "tokenizer.json")
    fast = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"), bos_token="<s>", eos_token="</s>", pad_token="</s>")  # noqa: E501  # fmt: skip
    torch.manual_seed(5)
    theirs = GPT2LMHeadModel(
        GPT2Config(vocab_size=tokenizer.vocab, n_positions=67, n_embd=44, n_layer=2, n_head=4, resid_pdrop=0.0,
                   embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=tokenizer.bos, eos_token_id=tokenizer.eos)
    )  # fmt: skip
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    theirs.save_pretrained(tmp_path / "gpt2")
    ours = load(tmp_path / "gpt2").model.train()
    prompts, replies = ([row.tolist() for row in task.train.rows(column, np.arange(7))] for column in (0, 1))
    texts = [
        {"prompt": Chat(tokenizer).text([{"role": "user", "content": prompt}]), "completion": reply}
        for prompt, reply in zip(tokenizer.decode(prompts), tokenizer.decode(replies), strict=True)
    ]
    arguments = SFTConfig(output_dir=str(tmp_path / "trl"), use_cpu=True, bf16=False, report_to="none", max_length=67)
    trainer = SFTTrainer(model=theirs, args=arguments, train_dataset=Dataset.from_list(texts), processing_class=fast)
    collated = trainer.data_collator([trainer.train_dataset[place] for place in range(7)])
    assert collated["labels"].shape[0] == 7
    wanted = trainer.compute_loss(theirs.train(), dict(collated))
    wanted.backward()
    batch = together(prompts, replies, tokenizer)
    learned = [row[row != -100].tolist() for row in collated["labels"]]
    assert [row[mask].tolist() for row, mask in zip(batch.wanted, batch.learned, strict=True)] == learned
    term = task.loss(ours, together(prompts, replies, tokenizer, window=67), state={}).terms["tokens"]
    (term.total / term.count).backward()
    assert float((term.total / term.count).detach()) == pytest.approx(float(wanted.detach()), rel=1e-5)
    (grad,) = [one.grad for one in ours.parameters() if one.shape == (tokenizer.vocab, 44)]
    assert torch.allclose(grad, theirs.transformer.wte.weight.grad, atol=2e-5)


def test_packing_is_refused_where_rows_are_not_one_text():
    with pytest.raises(ValueError, match="needs an attention that supports segments.*; set task.pack=false"):
        read_recipe("instruct", [*CODER, "task.pack=true"])


def test_resumed_training_equals_uninterrupted_training(tmp_path, monkeypatch):
    changes = [*SMALL, "model.width=16", "model.decoder.dropout=0.1", "training.steps=12", "training.warmup=2",
               "training.batch_tokens=201", "training.validate_every=4", "training.save_every=4", "training.samples=1",
               "training.accumulate=2"]  # fmt: skip
    recipe, inputs = arranged(read_recipe("instruct", changes), [examples(tmp_path / "i.jsonl")])

    def run(out):
        return train(recipe, inputs, tmp_path / out, cache=tmp_path / "cache")

    run("whole")
    with monkeypatch.context() as patch, pytest.raises(StopError):
        interrupt(patch, 9)
        run("cut")
    assert run("cut").finished
    for name in ("model.safetensors", "checkpoints/12/model.safetensors", "checkpoints/12/optimizer.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes()
