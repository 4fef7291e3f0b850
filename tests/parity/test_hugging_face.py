"""Every family against transformers: tiny random models, same logits, same gradients, same greedy continuation, and
their folder -> ours -> their folder gives back the same files."""

import json
from itertools import pairwise

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file

from heedful.exchange.hugging_face import _to_ours, load, save
from heedful.families import family, their_names
from heedful.families.vaswani import vaswani
from heedful.model.create import create

VOCAB, BATCH, SOURCE, TARGET = 53, 3, 7, 11

TWO_STACKS = {
    "d_model": 30,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 5,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 17,
    "decoder_ffn_dim": 19,
    "vocab_size": VOCAB,
    "max_position_embeddings": 41,
    "pad_token_id": 0,
    "decoder_start_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "forced_eos_token_id": None,
}
T5 = {
    "vocab_size": VOCAB,
    "d_model": 30,
    "d_kv": 7,
    "d_ff": 17,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 5,
}
ONE_STACK = {
    "vocab_size": VOCAB,
    "hidden_size": 30,
    "num_hidden_layers": 3,
    "num_attention_heads": 5,
    "intermediate_size": 17,
    "max_position_embeddings": 41,
}
LLAMA = {**ONE_STACK, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
ROPE_3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}

# Sizes that enter our kernels: heads of 16, widths that are multiples of it; 3 x 11 target tokens are rows enough.
WIDE_STACKS = {
    **TWO_STACKS,
    "d_model": 64,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 80,
}
WIDE_T5 = {**T5, "d_model": 64, "d_kv": 16, "d_ff": 48, "num_heads": 4}
WIDE_STACK = {**ONE_STACK, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 48}

SEQ2SEQ = {
    "marian-kernels": lambda: hf.MarianMTModel(
        hf.MarianConfig(**WIDE_STACKS, scale_embedding=True, activation_function="relu")
    ),
    "bart-kernels": lambda: hf.BartForConditionalGeneration(hf.BartConfig(**WIDE_STACKS)),
    "t5-kernels": lambda: hf.T5ForConditionalGeneration(hf.T5Config(**WIDE_T5, decoder_start_token_id=0)),
    "marian": lambda: hf.MarianMTModel(hf.MarianConfig(**TWO_STACKS, scale_embedding=True, activation_function="relu")),
    "marian-two-vocabularies": lambda: hf.MarianMTModel(
        hf.MarianConfig(**TWO_STACKS, decoder_vocab_size=VOCAB + 2, share_encoder_decoder_embeddings=False)
    ),
    "bart": lambda: hf.BartForConditionalGeneration(hf.BartConfig(**TWO_STACKS)),
    "mbart": lambda: hf.MBartForConditionalGeneration(hf.MBartConfig(**TWO_STACKS)),
    "mbart-kernels": lambda: hf.MBartForConditionalGeneration(hf.MBartConfig(**WIDE_STACKS, scale_embedding=True)),
    "t5": lambda: hf.T5ForConditionalGeneration(hf.T5Config(**T5, decoder_start_token_id=0)),
    "t5-v1.1": lambda: hf.T5ForConditionalGeneration(
        hf.T5Config(**T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False, decoder_start_token_id=0)
    ),
}
CAUSAL = {
    "gpt2-kernels": lambda: hf.GPT2LMHeadModel(
        hf.GPT2Config(vocab_size=VOCAB, n_embd=64, n_layer=3, n_head=4, n_positions=41, n_inner=48)
    ),
    "llama-kernels": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**WIDE_STACK)),
    "gpt2": lambda: hf.GPT2LMHeadModel(
        hf.GPT2Config(vocab_size=VOCAB, n_embd=30, n_layer=3, n_head=5, n_positions=41, n_inner=17)
    ),
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**LLAMA)),
    "llama-3-tied": lambda: hf.LlamaForCausalLM(
        hf.LlamaConfig(**LLAMA, rope_parameters=ROPE_3, tie_word_embeddings=True, attention_bias=True, head_dim=6)
    ),
}
PRETRAINED = {
    "bert-kernels": lambda: hf.BertForPreTraining(hf.BertConfig(**WIDE_STACK)),
    "bert": lambda: hf.BertForPreTraining(hf.BertConfig(**ONE_STACK)),
    "roberta": lambda: hf.RobertaForMaskedLM(hf.RobertaConfig(**ONE_STACK)),
    "albert": lambda: hf.AlbertForPreTraining(hf.AlbertConfig(**ONE_STACK, embedding_size=11)),
}
ENCODERS = [
    (config, getattr(hf, f"{name}{architecture}"), head, output)
    for name, config in (("Bert", hf.BertConfig), ("Roberta", hf.RobertaConfig), ("Albert", hf.AlbertConfig))
    for architecture, head, output in (
        ("Model", "pooler", "pooler_output"),
        ("ForMaskedLM", "masked_lm", "logits"),
        ("ForSequenceClassification", "sequence_classification", "logits"),
        ("ForTokenClassification", "token_classification", "logits"),
        ("ForQuestionAnswering", "answer_span", "start_logits"),
    )
]


