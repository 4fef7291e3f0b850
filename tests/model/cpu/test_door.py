"""Every field of every config that has a kernel is done by it or refused with a reason; nothing is passed over."""

import pytest
import torch
from torch import nn

from heedful.model.architecture.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from heedful.model.attention.softmax import Softmax, SoftmaxConfig
from heedful.model.cpu import door
from heedful.model.cpu.decoding import lower
from heedful.model.cpu.kernels import NATIVE
from heedful.model.cpu.plan import Reason
from heedful.model.feedforward import FeedForward, FeedForwardConfig
from heedful.model.heads import VocabularyConfig
from heedful.model.input.tokens import Tokens, TokensConfig
from heedful.model.layer import Layer
from heedful.model.linear import FusedLinear, Linear
from heedful.model.multihead import CrossAttention, MultiHeadConfig, SelfAttention
from heedful.model.norm import NormConfig
from heedful.model.position.learned import Learned, LearnedConfig
from heedful.model.position.sinusoidal import Sinusoidal, SinusoidalConfig
from heedful.model.residual import Residual
from heedful.model.stack.transformer import Transformer, TransformerConfig
from tests.model.cpu.both import STACK, randomised, steppers, write

pytestmark = pytest.mark.skipif(NATIVE is None, reason="no kernels were compiled")

STEPS = "a kernel for steps only"
# For each field, what to set (`stack` stands for encoder and decoder) and, where it is refused, the reason. A part that
# is left to its modules in a model that is lowered is named in front. A config in place of settings has its own entry.
FIELDS = {
    TransformerConfig: {
        "layers": [({"stack.layers": 3}, None)],
        "attention": MultiHeadConfig,
        "cross": [({"decoder.cross": {"heads": 1}}, None)],
        "feedforward": FeedForwardConfig,
        "norm": NormConfig,
        "placement": [({"stack.placement": "pre"}, None)],
        "position": [
            ({"stack.position": {"kind": "none"}}, None),
            ({"decoder.position": {"kind": "rotary"}}, None),
            ({"decoder.position": {"kind": "relative_bias"}}, None),
            ({"decoder.position": {"kind": "alibi"}}, None),
            ({"stack.position": {"kind": "rotary"}}, f"encoder: encoder.position: rotated queries and keys: {STEPS}"),
            ({"encoder.position": {"kind": "alibi"}}, f"encoder: encoder.position: terms added to the scores: {STEPS}"),
            ({"decoder.position": {"kind": "relative"}}, "decoder.position: relative: no kernel yet"),
        ],
        "dropout": [({"stack.dropout": 0.5}, None)],
        "embedding_norm": [({"stack.embedding_norm": True}, None)],
        "share_layers": [({"stack.share_layers": True}, None)],
        "length": [({"stack.length": 64}, None)],
    },
    MultiHeadConfig: {
        "heads": [
            ({"stack.attention.heads": 1}, None),
            ({"stack.attention.heads": 4}, "decoder.layers.0.attention: head 4 is not a multiple of 8"),
        ],
        "kv_heads": [
            ({"decoder.attention.kv_heads": 1, "decoder.cross": {"heads": 2}}, None),
            (
                {"encoder.attention.kv_heads": 1},
                f"encoder: encoder.layers.0.attention: grouped heads (2 share 1): {STEPS}",
            ),
            ({"stack.attention.kv_heads": 1}, "decoder.layers.0.cross: grouped heads (2 share 1): no kernel yet"),
        ],
        "head_width": [
            ({"decoder.attention.head_width": 24}, None),
            (
                {"encoder.attention.head_width": 16},
                f"encoder: encoder.layers.0.attention: 2 heads of 16 do not add up to the width 16: {STEPS}",
            ),
            ({"stack.attention.head_width": 16, "width": 32}, None),
        ],
        "bias": [({"stack.attention.bias": False}, None)],
        "output_bias": [({"stack.attention.output_bias": False}, None)],
        "dropout": [({"stack.attention.dropout": 0.5}, None)],
        "window": [
            ({"stack.attention.window": 3}, f"encoder: encoder.layers.0.attention: window 3: {STEPS}"),
            ({"decoder.attention.window": [None, 2]}, None),
        ],
        "scaled": [({"stack.attention.scaled": False}, None)],
        "mix": [({"stack.attention.mix": "reference"}, "decoder.layers.0.attention.mix: reference: no kernel yet")],
    },
    FeedForwardConfig: {
        "hidden": [({"stack.feedforward.hidden": 23}, None)],
        "activation": [
            ({"stack.feedforward.activation": name}, None)
            for name in ("gelu", "gelu_tanh", "silu", "reglu", "geglu", "geglu_tanh", "swiglu")
        ],
        "bias": [({"stack.feedforward.bias": False}, None)],
        "dropout": [({"stack.feedforward.dropout": 0.5}, None)],
        "kernel": [
            ({"encoder.feedforward.kernel": 3}, "encoder: encoder.layers.0.feedforward: kernel 3: no kernel yet")
        ],
    },
    NormConfig: {
        "kind": [({"stack.norm.kind": "rms", "stack.placement": "pre"}, None)],
        "eps": [({"stack.norm.eps": 0.3}, None)],
    },
    EncoderDecoderConfig: {
        "width": [({"width": 32}, None)],
        "vocab": [({"vocab": 53}, None)],
        "source_vocab": [({"source_vocab": 60, "tie": "output"}, None)],
        "tie": [({"tie": tie}, None) for tie in ("output", "inputs", "none")],
        "embedding": TokensConfig,
        "target_embedding": [({"tie": "none", "target_embedding": {"scale": False}}, None)],
        "encoder": TransformerConfig,
        "decoder": TransformerConfig,
        "head": VocabularyConfig,
        "heads": [({"heads": [{"kind": "reward"}]}, None)],
    },
    TokensConfig: {
        "width": [({"embedding.width": 8}, "decoder.lift: Linear in its place: no kernel yet")],
        "scale": [({"embedding.scale": False}, None)],
    },
    VocabularyConfig: {
        "kind": [],  # there is but one
        "bias": [({"head.bias": True}, None)],
        "scale": [({"head.scale": True}, None)],
        "wide": [({"head.wide": True, "tie": "inputs"}, None)],
    },
    SinusoidalConfig: {
        "base": [({"stack.position.kind": "sinusoidal", "stack.position.base": 100.0}, None)],
        "layout": [({"stack.position.kind": "sinusoidal", "stack.position.layout": "halves"}, None)],
        "closed": [({"stack.position.kind": "sinusoidal", "stack.position.closed": True}, None)],
        "offset": [({"stack.position.kind": "sinusoidal", "stack.position.offset": 2}, None)],
    },
    LearnedConfig: {
        "length": [({"stack.position.kind": "learned", "stack.position.length": 13}, None)],
        "offset": [({"stack.position.kind": "learned", "stack.position.offset": 2}, None)],
    },
    SoftmaxConfig: {},
}
# What gives a plan, and the config it is built from.
LOWERED = {
    Transformer: TransformerConfig, SelfAttention: MultiHeadConfig, CrossAttention: MultiHeadConfig,
    FeedForward: FeedForwardConfig, EncoderDecoder: EncoderDecoderConfig, Tokens: TokensConfig,
    Sinusoidal: SinusoidalConfig, Learned: LearnedConfig, Softmax: SoftmaxConfig,
}  # fmt: skip
CASES = [
    pytest.param(settings, reason, id=f"{config.__name__}.{field}-{index}")
    for config, fields in FIELDS.items()
    for field, tried in fields.items()
    if isinstance(tried, list)
    for index, (settings, reason) in enumerate(tried)
]


