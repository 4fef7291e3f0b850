"""Small models of each architecture, with weights large enough to matter, and adapters in all their forms."""

import torch

from heedful.adapters import AdapterConfig, install
from heedful.model.architecture.decoder_only import DecoderOnlyConfig
from heedful.model.architecture.encoder_decoder import EncoderDecoderConfig
from heedful.model.architecture.encoder_only import EncoderOnlyConfig
from heedful.model.create import create
from heedful.model.stack.transformer import TransformerConfig

VOCAB, SOURCE, TARGET, BATCH = 23, 7, 11, 3
SIZES = {"primes": (28, 4, 2, 6, 13), "kernels": (64, 4, 4, 16, 48)}  # width, heads, kv_heads, head, hidden
ARCHITECTURES = ("encoder_decoder", "decoder_only", "encoder_only")
FORMS = {
    "lora": {"kind": "lora", "rank": 3},
    "lora all": {"kind": "lora", "rank": 5, "targets": ["all"], "root": True},
    "lora magnitude": {"kind": "lora", "rank": 3, "targets": ["key", "output"], "magnitude": True},
    "lora embedding": {"kind": "lora", "rank": 3, "targets": ["embedding", "query"]},
    "bias": {"kind": "bias"},
    "layers": {"kind": "layers", "last": 1},
    "houlsby": {"kind": "bottleneck", "style": "houlsby", "reduction": 4},
    "pfeiffer": {"kind": "bottleneck", "style": "pfeiffer", "reduction": 4, "activation": "silu"},
    "parallel": {"kind": "bottleneck", "style": "parallel", "reduction": 4, "scale": 4.0},
    "prefix": {"kind": "prefix", "length": 5},
    "prefix network": {"kind": "prefix", "length": 5, "network": 7, "shift": False},
    "prompt": {"kind": "prompt", "length": 5},
}


def base(architecture, size="primes", *, placement="pre", position="rotary"):
    width, heads, kv_heads, head, hidden = SIZES[size]
    stack = TransformerConfig(
        layers=2,
        attention={"heads": heads, "kv_heads": kv_heads, "head_width": head},
        feedforward={"hidden": hidden, "activation": "swiglu"},
        position=position,
        placement=placement,
        length=4 * TARGET,
        dropout=0.0,
    )
    configs = {
        "encoder_decoder": lambda: EncoderDecoderConfig(vocab=VOCAB, width=width, encoder=stack, decoder=stack),
        "decoder_only": lambda: DecoderOnlyConfig(vocab=VOCAB, width=width, decoder=stack),
        "encoder_only": lambda: EncoderOnlyConfig(vocab=VOCAB, width=width, encoder=stack),
    }
    torch.manual_seed(3)
    model = create(configs[architecture]())
    return shaken(model, list(dict(model.named_parameters()))).eval()


@torch.no_grad()
def shaken(model, names):
    """The model with larger random numbers added to these parameters."""
    torch.manual_seed(5)
    for name, parameter in model.named_parameters():
        if name in names:
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def adapted(form, architecture, size="primes", *, trained=True, **options):
    model = base(architecture, size, **options)
    config = AdapterConfig.model_validate(FORMS[form])
    names = install(config, model)
    return (shaken(model, names) if trained else model).eval(), config, names


def run(model, architecture, *, rows=BATCH, target_valid=None, source_valid=None):
    """The model's output for the same random tokens."""
    torch.manual_seed(7)
    source, target = torch.randint(3, VOCAB, (rows, SOURCE)), torch.randint(3, VOCAB, (rows, TARGET))
    if architecture == "encoder_decoder":
        return model(source, target, source_valid=source_valid)
    return model(target, valid=target_valid)
