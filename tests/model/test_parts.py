"""The small parts: feed-forward, norms, embeddings, ties, heads, first weights."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from heedful.model.architecture.decoder_only import DecoderOnlyConfig
from heedful.model.architecture.encoder_decoder import EncoderDecoderConfig
from heedful.model.architecture.encoder_only import EncoderOnlyConfig
from heedful.model.attention import MixConfig
from heedful.model.attention.reference import Reference
from heedful.model.create import create, layout
from heedful.model.feedforward import FeedForwardConfig
from heedful.model.heads import VocabularyConfig
from heedful.model.initialise import SCHEMES
from heedful.model.input.tokens import TokensConfig
from heedful.model.mask import Mask
from heedful.model.multihead import MultiHeadConfig, SelfAttention
from heedful.model.norm import NormConfig
from heedful.model.residual import Residual
from heedful.model.sight import Sight
from heedful.model.stack.transformer import TransformerConfig

WIDTH, HIDDEN, BATCH, LENGTH = 14, 23, 3, 11
SMALL = TransformerConfig(layers=2, attention={"heads": 2}, feedforward={"hidden": HIDDEN}, dropout=0.0)


def counted(model):
    return sum(parameter.numel() for parameter in model.parameters())


def test_gated_feed_forward_is_its_formula():
    for name, function in (("swiglu", F.silu), ("geglu", F.gelu), ("reglu", F.relu)):
        part = FeedForwardConfig(hidden=HIDDEN, activation=name, bias=False).build(WIDTH)
        gate, up = part.input.part_weights()
        x = torch.randn(BATCH, LENGTH, WIDTH)
        expected = (function(x @ gate.T) * (x @ up.T)) @ part.output.weight.T
        assert torch.allclose(part(x, mask=Mask()), expected, atol=1e-5)


def test_convolutional_feed_forward_equals_torchs_convolution():
    part = FeedForwardConfig(hidden=HIDDEN, kernel=3).build(WIDTH)
    first, second = nn.Conv1d(WIDTH, HIDDEN, 3, padding=1), nn.Conv1d(HIDDEN, WIDTH, 3, padding=1)
    for convolution, linear in ((first, part.input), (second, part.output)):
        linear.weight.data = convolution.weight.data.transpose(1, 2).flatten(1)
        linear.bias.data = convolution.bias.data
    x = torch.randn(BATCH, LENGTH, WIDTH)
    expected = second(first(x.mT).relu()).mT
    assert torch.allclose(part(x, mask=Mask()), expected, atol=1e-5)


def test_convolutional_feed_forward_sees_no_padding_and_no_other_text():
    part = FeedForwardConfig(hidden=HIDDEN, kernel=3).build(WIDTH)
    x = torch.randn(1, LENGTH, WIDTH)
    valid = (torch.arange(LENGTH) < 6)[None]
    alone = part(x[:, :6], mask=Mask())
    assert torch.allclose(part(x, mask=Mask(key_valid=valid))[:, :6], alone, atol=1e-6)
    segments = (torch.arange(LENGTH) >= 6).long()[None]
    packed = part(x, mask=Mask(segments=segments))
    assert torch.allclose(packed, torch.cat([alone, part(x[:, 6:], mask=Mask())], dim=1), atol=1e-6)


@pytest.mark.parametrize("activation", ["relu", "swiglu"])
@pytest.mark.parametrize("kernel", [1, 3])
def test_feed_forward_parameters_follow_the_formula(activation, kernel):
    config = FeedForwardConfig(hidden=HIDDEN, activation=activation, kernel=kernel)
    assert counted(config.build(WIDTH)) == config.parameters(WIDTH)


def test_norms_are_their_formulas():
    x = torch.randn(BATCH, WIDTH) * 3 + 1
    layer = NormConfig(eps=0.01).build(WIDTH)
    rms = NormConfig(kind="rms", eps=0.01).build(WIDTH)
    centred = x - x.mean(-1, keepdim=True)
    assert torch.allclose(layer(x), centred / (centred.square().mean(-1, keepdim=True) + 0.01).sqrt(), atol=1e-5)
    assert torch.allclose(rms(x), x / (x.square().mean(-1, keepdim=True) + 0.01).sqrt(), atol=1e-5)


def test_residual_placements_are_their_formulas():
    x, norm = torch.randn(BATCH, WIDTH), nn.LayerNorm(WIDTH)
    assert torch.equal(Residual(norm, placement="pre", dropout=0.0)(x, torch.sin), x + torch.sin(norm(x)))
    assert torch.equal(Residual(norm, placement="post", dropout=0.0)(x, torch.sin), norm(x + torch.sin(x)))


def test_dropout_acts_on_embeddings_and_sublayers_in_training_only():
    torch.manual_seed(0)
    stack = SMALL.model_copy(update={"dropout": 0.5})
    model = create(DecoderOnlyConfig(vocab=17, width=WIDTH, decoder=stack))
    text = torch.randint(0, 17, (BATCH, LENGTH))
    assert not torch.equal(model(text), model(text))
    model.eval()
    assert torch.equal(model(text), model(text))


def test_attention_dropout_drops_weights_in_training_only():
    attention = MultiHeadConfig(heads=2, dropout=0.5)
    for mix in ("softmax", "reference"):
        stack = SMALL.model_copy(update={"attention": attention.model_copy(update={"mix": mix_config(mix)})})
        model = create(EncoderOnlyConfig(vocab=17, width=WIDTH, encoder=stack))
        text = torch.randint(0, 17, (BATCH, LENGTH))
        assert not torch.equal(model(text), model(text))
        assert torch.equal(model.eval()(text), model(text))


def mix_config(kind):
    return MultiHeadConfig(mix=kind).mix


def test_embeddings_are_scaled_by_the_root_of_the_width():
    table = TokensConfig().build(vocab=17, width=WIDTH)
    assert torch.allclose(table.embed(torch.tensor([5])), table.weight[5] * math.sqrt(WIDTH))
    plain = TokensConfig(scale=False).build(vocab=17, width=WIDTH)
    assert torch.equal(plain.embed(torch.tensor([5]))[0], plain.weight[5])


@pytest.mark.parametrize("source_vocab", [None, 19])
@pytest.mark.parametrize("tie", ["all", "output", "inputs", "none"])
@pytest.mark.parametrize("embedding_width", [None, 6])
def test_ties_share_exactly_what_they_say(tie, source_vocab, embedding_width):
    if source_vocab and tie in ("all", "inputs"):
        pytest.skip("refused by the config")
    config = EncoderDecoderConfig(
        vocab=17,
        source_vocab=source_vocab,
        width=WIDTH,
        tie=tie,
        embedding=TokensConfig(width=embedding_width),
        encoder=SMALL,
        decoder=SMALL,
        head=VocabularyConfig(bias=True),
    )
    model = create(config)
    assert counted(model) == sum(config.parameters().values())
    tables = {"all": 1, "output": 2, "inputs": 2, "none": 3}[tie]
    found = [p for p in model.parameters() if p.ndim == 2 and p.shape[0] in (17, 19) and p.shape[1] in (WIDTH, 6)]
    assert len(found) == tables
    logits = model(torch.randint(0, source_vocab or 17, (BATCH, 7)), torch.randint(0, 17, (BATCH, LENGTH)))
    assert logits.shape == (BATCH, LENGTH, 17)


def test_all_layers_sharing_weights_count_once_and_act_each_time():
    shared = SMALL.model_copy(update={"share_layers": True, "layers": 5})
    once = SMALL.model_copy(update={"layers": 1})
    configs = [DecoderOnlyConfig(vocab=17, width=WIDTH, decoder=stack) for stack in (shared, once)]
    many, one = (create(config).eval() for config in configs)
    assert counted(many) == counted(one)
    one.load_state_dict(many.state_dict())
    text = torch.randint(0, 17, (BATCH, LENGTH))
    assert not torch.allclose(many(text), one(text))
    cache = many.new_cache(LENGTH)
    steps = [many(text[:, [step]], cache=cache) for step in range(LENGTH)]
    assert torch.allclose(torch.cat(steps, dim=1), many(text), atol=1e-5)


def test_heads_give_their_shapes_and_an_unknown_one_is_named():
    heads = [
        {"kind": "masked_lm"},
        {"kind": "next_sentence"},
        {"kind": "sequence_classification", "classes": 5},
        {"kind": "token_classification", "classes": 7},
        {"kind": "answer_span"},
        {"kind": "pooler"},
    ]
    config = EncoderOnlyConfig(vocab=17, width=WIDTH, token_types=2, encoder=SMALL, heads=heads)
    model = create(config)
    assert counted(model) == sum(config.parameters().values())
    states = model(torch.randint(0, 17, (BATCH, LENGTH)))
    shapes = {head: tuple(model.predict(head, states).shape) for head in model.heads}
    assert shapes == {
        "masked_lm": (BATCH, LENGTH, 17),
        "next_sentence": (BATCH, 2),
        "sequence_classification": (BATCH, 5),
        "token_classification": (BATCH, LENGTH, 7),
        "answer_span": (BATCH, LENGTH, 2),
        "pooler": (BATCH, WIDTH),
    }
    with pytest.raises(ValueError, match="this model has no head 'maksed_lm'; it has masked_lm, next_sentence"):
        model.predict("maksed_lm", states)


def test_more_tokens_than_learned_positions_are_refused():
    model = create(
        DecoderOnlyConfig(
            vocab=17,
            width=WIDTH,
            decoder=TransformerConfig.model_validate(
                {**SMALL.model_dump(), "position": {"kind": "learned", "length": 5}}
            ),
        )
    )
    with pytest.raises(ValueError, match="6 tokens, but this model learned 5 positions; shorten the input"):
        model(torch.zeros(1, 6, dtype=torch.long))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_first_weights_leave_nothing_unset(scheme):
    config = EncoderDecoderConfig(vocab=17, width=WIDTH, tie="none", encoder=SMALL, decoder=SMALL)
    torch.manual_seed(0)
    first = create(config, scheme=scheme)
    torch.manual_seed(0)
    second = create(config, scheme=scheme)
    for (name, one), two in zip(first.named_parameters(), second.parameters(), strict=True):
        assert torch.equal(one, two), name  # memory that was never written would differ
        assert torch.isfinite(one).all(), name
        if name.endswith("bias"):
            assert (one == 0).all(), name
        elif one.ndim == 1:
            assert (one == 1).all(), name
        else:
            assert one.std() > 0, name


def test_first_weights_have_the_spread_their_papers_give():
    stack = TransformerConfig(layers=3, attention={"heads": 4}, feedforward={"hidden": 500}, dropout=0.0)
    config = DecoderOnlyConfig(vocab=300, width=200, decoder=stack)
    torch.manual_seed(0)
    models = {scheme: create(config, scheme=scheme) for scheme in SCHEMES}
    spread = {
        scheme: {
            "query": model.decoder.layers[0].attention.query_key_value.part_weights()[0].std().item(),
            "value": model.decoder.layers[0].attention.query_key_value.part_weights()[2].std().item(),
            "output": model.decoder.layers[0].attention.output.weight.std().item(),
            "down": model.decoder.layers[0].feedforward.output.weight.std().item(),
            "table": model.embedding.weight.std().item(),
        }
        for scheme, model in models.items()
    }
    close = lambda value: pytest.approx(value, rel=0.05)  # noqa: E731
    xavier = (2 / 400) ** 0.5
    assert spread["xavier"] == {
        "query": close(xavier),
        "value": close(xavier),
        "output": close(xavier),
        "down": close((2 / 700) ** 0.5),
        "table": close(200**-0.5),
    }
    residual = 0.02 / math.sqrt(6)
    assert spread["gpt2"] == {
        "query": close(0.02),
        "value": close(0.02),
        "output": close(residual),
        "down": close(residual),
        "table": close(0.02),
    }
    assert spread["bert"]["query"] == pytest.approx(0.0176, rel=0.05)  # 0.02, cut at two deviations
    assert spread["t5"] == {
        "query": close((200 * 50) ** -0.5),
        "value": close(200**-0.5),
        "output": close(200**-0.5),
        "down": close(500**-0.5),
        "table": close(1.0),
    }


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_a_model_of_64_layers_is_laid_out_without_memory(placement):
    stack = TransformerConfig(layers=64, placement=placement, attention={"heads": 64}, feedforward={"hidden": 65536})
    config = EncoderDecoderConfig(vocab=250000, width=16384, encoder=stack, decoder=stack)
    model = layout(config)
    assert all(parameter.is_meta for parameter in model.parameters())
    assert not list(model.buffers())
    assert counted(model) == sum(config.parameters().values()) > 400e9


def test_each_layer_may_have_a_window_of_its_own():
    config = TransformerConfig.model_validate({**SMALL.model_dump(), "attention": {"heads": 2, "window": [2, None]}})
    assert [config.attention.window_of(layer) for layer in range(2)] == [2, None]
    with pytest.raises(ValueError, match="encoder: window lists 1 layers, but there are 2; give one per layer"):
        short = {**config.model_dump(), "attention": {"heads": 2, "window": [3]}}
        EncoderOnlyConfig(vocab=17, width=WIDTH, encoder=short)
    alone = {**config.model_dump(), "layers": 1, "attention": {"heads": 2, "window": [2]}, "position": "none"}
    model = create(EncoderOnlyConfig(vocab=17, width=WIDTH, encoder=alone)).eval()
    wide = create(EncoderOnlyConfig(vocab=17, width=WIDTH, encoder={**alone, "attention": {"heads": 2}})).eval()
    wide.load_state_dict(model.state_dict())
    text = torch.arange(7)[None]
    changed = text.clone()
    changed[0, 0] = 9
    near, far = (model(text) - model(changed)).abs().amax(-1)[0], (wide(text) - wide(changed)).abs().amax(-1)[0]
    assert (near[2:] == 0).all() and near[1] > 0 and (far > 0).all()


class Odd(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.strange = torch.nn.Parameter(torch.empty(3))
        self.register_buffer("count", torch.tensor(7))  # on the meta device its value is lost


def test_a_weight_that_nobody_sets_is_refused(monkeypatch):
    config = EncoderOnlyConfig(vocab=17, width=WIDTH, encoder=SMALL)
    build = type(config).build

    def with_odd(self):
        model = build(self)
        model.odd = Odd()
        return model

    monkeypatch.setattr(type(config), "build", with_odd)
    with pytest.raises(TypeError, match="odd.strange was not initialised; set it in a method `first_weights` of Odd"):
        create(config)
    monkeypatch.setattr(Odd, "first_weights", lambda self: torch.nn.init.ones_(self.strange), raising=False)
    with pytest.raises(TypeError, match="odd.count was not initialised"):
        create(config)
    monkeypatch.setattr(Odd, "first_weights", lambda self: (torch.nn.init.ones_(self.strange), self.count.fill_(7)))
    assert create(config).odd.strange.tolist() == [1, 1, 1]


class SharedConfig(MixConfig):
    """Reformer's way: no queries of their own."""

    projections = ("value", "key")

    def build(self, shape):
        return Noting(shape.scale, shape.dropout)


