"""Dialogue as a task: which messages are learned, from what, and that training reads what a chat reads."""

import json
import random

import pytest
import torch

import heedful
from heedful.chatter import Chatter
from heedful.data.dialogues import read_dialogues
from heedful.data.lines import Fault
from heedful.data.prepare import prepare
from heedful.generator import Generator
from heedful.tasks import Settings
from heedful.tasks._replies import distinct
from heedful.tasks.dialogue import DialogueConfig
from heedful.training.files import arranged
from heedful.training.recipe import read_recipe

ANSWERS = {"red": "apple", "blue": "sky", "green": "grass", "white": "snow"}
CODER = ["model.preset=vaswani-tiny", "model.encoder.placement=pre", "model.decoder.placement=pre"]


def talks(path, count=60, turns=4, seed=0):
    """The reply names the thing of the colour that was asked first in the dialogue."""
    chance = random.Random(seed)
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            colour = chance.choice(list(ANSWERS))
            said = [f"{colour} {number % 7}", ANSWERS[colour], "again", ANSWERS[colour]][:turns]
            rows = [{"speaker": ("user", "system")[place % 2], "text": text} for place, text in enumerate(said)]
            file.write(json.dumps({"turns": rows}) + "\n")
    return path


def rows(path, **keys):
    return list(read_dialogues([path], DialogueConfig(kind="dialogue", **keys).columns))


def written(path, *objects):
    path.write_text("".join(json.dumps(one) + "\n" for one in objects), encoding="utf-8")
    return path


def test_each_message_of_a_learned_role_is_a_row(tmp_path):
    messages = [("system", "be brief"), ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")]
    file = written(tmp_path / "t.jsonl", {"messages": [{"role": r, "content": c} for r, c in messages]})

    def shown(**keys):
        found = [(json.loads(line.texts[0]), line.texts[1]) for line in rows(file, **keys)]
        return [("".join(one["content"] for one in asked["messages"]), asked["role"], text) for asked, text in found]

    assert shown() == [("be briefa", "assistant", "b"), ("be briefabc", "assistant", "d")]
    assert shown(history=1) == [("be briefa", "assistant", "b"), ("be briefc", "assistant", "d")]
    assert shown(learn=("user",)) == [("be briefab", "user", "c")]
    assert len({line.texts[2] for line in rows(file, learn=("user", "assistant"))}) == 1


def test_the_shapes_of_other_peoples_files_are_read(tmp_path):
    file = written(
        tmp_path / "t.jsonl",
        {"turns": ["a", "b"]},
        {"turns": [{"speaker": "user", "text": "a"}, {"speaker": "system", "text": "b"}]},
        {"messages": [{"role": "Human", "content": "a"}, {"role": "gpt", "content": "b"}]},
        {"turns": [{"speaker": "caller", "text": "a"}, {"speaker": "clerk", "text": "b"}]},
        {"turns": ["a"]},
        {"turns": [{"speaker": "user", "text": " "}]},
        {"text": "a"},
    )
    found = rows(file, speakers={"caller": "user", "clerk": "assistant"})
    expected = ({"messages": [{"role": "user", "content": "a"}], "role": "assistant"}, "b")
    assert [(json.loads(line.texts[0]), line.texts[1]) for line in found[:4]] == [expected] * 4
    assert [line.reason for line in found[4:]] == [
        "no message of assistant after another one", "message 1 has no speaker, or no text",
        "no messages, turns, or instruction and output (it has text)"
    ]  # fmt: skip
    (fault,) = (line for line in rows(file) if isinstance(line, Fault) and line.number == 4)
    assert fault.reason == "the speaker 'caller' is unknown; set task.speakers={caller: user}, or assistant"


def test_what_may_be_learned_is_checked():
    with pytest.raises(ValueError, match="'narrator' is no role to learn or speak; choose from user, assistant"):
        read_recipe("dialogue", ["task.learn=[narrator]"])
    with pytest.raises(ValueError, match="task.learn names nobody"):
        read_recipe("dialogue", ["task.learn=[]"])


def built(tmp_path, file, *changes):
    recipe, inputs = arranged(read_recipe("dialogue", ["tokenizer.vocab=300", *changes]), [file])
    data = prepare(inputs, recipe.data, recipe.tokenizer, cache=tmp_path / "cache", specials=recipe.task.specials)
    fitted = recipe.fitted(data)
    return fitted, data, fitted.task.build(data, Settings(max_length=recipe.data.max_length))


def test_a_dialogue_stays_in_one_split(tmp_path):
    _, data, _ = built(tmp_path, talks(tmp_path / "t.jsonl", count=300), "data.held_out=60")
    keys = {split: {row[2] for row in data.texts(split)} for split in ("valid", "test")}
    trained = {bytes(row.astype("uint8").tobytes()).decode() for row in data.store("train").rows(2, range(data.facts["rows"]["train"]))}  # noqa: E501  # fmt: skip
    assert all(keys.values()) and trained
    assert not keys["valid"] & keys["test"] and not trained & (keys["valid"] | keys["test"])


def test_training_reads_what_a_chat_reads_and_learns_the_reply_alone(tmp_path):
    _, data, task = built(tmp_path, talks(tmp_path / "t.jsonl"), "data.max_length=23", "tokenizer.kind=character")
    lines = rows(tmp_path / "t.jsonl")
    batch = task.collate(torch.arange(3).numpy())
    chatter = Chatter.__new__(Chatter)  # the prompt needs no model
    from heedful.text.chat import Chat

    chatter.chat, tokenizer, dropped = Chat(data.tokenizers[0]), data.tokenizers[0], 0
    for row in range(3):
        asked = json.loads(lines[row].texts[0])
        prompt = chatter.chat.prompt(asked["messages"], limit=23)
        dropped += prompt.dropped
        reply = [*tokenizer.encode([lines[row].texts[1]])[0], tokenizer.eos]
        assert batch.pair.source[row, batch.pair.source_valid[row]].tolist() == [*prompt.tokens, tokenizer.eos]
        assert batch.wanted[row, batch.learned[row]].tolist() == reply
        assert batch.tokens[row, : len(prompt.tokens)].tolist() == prompt.tokens
        assert batch.counts == {"tokens": int(batch.learned.sum())}
    assert dropped and data.facts["cut"] and "oldest messages are left out" in task.notes[0]


def test_the_loss_is_that_of_transformers_where_only_the_reply_has_labels(tmp_path):
    transformers = pytest.importorskip("transformers")
    from heedful.exchange.hugging_face import load

    _, data, task = built(tmp_path, talks(tmp_path / "t.jsonl"))
    vocab = data.tokenizers[0].vocab
    torch.manual_seed(5)
    theirs = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=vocab, n_positions=67, n_embd=44, n_layer=2, n_head=4,
                                resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    )  # fmt: skip
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    theirs.save_pretrained(tmp_path / "gpt2")
    ours = load(tmp_path / "gpt2").model.train()
    batch = task.collate(torch.arange(7).numpy())
    term = task.loss(ours, batch, state={}).terms["tokens"]
    (term.total / term.count).backward()
    # Their labels are the inputs, shifted by them: what we predict at a place they want one place later.
    ids = torch.cat([batch.tokens, torch.zeros(7, 1, dtype=torch.long)], 1)
    labels = torch.full_like(ids, -100)
    ids[:, 1:][batch.learned] = labels[:, 1:][batch.learned] = batch.wanted[batch.learned]
    wanted = theirs.train()(ids, labels=labels).loss
    wanted.backward()
    assert float(term.total / term.count) == pytest.approx(float(wanted), rel=1e-5)
    (grad,) = [one.grad for one in ours.parameters() if one.shape == (vocab, 44)]
    assert torch.allclose(grad, theirs.transformer.wte.weight.grad, atol=2e-5)


