"""Longformer, LED and BigBird folders of transformers: same states, same gradients, same files."""

import os

import numpy as np
import pytest
import torch
import transformers as hf

from heedful.exchange.hugging_face import load, save
from heedful.families import family
from heedful.model.attention import bigbird
from heedful.model.attention.bigbird import draw
from heedful.model.create import create
from tests.parity.test_hugging_face import (
    ONE_STACK,
    TWO_STACKS,
    WIDE_STACK,
    WIDE_STACKS,
    make,
    same_files,
    same_gradients,
)

os.environ.setdefault("HF_HUB_OFFLINE", "1")
VOCAB, LENGTH = 53, 29
LED = {"max_encoder_position_embeddings": 41, "max_decoder_position_embeddings": 23, "attention_window": [4, 8]}
BIRD = {"block_size": 4, "num_random_blocks": 2, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def text(length=LENGTH, batch=3, seed=0):
    return torch.randint(3, VOCAB, (batch, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("sizes", [ONE_STACK, WIDE_STACK], ids=["primes", "kernels"])
@pytest.mark.parametrize("marked", [False, True])
def test_longformer(sizes, marked, tmp_path):
    config = hf.LongformerConfig(**{**sizes, "attention_window": [4, 8, 4], "pad_token_id": 1})
    theirs, opened = make(lambda: hf.LongformerForMaskedLM(config), tmp_path / "theirs")
    ours = opened.model.eval()
    source = text()
    valid = torch.arange(LENGTH) < torch.tensor([[LENGTH], [17], [2]])
    source[~valid] = 1
    chosen = torch.zeros_like(valid)
    if marked:
        chosen[:, 0] = chosen[0, 9] = True
    expected = theirs(input_ids=source, attention_mask=valid.long(), global_attention_mask=chosen.long()).logits
    states = ours(source, valid=valid, global_tokens=chosen if marked else None)
    found = ours.predict("masked_lm", states)
    torch.testing.assert_close(found[valid], expected[valid], atol=2e-5, rtol=1e-4)
    expected[valid].log_softmax(-1)[..., 3].sum().backward()
    found[valid].log_softmax(-1)[..., 3].sum().backward()
    for name, parameter in theirs.named_parameters():
        if parameter.grad is None:  # without global tokens, nobody uses their projections
            assert not marked and "_global" in name
            parameter.grad = torch.zeros_like(parameter)
    same_gradients(theirs, opened)
    same_files(opened, tmp_path / "theirs", tmp_path / "ours")


def test_a_longformer_classifier_looks_at_everything_from_its_first_token(tmp_path):
    config = hf.LongformerConfig(**ONE_STACK, attention_window=4, pad_token_id=1, num_labels=4)
    theirs, opened = make(lambda: hf.LongformerForSequenceClassification(config), tmp_path / "theirs")
    ours = opened.model.eval()
    assert ours.config.encoder.attention.mix.first == 1
    with torch.no_grad():
        found = ours.predict("sequence_classification", ours(text()))
        expected = theirs(input_ids=text(), attention_mask=torch.ones(3, LENGTH)).logits
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)
    same_files(opened, tmp_path / "theirs", tmp_path / "ours")


@pytest.mark.parametrize("sizes", [TWO_STACKS, WIDE_STACKS], ids=["primes", "kernels"])
def test_led(sizes, tmp_path):
    unknown = ("max_position_embeddings", "forced_eos_token_id")
    sizes = {key: value for key, value in sizes.items() if key not in unknown}
    theirs, opened = make(lambda: hf.LEDForConditionalGeneration(hf.LEDConfig(**sizes, **LED)), tmp_path / "theirs")
    ours = opened.model.eval()
    source, target = text(), text(11, seed=1)
    valid = torch.arange(LENGTH) < torch.tensor([[LENGTH], [17], [2]])
    source[~valid] = 0
    expected = theirs(input_ids=source, attention_mask=valid.long(), decoder_input_ids=target).logits
    found = ours(source, target, source_valid=valid)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)
    expected.log_softmax(-1)[..., 3].sum().backward()
    found.log_softmax(-1)[..., 3].sum().backward()
    for name, parameter in theirs.named_parameters():
        if parameter.grad is None:
            assert "_global" in name
            parameter.grad = torch.zeros_like(parameter)
    same_gradients(theirs, opened)
    same_files(opened, tmp_path / "theirs", tmp_path / "ours")


@pytest.mark.parametrize("sizes", [ONE_STACK, WIDE_STACK], ids=["primes", "kernels"])
@pytest.mark.parametrize("options", [{}, {"rescale_embeddings": True, "use_bias": False}], ids=["plain", "rescaled"])
def test_bigbird_in_training_with_the_blocks_that_they_draw(sizes, options, tmp_path, monkeypatch):
    config = hf.BigBirdConfig(**{**sizes, "max_position_embeddings": 80}, **BIRD, **options)
    theirs, opened = make(lambda: hf.BigBirdForPreTraining(config), tmp_path / "theirs")
    same_files(opened, tmp_path / "theirs", tmp_path / "ours")
    theirs.train()
    ours, length, padded = opened.model.eval(), 67, 68

    def drawn(mix, blocks, heads, layer):
        attention = theirs.bert.encoder.layer[layer].attention.self
        attention.train()
        np.random.seed(layer)
        lengths, counts = attention._get_rand_attn_plan(padded, 4, 2)
        rows = attention._bigbird_block_rand_mask_with_head(padded, padded, 4, 4, heads, lengths, counts)
        slots = draw(mix, blocks, heads, layer)
        slots[:, 1:-1, -2:] = torch.tensor(np.stack(rows))
        return slots

    monkeypatch.setattr(bigbird, "draw", drawn)
    source = text(length)
    types = torch.randint(0, 2, source.shape, generator=torch.Generator().manual_seed(2))
    expected = theirs(input_ids=source, token_type_ids=types)
    states = ours(source, token_types=types)
    found = ours.predict("masked_lm", states)
    torch.testing.assert_close(found, expected.prediction_logits, atol=5e-5, rtol=1e-3)
    sentence = ours.predict("next_sentence", states)
    torch.testing.assert_close(sentence, expected.seq_relationship_logits, atol=5e-5, rtol=1e-3)
    pairs = (expected.prediction_logits, expected.seq_relationship_logits), (found, sentence)
    for words, label in pairs:
        (words.log_softmax(-1)[..., 3].mean() + label[:, 0].sum()).backward()
    same_gradients(theirs, opened)


def test_a_short_text_of_bigbird_is_full_attention_in_both(tmp_path):
    config = hf.BigBirdConfig(**ONE_STACK, **BIRD)
    theirs, opened = make(lambda: hf.BigBirdModel(config), tmp_path / "theirs")
    ours = opened.model.eval()
    with torch.no_grad():
        expected, states = theirs(input_ids=text(23)), ours(text(23))
        torch.testing.assert_close(states, expected.last_hidden_state, atol=2e-5, rtol=1e-4)
        torch.testing.assert_close(ours.predict("pooler", states), expected.pooler_output, atol=2e-5, rtol=1e-4)


def test_what_their_folders_cannot_hold_is_refused(tmp_path):
    config = family("big_bird").presets["bigbird-base"]
    small = config.model_copy(update={"width": 12, "vocab": 11})
    attention = small.encoder.attention.model_copy(update={"mix": bigbird.BigBirdConfig(seed=5)})
    small = small.model_copy(update={"encoder": small.encoder.model_copy(update={"attention": attention})})
    with pytest.raises(ValueError, match="big_bird cannot represent this model: it would lose encoder.att"):
        save(create(small), tmp_path, "big_bird")
    with pytest.raises(ValueError, match="the head sequence_classification of a Hugging Face big_bird"):
        hf.BigBirdForSequenceClassification(hf.BigBirdConfig(**ONE_STACK)).save_pretrained(tmp_path)
        load(tmp_path)
