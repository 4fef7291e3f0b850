"""Alignments: read off the attention that the model really used, and right where the truth is known."""

import threading

import pytest
import torch

from heedful.alignment import Aligner, _links, _membership, _memberships, choose
from heedful.checkpoint import load_model
from heedful.data.inputs import Inputs
from heedful.data.prepare import load_tokenizers
from heedful.families.vaswani import vaswani
from heedful.model.create import create
from heedful.model.multihead import CrossAttention, SelfAttention
from heedful.model.record import recorded
from heedful.text.tokenizer import TokenizerConfig, train_tokenizer
from heedful.training.recipe import read_recipe
from heedful.training.run import train
from tests.corpora import pairs


def parts(folder):
    return load_model(folder).eval(), load_tokenizers(folder, columns=2)


def test_recorded_weights_are_those_the_model_used():
    """The weights, put to the values, give what the attention gave."""
    model = create(vaswani(vocab=31, width=24, hidden=20, heads=3, layers=2, dropout=0.1)).eval()
    source, target = torch.randint(0, 31, (2, 5)), torch.randint(0, 31, (2, 7))
    cross = model.decoder.layers[1].cross
    mixed = []
    hook = cross.mix.register_forward_hook(lambda module, inputs, output: mixed.append((inputs[2], output)))
    with torch.no_grad(), recorded(model, CrossAttention) as seen:
        model(source, target)
    hook.remove()
    assert [glance.name for glance in seen] == ["decoder.layers.0.cross", "decoder.layers.1.cross"]
    weights = seen[1].weights()
    assert torch.allclose(weights.sum(-1), torch.ones(2, 3, 7), atol=1e-5)
    ((value, output),) = mixed
    assert torch.allclose(weights @ value, output, atol=1e-5)


def test_recording_leaves_no_trace():
    model = create(vaswani(vocab=31, width=24, hidden=20, heads=3, layers=2, dropout=0.1)).eval()
    with recorded(model, SelfAttention) as seen, torch.no_grad():
        model(torch.zeros(1, 3, dtype=torch.long), torch.zeros(1, 3, dtype=torch.long))
    assert len(seen) == 4
    with torch.no_grad():
        model(torch.zeros(1, 3, dtype=torch.long), torch.zeros(1, 3, dtype=torch.long))
    assert len(seen) == 4


def test_what_other_threads_do_is_not_recorded():
    model = create(vaswani(vocab=31, width=24, hidden=20, heads=3, layers=2, dropout=0.1)).eval()
    source = torch.zeros(1, 3, dtype=torch.long)

    def elsewhere():
        with torch.no_grad():
            model(source, torch.zeros(1, 9, dtype=torch.long))

    with recorded(model, CrossAttention) as seen, torch.no_grad():
        other = threading.Thread(target=elsewhere)
        other.start()
        other.join()
        model(source, torch.zeros(1, 4, dtype=torch.long))
    assert [glance.query.shape[2] for glance in seen] == [4, 4]


def test_tokens_know_their_words():
    tokenizer = train_tokenizer(["one two three"] * 9, TokenizerConfig(kind="character"), vocab=400)
    assert _membership(tokenizer, "ab  c").tolist() == [[1, 0], [1, 0], [0, 0], [0, 0], [0, 1]]
    assert _membership(tokenizer, "").numel() == 0


def test_without_spaces_every_character_of_a_token_is_linked():
    tokenizer = train_tokenizer(["the dog", "小狗"] * 9, TokenizerConfig(kind="bpe"), vocab=400)
    assert [end - start for _, start, end in tokenizer.pieces("小狗")] == [2]
    assert _membership(tokenizer, "小狗").tolist() == [[0.5, 0.5]]
    weights = torch.tensor([[0.2, 0.7, 0.1]])  # the, dog, </s>
    assert _links(_memberships([tokenizer], ("the dog", "小狗")), weights) == [(1, 0), (1, 1)]


def test_a_model_that_reverses_aligns_in_reverse(tmp_path):
    """Letters become capitals, in reverse: the truth is known. Few heads see it; the chosen one must."""
    reverse = lambda text: " ".join(reversed(text.upper().split()))  # noqa: E731
    corpus = pairs(tmp_path / "p.tsv", 3000, longest=6, change=reverse)
    changes = ["model.width=64", "model.encoder.layers=2", "model.decoder.layers=2", "model.encoder.dropout=0",
               "model.decoder.dropout=0", "tokenizer.kind=word", "tokenizer.vocab=100", "training.batch_tokens=1024",
               "training.warmup=50", "training.schedule=linear", "training.steps=400", "training.validate_every=400",
               "training.samples=0", "training.average=false"]  # fmt: skip
    train(read_recipe("tiny", changes), Inputs((corpus,)), tmp_path / "run", cache=tmp_path / "cache")
    model, tokenizers, aligner = *parts(tmp_path / "run"), Aligner.load(tmp_path / "run")
    right = total = 0
    for text in ("a b c d e", "f g h", "j i h g", "b d f h j"):
        words = text.split()
        (links,) = aligner.align(model, tokenizers, [(text, reverse(text))])
        right += sum(source == len(words) - 1 - target for source, target in links)
        total += len(words)
    assert right / total > 0.8, (aligner, right, total)


def test_without_a_chosen_head_it_says_so(tmp_path):
    with pytest.raises(ValueError, match="has no alignment.json: no alignment head has been chosen"):
        Aligner.load(tmp_path)


def test_nothing_to_align_is_no_error(tmp_path):
    corpus = pairs(tmp_path / "p.tsv", 30)
    changes = ["model.width=16", "tokenizer.kind=character", "training.steps=2", "training.samples=0"]
    train(read_recipe("tiny", changes), Inputs((corpus,)), tmp_path / "run", cache=tmp_path / "cache")
    model, tokenizers = parts(tmp_path / "run")
    assert Aligner(0, 0).align(model, tokenizers, [("", "a"), ("a", "")]) == [[], []]
    assert choose(model, tokenizers, [], lexicon=[]) == Aligner(0, 0)
