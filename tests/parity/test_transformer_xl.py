"""Transformer-XL against transformers' XLNet with attn_type "uni", which is Transformer-XL: states and gradients, with
padding, over two segments with a memory, with and without clamped distances; at primes, and at sizes of our kernels."""

import pytest
import torch

hf = pytest.importorskip("transformers")

from safetensors.torch import load_file  # noqa: E402

from heedful.exchange.hugging_face import load, save  # noqa: E402
from heedful.families import preset  # noqa: E402
from heedful.model.architecture.decoder_only import DecoderOnlyConfig  # noqa: E402
from heedful.model.architecture.encoder_only import EncoderOnlyConfig  # noqa: E402
from heedful.model.create import create  # noqa: E402

VOCAB, BATCH, FIRST, SECOND, MEMORY, LAYERS = 53, 3, 11, 7, 5, 2
SIZES = {"primes": (30, 5, 17), "kernels": (64, 4, 48)}  # width, heads, hidden


def theirs(size, *, clamp, attention="uni"):
    width, heads, hidden = SIZES[size]
    config = hf.XLNetConfig(
        vocab_size=VOCAB,
        d_model=width,
        n_layer=LAYERS,
        n_head=heads,
        d_inner=hidden,
        attn_type=attention,
        ff_activation="relu",
        mem_len=MEMORY,
        clamp_len=clamp or -1,
        dropout=0.0,
        layer_norm_eps=1e-5,
        use_mems_train=True,
    )
    torch.manual_seed(7)
    model = hf.XLNetModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.25)
    return model.eval()


def stack(size, *, clamp):
    _, heads, hidden = SIZES[size]
    return {
        "layers": LAYERS,
        "attention": {
            "heads": heads,
            "bias": False,
            "output_bias": False,
            "mix": {"kind": "transformer_xl", "clamp": clamp},
        },
        "feedforward": {"hidden": hidden, "activation": "relu"},
        "norm": {"eps": 1e-5},
        "position": "none",
        "placement": "post",
        "dropout": 0.0,
    }


def ours(size, *, clamp, their):
    config = DecoderOnlyConfig(vocab=VOCAB, width=SIZES[size][0], decoder=stack(size, clamp=clamp))
    return filled(create(config).eval(), "decoder", their)


def filled(model, name, their):
    """Our model with their weights."""
    pairs = matched(model, name, dict(their.named_parameters()))
    with torch.no_grad():
        for parameter, tensor in pairs.values():
            parameter.copy_(tensor)
    return model


def matched(model, stack_name, tensors):
    """{name of ours: (our parameter, the tensor of theirs that it stands for, in our layout)}"""
    width = model.config.width
    found = {"embedding": (model.embedding.weight, tensors["word_embedding.weight"])}

    def rows(tensor):
        return tensor.reshape(width, -1).T

    for index, layer in enumerate(getattr(model, stack_name).layers):
        at = f"layer.{index}."
        attention, mix = layer.attention, layer.attention.mix
        fused = torch.cat([rows(tensors[f"{at}rel_attn.{part}"]) for part in "qkv"])
        found |= {
            f"{index}.qkv": (attention.query_key_value.weight, fused),
            f"{index}.output": (attention.output.weight, tensors[f"{at}rel_attn.o"].reshape(width, -1)),
            f"{index}.distance": (mix.distance.weight, rows(tensors[f"{at}rel_attn.r"])),
            f"{index}.content": (mix.content, tensors[f"{at}rel_attn.r_w_bias"][:, None]),
            f"{index}.place": (mix.place, tensors[f"{at}rel_attn.r_r_bias"][:, None]),
        }
        for our, their in (
            (layer.attention_residual.norm, "rel_attn.layer_norm"),
            (layer.feedforward.input, "ff.layer_1"),
            (layer.feedforward.output, "ff.layer_2"),
            (layer.feedforward_residual.norm, "ff.layer_norm"),
        ):
            for leaf in ("weight", "bias"):
                found[f"{index}.{their}.{leaf}"] = (getattr(our, leaf), tensors[f"{at}{their}.{leaf}"])
    return found


def same_gradients(model, name, their):
    gradients = {key: parameter.grad for key, parameter in their.named_parameters() if parameter.grad is not None}
    for key, (parameter, gradient) in matched(model, name, gradients).items():
        torch.testing.assert_close(parameter.grad, gradient, atol=2e-4, rtol=2e-4, msg=key)