class GlobalConfig(MixConfig):
    """Longformer's way: a second set of projections for tokens that see all."""

    projections = ("query", "key", "value", "query_global", "key_global")

    def build(self, shape):
        return Noting(shape.scale, shape.dropout)


class Noting(Reference):
    def forward(self, query, key, value, *, sight, cache=None, others=()):
        self.seen = (query, key, value, *others)
        return super().forward(query, key, value, sight=sight, cache=cache)


def test_a_mix_may_have_projections_of_its_own():
    config = MultiHeadConfig(heads=4, kv_heads=2, head_width=3, mix=GlobalConfig())
    assert config.parts(WIDTH) == (12, 6, 6, 12, 6)
    attention = SelfAttention(config, WIDTH, config.shape(WIDTH))
    assert sum(p.numel() for p in attention.parameters()) == config.parameters(WIDTH)
    x = torch.randn(2, 5, WIDTH)
    assert attention(x, sight=Sight(Mask())).shape == x.shape
    parts = [part.unflatten(-1, (-1, 3)).transpose(1, 2) for part in attention.query_key_value(x)]
    assert all(torch.equal(one, other) for one, other in zip(attention.mix.seen, parts, strict=True))
    shared = MultiHeadConfig(heads=2, mix=SharedConfig())
    attention = SelfAttention(shared, WIDTH, shared.shape(WIDTH))
    attention(x, sight=Sight(Mask()))
    query, key, value = attention.mix.seen
    assert torch.equal(query, key) and not torch.equal(key, value)