def configured(settings):
    data = {"vocab": 50, "width": 16, "encoder": STACK, "decoder": STACK}
    for path, value in settings.items():
        for name in ("encoder", "decoder") if path.startswith("stack.") else (None,):
            data = changed(data, path.replace("stack", name).split(".") if name else path.split("."), value)
    return EncoderDecoderConfig(**data)


def changed(data, path, value):
    return {**data, path[0]: changed(data.get(path[0], {}), path[1:], value)} if path else value


@pytest.mark.parametrize("config", FIELDS, ids=lambda config: config.__name__)
def test_every_field_is_done_or_refused(config):
    assert set(config.model_fields) == set(FIELDS[config])
    assert all(one in FIELDS for one in FIELDS[config].values() if isinstance(one, type))


def test_the_table_covers_every_part_that_has_a_plan():
    with_plans = {type(module) for module in configured({}).build().modules() if "plan" in vars(type(module))}
    without_config = {Layer, Residual, Linear, FusedLinear}  # they have fields of the configs above
    assert {kind for kind in with_plans if kind not in LOWERED} - without_config <= {
        type(configured({}).build().decoder.dropout), type(configured({}).build().head)
    }  # fmt: skip
    assert set(LOWERED.values()) <= set(FIELDS)


@torch.inference_mode()
@pytest.mark.parametrize(("settings", "reason"), CASES)
def test_a_field_is_done_or_refused(settings, reason):
    model = randomised(configured(settings).build())
    lowered = lower(model)
    if reason is None:
        assert lowered and lowered.encoder_reason is None and lowered.head_reason is None
    elif not lowered:
        assert str(lowered) == reason
        return
    else:  # a part is left to its modules
        part, _, text = reason.partition(": ")
        assert str(getattr(lowered, f"{part}_reason")) == text
    write(*steppers(model), 2, error=5e-5)


@pytest.mark.parametrize("settings", [{}, {"stack.share_layers": True, "tie": "none"}])
def test_the_plan_computes_with_every_parameter(settings):
    model = configured(settings).build()
    used = {id(tensor) for tensor in door.plan_of(model).tensors()}
    assert used == {id(parameter) for parameter in model.parameters()}


SMALL = {"stack.layers": 1}


def paths():
    """Of all parts that give a plan, in a model of one layer each."""
    return [name for name, module in configured(SMALL).build().named_modules() if "plan" in vars(type(module))]