def text(length, seed=0):
    return torch.randint(0, VOCAB, (BATCH, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("clamp", [None, 4])
def test_two_segments_equal_xlnet_in_states_and_gradients(size, clamp):
    """The gradient of the second segment's loss: through the memory it reaches W_k and W_v, not the first segment."""
    their = theirs(size, clamp=clamp)
    model = ours(size, clamp=clamp, their=their)
    first, second = text(FIRST), text(SECOND, seed=1)
    memory = model.new_memory(MEMORY)
    mine = [model.decode(part, cache=memory) for part in (first, second)]
    begun = their(first, use_mems=True)
    went_on = their(second, mems=begun.mems, use_mems=True)
    torch.testing.assert_close(mine[0], begun.last_hidden_state, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(mine[1], went_on.last_hidden_state, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(memory.state(), torch.stack(went_on.mems).transpose(1, 2), atol=2e-5, rtol=1e-4)
    weight = torch.randn(mine[1].shape, generator=torch.Generator().manual_seed(3))
    (mine[1] * weight).sum().backward()
    (went_on.last_hidden_state * weight).sum().backward()
    same_gradients(model, "decoder", their)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("clamp", [None, 4])
@pytest.mark.parametrize("side", ["left", "right", "middle"])
@pytest.mark.parametrize("attention", ["uni", "bi"])
def test_padding_equals_xlnet(size, clamp, side, attention):
    """Of an encoder too, where distances are negative as well: that is XLNet itself, without its segments."""
    their = theirs(size, clamp=clamp, attention=attention)
    if attention == "uni":
        model, name = ours(size, clamp=clamp, their=their), "decoder"
    else:
        config = EncoderOnlyConfig(vocab=VOCAB, width=SIZES[size][0], encoder=stack(size, clamp=clamp))
        model, name = filled(create(config).eval(), "encoder", their), "encoder"
    tokens = text(FIRST)
    valid = torch.ones_like(tokens, dtype=torch.bool)
    places = {"left": slice(0, 3), "right": slice(8, FIRST), "middle": slice(4, 6)}[side]
    valid[1, places] = False
    states = model.decode(tokens, valid=valid) if attention == "uni" else model(tokens, valid=valid)
    # Row by row: with "uni" and padding, theirs takes no larger batch (its masks do not broadcast).
    rows = [their(tokens[[row]], attention_mask=valid[[row]].float()).last_hidden_state for row in range(BATCH)]
    wanted = torch.cat(rows)
    torch.testing.assert_close(states[valid], wanted[valid], atol=2e-5, rtol=1e-4)
    weight = torch.randn(states.shape, generator=torch.Generator().manual_seed(3)) * valid[..., None]
    (states * weight).sum().backward()
    (wanted * weight).sum().backward()
    same_gradients(model, name, their)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("clamp", [None, 4])
@torch.no_grad()
def test_their_folder_opens_here_and_ours_there(size, clamp, tmp_path):
    body = theirs(size, clamp=clamp)
    their = hf.XLNetLMHeadModel(body.config).eval()
    for parameter in their.parameters():
        parameter.normal_(std=0.25)
    their.save_pretrained(tmp_path / "theirs")
    opened = load(tmp_path / "theirs")
    assert opened.family == "xlnet" and not opened.left_out
    model = opened.model.eval()
    first, second = text(FIRST), text(SECOND, seed=1)
    memory = model.new_memory(MEMORY, states=False)
    begun = their(first)
    for mine, wanted in (
        (model(first, cache=memory), begun),
        (model(second, cache=memory), their(second, mems=begun.mems)),
    ):
        torch.testing.assert_close(mine, wanted.logits, atol=1e-4, rtol=1e-4)
    save(model, tmp_path / "ours", "xlnet", details=opened.details)
    assert (tmp_path / "ours" / "config.json").read_text() == (tmp_path / "theirs" / "config.json").read_text()
    back = hf.XLNetLMHeadModel.from_pretrained(tmp_path / "ours").eval()
    torch.testing.assert_close(back(first).logits, begun.logits)
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "ours"))
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert ("seg" in name or "r_s" in name or "mask" in name) or torch.equal(tensor, after[name]), name


def test_xlnet_itself_and_other_attentions_are_refused(tmp_path):
    theirs("primes", clamp=None, attention="bi").save_pretrained(tmp_path / "bi")
    with pytest.raises(
        ValueError, match="XLNet with attn_type=bi predicts words in permuted orders, which is not known"
    ):
        load(tmp_path / "bi")
    with pytest.raises(ValueError, match="XLNet has attention transformer_xl, not softmax"):
        save(create(preset("gpt2").model_copy(update={"width": 12, "vocab": 5})), tmp_path / "other", "xlnet")


def test_a_bare_model_opens_without_its_head(tmp_path):
    their = theirs("primes", clamp=None)
    their.save_pretrained(tmp_path / "bare")
    model = load(tmp_path / "bare").model.eval()
    torch.testing.assert_close(model.decode(text(FIRST)), their(text(FIRST)).last_hidden_state, atol=2e-5, rtol=1e-4)
