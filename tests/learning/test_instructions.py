"""Instructions are learned in seconds: what to answer, and when to stop."""

import pytest

import heedful
from heedful.chatter import Chatter
from heedful.tasks.instructions import InstructionsConfig
from tests.tasks.test_dialogue import written
from tests.tasks.test_instructions import COLOURS

SIZE = {
    "model.width": 32, "model.decoder.layers": 1, "model.decoder.attention.heads": 4, "initialise": "xavier",
    "model.decoder.dropout": 0, "model.decoder.attention.dropout": 0, "data.max_length": 23, "tokenizer.kind": "word",
    "training.steps": 150, "training.warmup": 10, "training.learning_rate": 0.01, "training.batch_tokens": 400,
    "training.validate_every": 150, "training.save_every": 150,
}  # fmt: skip
CODER = {
    "model.preset": "vaswani-tiny", "model.encoder.placement": "pre", "model.encoder.layers": 1,
    "model.decoder.placement": "pre", "model.encoder.dropout": 0,
}  # fmt: skip


@pytest.mark.parametrize("changes", [{"task.pack": True}, CODER], ids=["packed", "encoder-decoder"])
def test_it_learns_to_answer_and_to_stop(tmp_path, monkeypatch, changes):
    monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path / "cache"))
    rows = [
        {"instruction": f"{verb} {thing} {number}", "output": " ".join([colour] * count)}
        for number in range(40)
        for thing, colour in COLOURS.items()
        for verb, count in (("say", 1), ("repeat", 3))
    ]
    file = written(tmp_path / "i.jsonl", *rows)
    chatter = heedful.train(file, out=tmp_path / "out", recipe="instruct", changes={**changes, **SIZE})
    assert isinstance(chatter, Chatter)
    for thing, colour in COLOURS.items():
        for verb, count in (("say", 1), ("repeat", 3)):
            reply = chatter.reply([{"role": "user", "content": f"{verb} {thing} 7"}])
            assert (reply.text, reply.stopped) == (" ".join([colour] * count), "stop")
    config = InstructionsConfig(kind="instructions")
    found = config.figures(chatter, tmp_path / "out" / "test.jsonl", heedful.GenerationConfig(num_beams=1))
    assert found["replies"] > 10 and found["perplexity"] < 1.3 and found["replies cut off by the length limit"] == 0