def test_a_buffer_that_is_in_no_file_is_refused(monkeypatch):
    config = EncoderOnlyConfig(vocab=17, width=WIDTH, encoder=SMALL)
    build = type(config).build

    def with_buffer(self):
        model = build(self)
        model.register_buffer("waves", torch.zeros(3), persistent=False)
        return model

    monkeypatch.setattr(type(config), "build", with_buffer)
    with pytest.raises(TypeError, match="the buffer waves is not persistent, so it would be lost"):
        create(config)


def test_positions_that_were_never_learned_are_refused_however_they_are_counted():
    learned = {**SMALL.model_dump(), "position": {"kind": "learned", "length": 5}}
    model = create(DecoderOnlyConfig(vocab=17, width=WIDTH, decoder=learned))
    text = torch.zeros(1, 8, dtype=torch.long)
    assert model(text, segments=torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1]])).shape == (1, 8, 17)
    with pytest.raises(ValueError, match="8 tokens, but this model learned 5 positions"):
        model(text, segments=torch.zeros(1, 8, dtype=torch.long))
    with pytest.raises(ValueError, match="9 tokens, but this model learned 5 positions"):
        model(text, positions=torch.arange(1, 9)[None])


def test_a_stack_may_say_how_long_its_texts_get():
    stack = {**SMALL.model_dump(), "length": 6}
    config = DecoderOnlyConfig(vocab=17, width=WIDTH, decoder=stack)
    assert config.limits() == {"decoder": 6} and config.decoder.head_shapes(config.shape)[0].length == 6
    with pytest.raises(ValueError, match="7 tokens, but this model is limited to 6 positions; shorten the input"):
        create(config)(torch.zeros(1, 7, dtype=torch.long))
