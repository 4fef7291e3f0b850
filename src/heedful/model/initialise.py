"""Weight initialisation, separate from building a model.

The schemes handle norms, biases, linear maps and tables. A part with anything else (random features, convolutions,
gates) has a method `first_weights()` that sets its own parameters and buffers, called after the scheme.
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from heedful.model.feedforward import FeedForward
from heedful.model.input.tokens import Tokens
from heedful.model.linear import FusedLinear
from heedful.model.multihead import CrossAttention, SelfAttention

Scheme = Literal["xavier", "gpt2", "bert", "t5"]


@torch.no_grad()
def initialise(model: nn.Module, scheme: Scheme) -> None:
    """Norms to one, biases to zero, and every matrix by the scheme."""
    for module in model.modules():
        if isinstance(module, nn.LayerNorm | nn.RMSNorm) and module.weight is not None:
            nn.init.ones_(module.weight)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
    SCHEMES[scheme](model)
    for module in model.modules():
        own = getattr(module, "first_weights", None)
        if own is not None:
            own()


def _xavier(model: nn.Module) -> None:
    """U(-a, a), a = sqrt(6 / (in + out)), query, key, value and gate separately.      Glorot and Bengio 2010

    Tables: N(0, 1/width), so that an embedding times sqrt(width) has unit variance, as in the paper's code.
    """
    for linear in _linears(model):
        for weight in _parts(linear):
            nn.init.xavier_uniform_(weight)
    for table in _tables(model):
        nn.init.normal_(table, std=table.shape[-1] ** -0.5)


def _bert(model: nn.Module) -> None:
    """N(0, 0.02), truncated at two standard deviations.      Devlin et al. 2019, as in their code"""
    for weight in [linear.weight for linear in _linears(model)] + _tables(model):
        nn.init.trunc_normal_(weight, std=0.02, a=-0.04, b=0.04)


def _gpt2(model: nn.Module) -> None:
    """N(0, 0.02); weights that write to the residual stream are divided by the root of the number of such layers.

    Radford et al. 2019, section 2.3
    """
    for weight in [linear.weight for linear in _linears(model)] + _tables(model):
        nn.init.normal_(weight, std=0.02)
    blocks = [module for module in model.modules() if isinstance(module, SelfAttention | CrossAttention | FeedForward)]
    for block in blocks:
        nn.init.normal_(block.output.weight, std=0.02 / math.sqrt(len(blocks)))


def _t5(model: nn.Module) -> None:
    """N(0, 1/inputs); queries also divided by sqrt(head), since T5 does not scale the scores; tables N(0, 1).

    Raffel et al. 2020, as in the Mesh TensorFlow code
    """
    for linear in _linears(model):
        nn.init.normal_(linear.weight, std=linear.in_features**-0.5)
    for table in _tables(model):
        nn.init.normal_(table, std=1.0)
    for name, parameter in model.named_parameters():
        if name.endswith("position.weight"):
            nn.init.normal_(parameter, std=_width(model) ** -0.5)
    for module in model.modules():
        if isinstance(module, SelfAttention):
            for name, weight in zip(module.names, module.query_key_value.part_weights(), strict=True):
                if name.startswith("query"):
                    weight.mul_(module.head**-0.5)
        elif isinstance(module, CrossAttention):
            module.query.weight.mul_(module.head**-0.5)


SCHEMES: dict[str, Callable[[nn.Module], None]] = {"xavier": _xavier, "bert": _bert, "gpt2": _gpt2, "t5": _t5}


def _linears(model: nn.Module) -> list[nn.Linear]:
    return [module for module in model.modules() if isinstance(module, nn.Linear)]


def _parts(linear: nn.Linear) -> list[Tensor]:
    return linear.part_weights() if isinstance(linear, FusedLinear) else [linear.weight]


def _tables(model: nn.Module) -> list[Tensor]:
    """Every matrix that is not a linear map's: embeddings, positions, token types, an untied output matrix."""
    linear = {id(linear.weight) for linear in _linears(model)}
    return [parameter for parameter in model.parameters() if parameter.ndim == 2 and id(parameter) not in linear]


def _width(model: nn.Module) -> int:
    return next(module.weight.shape[-1] for module in model.modules() if isinstance(module, Tokens))
