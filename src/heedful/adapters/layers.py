"""Only the last layers of the last stack are trained, as they are."""

from torch import nn

from heedful.adapters import AdapterConfig
from heedful.config import Size
from heedful.model.architecture import Model
from heedful.model.stack import Stack


class LayersConfig(AdapterConfig):
    """`last`: how many. The folder holds the trained layers themselves: they take the place of the base's."""

    last: Size = 1

    @property
    def merges(self) -> bool:
        return True

    def install(self, model: Model) -> set[str]:
        name, stack = [(name, one) for name, one in model.named_modules() if isinstance(one, Stack)][-1]
        layers = getattr(stack, "layers", None)
        if not isinstance(layers, nn.ModuleList):
            raise ValueError("adapter layers: this model has no layers of their own; choose lora")
        if self.last > len(layers):
            raise ValueError(f"adapter.last is {self.last}, but {name} has {len(layers)} layers")
        chosen = range(len(layers) - self.last, len(layers))
        names = {f"{name}.layers.{index}.{own}" for index in chosen for own, _ in layers[index].named_parameters()}
        return names & {own for own, _ in model.named_parameters()}

    def merge(self, model: Model) -> None:
        """Nothing to fold."""