@pytest.mark.parametrize("name", paths())
def test_a_new_parameter_on_a_part_is_refused(name):
    model = configured(SMALL).build()
    model.get_submodule(name).extra = nn.Parameter(torch.zeros(3))
    assert reason_of(model, name) == f"{name}.extra: unknown to the kernels".lstrip(".")


@pytest.mark.parametrize("name", paths())
def test_a_hook_on_a_part_is_refused(name):
    model = configured(SMALL).build()
    model.get_submodule(name).register_forward_hook(lambda *_: None)
    assert reason_of(model, name).endswith("it has hooks, which only modules call")


@pytest.mark.parametrize("name", paths())
def test_a_class_with_another_forward_does_not_inherit_the_plan(name):
    model = configured(SMALL).build()
    part = model.get_submodule(name)
    part.__class__ = type("Other", (type(part),), {"forward": lambda self, *_, **__: None})
    assert reason_of(model, name).endswith("Other: no kernel yet")


def reason_of(model, name):
    """Why a part is left to the modules: alone where the encoder or the head can be, else with the whole model."""
    lowered = lower(model)
    if isinstance(lowered, Reason):
        return str(lowered)
    reason = lowered.head_reason if name.startswith("head") else lowered.encoder_reason
    assert reason is not None
    return str(reason)


@pytest.mark.parametrize("name", ["decoder.norm", "decoder.lift", "decoder.embedding_norm", "head.lower"])
def test_a_hook_on_what_does_nothing_is_refused_too(name):
    model = configured({}).build()
    model.get_submodule(name).register_forward_hook(lambda *_: None)
    assert reason_of(model, name) == f"{name}: it has hooks, which only modules call"


def test_a_forward_of_one_object_alone_is_refused():
    model = configured({}).build()
    model.decoder.layers[0].feedforward.forward = lambda x, mask: x
    assert str(lower(model)) == "decoder.layers.0.feedforward: FeedForward: no kernel yet"


def test_a_buffer_and_a_new_part_are_refused():
    model = configured({}).build()
    model.decoder.register_buffer("steps", torch.zeros(2))
    assert str(lower(model)) == "decoder.steps: unknown to the kernels"
    model = configured({}).build()
    model.decoder.layers[1].gate = nn.Linear(16, 16)
    assert str(lower(model)) == "decoder.layers.1.gate.weight: unknown to the kernels"


def test_weights_the_kernels_cannot_read_are_refused():
    model = configured({}).build()
    model.decoder.layers[0].cross.to(torch.bfloat16)
    reason = "decoder.layers.0.cross.query.weight: bfloat16 on cpu; the kernels take contiguous float32 on a CPU"
    assert str(lower(model)) == reason
    model = configured({}).build()
    weight = model.decoder.layers[0].attention.output.weight
    weight.data = weight.data.T.contiguous().T
    assert "decoder.layers.0.attention.output.weight: float32 on cpu" in str(lower(model))


@pytest.mark.parametrize(("part", "change", "reason"), [
    ("attention", {"attention.heads": 2}, "layers.1.attention: attention.heads 2, but 1 before"),
    ("cross", {"attention.heads": 2}, "layers.1.cross: cross.heads 2, but 1 before"),
    ("feedforward", {"feedforward.hidden": 32}, "layers.1.feedforward: hidden 32, but 24 before"),
    ("feedforward", {"feedforward.activation": "gelu"}, "layers.1.feedforward: activation gelu, but relu before"),
    ("cross_residual", {"placement": "pre"}, "layers.1.cross_residual: placement pre, but post before"),
    ("feedforward_residual", {"norm.kind": "rms"}, "layers.1.feedforward_residual.norm: norm rms, but layer before"),
    ("attention_residual", {"norm.eps": 0.1}, "layers.1.attention_residual.norm: eps 0.1, but 1e-05 before"),
])  # fmt: skip
def test_layers_that_differ_are_refused(part, change, reason):
    """Heads with `scaled: false` have one scale however many there are, so it does not tell them apart."""
    unscaled = {"stack.attention.scaled": False, "stack.attention.heads": 1}
    model = configured(unscaled).build()
    other = configured({**unscaled, **{f"stack.{name}": value for name, value in change.items()}}).build()
    setattr(model.decoder.layers[1], part, getattr(other.decoder.layers[1], part))
    assert str(lower(model)) == f"decoder.{reason}: layers that differ have no kernel yet"


def test_a_reason_is_false_and_says_where():
    reason = Reason("rotary: no kernel yet")
    assert not reason and str(reason.at("position").at("decoder")) == "decoder.position: rotary: no kernel yet"


def test_a_model_that_was_changed_is_not_laid_out_again():
    model = configured({}).build()
    lowered = lower(model)
    model.decoder.layers[0].feedforward.function = torch.sin
    lowered.refresh()  # nothing has changed that it looks at
    with torch.no_grad():
        model.embedding.weight += 1
    with pytest.raises(ValueError, match="the model has changed since it was lowered: decoder.layers.0.feedforward"):
        lowered.refresh()
