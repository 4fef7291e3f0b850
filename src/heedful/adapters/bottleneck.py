"""Small networks between the layers.      Houlsby et al. 2019; Pfeiffer et al. 2021; He et al. 2022

    a(h) = scale U f(D h),      D: width -> width / reduction, U = 0 before training

with h the output of a sub-layer on input x, before it is added to the residual stream:

    houlsby    h + a(h)           after attention and after the network
    pfeiffer   h + a(norm(x + h)) after the network; a pre-norm layer has no norm there: h + a(x + h)
    parallel   h + a(x)           beside the network; in a pre-norm layer: a(norm(x)), as in He et al.'s own code
                                  (the library of AdapterHub has a(x) there too)
"""

from collections.abc import Callable
from typing import Literal, cast

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from heedful.adapters import Adapted, AdapterConfig
from heedful.config import Size
from heedful.model.architecture import Model
from heedful.model.feedforward import FUNCTIONS
from heedful.model.residual import Residual, normed
from heedful.model.surgery import adopted, replace_modules

Style = Literal["houlsby", "pfeiffer", "parallel"]
AFTER = {"houlsby": ("attention_residual", "feedforward_residual"), "pfeiffer": ("feedforward_residual",),
         "parallel": ("feedforward_residual",)}  # fmt: skip


class BottleneckConfig(AdapterConfig):
    """`cross`: also after attention to a source."""

    style: Style = "pfeiffer"
    reduction: Size = 16
    activation: Literal["relu", "gelu", "silu"] = "relu"
    scale: float = Field(1.0, gt=0)
    cross: bool = False

    def install(self, model: Model) -> set[str]:
        places = (*AFTER[self.style], *(("cross_residual",) if self.cross else ()))

        def change(name: str, module: nn.Module) -> nn.Module | None:
            if type(module) is not Residual or name.rpartition(".")[2] not in places:
                return None
            found = adopted(module, BottleneckResidual)
            found.style = self.style
            found.bottleneck = Bottleneck(module.norm, self)
            return found

        if not replace_modules(model, change):
            raise ValueError("adapter bottleneck: this model has no residual sub-layers; choose lora")
        return {name for name, _ in model.named_parameters() if ".bottleneck." in name}


class Bottleneck(nn.Module):
    def __init__(self, norm: nn.Module, config: BottleneckConfig) -> None:
        super().__init__()
        like = cast(Tensor, norm.weight).detach()
        width = len(like)
        inner = max(1, width // config.reduction)
        self.function: Callable[[Tensor], Tensor] = FUNCTIONS[config.activation]
        self.scale = config.scale
        self.down = nn.Linear(width, inner, device=like.device)
        self.up = nn.Linear(inner, width, device=like.device)
        for parameter in (self.up.weight, self.up.bias, self.down.bias):
            nn.init.zeros_(parameter)
        nn.init.uniform_(self.down.weight, -(width**-0.5), width**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * F.linear(self.function(self.down(x)), self.up.weight, self.up.bias)


class BottleneckResidual(Adapted, Residual):
    style: Style
    bottleneck: Bottleneck

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        if not self.active:
            return super().forward(x, sublayer)
        entered = self.entered(x)
        h = self.dropout(sublayer(entered))
        if self.style == "houlsby":
            h = h + self.bottleneck(h)
        elif self.style == "parallel":
            h = h + self.bottleneck(entered)
        else:
            h = h + self.bottleneck(x + h if self.placement == "pre" else normed(x + h, self.norm))
        return x + h if self.placement == "pre" else normed(x + h, self.norm)
