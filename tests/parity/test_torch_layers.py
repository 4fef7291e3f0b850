"""Our layers against torch's own, with the same weights: value and gradient."""

import pytest
import torch
from torch import nn

from heedful.model.mask import Mask
from heedful.model.sight import Sight
from heedful.model.stack import StackShape
from heedful.model.stack.transformer import TransformerConfig, _build_layer

BATCH, SOURCE, TARGET = 3, 17, 11
# width, heads, hidden: distinct primes and their products, and sizes that enter our kernels
sizes = pytest.mark.parametrize(("width", "heads", "hidden"), [(35, 5, 17), (64, 2, 48)])


def layer(placement, activation, *, cross, width, heads, hidden):
    config = TransformerConfig(
        layers=1,
        attention={"heads": heads},
        feedforward={"hidden": hidden, "activation": activation},
        placement=placement,
        dropout=0.0,
    )
    return _build_layer(config, StackShape(width, width, causal=cross, cross=cross), 0)


def copy_attention(ours, theirs, *, cross=False):
    width = theirs.embed_dim
    if cross:
        ours.query.weight.copy_(theirs.in_proj_weight[:width])
        ours.query.bias.copy_(theirs.in_proj_bias[:width])
        ours.key_value.weight.copy_(theirs.in_proj_weight[width:])
        ours.key_value.bias.copy_(theirs.in_proj_bias[width:])
    else:
        ours.query_key_value.weight.copy_(theirs.in_proj_weight)
        ours.query_key_value.bias.copy_(theirs.in_proj_bias)
    ours.output.load_state_dict(theirs.out_proj.state_dict())


@torch.no_grad()
def shake(module):
    for parameter in module.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.2)


@sizes
@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_encoder_layer(placement, activation, width, heads, hidden):
    torch.manual_seed(0)
    theirs = nn.TransformerEncoderLayer(
        width, heads, hidden, dropout=0.0, activation=activation, batch_first=True, norm_first=placement == "pre"
    )
    shake(theirs)
    ours = layer(placement, activation, cross=False, width=width, heads=heads, hidden=hidden)
    with torch.no_grad():
        copy_attention(ours.attention, theirs.self_attn)
    ours.attention_residual.norm.load_state_dict(theirs.norm1.state_dict())
    ours.feedforward_residual.norm.load_state_dict(theirs.norm2.state_dict())
    ours.feedforward.input.load_state_dict(theirs.linear1.state_dict())
    ours.feedforward.output.load_state_dict(theirs.linear2.state_dict())
    valid = torch.arange(SOURCE) < torch.tensor([[SOURCE], [13], [2]])
    first = torch.randn(BATCH, SOURCE, width, requires_grad=True)
    second = first.detach().clone().requires_grad_()
    expected = theirs(first, src_key_padding_mask=~valid)
    found = ours(second, sight=Sight(Mask(key_valid=valid)))
    compare(found, expected, second, first, valid, ours, theirs)


@sizes
@pytest.mark.parametrize("placement", ["pre", "post"])
def test_decoder_layer(placement, width, heads, hidden):
    torch.manual_seed(0)
    theirs = nn.TransformerDecoderLayer(
        width, heads, hidden, dropout=0.0, batch_first=True, norm_first=placement == "pre"
    )
    shake(theirs)
    ours = layer(placement, "relu", cross=True, width=width, heads=heads, hidden=hidden)
    with torch.no_grad():
        copy_attention(ours.attention, theirs.self_attn)
        copy_attention(ours.cross, theirs.multihead_attn, cross=True)
    for name, norm in (("attention", theirs.norm1), ("cross", theirs.norm2), ("feedforward", theirs.norm3)):
        getattr(ours, f"{name}_residual").norm.load_state_dict(norm.state_dict())
    ours.feedforward.input.load_state_dict(theirs.linear1.state_dict())
    ours.feedforward.output.load_state_dict(theirs.linear2.state_dict())
    valid = torch.arange(SOURCE) < torch.tensor([[SOURCE], [13], [2]])
    memory = torch.randn(BATCH, SOURCE, width)
    first = torch.randn(BATCH, TARGET, width, requires_grad=True)
    second = first.detach().clone().requires_grad_()
    causal = nn.Transformer.generate_square_subsequent_mask(TARGET)
    expected = theirs(first, memory, tgt_mask=causal, tgt_is_causal=True, memory_key_padding_mask=~valid)
    found = ours(
        second,
        sight=Sight(Mask(causal=True)),
        memory=ours.cross.read(memory),
        memory_sight=Sight(Mask(key_valid=valid)),
    )
    compare(found, expected, second, first, torch.ones(BATCH, TARGET, dtype=torch.bool), ours, theirs)


def compare(found, expected, our_input, their_input, real, ours, theirs):
    assert torch.allclose(found[real], expected[real], atol=1e-5)
    found[real].square().mean().backward()
    expected[real].square().mean().backward()
    assert torch.allclose(our_input.grad, their_input.grad, atol=1e-4, rtol=1e-4)
    assert torch.allclose(
        ours.attention.query_key_value.weight.grad, theirs.self_attn.in_proj_weight.grad, atol=1e-3, rtol=1e-4
    )
    assert torch.allclose(ours.feedforward.input.weight.grad, theirs.linear1.weight.grad, atol=1e-3, rtol=1e-4)