def make(build, folder):
    """Their model with every weight random, biases and norms too, written to a folder; and ours, read from it."""
    torch.manual_seed(0)
    theirs = build().eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.requires_grad:  # Marian keeps its sinusoids as a frozen one
                parameter.add_(torch.randn_like(parameter) * 0.1)
        if hasattr(theirs, "final_logits_bias"):
            theirs.final_logits_bias.normal_()
    theirs.save_pretrained(folder)
    return theirs, load(folder)


def same_files(opened, before, after):
    save(opened.model, after, opened.family, details=opened.details)
    first, second = load_file(before / "model.safetensors"), load_file(after / "model.safetensors")
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name
    assert (before / "config.json").read_text() == (after / "config.json").read_text()


def same_gradients(theirs, opened):
    """Their gradients, put together as their weights would be, are ours."""
    known = family(opened.family)
    names = known.names(opened.model.config)
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for ours, parameter in opened.model.named_parameters():
        if ours == "head.bias":  # a buffer on their side
            continue
        pieces = [gradients[name] for name in their_names(ours, names)]
        expected = _to_ours(ours, pieces, parameter.shape, known)
        assert torch.allclose(parameter.grad, expected, atol=1e-4, rtol=1e-3), ours


def tokens(length, vocab=VOCAB, seed=0):
    return torch.randint(2, vocab, (BATCH, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", SEQ2SEQ)
def test_encoder_decoders(name, tmp_path):
    theirs, opened = make(SEQ2SEQ[name], tmp_path / "theirs")
    ours = opened.model.eval()
    source, target = tokens(SOURCE), tokens(TARGET, seed=1)
    valid = torch.arange(SOURCE) < torch.tensor([[SOURCE], [5], [2]])
    expected = theirs(input_ids=source, attention_mask=valid.long(), decoder_input_ids=target).logits
    found = ours(source, target, source_valid=valid)
    assert torch.allclose(found, expected, atol=1e-5, rtol=1e-5)
    expected.log_softmax(-1)[..., 3].sum().backward()
    found.log_softmax(-1)[..., 3].sum().backward()
    same_gradients(theirs, opened)
    same_files(opened, tmp_path / "theirs", tmp_path / "ours")

    start = torch.zeros(BATCH, 1, dtype=torch.long)
    greedy = {"max_new_tokens": TARGET, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    # Without their cache: in T5 it counts the encoder's layers where it means the decoder's.
    wanted = theirs.generate(input_ids=source, attention_mask=valid.long(), use_cache=False, **greedy)
    with torch.no_grad():
        memory, cache, written = ours.encode(source, valid=valid), ours.new_cache(4), start
        for _ in range(TARGET):
            states = ours.decode(written[:, -1:], memory, cache=cache)
            without = ours.decode(written, memory)[:, -1:]
            assert torch.allclose(states, without, atol=1e-4)
            written = torch.cat([written, ours.logits(states).argmax(-1)], dim=1)
    assert torch.equal(written, wanted)


@pytest.mark.parametrize("name", CAUSAL)
def test_decoder_only(name, tmp_path):
    theirs, opened = make(CAUSAL[name], tmp_path / "theirs")
    ours = opened.model.eval()
    text = tokens(TARGET)
    expected, found = theirs(input_ids=text).logits, ours(text)
    assert torch.allclose(found, expected, atol=1e-5, rtol=1e-5)
    expected.log_softmax(-1)[..., 3].sum().backward()
    found.log_softmax(-1)[..., 3].sum().backward()
    same_gradients(theirs, opened)
    same_files(opened, tmp_path / "theirs", tmp_path / "ours")

    greedy = {"max_new_tokens": 13, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    wanted = theirs.generate(input_ids=text, **greedy)
    with torch.no_grad():
        cached, plain, cache, new = text, text, ours.new_cache(4), text
        for _ in range(13):
            new = ours(new, cache=cache)[:, -1:].argmax(-1)
            cached = torch.cat([cached, new], dim=1)
            plain = torch.cat([plain, ours(plain)[:, -1:].argmax(-1)], dim=1)
    assert torch.equal(cached, wanted)
    assert torch.equal(plain, wanted)


@pytest.mark.parametrize("name", PRETRAINED)
def test_pretrained_encoders(name, tmp_path):
    theirs, opened = make(PRETRAINED[name], tmp_path / "theirs")
    ours = opened.model.eval()
    text = tokens(SOURCE)
    valid = torch.arange(SOURCE) < torch.tensor([[SOURCE], [5], [2]])
    text[~valid] = theirs.config.pad_token_id
    types = torch.randint(0, 2, text.shape)
    expected = theirs(input_ids=text, attention_mask=valid.long(), token_type_ids=types)
    logits = expected.logits if name == "roberta" else expected.prediction_logits
    states = ours(text, token_types=types, valid=valid)
    found = ours.predict("masked_lm", states)
    assert torch.allclose(found[valid], logits[valid], atol=1e-5, rtol=1e-5)
    first, second = logits[valid].log_softmax(-1)[..., 3].sum(), found[valid].log_softmax(-1)[..., 3].sum()
    if name != "roberta":
        wanted = expected.seq_relationship_logits if name.startswith("bert") else expected.sop_logits
        sentence = ours.predict("next_sentence", states)
        assert torch.allclose(sentence, wanted, atol=1e-5, rtol=1e-5)
        first, second = first + wanted[:, 0].sum(), second + sentence[:, 0].sum()
    first.backward()
    second.backward()
    same_gradients(theirs, opened)
    same_files(opened, tmp_path / "theirs", tmp_path / "ours")


@pytest.mark.parametrize(
    ("config", "model", "head", "output"), ENCODERS, ids=lambda value: getattr(value, "__name__", "")
)
def test_heads_of_encoders(config, model, head, output, tmp_path):
    sizes = {**ONE_STACK, "embedding_size": 11} if config is hf.AlbertConfig else ONE_STACK
    labels = 2 if head == "answer_span" else 4
    theirs, opened = make(lambda: model(config(**sizes, num_labels=labels)), tmp_path / "theirs")
    ours = opened.model.eval()
    text = tokens(SOURCE)
    with torch.no_grad():
        expected, states = theirs(input_ids=text), ours(text)
        found = ours.predict(head, states)
    wanted = getattr(expected, output)
    assert torch.allclose(found[..., 0] if head == "answer_span" else found, wanted, atol=1e-5, rtol=1e-5)
    same_files(opened, tmp_path / "theirs", tmp_path / "ours")


def test_a_model_of_the_paper_opens_as_marian(tmp_path):
    """Ours -> theirs -> ours: the sinusoids change their order, the function does not change."""
    torch.manual_seed(0)
    config = vaswani(vocab=VOCAB, width=30, hidden=17, heads=5, layers=2, dropout=0.1)
    ours = create(config).eval()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    save(ours, tmp_path, "vaswani", details={"pad_token_id": 0, "decoder_start_token_id": 0})
    theirs = hf.MarianMTModel.from_pretrained(tmp_path).eval()
    source, target = tokens(SOURCE), tokens(TARGET, seed=1)
    with torch.no_grad():
        expected = ours(source, target)
        assert torch.allclose(theirs(input_ids=source, decoder_input_ids=target).logits, expected, atol=1e-5, rtol=1e-5)
        again = load(tmp_path).model.eval()
        assert torch.allclose(again(source, target), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "t5", "llama"])
def test_shards_are_read(name, tmp_path):
    theirs, opened = make({**CAUSAL, **SEQ2SEQ}[name], tmp_path / "whole")
    theirs.save_pretrained(tmp_path / "shards", max_shard_size="9KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    sharded = load(tmp_path / "shards").model
    for (name, first), second in zip(opened.model.named_parameters(), sharded.parameters(), strict=True):
        assert torch.equal(first, second), name


def test_an_output_matrix_of_its_own_survives(tmp_path):
    """T5 v1.1 as published: the file holds lm_head.weight, and it is not the table of embeddings."""
    _, opened = make(SEQ2SEQ["t5-v1.1"], tmp_path / "tied")
    model = create(opened.model.config.model_copy(update={"tie": "inputs"})).eval()
    save(model, tmp_path / "own", "t5", details=opened.details)
    assert "lm_head.weight" in load_file(tmp_path / "own" / "model.safetensors")
    again = load(tmp_path / "own").model.eval()
    assert again.config.tie == "inputs"
    with torch.no_grad():
        source, target = tokens(SOURCE), tokens(TARGET)
        assert torch.equal(again(source, target), model(source, target))


def test_old_spellings_are_understood(tmp_path):
    """gamma and beta in BERT's first files; no leading `transformer.` in GPT-2's; buffers that hold nothing."""
    from safetensors.torch import save_file

    _, opened = make(PRETRAINED["bert"], tmp_path / "bert")
    path = tmp_path / "bert" / "model.safetensors"
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in load_file(path).items()
    }
    old["cls.predictions.decoder.weight"] = old["bert.embeddings.word_embeddings.weight"].clone()
    old["bert.embeddings.position_ids"] = torch.arange(41)
    save_file(old, path)
    for (name, first), second in zip(
        opened.model.named_parameters(), load(tmp_path / "bert").model.parameters(), strict=True
    ):
        assert torch.equal(first, second), name

    _, opened = make(CAUSAL["gpt2"], tmp_path / "gpt2")
    path = tmp_path / "gpt2" / "model.safetensors"
    old = {name.removeprefix("transformer."): tensor for name, tensor in load_file(path).items()}
    old["h.0.attn.bias"] = torch.ones(1, 1, 41, 41)
    save_file(old, path)
    for (name, first), second in zip(
        opened.model.named_parameters(), load(tmp_path / "gpt2").model.parameters(), strict=True
    ):
        assert torch.equal(first, second), name


def test_rope_is_read_in_both_spellings():
    old = {**LLAMA, "rope_theta": 500000.0, "rope_scaling": {k: v for k, v in ROPE_3.items() if k != "rope_theta"}}
    read = family("llama").read_config
    assert read(old, set()) == read({**LLAMA, "rope_parameters": ROPE_3}, set())


def test_every_family_has_a_name_for_every_weight():
    """Of every preset, however large: a missing name would show only when somebody saves that very model."""
    from heedful.config import kinds
    from heedful.model.create import layout

    for kind in kinds("families"):
        known = family(kind)
        for name, config in known.presets.items():
            weights = dict(layout(config).named_parameters())
            if known.convert is not None:
                config, weights = known.convert(config, {key: value.data for key, value in weights.items()})
            names = known.names(config)
            theirs = [their for ours in weights for their in their_names(ours, names)]
            assert len(theirs) == len(set(theirs)), name
            assert json.dumps(known.write_config(config))
            assert all(first != second for first, second in pairwise(sorted(theirs)))