@pytest.mark.parametrize("changes", [[], CODER], ids=["language model", "encoder-decoder"])
def test_it_learns_to_reply_and_remembers_what_was_said(tmp_path, monkeypatch, changes):
    monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path / "cache"))
    size = {"model.width": 32, "model.decoder.layers": 1, "model.decoder.attention.heads": 4, "initialise": "xavier"}
    size |= {"model.decoder.dropout": 0.0, "model.decoder.attention.dropout": 0.0}
    size |= {"model.encoder.layers": 1, "model.encoder.dropout": 0.0} if changes else {}
    keys = {"training.steps": 100, "training.warmup": 10, "training.learning_rate": 0.01, "training.batch_tokens": 400,
            "training.validate_every": 100, "training.save_every": 100, "tokenizer.kind": "word"}  # fmt: skip
    named = dict(change.split("=") for change in changes)
    file, valid = talks(tmp_path / "t.jsonl", count=150), [talks(tmp_path / "v.jsonl", 20, seed=1)]
    changed = {**named, **size, **keys}
    chatter = heedful.train(file, out=tmp_path / "out", recipe="dialogue", valid=valid, changes=changed)
    assert isinstance(chatter, Chatter) and isinstance(chatter.generator, Generator)
    for colour, thing in ANSWERS.items():
        talk = [{"role": "user", "content": f"{colour} 3"}]
        assert chatter.reply(talk).text == thing
        talk += [{"role": "assistant", "content": thing}, {"role": "user", "content": "again"}]
        assert chatter.reply(talk).text == thing  # which only the first message tells
        assert chatter.predict([f"{colour} 3\t{thing}\tagain"])[0]["text"] == thing
    heard = []
    found = chatter.reply(talk, heedful.GenerationConfig(do_sample=True, top_k=1), lambda row, piece: heard.append(piece.text) or True)  # noqa: E501  # fmt: skip
    assert "".join(heard).strip() == found.text and found.stopped == "stop"
    test = written(tmp_path / "test.jsonl", {"messages": [*talk, {"role": "assistant", "content": thing}]})
    figures = DialogueConfig(kind="dialogue").figures(chatter, test, heedful.GenerationConfig(num_beams=1))
    assert figures["replies"] == 2 and figures["perplexity"] < 1.5 and figures["distinct-1"] == 50


def test_distinct_counts_different_words_and_pairs():
    assert distinct(["a b a b", "a b"], 1) == 2 / 6
    assert distinct(["a b a b", "a b"], 2) == 2 / 4
    assert distinct([""], 1) == 0
