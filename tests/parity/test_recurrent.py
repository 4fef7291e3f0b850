"""The recurrent and the convolutional stack against the equations of the papers, written out here, and against JoeyNMT
and Eole where `recurrent_oracles.sh` has put them; forward and gradient, with padding.

At two sizes: small primes, and one that enters our kernels.
"""

import importlib
import importlib.metadata
import math
import os
import sys
import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from heedful.model.mask import Mask
from heedful.model.sight import Sight
from heedful.model.stack import StackShape
from heedful.model.stack.convolutional import ConvolutionalConfig
from heedful.model.stack.recurrent import RecurrentConfig

FOLDER = os.environ.get("HEEDFUL_RECURRENT_ORACLES", "")
BATCH, SOURCE, TARGET, LAYERS = 3, 7, 5, 2
SIZES = {"primes": (14, 11), "kernels": (64, 32)}  # width (each direction 7: a prime), embedding
LENGTHS = torch.tensor([7, 5, 2])
VALID = torch.arange(SOURCE) < LENGTHS[:, None]
sizes = pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)


@pytest.fixture
def oracle(monkeypatch):
    """Imports a module of theirs."""
    if not FOLDER:
        pytest.skip("HEEDFUL_RECURRENT_ORACLES names no folder; see recurrent_oracles.sh")
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setitem(sys.modules, "importlib_metadata", importlib.metadata)
    for name, member in (("torch.utils.tensorboard", "SummaryWriter"), ("joeynmt.plotting", "plot_heatmap")):
        stand_in = types.ModuleType(name)
        setattr(stand_in, member, None)
        monkeypatch.setitem(sys.modules, name, stand_in)
    return importlib.import_module


def drawn(module, seed=0):
    """Weights large enough to matter, and so small that in wide layers rounding does not."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter) * (0.3 if parameter.shape[-1] < 32 else 0.15))
    return module


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def equal(first, second, tolerance=2e-5):
    scale = max(1.0, second.detach().abs().max().item())
    assert first.shape == second.shape
    assert (first - second).abs().max().item() <= tolerance * scale


def both(ours, theirs):
    """Outputs, and gradients of what both read: {name: (our input, their input)}."""
    (our_output, our_inputs), (their_output, their_inputs) = ours, theirs
    equal(our_output, their_output)
    weight = numbers(*our_output.shape, seed=99).detach()
    (our_output * weight).sum().backward()
    (their_output * weight).sum().backward()
    for one, other in zip(our_inputs, their_inputs, strict=True):
        equal(one.grad, other.grad)


# The equations of the papers.


def gru_step(cells, layer, x, h):
    """torch's: n = tanh(W x + r (U h + b)), h' = (1 - z) n + z h"""
    wx, wh = weights(cells, layer)
    r_x, z_x, n_x = (wx[0] @ x.T + wx[1][:, None]).T.chunk(3, -1)
    r_h, z_h, n_h = (wh[0] @ h.T + wh[1][:, None]).T.chunk(3, -1)
    r, z = torch.sigmoid(r_x + r_h), torch.sigmoid(z_x + z_h)
    return (1 - z) * torch.tanh(n_x + r * n_h) + z * h


def lstm_step(cells, layer, x, h, c):
    wx, wh = weights(cells, layer)
    i, f, g, o = (wx[0] @ x.T + wx[1][:, None] + wh[0] @ h.T + wh[1][:, None]).T.chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def weights(cells, layer):
    named = dict(cells.named_parameters())
    return [[named[f"{kind}_{side}_l{layer}"] for kind in ("weight", "bias")] for side in ("ih", "hh")]


@torch.no_grad()
@sizes
@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("attention", ["additive", "multiplicative", "dot", "none"])
@pytest.mark.parametrize("feeding", [False, True])
def test_a_recurrent_decoder_is_its_equations(size, cell, attention, feeding):
    width, embedding = size
    config = RecurrentConfig(layers=LAYERS, cell=cell, attention=attention, input_feeding=feeding, dropout=0.0)
    ours = drawn(config.build(StackShape(width, embedding, causal=True, cross=True)))
    h, x = numbers(BATCH, SOURCE, width), numbers(BATCH, TARGET, embedding, seed=1)
    found = ours(x, memory=ours.read(h, VALID))
    for row, length in enumerate(LENGTHS.tolist()):
        source = h[row, :length]
        ends = torch.cat([source[0], source[-1]])
        s = torch.tanh(ours.first.weight @ ends + ours.first.bias).view(LAYERS, width)
        c, y = s.clone(), torch.zeros(width)
        for step in range(TARGET):
            inner = torch.cat([x[row, step], y]) if feeding else x[row, step]
            for layer in range(LAYERS):
                if cell == "gru":
                    s[layer] = gru_step(ours.cells, layer, inner[None], s[layer][None])[0]
                else:
                    h_c = lstm_step(ours.cells, layer, inner[None], s[layer][None], c[layer][None])
                    s[layer], c[layer] = h_c[0][0], h_c[1][0]
                inner = s[layer]
            context = attended(ours, attention, s[-1], source, ends)
            y = torch.tanh(ours.readout.weight @ torch.cat([s[-1], context]) + ours.readout.bias)
            equal(found[row, step], y)


def attended(ours, attention, s, source, ends):
    if attention == "none":
        return torch.tanh(ours.context.weight @ ends + ours.context.bias)
    if attention == "additive":
        w, u, v = ours.attention.query.weight, ours.attention.key.weight, ours.attention.mix.vector[0]
        scores = torch.stack([v @ torch.tanh(w @ s + u @ h_j) for h_j in source])
    else:
        u = ours.attention.key.weight if attention == "multiplicative" else torch.eye(len(s))
        scores = torch.stack([s @ u @ h_j for h_j in source])
    return scores.softmax(0) @ source


@torch.no_grad()
@sizes
@pytest.mark.parametrize("kernel", [2, 3])
@pytest.mark.parametrize("scaled", [False, True])
def test_a_convolutional_decoder_is_its_equations(size, kernel, scaled):
    width, embedding = size
    config = ConvolutionalConfig(layers=LAYERS, kernel=kernel, scaled=scaled, dropout=0.0)
    ours = drawn(config.build(StackShape(width, embedding, causal=True, cross=True, source_width=embedding)))
    z, e, x = (
        numbers(BATCH, SOURCE, width),
        numbers(BATCH, SOURCE, embedding, seed=1),
        numbers(BATCH, TARGET, embedding),
    )
    found = ours(x, memory=ours.read(z, VALID, inputs=e))
    for row, length in enumerate(LENGTHS.tolist()):
        g = (x[row] + ours.position.weight[:TARGET]) @ ours.lift.weight.T + ours.lift.bias
        source = z[row, :length]
        combined = (source + e[row, :length] @ ours.source_lift.weight.T + ours.source_lift.bias) * math.sqrt(0.5)
        h = g
        for layer in ours.layers:
            weight = layer.convolution.weight.view(2 * width, kernel, width).transpose(1, 2)
            padded = F.pad(h.T[None], (kernel - 1, 0))
            a, b = F.conv1d(padded, weight, layer.convolution.bias)[0].chunk(2)
            y = (a * torch.sigmoid(b)).T  # target width
            d = y @ layer.attention.query.weight.T + layer.attention.query.bias + g
            weights_ = (d @ source.T / (math.sqrt(width) if scaled else 1.0)).softmax(-1)
            context = length * math.sqrt(1 / length) * (weights_ @ combined)
            h = ((y + context) * math.sqrt(0.5) + h) * math.sqrt(0.5)
        equal(found[row], h)


# Torch's own networks, wired by hand.


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@sizes
def test_an_encoder_is_torchs_network_over_each_text_alone(kind, size):
    width, embedding = size
    ours = drawn(RecurrentConfig(layers=LAYERS, cell=kind, dropout=0.0).build(StackShape(width, embedding)))
    theirs = {"gru": nn.GRU, "lstm": nn.LSTM}[kind](embedding, width // 2, LAYERS, batch_first=True, bidirectional=True)
    theirs.load_state_dict(ours.cells.state_dict())
    mine, x = numbers(BATCH, SOURCE, embedding), numbers(BATCH, SOURCE, embedding)
    alone = [F.pad(theirs(x[[row], :length])[0], (0, 0, 0, SOURCE - length)) for row, length in enumerate(LENGTHS)]
    both((ours(mine, valid=VALID), [mine, *ours.cells.parameters()]), (torch.cat(alone), [x, *theirs.parameters()]))


# Somebody else's code.


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("attention, theirs", [("additive", "bahdanau"), ("multiplicative", "luong")])
@pytest.mark.parametrize("feeding", [False, True])
@sizes
def test_encoder_and_decoder_equal_joeynmt(oracle, cell, attention, theirs, feeding, size):
    width, embedding = size
    encoders, decoders = oracle("joeynmt.encoders"), oracle("joeynmt.decoders")
    encoder = drawn(encoders.RecurrentEncoder(cell, width // 2, embedding, LAYERS))
    decoder = drawn(
        decoders.RecurrentDecoder(
            cell,
            emb_size=embedding,
            hidden_size=width,
            encoder=encoder,
            attention=theirs,
            num_layers=LAYERS,
            vocab_size=3,
            init_hidden="bridge",
            input_feeding=feeding,
        ),
        seed=1,
    )
    options = {"cell": cell, "layers": LAYERS, "dropout": 0.0}
    our_encoder = RecurrentConfig(**options).build(StackShape(width, embedding))
    config = RecurrentConfig(**options, attention=attention, input_feeding=feeding)
    ours = config.build(StackShape(width, embedding, causal=True, cross=True))
    our_encoder.cells.load_state_dict(encoder.rnn.state_dict())
    ours.cells.load_state_dict(decoder.rnn.state_dict())
    pairs = [(ours.readout.weight, decoder.att_vector_layer.weight), (ours.readout.bias, decoder.att_vector_layer.bias)]
    pairs.append((ours.attention.key.weight, decoder.attention.key_layer.weight))
    if attention == "additive":
        pairs.append((ours.attention.query.weight, decoder.attention.query_layer.weight))
        pairs.append((ours.attention.mix.vector, decoder.attention.energy_layer.weight))
    half = width // 2
    with torch.no_grad():
        for one, other in pairs:
            one.copy_(other)
        # They see the forward state of the last token and the backward state of the first, the same for all layers.
        first = ours.first.weight.zero_().view(LAYERS, width, 2 * width)
        first[..., width : width + half] = decoder.bridge_layer.weight[:, :half]
        first[..., half:width] = decoder.bridge_layer.weight[:, half:]
        ours.first.bias.copy_(decoder.bridge_layer.bias.repeat(LAYERS))
    sources = [numbers(BATCH, SOURCE, embedding) for _ in range(2)]
    targets = [numbers(BATCH, TARGET, embedding, seed=1) for _ in range(2)]
    output, last = encoder(sources[1], LENGTHS, VALID)
    _, _, _, found = decoder(targets[1], output, last, VALID[:, None], TARGET)
    states = our_encoder(sources[0], valid=VALID)
    mine = ours(targets[0], memory=ours.read(states, VALID))
    cells = [*our_encoder.cells.parameters(), *ours.cells.parameters()]
    their_cells = [*encoder.rnn.parameters(), *decoder.rnn.parameters()]
    both(
        (mine, [sources[0], targets[0], *cells, *(one for one, _ in pairs)]),
        (found, [sources[1], targets[1], *their_cells, *(other for _, other in pairs)]),
    )
    equal(ours.first.bias.grad.view(LAYERS, width).sum(0), decoder.bridge_layer.bias.grad)


def copied(convolution, theirs, kernel):
    """Their weight is g V / |V|: with g = |V| it is V."""
    with torch.no_grad():
        theirs.g.copy_(theirs.V.flatten(1).norm(dim=1))
        convolution.weight.copy_(theirs.V.transpose(1, 2).flatten(1))
        convolution.bias.copy_(theirs.b)


def gains(convolution):
    """The gradient of g: that of the weight, along the weight."""
    weight = convolution.weight
    return (weight.grad * weight).sum(1) / weight.detach().norm(dim=1)


@sizes
@pytest.mark.parametrize("kernel", [3, 5])
def test_a_convolutional_encoder_equals_eole(oracle, size, kernel):
    width = size[0]
    theirs = drawn(oracle("eole.utils.cnn_factory").StackedCNN(LAYERS, width, kernel, 0.0)).train()
    ours = ConvolutionalConfig(layers=LAYERS, kernel=kernel, position="none").build(StackShape(width, width)).eval()
    for layer, other in zip(ours.layers, theirs.layers, strict=True):
        copied(layer.convolution, other.conv, kernel)
    x, y = numbers(BATCH, SOURCE, width), numbers(BATCH, SOURCE, width)
    both(
        (ours(x), [x, *(layer.convolution.bias for layer in ours.layers)]),
        (theirs(y.transpose(1, 2)).transpose(1, 2), [y, *(layer.conv.b for layer in theirs.layers)]),
    )
    for layer, other in zip(ours.layers, theirs.layers, strict=True):
        equal(gains(layer.convolution), other.conv.g.grad)


@sizes
def test_a_convolutional_decoder_layer_equals_eole(oracle, size):
    """The causal convolution and the attention; how they are summed, Eole does differently."""
    width, kernel = size[0], 3
    gated = drawn(oracle("eole.utils.cnn_factory").GatedConv(width, kernel, 0.0, nopad=True)).train()
    looking = drawn(oracle("eole.modules.conv_multi_step_attention").ConvMultiStepAttention(width), seed=1)
    config = ConvolutionalConfig(layers=1, kernel=kernel, position="none", scaled=False)
    layer = config.build(StackShape(width, width, causal=True, cross=True)).layers[0].eval()
    copied(layer.convolution, gated.conv, kernel)
    layer.attention.query.load_state_dict(looking.linear_in.state_dict())
    (x, g, z, e), theirs = ([numbers(BATCH, n, width, seed=i) for i, n in enumerate((TARGET, TARGET, SOURCE, SOURCE))]
                            for _ in range(2))  # fmt: skip
    windows = layer.inputs(x, None, None).unfold(1, kernel, 1).transpose(2, 3).flatten(2)
    y = F.glu(layer.convolution(windows), dim=-1)
    sight = Sight(Mask(key_valid=VALID))
    context = layer.attention(y, memory=layer.attention.read(z, e), sight=sight, plus=g)
    padded = F.pad(theirs[0].transpose(1, 2), (kernel - 1, 0))
    out = gated(padded)
    found, _ = looking(theirs[1].transpose(1, 2), out, theirs[2], theirs[3], mask=~VALID[:, None])
    equal(y, out.transpose(1, 2))
    both(
        (context, [x, g, z, e, layer.convolution.bias, *layer.attention.query.parameters()]),
        (found.transpose(1, 2), [*theirs, gated.conv.b, *looking.linear_in.parameters()]),
    )
    equal(gains(layer.convolution), gated.conv.g.grad)
